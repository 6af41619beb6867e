"""What every LightningDataModule over graphs shares: sources, curriculum stages, cohorts of counts, loaders."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from datamodules.graph_evaluation import EvaluationSource, EvaluationSplit
from datamodules.graph_sources import GraphRenderer, PublishedSplit, TrainSource
from datamodules.loader import BatchLoader, BatchSource
from datamodules.staged import StagedDataModule


class GraphSourcesDataModule(StagedDataModule):
    """Loads graphs from configured sources; a subclass says how they are rendered.

    Args:
        train: where training graphs come from; default the published cyclic split.
        validation: what is evaluated during training; default 64 graphs at each of 1-12 of the cyclic data.
        test: what `trainer.test` evaluates; None for nothing.
        seed: order of the training data, or the seed of the stream. Not negative.

    Raises:
        ValueError: the seed is negative, or the evaluation graphs have other node names than the training graphs.
    """

    train_source: TrainSource

    def __init__(
        self,
        train: TrainSource | None = None,
        validation: EvaluationSource | None = None,
        test: EvaluationSource | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if seed < 0:
            raise ValueError(f"seed: got {seed}; use 0 or more")
        self.train_source = PublishedSplit() if train is None else train
        self.validation = EvaluationSplit() if validation is None else validation
        self.test = test
        self.seed = seed
        letters = self.train_source.letters
        for field, source in (("validation", self.validation), ("test", self.test)):
            if source is not None and source.letters != letters:
                raise ValueError(
                    f"{field}: its node names have {source.letters} letters, those of train have {letters}; "
                    "make them equal (GeneratedEvaluation takes a recipe)"
                )

    @abstractmethod
    def train_renderers(self) -> Sequence[GraphRenderer[Any]]:
        """Return what renders the training batches, one per wording, taken in turn."""

    @abstractmethod
    def evaluation_renderer(self, source: EvaluationSource) -> GraphRenderer[Any]:
        """Return what renders the batches of an evaluation source."""

    @property
    def count_shares(self) -> dict[int, float]:
        """Share of the training examples at each requested count (of the current stage, where there are stages)."""
        return self.train_source.shares()

    def validation_counts(self) -> list[int]:
        """Requested counts that occur in validation, in order."""
        return [int(n) for n in np.unique(self.validation.graphs().depth)]

    def train_batches(self, rank: int, world: int) -> BatchSource:
        """Return the training batches of one rank out of `world`."""
        return self.train_source.open(self.train_renderers(), self.seed, rank, world)

    def val_dataloader(self) -> BatchLoader:
        """Return this rank's validation batches."""
        return self._evaluation_loader(self.validation)

    def test_dataloader(self) -> BatchLoader:
        """Return this rank's test batches.

        Raises:
            ValueError: no test split was configured.
        """
        if self.test is None:
            raise ValueError("test: none configured; give data.test, for example EvaluationSplit(split='test')")
        return self._evaluation_loader(self.test)

    def _evaluation_loader(self, source: EvaluationSource) -> BatchLoader:
        return BatchLoader(source.open(self.evaluation_renderer(source), *self.place()), resumes=False)
