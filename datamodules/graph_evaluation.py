"""What a graph model is evaluated on during training: parts that a configuration composes by class name."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from datamodules.graph_sources import GraphRenderer, GraphRows
from datamodules.loader import BatchSource, BatchT, EvaluationOrder
from datamodules.tasks.graph import Graphs
from datamodules.tasks.graph_generators import GraphRecipe
from datamodules.tasks.graph_splits import SPLITS, first_per_depth, generated, published


class EvaluationSource(ABC):
    """Stored graphs to evaluate on.

    Args:
        batch_size: examples of a batch on one rank, all of one depth.

    Attributes:
        letters: letters of a node name.

    Raises:
        ValueError: a batch size below 1.
    """

    letters: int = 1

    def __init__(self, batch_size: int) -> None:
        if batch_size < 1:
            raise ValueError(f"validation.batch_size: got {batch_size}; it must be 1 or more")
        self.batch_size = batch_size

    @abstractmethod
    def graphs(self) -> Graphs:
        """Make the examples."""

    def open(self, batcher: GraphRenderer[BatchT], rank: int, world: int) -> BatchSource[BatchT]:
        """Return the batches of this rank: every example once over all ranks."""
        graphs = self.graphs()
        return GraphRows(graphs, [batcher], EvaluationOrder(graphs.depth, self.batch_size, rank=rank, world=world))


class JoinedEvaluation(EvaluationSource):
    """Two sources one after the other, with the batch size of the first.

    Raises:
        ValueError: their node names have different numbers of letters, or both ask for the same count.
    """

    def __init__(self, first: EvaluationSource, second: EvaluationSource) -> None:
        super().__init__(first.batch_size)
        if first.letters != second.letters:
            raise ValueError(
                f"long_validation: its node names have {second.letters} letters, those of validation {first.letters}; "
                "make them equal"
            )
        both = sorted(set(first.graphs().depth.tolist()) & set(second.graphs().depth.tolist()))
        if both:
            raise ValueError(f"long_validation: counts {both} occur in validation too; choose depths it does not have")
        self.letters = first.letters
        self._joined = Graphs.concatenate([first.graphs(), second.graphs()])

    def graphs(self) -> Graphs:
        """Return the examples of both."""
        return self._joined


class EvaluationSplit(EvaluationSource):
    """A published split, or the first examples of each depth of it ("64 at each of 1-12").

    Args:
        data: "path-6", "path-12" or "cyclic".
        split: "validation"; "cyclic" also has "test" and "deep".
        per_depth: first examples of each depth; None for all of the split.
        depths: depths to keep; None for all of them.
        batch_size: examples of a batch on one rank, all of one depth.

    Raises:
        ValueError: unknown data or split, a batch size or per_depth below 1.
    """

    def __init__(
        self,
        data: str = "cyclic",
        split: str = "validation",
        per_depth: int | None = 64,
        depths: list[int] | None = None,
        batch_size: int = 64,
    ) -> None:
        super().__init__(batch_size)
        if data not in SPLITS or split == "train" or split not in SPLITS[data]:
            known = ", ".join(f"{name} {part}" for name in SPLITS for part in SPLITS[name] if part != "train")
            raise ValueError(f"validation: got data {data!r} and split {split!r}; use one of {known}")
        if per_depth is not None and per_depth < 1:
            raise ValueError(f"validation.per_depth: got {per_depth}; use 1 or more, or null for the whole split")
        self.data, self.split, self.per_depth, self.depths = data, split, per_depth, depths

    def graphs(self) -> Graphs:
        """Make the examples.

        Raises:
            ValueError: a depth the split does not have, or fewer examples than asked for.
        """
        graphs = published(self.data, self.split)
        if self.depths is not None:
            missing = sorted(set(self.depths) - set(graphs.depth.tolist()))
            if missing:
                raise ValueError(f"validation.depths: {self.data} {self.split} has no depth {missing}; leave them out")
            graphs = graphs[np.isin(graphs.depth, self.depths)]
        return graphs if self.per_depth is None else first_per_depth(graphs, self.per_depth)


class GeneratedEvaluation(EvaluationSource):
    """Evaluation graphs drawn by a recipe of one's own; give it a seed or split name that training does not have.

    Args:
        recipe: how to draw the graphs.
        size: number of graphs.
        batch_size: examples of a batch on one rank, all of one depth.

    Raises:
        ValueError: a size or batch size below 1.
    """

    def __init__(self, recipe: GraphRecipe, size: int, batch_size: int = 64) -> None:
        super().__init__(batch_size)
        if size < 1:
            raise ValueError(f"validation.size: got {size}; it must be 1 or more")
        self.recipe = recipe
        self.size = size
        self.letters = recipe.letters

    def graphs(self) -> Graphs:
        """Make the examples, once per process."""
        return generated(self.recipe, self.size)
