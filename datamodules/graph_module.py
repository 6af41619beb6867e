"""What every LightningDataModule over graphs shares: sources, curriculum stages, cohorts of counts, loaders."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from datamodules.graph_evaluation import EvaluationSource, EvaluationSplit
from datamodules.graph_sources import GraphRenderer, PublishedSplit, TrainSource
from datamodules.loader import BatchLoader, BatchSource
from datamodules.resumable import ResumableDataModule
from datamodules.tasks.graph_stream import Stage


class GraphSourcesDataModule(ResumableDataModule):
    """Loads graphs from configured sources; a subclass says how they are rendered.

    Args:
        train: where training graphs come from; default the published cyclic split.
        validation: what is evaluated during training; default 64 graphs at each of 1-12 of the cyclic data.
        test: what `trainer.test` evaluates; None for nothing.
        seed: order of the training data, or the seed of the stream. Not negative.

    Raises:
        ValueError: the seed is negative, or the evaluation graphs have other node names than the training graphs.
    """

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
    def stages(self) -> Sequence[Stage]:
        """Stages of the training stream; empty for a published split."""
        return self.train_source.stages

    @property
    def stage(self) -> int:
        """Position of the current stage."""
        return self.train_source.stage

    @property
    def trained_counts(self) -> list[int]:
        """Requested counts seen in training, in order."""
        return self.train_source.counts()

    @property
    def count_shares(self) -> dict[int, float]:
        """Share of the training examples at each requested count (of the current stage, where there are stages)."""
        return self.train_source.shares()

    @property
    def cohorts(self) -> dict[str, list[int]]:
        """Validation counts by cohort: trained, held out (below the largest trained count) and beyond it."""
        trained = self.trained_counts
        present = [int(n) for n in np.unique(self.validation.graphs().depth)]
        parts = {
            "trained": [n for n in present if n in trained],
            "held_out": [n for n in present if n not in trained and n < trained[-1]],
            "beyond": [n for n in present if n > trained[-1]],
        }
        return {name: counts for name, counts in parts.items() if counts}

    def set_stage(self, stage: int) -> None:
        """Go to a stage; the next batch is drawn from it.

        Raises:
            ValueError: there is no such stage, or no stages at all.
        """
        if not self.stages:
            raise ValueError("stage: there are no stages; train on a GraphStream to have some")
        if not 0 <= stage < len(self.stages):
            raise ValueError(
                f"stage: got {stage}, there are {len(self.stages)} stages; use 0 to {len(self.stages) - 1}"
            )
        self.train_source.stage = stage

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

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:  # noqa: ARG002
        """Move a batch as a whole."""
        return batch.to(device, non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        """Save the stage of the curriculum and the position in the training data."""
        return {**super().state_dict(), "stage": self.stage}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go back to the saved stage and position."""
        super().load_state_dict(state_dict)
        if self.stages:
            self.set_stage(state_dict["stage"])
