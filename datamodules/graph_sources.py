"""Where training graphs come from: parts that a configuration composes by class name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np

from datamodules.loader import BatchSource, BatchT, EvaluationOrder, TrainingOrder
from datamodules.random_loops import RandomLoops
from datamodules.tasks.graph import Graphs, IntArray
from datamodules.tasks.graph_generators import GraphRecipe
from datamodules.tasks.graph_splits import SPLITS, generated, published
from datamodules.tasks.graph_stream import Stage, draw_batch, draw_graphs, growing_graphs

MadeT_co = TypeVar("MadeT_co", covariant=True)


class GraphRenderer(Protocol[MadeT_co]):
    """Turns graphs into batches: of prompts and labels for looped models, of text for ordinary ones."""

    def batch(
        self,
        graphs: Graphs,
        counts: int | IntArray | None = None,
        *,
        instance: IntArray | None = None,
        facts: dict[str, IntArray] | None = None,
        loops: int | None = None,
    ) -> MadeT_co:
        """Build a batch of B graphs; see `GraphBatcher.batch` for the arguments."""


class GraphRows(BatchSource[BatchT]):
    """Batches of stored graphs in a given order.

    Args:
        graphs: the examples; an example's instance id is its row.
        batchers: one per wording; a batch takes its wording in turn, by epoch and position.
        order: which rows make which batch.
        loops: draws the number of loops to label from a batch's graphs, the epoch and the position; None labels an
            example's own steps.
    """

    def __init__(
        self,
        graphs: Graphs,
        batchers: Sequence[GraphRenderer[BatchT]],
        order: TrainingOrder | EvaluationOrder,
        loops: Callable[[Graphs, int, int], int] | None = None,
    ) -> None:
        self.graphs = graphs
        self._batchers = batchers
        self._order = order
        self._loops = loops
        self._facts = graphs.facts()

    def __len__(self) -> int:
        return len(self._order)

    def batch(self, epoch: int, position: int) -> BatchT:
        """Make a batch."""
        rows = self._order.rows(epoch, position)
        batcher = self._batchers[(epoch + position) % len(self._batchers)]
        facts = {name: values[rows] for name, values in self._facts.items()}
        graphs = self.graphs[rows]
        loops = None if self._loops is None else self._loops(graphs, epoch, position)
        return batcher.batch(graphs, instance=rows, facts=facts, loops=loops)


class TrainSource(ABC):
    """Where training graphs come from.

    Attributes:
        letters: letters of a node name.
        loops: random loop depth; None trains each example on its own steps.
        stages: curriculum stages, empty where there are none.
        stage: position of the current stage.
    """

    letters: int = 1
    loops: RandomLoops | None = None
    stages: Sequence[Stage] = ()
    stage: int = 0

    @abstractmethod
    def counts(self) -> list[int]:
        """Return the requested counts that occur, in order."""

    @abstractmethod
    def shares(self) -> dict[int, float]:
        """Return the share of the examples at each requested count (of the current stage, where there are stages)."""

    @abstractmethod
    def sample(self) -> list[Graphs]:
        """Return a few graphs of every size to come, for the set-up check of the prompts."""

    @abstractmethod
    def open(self, batchers: Sequence[GraphRenderer[BatchT]], seed: int, rank: int, world: int) -> BatchSource[BatchT]:
        """Return the batches of this rank."""


class StoredSplit(TrainSource):
    """A finite training split, shuffled anew in every epoch.

    Args:
        batch_size: examples of a batch on one rank.
        group_by_depth: every batch holds examples of one depth only.
        loops: random loop depth; None trains each example on its own steps.

    Raises:
        ValueError: a batch size below 1.
    """

    def __init__(self, batch_size: int, group_by_depth: bool, loops: RandomLoops | None = None) -> None:
        if batch_size < 1:
            raise ValueError(f"train.batch_size: got {batch_size}; it must be 1 or more")
        self.batch_size = batch_size
        self.group_by_depth = group_by_depth
        self.loops = loops
        self._shares: dict[int, float] | None = None

    @abstractmethod
    def graphs(self) -> Graphs:
        """Make the examples."""

    def counts(self) -> list[int]:
        """Return the depths of the split."""
        return list(self.shares())

    def shares(self) -> dict[int, float]:
        """Return the share of the examples at each depth, in order of depth."""
        if self._shares is None:
            depths, examples = np.unique(self.graphs().depth, return_counts=True)
            self._shares = dict(zip(depths.tolist(), (examples / examples.sum()).tolist(), strict=True))
        return self._shares

    def sample(self) -> list[Graphs]:
        """Return the first graphs of the split."""
        return [self.graphs()[:16]]

    def open(self, batchers: Sequence[GraphRenderer[BatchT]], seed: int, rank: int, world: int) -> BatchSource[BatchT]:
        """Return the batches of this rank."""
        graphs = self.graphs()
        groups = graphs.depth if self.group_by_depth else None
        order = TrainingOrder(len(graphs), self.batch_size, seed, groups=groups, rank=rank, world=world)
        return GraphRows(graphs, batchers, order, self._drawing(seed, int(graphs.depth.max())))

    def _drawing(self, seed: int, largest: int) -> Callable[[Graphs, int, int], int] | None:
        """Return what draws the loops of a batch; `largest` is the largest depth of the split."""
        loops = self.loops
        if loops is None:
            return None

        def draw(batch: Graphs, epoch: int, position: int) -> int:
            # Where depths are mixed, the split's largest is the mean of every batch: all ranks then draw the same.
            count = int(batch.depth[0]) if self.group_by_depth else largest
            return loops.draw(count, (seed, epoch, position))

        return draw


class PublishedSplit(StoredSplit):
    """A published training split.

    Args:
        data: "path-6", "path-12" or "cyclic".
        batch_size: examples of a batch on one rank.
        group_by_depth: every batch holds examples of one depth only.
        loops: random loop depth; None trains each example on its own steps.

    Raises:
        ValueError: unknown data or a batch size below 1.
    """

    def __init__(
        self,
        data: str = "cyclic",
        batch_size: int = 4,
        group_by_depth: bool = True,
        loops: RandomLoops | None = None,
    ) -> None:
        super().__init__(batch_size, group_by_depth, loops)
        if data not in SPLITS:
            raise ValueError(f"train.data: got {data!r}; use one of {', '.join(SPLITS)}")
        self.data = data

    def graphs(self) -> Graphs:
        """Make the examples, once per process."""
        return published(self.data, "train")


class GeneratedSplit(StoredSplit):
    """A training split drawn by a recipe of one's own: other kinds, sizes, names or an absorbing end.

    Args:
        recipe: how to draw the graphs.
        size: number of graphs.
        batch_size: examples of a batch on one rank.
        group_by_depth: every batch holds examples of one depth only.
        loops: random loop depth; None trains each example on its own steps.

    Raises:
        ValueError: a size or batch size below 1.
    """

    def __init__(
        self,
        recipe: GraphRecipe,
        size: int,
        batch_size: int = 4,
        group_by_depth: bool = True,
        loops: RandomLoops | None = None,
    ) -> None:
        super().__init__(batch_size, group_by_depth, loops)
        if size < 1:
            raise ValueError(f"train.size: got {size}; it must be 1 or more")
        self.recipe = recipe
        self.size = size
        self.letters = recipe.letters

    def graphs(self) -> Graphs:
        """Make the examples, once per process."""
        return generated(self.recipe, self.size)


class GraphStream(TrainSource):
    """Unlimited graphs drawn on the fly, in stages that someone (a callback) advances.

    Args:
        stages: the curriculum; default `growing_graphs()`.
        batches_per_epoch: length of what counts as an epoch; every epoch has other graphs.
        letters: letters of a node name, 1 or 2.
        paths: draw paths, whose requested steps all lead to different nodes, instead of the three cyclic kinds.
        loops: random loop depth; None trains each batch on its own steps.

    Raises:
        ValueError: no stage, a path longer than its nodes allow, or fewer than 1 batch.
    """

    def __init__(
        self,
        stages: list[Stage] | None = None,
        batches_per_epoch: int = 1_000,
        letters: int = 1,
        paths: bool = False,
        loops: RandomLoops | None = None,
    ) -> None:
        if stages is not None and not stages:
            raise ValueError("train.stages: the list is empty; give at least one stage or leave it out")
        if batches_per_epoch < 1:
            raise ValueError(f"train.batches_per_epoch: got {batches_per_epoch}; it must be 1 or more")
        self.stages = growing_graphs() if stages is None else stages
        self.batches_per_epoch = batches_per_epoch
        self.letters = letters
        self.paths = paths
        for stage in self.stages if paths else ():
            if max(stage.depths) >= stage.nodes:
                raise ValueError(
                    f"train.paths: a path over {stage.nodes} nodes has at most {stage.nodes - 1} steps; "
                    f"lower the depths {stage.depths} of that stage"
                )
        self.loops = loops

    def counts(self) -> list[int]:
        """Return the depths of all stages."""
        return sorted({depth for stage in self.stages for depth in stage.depths})

    def shares(self) -> dict[int, float]:
        """Return the share of each depth in the current stage, which draws them equally often."""
        depths = list(self.stages[self.stage].depths)
        return {depth: depths.count(depth) / len(depths) for depth in sorted(set(depths))}

    def sample(self) -> list[Graphs]:
        """Return a few graphs of every number of nodes in the curriculum."""
        sizes = sorted({stage.nodes for stage in self.stages})
        return [draw_graphs(np.random.default_rng(0), 4, nodes, self.letters) for nodes in sizes]

    def open(self, batchers: Sequence[GraphRenderer[BatchT]], seed: int, rank: int, world: int) -> BatchSource[BatchT]:
        """Return this rank's share of the stream."""
        return _OpenStream(self, batchers, seed, rank, world)


class _OpenStream(BatchSource[BatchT]):
    """One rank's share of the stream; it looks up the current stage at every batch.

    All ranks draw the same batch of `world` times the size and take every world-th graph: they are at the same depth,
    and together they do what one process does with that batch size.
    """

    def __init__(
        self, stream: GraphStream, batchers: Sequence[GraphRenderer[BatchT]], seed: int, rank: int, world: int
    ) -> None:
        self._stream, self._batchers, self._seed, self._rank, self._world = stream, batchers, seed, rank, world

    def __len__(self) -> int:
        return self._stream.batches_per_epoch

    def batch(self, epoch: int, position: int) -> BatchT:
        stream = self._stream
        step = epoch * len(self) + position
        key = (self._seed, step, stream.stage)
        stage = stream.stages[stream.stage]
        whole = draw_batch(stage, (*key, 0), stream.letters, self._world, stream.paths)
        loops = None if stream.loops is None else stream.loops.draw(int(whole.depth[0]), key)
        graphs = whole[self._rank :: self._world]
        return self._batchers[step % len(self._batchers)].batch(graphs, facts={"kind": graphs.kind}, loops=loops)
