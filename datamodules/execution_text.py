"""LightningDataModule of execution traces for ordinary language models.

data:
  class_path: datamodules.execution_text.ExecutionTextDataModule
  init_args:
    rendering: {class_path: CompactScratchpad}
    train: {class_path: GeneratedPrograms, init_args: {count: 2000, seed: 0}}
    validation: {class_path: GeneratedPrograms, init_args: {count: 100, seed: 1}}

The programs are traced when the data are first asked for, by a guarded worker process; a trace is a pure function of
the program, so every process and every run sees the same text.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from datamodules.loader import BatchLoader, BatchSource, EvaluationOrder, TrainingOrder
from datamodules.resumable import ResumableDataModule
from datamodules.tasks.graph import IntArray
from datamodules.tasks.procedure import TextExample
from datamodules.tasks.traces.client import Tracer
from datamodules.tasks.traces.limits import Limits
from datamodules.tasks.traces.outcome import LEVELS, Level
from datamodules.tasks.traces.programs import Program, Refused, Traced, trace_each
from datamodules.tasks.traces.renderings import CompactScratchpad, OutputOnly, Rendering, TraceStyle
from datamodules.tasks.traces.sources import GeneratedPrograms, ProgramSource
from datamodules.text import Objective, TextBatch, TextEncoder
from datamodules.text_rows import length_groups

logger = logging.getLogger(__name__)


class ExecutionTexts:
    """The text examples of a source, kept in memory.

    Args:
        examples: the examples.
        steps: [E] events of the run each example belongs to.
        program: [E] number of its program.
        refused: what gave no example, by name and reason.
    """

    def __init__(self, examples: list[TextExample], steps: IntArray, program: IntArray, refused: list[Refused]) -> None:
        self.examples, self.steps, self.program, self.refused = examples, steps, program, refused


def write_examples(
    source: ProgramSource, rendering: Rendering, level: Level, limits: Limits, encoder: TextEncoder, longest: int
) -> ExecutionTexts:
    """Trace the programs of a source and render them.

    Args:
        source: the programs.
        rendering: how a trace is written.
        level: granularity of the traces.
        limits: limits of each program.
        encoder: counts tokens.
        longest: examples of more tokens are refused.

    Raises:
        ValueError: no example is left.
    """
    found = source.programs()
    refused = [one for one in found if isinstance(one, Refused)]
    programs = [one for one in found if isinstance(one, Program)]
    examples: list[TextExample] = []
    steps: list[int] = []
    numbers: list[int] = []
    with Tracer(limits) as tracer:
        states = not isinstance(rendering, OutputOnly)
        for number, one in enumerate(trace_each(programs, tracer, level, states)):
            if isinstance(one, Refused):
                refused.append(one)
                continue
            fitting, too_long = _fitting(one, rendering, encoder, longest)
            if too_long:
                refused.append(
                    Refused(one.program.name, f"{too_long} of its examples are longer than {longest} tokens")
                )
            examples += fitting
            steps += [len(one.trace.events)] * len(fitting)
            numbers += [number] * len(fitting)
    if not examples:
        why = f"; the first: {refused[0].name}: {refused[0].reason}" if refused else ""
        raise ValueError(f"data: none of {len(found)} programs gave an example{why}; see the limits and longest")
    return ExecutionTexts(examples, np.array(steps), np.array(numbers), refused)


def _fitting(traced: Traced, rendering: Rendering, encoder: TextEncoder, longest: int) -> tuple[list[TextExample], int]:
    examples = rendering.examples(traced.trace)
    lengths = map(len, encoder.encode([example.prompt + example.completion for example in examples]))
    fitting = [example for example, length in zip(examples, lengths, strict=True) if length < longest]
    return fitting, len(examples) - len(fitting)


class ExecutionRows(BatchSource[TextBatch]):
    """Batches of stored examples in a given order.

    Args:
        texts: the examples.
        encoder: makes the batches.
        objective: which tokens the loss counts.
        order: which examples make which batch.
        generated: [E] examples that are also validated by generation; None for none.
    """

    def __init__(
        self,
        texts: ExecutionTexts,
        encoder: TextEncoder,
        objective: Objective,
        order: TrainingOrder | EvaluationOrder,
        generated: IntArray | None = None,
    ) -> None:
        self._texts, self._encoder, self._objective = texts, encoder, objective
        self._order, self._generated = order, generated

    def __len__(self) -> int:
        return len(self._order)

    def batch(self, epoch: int, position: int) -> TextBatch:
        """Make a batch."""
        rows = self._order.rows(epoch, position)
        return self._encoder.batch(
            [[self._texts.examples[row]] for row in rows],
            self._objective,
            generated=None if self._generated is None else self._generated[rows],
            steps=self._texts.steps[rows],
            instance=rows,
            facts={"program": self._texts.program[rows]},
        )


class ExecutionTextDataModule(ResumableDataModule):
    """Loads execution traces as text for ordinary language models.

    Args:
        tokenizer: the model's tokenizer (the command line links it from the model).
        rendering: how a trace is written; default the compact scratchpad.
        level: "line" or "instruction".
        train: programs to train on; default 1,000 generated ones.
        validation: programs validated on; default 100 generated ones of another seed.
        batch_size: examples of a batch on one rank.
        objective: "response" for fine-tuning, "all" for language modelling.
        longest: longest example in tokens; longer ones are left out, and reported.
        generated: how many validation examples are also validated by generation.
        limits: limits of each traced program.
        seed: order of the training data. Not negative.

    Raises:
        ValueError: an option is out of range.
    """

    benchmarks = ("program --program.part traces",)

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        rendering: Rendering | None = None,
        level: Level = "line",
        train: ProgramSource | None = None,
        validation: ProgramSource | None = None,
        batch_size: int = 16,
        objective: Objective = "response",
        longest: int = 2_048,
        generated: int = 16,
        limits: Limits = Limits(),  # noqa: B008
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value, low in (
            ("batch_size", batch_size, 1),
            ("longest", longest, 2),
            ("generated", generated, 0),
            ("seed", seed, 0),
        ):
            if value < low:
                raise ValueError(f"{name}: got {value}; it must be {low} or more")
        if level not in LEVELS:
            raise ValueError(f"level: got {level!r}; use one of {', '.join(LEVELS)}")
        self.rendering = CompactScratchpad() if rendering is None else rendering
        self.level: Level = level
        self.train_source = GeneratedPrograms(1_000) if train is None else train
        self.validation = GeneratedPrograms(100, seed=1) if validation is None else validation
        self.batch_size, self.longest, self.generated, self.seed = batch_size, longest, generated, seed
        self.limits = limits
        self._objective: Objective = objective
        self._encoder = TextEncoder(tokenizer)
        self._texts: dict[str, ExecutionTexts] = {}

    @property
    def style(self) -> str:
        """Rendering and level, which an evaluation of the trained model repeats."""
        return TraceStyle(self.rendering, self.level).text

    def texts(self, split: str) -> ExecutionTexts:
        """Return the examples of "train" or "validation", traced on first use."""
        if split not in self._texts:
            source = self.train_source if split == "train" else self.validation
            made = write_examples(source, self.rendering, self.level, self.limits, self._encoder, self.longest)
            self._texts[split] = made
            if made.refused:
                shown = "; ".join(f"{one.name}: {one.reason}" for one in made.refused[:3])
                logger.warning("%s: %d programs left out or cut (%s)", split, len(made.refused), shown)
        return self._texts[split]

    @property
    def trained_counts(self) -> list[int]:
        """Run lengths seen in training, in order."""
        return [int(steps) for steps in np.unique(self.texts("train").steps)]

    def train_batches(self, rank: int, world: int) -> BatchSource[TextBatch]:
        """Return the training batches of one rank out of `world`, each of examples of like length."""
        texts = self.texts("train")
        groups = length_groups(texts.examples)
        order = TrainingOrder(len(groups), self.batch_size, self.seed, groups=groups, rank=rank, world=world)
        return ExecutionRows(texts, self._encoder, self._objective, order)

    def val_dataloader(self) -> BatchLoader:
        """Return this rank's validation batches; the first examples are generated too."""
        texts = self.texts("validation")
        size = len(texts.examples)
        rank, world = self.place()
        order = EvaluationOrder(np.zeros(size, dtype=np.int64), self.batch_size, rank=rank, world=world)
        generated = (np.arange(size) < self.generated).astype(np.int64)
        rows = ExecutionRows(texts, self._encoder, self._objective, order, generated)
        return BatchLoader(rows, resumes=False)

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:  # noqa: ARG002
        """Move a batch as a whole."""
        return batch.to(device, non_blocking=True)
