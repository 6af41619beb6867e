"""LightningDataModule of the machine tasks for ordinary language models: the looped models' machines, written out.

data:
  class_path: datamodules.machine_text.MachineTextDataModule
  init_args:
    rendering: {class_path: MachineCompactScratchpad}    # see datamodules.tasks.machines.renderings
    train: {class_path: MachineStream, init_args: {machine: fsm}}
    validation: {class_path: MachineSet, init_args: {machine: fsm}}

Streams, stages and seeds are those of `datamodules.machine`: with the same options both kinds of model meet the same
machines, batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from transformers import PreTrainedTokenizerBase

from datamodules.loader import BatchLoader, BatchSource
from datamodules.machine import (
    MachineSet,
    MachineStream,
    SetBatches,
    StreamBatches,
    machine_benchmark,
    validation_of,
)
from datamodules.staged import StagedDataModule
from datamodules.tasks.machines.family import recipe_changes
from datamodules.tasks.machines.machine import IntArray, Machines
from datamodules.tasks.machines.renderings import MachineRendering, MachineScratchpad, text_style, written_runs
from datamodules.text import Objective, TextBatch, TextEncoder

__all__ = ["MachineSet", "MachineStream", "MachineTextBatcher", "MachineTextDataModule"]


class MachineTextBatcher:
    """Batches of machines as text.

    Args:
        tokenizer: the model's tokenizer.
        rendering: how a run is written.
        objective: which tokens the loss counts.
        generated: [I] machines, by id, that are also validated by generation; None for none of them.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        rendering: MachineRendering,
        objective: Objective = "response",
        generated: IntArray | None = None,
    ) -> None:
        self._encoder = TextEncoder(tokenizer)
        self._rendering, self._objective, self._generated = rendering, objective, generated

    def batch(self, machines: Machines, *, ids: Iterable[int] | None = None, runs: int = 1) -> TextBatch:
        """Write runs of machines, each of its own depth.

        Args:
            machines: B machines.
            ids: [B] their ids; default 0..B-1.
            runs: so many rows side by side have one table; every one is a text of its own all the same.
        """
        del runs
        rows = np.arange(len(machines)) if ids is None else np.array(list(ids), dtype=np.int64)
        found = [self._rendering.examples(run) for run in written_runs(machines)]
        return self._encoder.batch(
            [[examples[row % len(examples)]] for row, examples in enumerate(found)],
            self._objective,
            generated=None if self._generated is None else self._generated[rows],
            steps=machines.depth,
            instance=rows,
            facts=machines.facts(),
        )


class MachineTextDataModule(StagedDataModule):
    """Loads runs of machines as text.

    Args:
        tokenizer: the model's tokenizer (the command line links it from the model).
        rendering: how a run is written; default the scratchpad. Of a rendering with a call per step a batch holds one
            step of each run, every step in turn.
        train: where training machines come from; default the finite-state machine's curriculum.
        validation: what is evaluated during training, of the same machine and pace; default unseen tables at depths 1
            to 24.
        objective: "response" for fine-tuning, "all" for language modelling.
        generated: how many validation machines of each depth are also validated by generation.
        seed: seed of the stream. Not negative.

    Raises:
        ValueError: an option is out of range, or the parts are of different machines or paces.
    """

    train_source: MachineStream

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        rendering: MachineRendering | None = None,
        train: MachineStream | None = None,
        validation: MachineSet | None = None,
        objective: Objective = "response",
        generated: int = 4,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("generated", generated), ("seed", seed)):
            if value < 0:
                raise ValueError(f"{name}: got {value}; use 0 or more")
        self.rendering = MachineScratchpad() if rendering is None else rendering
        self.train_source = MachineStream() if train is None else train
        self.validation = validation_of(self.train_source, validation)
        self.benchmarks = (machine_benchmark(self.train_source.machine, self.train_source.pace),)
        self.recipes = {self.train_source.machine: dict(recipe_changes(self.train_source.recipe))}
        self.generated, self.seed = generated, seed
        self._tokenizer, self._objective = tokenizer, objective

    @property
    def style(self) -> str:
        """Task and rendering, which an evaluation of the trained model repeats."""
        return text_style(self.train_source.machine, self.rendering)

    def validation_counts(self) -> list[int]:
        """Numbers of steps that occur in validation, in order."""
        return [int(n) for n in np.unique(self.validation.machines().depth)]

    def train_batches(self, rank: int, world: int) -> BatchSource[TextBatch]:  # noqa: ARG002
        """Return the stream of one rank."""
        batcher = MachineTextBatcher(self._tokenizer, self.rendering, self._objective)
        return StreamBatches(self.train_source, batcher, self.seed, rank)

    def val_dataloader(self) -> BatchLoader:
        """Return this rank's validation batches; the first machines of each depth are generated too."""
        machines = self.validation.machines()
        flags = np.zeros(len(machines), dtype=np.int64)
        for count in np.unique(machines.depth):
            flags[np.flatnonzero(machines.depth == count)[: self.generated]] = 1
        batcher = MachineTextBatcher(self._tokenizer, self.rendering, self._objective, flags)
        return BatchLoader(SetBatches(machines, batcher, self.validation.batch_size, *self.place()), resumes=False)
