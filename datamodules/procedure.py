"""The LightningDataModule of every task that is a `Procedure`: a task adds where its instances come from, no more.

data:
  class_path: datamodules.grammar.GrammarDataModule      # or ProcedureDataModule itself
  init_args:
    train: {class_path: BracketStream}                   # an InstanceStream: unlimited instances, in stages
    validation: {class_path: BracketDepths}              # an InstanceSet: instances to evaluate on
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from datamodules.batch import Batch
from datamodules.loader import BatchLoader, BatchSource, EvaluationOrder
from datamodules.procedure_batcher import ProcedureBatcher
from datamodules.staged import StagedDataModule
from datamodules.tasks.procedure import LabelSet, Procedure

InstanceT = TypeVar("InstanceT")

CHECKED = 16
"""Instances of every stage that are rendered when a run is set up."""


class InstanceStream(ABC, Generic[InstanceT]):
    """Unlimited training instances, drawn on the fly, in stages that someone (a callback) advances.

    Args:
        batches_per_epoch: length of what counts as an epoch; every epoch has other instances.

    Attributes:
        procedure: the task.
        stages: the curriculum, at least one stage.
        stage: position of the current stage.

    Raises:
        ValueError: fewer than 1 batch.
    """

    procedure: Procedure[InstanceT]
    stages: Sequence[Any]
    stage: int = 0

    def __init__(self, batches_per_epoch: int = 1_000) -> None:
        if batches_per_epoch < 1:
            raise ValueError(f"train.batches_per_epoch: got {batches_per_epoch}; it must be 1 or more")
        self.batches_per_epoch = batches_per_epoch

    @abstractmethod
    def draw(self, rng: random.Random, stage: int) -> list[InstanceT]:
        """Draw the instances of one batch of a stage; `rng` decides everything."""

    @abstractmethod
    def counts(self) -> list[int]:
        """Return the numbers of steps that occur in training, in order."""


class InstanceSet(ABC, Generic[InstanceT]):
    """Instances to evaluate on.

    Args:
        batch_size: instances of a batch on one rank, all of one number of steps.

    Attributes:
        procedure: the task.

    Raises:
        ValueError: a batch size below 1.
    """

    procedure: Procedure[InstanceT]

    def __init__(self, batch_size: int = 64) -> None:
        if batch_size < 1:
            raise ValueError(f"validation.batch_size: got {batch_size}; it must be 1 or more")
        self.batch_size = batch_size

    @abstractmethod
    def instances(self) -> list[InstanceT]:
        """Make the instances; an instance's id is its position."""


class _StreamBatches(BatchSource, Generic[InstanceT]):
    """The stream of one rank: a batch is a pure function of (seed, step, stage, rank)."""

    def __init__(self, stream: InstanceStream[InstanceT], batcher: ProcedureBatcher[InstanceT], key: str) -> None:
        self._stream, self._batcher, self._key = stream, batcher, key

    def __len__(self) -> int:
        return self._stream.batches_per_epoch

    def batch(self, epoch: int, position: int) -> Batch:
        stage = self._stream.stage
        # A text as the seed: Python hashes it with SHA-512, so neighbouring steps share nothing.
        rng = random.Random(f"{self._key}:{epoch * len(self) + position}:{stage}")
        return self._batcher.batch(self._stream.draw(rng, stage))


class _SetBatches(BatchSource, Generic[InstanceT]):
    """The evaluation batches of one rank."""

    def __init__(
        self, instances: InstanceSet[InstanceT], batcher: ProcedureBatcher[InstanceT], rank: int, world: int
    ) -> None:
        self._instances = instances.instances()
        self._batcher = batcher
        steps = np.array([batcher.procedure.steps(instance) for instance in self._instances])
        self._order = EvaluationOrder(steps, instances.batch_size, rank=rank, world=world)

    def __len__(self) -> int:
        return len(self._order)

    def batch(self, epoch: int, position: int) -> Batch:
        rows = self._order.rows(epoch, position).tolist()
        return self._batcher.batch([self._instances[row] for row in rows], ids=rows)


class ProcedureDataModule(StagedDataModule):
    """Loads the instances of a task for training and validation.

    Args:
        tokenizer: the model's tokenizer (the command line links it from the model).
        train: where training instances come from.
        validation: what is evaluated during training.
        seed: seed of the stream. Not negative.

    Attributes:
        batcher: makes the batches; `ProcedureBatcher.batch` is open to anyone.

    Raises:
        ValueError: an option is out of range, the parts are of different tasks, or the tokenizer does not suit them.
    """

    train_source: InstanceStream

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, train: InstanceStream, validation: InstanceSet, seed: int = 0
    ) -> None:
        super().__init__()
        if seed < 0:
            raise ValueError(f"seed: got {seed}; use 0 or more")
        if train.procedure.labels != validation.procedure.labels:
            raise ValueError("validation: its labels are not those of train; take both from one task")
        self.train_source = train
        self.validation = validation
        self.seed = seed
        self.batcher: ProcedureBatcher = ProcedureBatcher(train.procedure, tokenizer)
        self._validation_batcher: ProcedureBatcher = ProcedureBatcher(validation.procedure, tokenizer)

    @property
    def label_ids(self) -> Tensor:
        """[K] token id of each label, in label order."""
        return self.batcher.label_ids

    @property
    def labels(self) -> LabelSet:
        """Names and texts of the labels."""
        return self.batcher.labels

    def validation_counts(self) -> list[int]:
        """Numbers of steps that occur in validation, in order."""
        return sorted({self.validation.procedure.steps(instance) for instance in self.validation.instances()})

    def setup(self, stage: str) -> None:
        """Render a batch of every stage before anything is trained, so that unsuitable prompts fail at once.

        Args:
            stage: Lightning's stage: "fit", "validate", "test" or "predict".
        """
        if stage == "fit":
            for number in range(len(self.stages)):
                self.batcher.batch(self.train_source.draw(random.Random(number), number)[:CHECKED])

    def train_batches(self, rank: int, world: int) -> BatchSource:  # noqa: ARG002
        """Return the stream of one rank."""
        return _StreamBatches(self.train_source, self.batcher, f"{self.seed}:{rank}")

    def val_dataloader(self) -> BatchLoader:
        """Return this rank's validation batches."""
        return BatchLoader(_SetBatches(self.validation, self._validation_batcher, *self.place()), resumes=False)
