"""LightningDataModule of the machine tasks for ordinary language models: the looped models' machines, written out.

data:
  class_path: datamodules.machine_text.MachineTextDataModule
  init_args:
    rendering: {class_path: MachineCompactScratchpad}    # see datamodules.tasks.machines.renderings
    train: {class_path: MachineStream, init_args: {machine: fsm}}
    validation: {class_path: MachineSet, init_args: {machine: fsm}}

Streams, stages and seeds are those of `datamodules.machine`: with the same options both kinds of model meet the same
machines, batch by batch. A stage that leaves the visible labels out (`fields_only`) writes them all the same.
"""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedTokenizerBase

from datamodules.loader import BatchLoader, BatchSource, Rows
from datamodules.machine import MachineSet, MachineStream, SetBatches, StreamBatches
from datamodules.staged import StagedDataModule
from datamodules.tasks.machines.family import MachineStage
from datamodules.tasks.machines.machine import Machines
from datamodules.tasks.machines.renderings import MachineRendering, MachineScratchpad, text_style, written_runs
from datamodules.text import Objective, TextBatch, TextEncoder

__all__ = ["MachineSet", "MachineStream", "MachineTextDataModule"]


class MachineTextDataModule(StagedDataModule):
    """Loads runs of machines as text.

    Args:
        tokenizer: the model's tokenizer (the command line links it from the model).
        rendering: how a run is written; default the scratchpad. Of a rendering with a call per step a batch holds one
            step of each run, every step in turn.
        train: where training machines come from; default the finite-state machine's curriculum.
        validation: what is evaluated during training; default unseen tables at depths 1 to 24.
        objective: "response" for fine-tuning, "all" for language modelling.
        generated: how many validation machines of each depth are also validated by generation.
        seed: seed of the stream. Not negative.

    Raises:
        ValueError: an option is out of range.
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
        self.validation = MachineSet(self.train_source.machine) if validation is None else validation
        self.generated, self.seed = generated, seed
        self._encoder, self._objective = TextEncoder(tokenizer), objective

    @property
    def style(self) -> str:
        """Task and rendering, which an evaluation of the trained model repeats."""
        return text_style(self.train_source.machine, self.rendering)

    def batch(self, machines: Machines, ids: Rows | None = None, generated: Rows | None = None) -> TextBatch:
        """Write runs of machines, each of its own depth.

        Args:
            machines: B machines.
            ids: [B] their ids; default 0..B-1.
            generated: [B] whether to validate by generation too; default no.
        """
        documents = []
        for row, run in enumerate(written_runs(machines)):
            examples = self.rendering.examples(run)
            documents.append([examples[row % len(examples)]])
        return self._encoder.batch(
            documents,
            self._objective,
            generated=generated,
            steps=machines.depth,
            instance=ids,
            facts=machines.facts(),
        )

    def validation_counts(self) -> list[int]:
        """Numbers of steps that occur in validation, in order."""
        return [int(n) for n in np.unique(self.validation.machines().depth)]

    def train_batches(self, rank: int, world: int) -> BatchSource[TextBatch]:  # noqa: ARG002
        """Return the stream of one rank."""
        return StreamBatches(self.train_source, self._training_batch, self.seed, rank)

    def val_dataloader(self) -> BatchLoader:
        """Return this rank's validation batches; the first machines of each depth are generated too."""
        machines = self.validation.machines()
        flags = np.zeros(len(machines), dtype=np.int64)
        for count in np.unique(machines.depth):
            flags[np.flatnonzero(machines.depth == count)[: self.generated]] = 1
        source = SetBatches(
            machines,
            lambda part, rows: self.batch(part, rows, flags[rows]),
            self.validation.batch_size,
            *self.place(),
        )
        return BatchLoader(source, resumes=False)

    def _training_batch(self, machines: Machines, stage: MachineStage) -> TextBatch:
        del stage
        return self.batch(machines)
