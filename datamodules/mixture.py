"""LightningDataModule of several tasks at once: one executor, batches of one task each, taken in turn.

data:
  class_path: datamodules.mixture.MixtureDataModule
  init_args:
    tasks:
      graph: {class_path: datamodules.graph.GraphDataModule, init_args: {train: {class_path: GraphStream}}}
      fsm: {class_path: datamodules.machine.MachineDataModule}

Labels are told apart by their texts: the label set is the union, and each task's label numbers are translated. Fields
are told apart by their task: field `next` of task `fsm` is called `fsm_next`. Every batch has all fields of all tasks,
IGNORE where they are another's, and the fact `task`, the number of its task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from datamodules.batch import IGNORE, Batch
from datamodules.loader import BatchLoader, BatchSource
from datamodules.resumable import ResumableDataModule
from datamodules.tasks.procedure import LabelSet

TASK = "task"
"""Fact that tells a batch's task."""


class MixtureDataModule(ResumableDataModule):
    """Takes batches of several tasks in turn.

    Args:
        tokenizer: the model's tokenizer (the command line links it from the model).
        tasks: the datamodule of each task by name, without its tokenizer.
        weights: batches of each task in a round; one each where left out.
        batches_per_epoch: batches of all tasks that count as an epoch.

    Attributes:
        tasks: the datamodules by name.
        labels: union of the tasks' labels.
        round: names of the tasks in the order of their batches.

    Raises:
        ValueError: no task, one without labels, a weight of an unknown task or below 1, or fewer than 1 batch.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tasks: dict[str, Callable[[PreTrainedTokenizerBase], ResumableDataModule]],
        weights: dict[str, int] | None = None,
        batches_per_epoch: int = 3_000,
    ) -> None:
        super().__init__()
        given = weights or {}
        if not tasks:
            raise ValueError("tasks: give at least one task")
        if unknown := sorted(set(given) - set(tasks)):
            raise ValueError(f"weights: {unknown[0]!r} is no task; use some of {', '.join(tasks)}")
        if any(weight < 1 for weight in given.values()):
            raise ValueError(f"weights: got {given}; each is 1 or more")
        if batches_per_epoch < 1:
            raise ValueError(f"batches_per_epoch: got {batches_per_epoch}; it must be 1 or more")
        self.tasks: dict[str, Any] = {name: make(tokenizer) for name, make in tasks.items()}
        if written := [name for name, task in self.tasks.items() if not hasattr(task, "labels")]:
            kind = type(self.tasks[written[0]]).__name__
            raise ValueError(
                f"tasks.{written[0]}: {kind} has text for an ordinary model; use a looped model's datamodule"
            )
        self.benchmarks = tuple(name for task in self.tasks.values() for name in task.benchmarks)
        self.recipes = {machine: recipe for task in self.tasks.values() for machine, recipe in task.recipes.items()}
        self.batches_per_epoch = batches_per_epoch
        self.round = [name for name in tasks for _ in range(given.get(name, 1))]
        texts = [text for task in self.tasks.values() for text in task.labels.texts]
        names = {text: name for task in self.tasks.values() for name, text in zip(*_pairs(task.labels), strict=True)}
        self.labels = LabelSet(tuple(names[text] for text in dict.fromkeys(texts)), tuple(dict.fromkeys(texts)))
        self._numbers = {
            name: torch.tensor([self.labels.texts.index(text) for text in task.labels.texts])
            for name, task in self.tasks.items()
        }
        self._fields: dict[str, None] = {}

    @property
    def trained_counts(self) -> list[int]:
        """Numbers of steps seen in training of any task, in order."""
        return sorted({count for task in self.tasks.values() for count in task.trained_counts})

    @property
    def cohorts(self) -> dict[str, list[int]]:
        """Validation steps by cohort, over all tasks: trained by some task, held out and beyond."""
        trained = self.trained_counts
        present = sorted({n for task in self.tasks.values() for counts in task.cohorts.values() for n in counts})
        parts = {
            "trained": [n for n in present if n in trained],
            "held_out": [n for n in present if n not in trained and n < trained[-1]],
            "beyond": [n for n in present if n > trained[-1]],
        }
        return {name: counts for name, counts in parts.items() if counts}

    def setup(self, stage: str) -> None:
        """Set the tasks up and learn which fields they have.

        Args:
            stage: Lightning's stage: "fit", "validate", "test" or "predict".
        """
        for name, task in self.tasks.items():
            task.setup(stage)
            self._fields |= {f"{name}_{field}": None for field in task.train_batches(0, 1).batch(0, 0).fields}

    def adapt(self, name: str, batch: Batch) -> Batch:
        """Return a task's batch in the mixture's labels and fields."""
        numbers = self._numbers[name]

        def translate(labels: Tensor) -> Tensor:
            return torch.where(labels == IGNORE, IGNORE, numbers[labels.clamp(min=0)])

        own = {f"{name}_{field}": values for field, values in batch.fields.items()}
        absent = torch.full((len(batch), batch.labels.shape[1] + 1), IGNORE)
        return replace(
            batch,
            labels=translate(batch.labels),
            initial=translate(batch.initial),
            fields={field: own.get(field, absent) for field in self._fields},
            facts={**batch.facts, TASK: torch.full_like(batch.steps, list(self.tasks).index(name))},
        )

    def train_batches(self, rank: int, world: int) -> BatchSource:
        """Return the batches of one rank out of `world`."""
        return _Rounds(self, {name: task.train_batches(rank, world) for name, task in self.tasks.items()})

    def val_dataloader(self) -> BatchLoader:
        """Return this rank's validation batches, task after task."""
        for task in self.tasks.values():
            task.place = self.place  # the trainer knows only the mixture
        return BatchLoader(
            _InTurn(self, {n: task.val_dataloader().source for n, task in self.tasks.items()}), resumes=False
        )

    def transfer_batch_to_device(self, batch: Batch, device: Any, dataloader_idx: int) -> Batch:  # noqa: ARG002
        """Move a batch as a whole."""
        return batch.to(device, non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        """Save the stage of every task and the position in the training data."""
        return {**super().state_dict(), "stages": {name: task.stage for name, task in self._staged().items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go back to the saved stages and position."""
        super().load_state_dict(state_dict)
        for name, task in self._staged().items():
            task.set_stage(state_dict["stages"][name])

    def _staged(self) -> dict[str, Any]:
        return {name: task for name, task in self.tasks.items() if task.stages}


class _Rounds(BatchSource):
    """Training batches: each task's own stream, so many batches of it in every round."""

    def __init__(self, mixture: MixtureDataModule, sources: dict[str, BatchSource]) -> None:
        self._mixture, self._sources = mixture, sources

    def __len__(self) -> int:
        return self._mixture.batches_per_epoch

    def batch(self, epoch: int, position: int) -> Batch:
        order = self._mixture.round
        rounds, turn = divmod(epoch * len(self) + position, len(order))
        name = order[turn]
        step = rounds * order.count(name) + order[:turn].count(name)
        source = self._sources[name]
        return self._mixture.adapt(name, source.batch(*divmod(step, len(source))))


class _InTurn(BatchSource):
    """Validation batches: all of the first task, all of the second, and so on."""

    def __init__(self, mixture: MixtureDataModule, sources: dict[str, BatchSource]) -> None:
        self._mixture = mixture
        self._batches = [(name, source, i) for name, source in sources.items() for i in range(len(source))]

    def __len__(self) -> int:
        return len(self._batches)

    def batch(self, epoch: int, position: int) -> Batch:
        name, source, place = self._batches[position]
        return self._mixture.adapt(name, source.batch(epoch, place))


def _pairs(labels: LabelSet) -> tuple[Sequence[str], Sequence[str]]:
    return labels.names, labels.texts
