"""LightningDataModule of the graph task.

data:
  class_path: datamodules.graph.GraphDataModule
  init_args:
    train: {class_path: datamodules.graph_sources.PublishedSplit, init_args: {data: cyclic, batch_size: 4}}
    validation: {class_path: datamodules.graph_evaluation.EvaluationSplit, init_args: {data: cyclic, per_depth: 64}}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from datamodules.batch import Batch
from datamodules.graph_batcher import GraphBatcher
from datamodules.graph_evaluation import EvaluationSource, EvaluationSplit, JoinedEvaluation
from datamodules.graph_sources import PublishedSplit, TrainSource
from datamodules.loader import BatchLoader, BatchSource
from datamodules.resumable import ResumableDataModule
from datamodules.tasks.graph_stream import Stage
from datamodules.tasks.procedure import LabelSet


class GraphDataModule(ResumableDataModule):
    """Loads graphs for training and evaluation.

    Args:
        tokenizer: the model's tokenizer (the command line links it from the model).
        train: where training graphs come from; default the published cyclic split.
        validation: what is evaluated during training; default 64 graphs at each of 1-12 of the cyclic data.
        long_validation: further validation examples at counts of their own, say 16, 32 and 64: a cohort "long" for
            selecting a checkpoint by its rollouts; None for nothing.
        test: what `trainer.test` evaluates; None for nothing.
        templates: wordings of the training prompts, taken in turn batch by batch.
        evaluation_template: wording of the validation and test prompts; default the first of `templates`.
        seed: order of the training data, or the seed of the stream. Not negative.

    Attributes:
        batcher: makes the evaluation batches; `GraphBatcher.batch` is open to anyone.
        label_ids: [K] token id of each label.
        labels: names and texts of the labels.

    Raises:
        ValueError: an option is out of range, or the tokenizer does not suit the prompts (names the fix).
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        train: TrainSource | None = None,
        validation: EvaluationSource | None = None,
        long_validation: EvaluationSource | None = None,
        test: EvaluationSource | None = None,
        templates: list[str] | None = None,
        evaluation_template: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if templates is not None and not templates:
            raise ValueError("templates: the list is empty; name at least one template or leave it out")
        if seed < 0:
            raise ValueError(f"seed: got {seed}; use 0 or more")
        self.train_source = PublishedSplit() if train is None else train
        self.validation = EvaluationSplit() if validation is None else validation
        self._long_counts: list[int] = []
        if long_validation is not None:
            self._long_counts = np.unique(long_validation.graphs().depth).tolist()
            self.validation = JoinedEvaluation(self.validation, long_validation)
        self.test = test
        self.seed = seed
        names = ["published"] if templates is None else templates
        letters = self.train_source.letters
        for field, source in (("validation", self.validation), ("test", self.test)):
            if source is not None and source.letters != letters:
                raise ValueError(
                    f"{field}: its node names have {source.letters} letters, those of train have {letters}; "
                    "make them equal (GeneratedEvaluation takes a recipe)"
                )
        self._batchers = [GraphBatcher(tokenizer, name, letters) for name in names]
        self.batcher = GraphBatcher(tokenizer, evaluation_template or names[0], letters)

    @property
    def label_ids(self) -> Tensor:
        """[K] token id of each label, in label order."""
        return self.batcher.label_ids

    @property
    def labels(self) -> LabelSet:
        """Names and texts of the labels."""
        return self.batcher.labels

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
        """Validation counts by cohort: trained, held out (below the largest trained count), beyond it, and long."""
        trained = self.trained_counts
        present = [int(n) for n in np.unique(self.validation.graphs().depth) if n not in self._long_counts]
        parts = {
            "trained": [n for n in present if n in trained],
            "held_out": [n for n in present if n not in trained and n < trained[-1]],
            "beyond": [n for n in present if n > trained[-1]],
            "long": self._long_counts,
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

    def setup(self, stage: str) -> None:
        """Compile the prompts and compare them with the tokenizer, before anything is trained.

        Args:
            stage: Lightning's stage: "fit", "validate", "test" or "predict".
        """
        if stage == "fit":
            for batcher in self._batchers:
                for graphs in self.train_source.sample():
                    batcher.check(graphs)
        split = self.test if stage == "test" else self.validation
        if split is not None:
            self.batcher.check(split.graphs()[:16])

    def train_batches(self, rank: int, world: int) -> BatchSource:
        """Return the training batches of one rank out of `world`."""
        return self.train_source.open(self._batchers, self.seed, rank, world)

    def val_dataloader(self) -> BatchLoader:
        """Return this rank's validation batches."""
        return BatchLoader(self.validation.open(self.batcher, *self.place()), resumes=False)

    def test_dataloader(self) -> BatchLoader:
        """Return this rank's test batches.

        Raises:
            ValueError: no test split was configured.
        """
        if self.test is None:
            raise ValueError("test: none configured; give data.test, for example EvaluationSplit(split='test')")
        return BatchLoader(self.test.open(self.batcher, *self.place()), resumes=False)

    def transfer_batch_to_device(self, batch: Batch, device: Any, dataloader_idx: int) -> Batch:  # noqa: ARG002
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
