"""An exactly resumable loader: batches are a pure function of (epoch, position), and so is what remains of an epoch.

It stands where torch's DataLoader would. It is sized, so Lightning does not prefetch, and it has `state_dict` and
`load_state_dict`, so Lightning saves it inside its loops and restores it before it takes the first batch
(`CombinedLoader._state_dicts`, `FitLoop.setup_data` of lightning 2.6; `datamodules.resumable` covers the checkpoints
from which it does not). It shards by rank itself: Lightning adds samplers to torch's DataLoader only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.integer]
BatchT = TypeVar("BatchT")


class BatchSource(ABC, Generic[BatchT]):
    """Makes any batch of any epoch on demand."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches of an epoch on this rank, the same in every epoch."""

    @abstractmethod
    def batch(self, epoch: int, position: int) -> BatchT:
        """Make batch `position` of `epoch`, the same whenever it is called."""


class BatchLoader(Generic[BatchT]):
    """Iterates over a source and remembers how many batches were consumed.

    An iteration goes on where the state stands and ends with the epoch; the next one opens the next epoch. An epoch cut
    short (`limit_train_batches`) is therefore continued, not begun anew: every example is seen before any is repeated,
    and resuming is exact there too.

    Args:
        source: what makes the batches.
        resumes: True in training. False: each iteration runs epoch 0 from its first batch (evaluation).
    """

    def __init__(self, source: BatchSource[BatchT], *, resumes: bool = True) -> None:
        self.source = source
        self.resumes = resumes
        self._epoch = 0
        self._position = 0

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[BatchT]:
        # A generator: nothing happens before the first next(), since Lightning calls iter() more often than it reads.
        if not self.resumes:
            self._epoch = self._position = 0
        elif self._position >= len(self):
            self._epoch, self._position = self._epoch + 1, 0
        while self._position < len(self):
            batch = self.source.batch(self._epoch, self._position)
            # Counted before it is handed out: Lightning stops by length and never resumes this line after the last one.
            # No prefetching, so whatever was handed out has been consumed when a checkpoint is written.
            self._position += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the number of its batches consumed on each rank."""
        return {"epoch": self._epoch, "position": self._position, "length": len(self)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a state.

        Raises:
            ValueError: the epoch has another number of batches now, so that its position means something else.
        """
        if state["length"] != len(self):
            raise ValueError(
                f"loader state: it was saved in an epoch of {state['length']} batches, this one has {len(self)}; "
                "resume with the same data, batch size and number of processes"
            )
        self._epoch, self._position = state["epoch"], state["position"]


class TrainingOrder:
    """Order of training: a shuffle per epoch, optionally in batches that each hold one group (one depth) only.

    Every example occurs in every epoch; the last batch of a group may be smaller. The ranks share out batches of
    `world * batch_size` examples, so they are at the same depth at every step and together do what one process does
    with that batch size. A batch that does not divide evenly is filled up with its own first examples (at most
    world - 1 of them occur twice).

    Args:
        size: number of examples.
        batch_size: examples of a batch on one rank.
        seed: the order is a pure function of (seed, epoch).
        groups: [size] group of each example, None to mix all of them.
        rank: this process.
        world: number of processes.

    Raises:
        ValueError: no examples, or a batch size below 1.
    """

    def __init__(
        self, size: int, batch_size: int, seed: int, *, groups: Rows | None = None, rank: int = 0, world: int = 1
    ) -> None:
        if size < 1 or batch_size < 1:
            raise ValueError(f"batch_size={batch_size}, {size} examples: both must be 1 or more")
        self._seed, self._batch_size, self._rank, self._world = seed, batch_size * world, rank, world
        labels = np.zeros(size, dtype=np.int64) if groups is None else groups
        self._groups = [np.flatnonzero(labels == group) for group in np.unique(labels)]
        self._batches = sum(math.ceil(len(group) / self._batch_size) for group in self._groups)
        self._epoch_batches = lru_cache(maxsize=1)(self._shuffle)

    def __len__(self) -> int:
        return self._batches

    def rows(self, epoch: int, position: int) -> Rows:
        """Return the examples of a batch of this rank."""
        batch = self._epoch_batches(epoch)[position]
        share = math.ceil(len(batch) / self._world)
        return np.resize(batch, share * self._world)[self._rank :: self._world]

    def _shuffle(self, epoch: int) -> list[Rows]:
        rng = np.random.default_rng((self._seed, epoch))
        batches = []
        for group in self._groups:
            rows = rng.permutation(group)
            batches += [rows[i : i + self._batch_size] for i in range(0, len(rows), self._batch_size)]
        return [batches[i] for i in rng.permutation(len(batches))]


class EvaluationOrder:
    """Order of evaluation: each example exactly once over all ranks, in batches of one group; a rank may be empty.

    Args:
        groups: [size] group of each example (its depth).
        batch_size: examples of a batch on one rank.
        rank: this process.
        world: number of processes.

    Raises:
        ValueError: a batch size below 1.
    """

    def __init__(self, groups: Rows, batch_size: int, *, rank: int = 0, world: int = 1) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size: got {batch_size}; it must be 1 or more")
        mine = np.argsort(groups, kind="stable")[rank::world]
        parts = np.split(mine, np.flatnonzero(np.diff(groups[mine])) + 1)
        self._batches = [part[i : i + batch_size] for part in parts for i in range(0, len(part), batch_size)]

    def __len__(self) -> int:
        return len(self._batches)

    def rows(self, epoch: int, position: int) -> Rows:  # noqa: ARG002
        """Return the examples of a batch of this rank, the same in every epoch."""
        return self._batches[position]
