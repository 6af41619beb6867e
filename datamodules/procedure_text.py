"""Any task that is a `Procedure` as text for ordinary language models: the looped models' data, written out.

data:
  class_path: datamodules.procedure_text.ProcedureTextDataModule
  init_args:
    train: {class_path: BracketStream}       # what a looped model trains on
    validation: {class_path: BracketDepths}

The prompt is the task's complete one, without a chat template; the completion is the label of every step ("steps"),
the last one ("answer"), or every step with its named fields ("trace"). The grammar benchmark asks models of "steps";
for the others there is the validation during training alone.
"""

from __future__ import annotations

import random

import numpy as np
from transformers import PreTrainedTokenizerBase

from datamodules.grammar_sources import BracketDepths, BracketStream, SearchRuns, SearchStream, check_alphabets
from datamodules.loader import BatchLoader, BatchSource, EvaluationOrder
from datamodules.procedure import InstanceSet, InstanceStream
from datamodules.staged import StagedDataModule
from datamodules.tasks.procedure import TextStyle, style_name
from datamodules.text import TextBatch, TextEncoder

__all__ = ["BracketDepths", "BracketStream", "ProcedureTextDataModule", "SearchRuns", "SearchStream"]

STYLES: tuple[TextStyle, ...] = ("answer", "steps", "trace")


class _StreamTexts(BatchSource[TextBatch]):
    """The stream of one rank: a batch is a pure function of (seed, step, stage, rank)."""

    def __init__(self, data: ProcedureTextDataModule, rank: int) -> None:
        self._data, self._rank = data, rank

    def __len__(self) -> int:
        return self._data.train_source.batches_per_epoch

    def batch(self, epoch: int, position: int) -> TextBatch:
        stream = self._data.train_source
        step = epoch * len(self) + position
        rng = random.Random(f"{self._data.seed}:{self._rank}:{step}:{stream.stage}")
        return self._data.batch(stream.draw(rng, stream.stage))


class _SetTexts(BatchSource[TextBatch]):
    """The validation batches of one rank, each of instances of one number of steps."""

    def __init__(self, data: ProcedureTextDataModule, rank: int, world: int) -> None:
        source = data.validation
        self._data, self._instances = data, source.instances()
        steps = np.array([source.procedure.steps(instance) for instance in self._instances])
        self._order = EvaluationOrder(steps, source.batch_size, rank=rank, world=world)
        self._generated = np.zeros(len(steps), dtype=bool)
        for count in np.unique(steps):
            self._generated[np.flatnonzero(steps == count)[: data.generated]] = True

    def __len__(self) -> int:
        return len(self._order)

    def batch(self, epoch: int, position: int) -> TextBatch:
        rows = self._order.rows(epoch, position)
        return self._data.batch([self._instances[row] for row in rows], rows, self._generated[rows])


class ProcedureTextDataModule(StagedDataModule):
    """Loads the instances of a task as text.

    Args:
        tokenizer: the model's tokenizer (the command line links it from the model).
        train: where training instances come from.
        validation: what is evaluated during training; of the same task.
        style: "steps", "answer" or "trace".
        generated: validation instances of each number of steps that are also validated by generation.
        seed: seed of the stream. Not negative.

    Raises:
        ValueError: an option is out of range, or the parts are of different tasks.
    """

    train_source: InstanceStream

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        train: InstanceStream,
        validation: InstanceSet,
        style: TextStyle = "steps",
        generated: int = 4,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("generated", generated), ("seed", seed)):
            if value < 0:
                raise ValueError(f"{name}: got {value}; use 0 or more")
        if style not in STYLES:
            raise ValueError(f"style: got {style!r}; use one of {', '.join(STYLES)}")
        check_alphabets(train, validation)
        ours, theirs = train.procedure.task_name, validation.procedure.task_name
        if ours != theirs:
            raise ValueError(f"validation: its task is {theirs}, that of train {ours}; take both from one task")
        self.train_source, self.validation = train, validation
        self.text_style, self.generated, self.seed = style, generated, seed
        # The lanes ask for whole runs of letters; nothing asks for a last letter alone, or for fields.
        self.benchmarks = ("grammar",) if style == "steps" else ()
        self._encoder = TextEncoder(tokenizer)

    @property
    def style(self) -> str:
        """Task and style as an exported model remembers them, so that an evaluation asks in the same way."""
        return style_name(self.train_source.procedure, self.text_style)

    def batch(self, instances: list, ids: np.ndarray | None = None, generated: np.ndarray | None = None) -> TextBatch:
        """Write instances of the task.

        Args:
            instances: B instances.
            ids: [B] their ids; default 0..B-1.
            generated: [B] whether to validate by generation too; default no.
        """
        procedure = self.train_source.procedure
        return self._encoder.batch(
            [[procedure.example(instance, self.text_style)] for instance in instances],
            steps=np.array([procedure.steps(instance) for instance in instances]),
            instance=ids,
            generated=generated,
        )

    def validation_counts(self) -> list[int]:
        """Numbers of steps that occur in validation, in order."""
        return sorted({self.validation.procedure.steps(instance) for instance in self.validation.instances()})

    def train_batches(self, rank: int, world: int) -> BatchSource[TextBatch]:  # noqa: ARG002
        """Return the stream of one rank."""
        return _StreamTexts(self, rank)

    def val_dataloader(self) -> BatchLoader:
        """Return this rank's validation batches."""
        return BatchLoader(_SetTexts(self, *self.place()), resumes=False)
