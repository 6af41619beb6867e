"""LightningDataModule of the graph task.

data:
  class_path: datamodules.graph.GraphDataModule
  init_args:
    train: {class_path: datamodules.graph_sources.PublishedSplit, init_args: {data: cyclic, batch_size: 4}}
    validation: {class_path: datamodules.graph_evaluation.EvaluationSplit, init_args: {data: cyclic, per_depth: 64}}
"""

from __future__ import annotations

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from datamodules.graph_batcher import GraphBatcher
from datamodules.graph_evaluation import EvaluationSource, JoinedEvaluation
from datamodules.graph_module import GraphSourcesDataModule
from datamodules.graph_sources import TrainSource
from datamodules.tasks.procedure import LabelSet


class GraphDataModule(GraphSourcesDataModule):
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
        super().__init__(train, validation, test, seed)
        if templates is not None and not templates:
            raise ValueError("templates: the list is empty; name at least one template or leave it out")
        self._long_counts: list[int] = []
        if long_validation is not None:
            self._long_counts = np.unique(long_validation.graphs().depth).tolist()
            self.validation = JoinedEvaluation(self.validation, long_validation)
        names = ["published"] if templates is None else templates
        letters = self.train_source.letters
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
    def cohorts(self) -> dict[str, list[int]]:
        """Validation counts by cohort: those of the base class, and those of the long validation by themselves."""
        parts = {name: [n for n in counts if n not in self._long_counts] for name, counts in super().cohorts.items()}
        return {name: counts for name, counts in (parts | {"long": self._long_counts}).items() if counts}

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

    def train_renderers(self) -> list[GraphBatcher]:
        """One batcher per wording."""
        return self._batchers

    def evaluation_renderer(self, source: EvaluationSource) -> GraphBatcher:  # noqa: ARG002
        """The batcher of the evaluation wording."""
        return self.batcher
