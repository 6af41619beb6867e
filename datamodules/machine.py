"""LightningDataModule of the machine tasks.

data:
  class_path: datamodules.machine.MachineDataModule
  init_args:
    train: {class_path: MachineStream, init_args: {machine: fsm}}
    validation: {class_path: MachineSet, init_args: {machine: fsm}}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from datamodules.loader import BatchLoader, BatchSource, EvaluationOrder
from datamodules.machine_batcher import MachineBatcher
from datamodules.staged import StagedDataModule
from datamodules.tasks.machines.family import (
    MachineStage,
    Recipe,
    RecipeChanges,
    changed_recipe,
    check_kind,
    curriculum,
    recipe_changes,
)
from datamodules.tasks.machines.machine import Machines, concatenate
from datamodules.tasks.machines.program import Pace
from datamodules.tasks.machines.splits import TRAINED_DEPTHS, split
from datamodules.tasks.procedure import LabelSet

VALIDATION_SEED = 17
CHECKED = 16
"""Machines of every stage that are compared with the tokenizer when a run is set up."""


class MachineStream:
    """Unlimited machines, drawn on the fly, in stages that someone (a callback) advances.

    Args:
        machine: "fsm", "coloured", "registers", "jumps" or "stack".
        recipe: what differs from the task's own recipe, such as its size.
        pace: "half" for two loops an instruction (programs only).
        depths: requested steps to train, opened one after another.
        stages: a curriculum of one's own instead of the default one; its recipes are whole, of this machine and pace.
            `recipe` and `depths` are not looked at then.
        batches_per_epoch: length of what counts as an epoch; every epoch has other machines.

    Raises:
        ValueError: an option is out of range.
    """

    def __init__(
        self,
        machine: str = "fsm",
        recipe: RecipeChanges | None = None,
        pace: Pace = "instruction",
        depths: Sequence[int] = TRAINED_DEPTHS,
        stages: list[MachineStage] | None = None,
        batches_per_epoch: int = 1_000,
    ) -> None:
        if batches_per_epoch < 1:
            raise ValueError(f"train.batches_per_epoch: got {batches_per_epoch}; it must be 1 or more")
        if stages is not None and not stages:
            raise ValueError("train.stages: the list is empty; give at least one stage or leave it out")
        full = changed_recipe(machine, recipe, pace)
        self.machine, self.pace = machine, pace
        self.stages = curriculum(full, tuple(depths)) if stages is None else stages
        for stage in self.stages:
            _check_stage(stage.recipe, machine, pace)
        self.recipe = self.stages[-1].recipe
        self.stage = 0
        self.batches_per_epoch = batches_per_epoch

    def counts(self) -> list[int]:
        """Numbers of loops that occur in training, in order."""
        loops = 2 if self.pace == "half" else 1
        return sorted({depth * loops for stage in self.stages for depth in stage.depths})


class MachineSet:
    """Machines to validate on: the same number at each depth of a split.

    Args:
        machine: name of the task.
        split: name of the split.
        recipe: what differs from the task's own recipe, as in training.
        pace: as in training.
        depths: requested steps (instructions).
        per_depth: machines at each depth.
        batch_size: machines of a batch on one rank, all of one depth.

    Raises:
        ValueError: an option is out of range.
    """

    def __init__(
        self,
        machine: str = "fsm",
        split: str = "unseen_rules",
        recipe: RecipeChanges | None = None,
        pace: Pace = "instruction",
        depths: Sequence[int] = (1, 2, 4, 6, 12, 24),
        per_depth: int = 64,
        batch_size: int = 64,
    ) -> None:
        for name, value in (("per_depth", per_depth), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(f"validation.{name}: got {value}; it must be 1 or more")
        self.machine, self.split, self.pace = machine, split, pace
        self.recipe = changed_recipe(machine, recipe, pace)
        self.depths, self.per_depth, self.batch_size = tuple(depths), per_depth, batch_size

    def machines(self) -> Machines:
        """Draw the machines, the same ones each time."""
        recipe = split(self.machine, self.split, self.recipe).recipe
        parts = [
            recipe.draw(np.random.default_rng((VALIDATION_SEED, depth)), self.per_depth, depth) for depth in self.depths
        ]
        return concatenate(parts)


def validation_of(train: MachineStream, validation: MachineSet | None) -> MachineSet:
    """Return what is validated on; default unseen tables of what is trained.

    Raises:
        ValueError: it is another machine, or at another pace.
    """
    if validation is None:
        return MachineSet(train.machine, recipe=recipe_changes(train.recipe), pace=train.pace)
    for name in ("machine", "pace"):
        trained, given = getattr(train, name), getattr(validation, name)
        if given != trained:
            raise ValueError(
                f"validation.{name}: got {given!r}, but train.{name} is {trained!r}; "
                f"set validation.init_args.{name} to {trained!r}"
            )
    return validation


def _check_stage(recipe: Recipe, machine: str, pace: Pace) -> None:
    try:
        check_kind(machine, recipe)
    except ValueError as error:
        raise ValueError(f"train.stages.{error}") from error
    found = getattr(recipe, "pace", "instruction")
    if found != pace:
        raise ValueError(f"train.stages.recipe.pace: got {found!r}, but train.pace is {pace!r}; set both alike")


class MachineRenderer(Protocol):
    """Makes batches of machines: of token ids and labels, or of text."""

    def batch(self, machines: Machines, *, ids: Iterable[int] | None = None, runs: int = 1) -> Any:
        """Build a batch; see `MachineBatcher.batch`."""


class StreamBatches(BatchSource[Any]):
    """The stream of one rank: a batch is a pure function of (seed, step, stage, rank)."""

    def __init__(self, stream: MachineStream, batcher: MachineRenderer, seed: int, rank: int) -> None:
        self._stream, self._batcher, self._seed, self._rank = stream, batcher, seed, rank

    def __len__(self) -> int:
        return self._stream.batches_per_epoch

    def batch(self, epoch: int, position: int) -> Any:
        """Make a batch."""
        stage = self._stream.stage
        key = (self._seed, epoch * len(self) + position, stage, self._rank)
        part = self._stream.stages[stage]
        return self._batcher.batch(part.draw(key), runs=part.runs)


class SetBatches(BatchSource[Any]):
    """The validation batches of one rank, each of one depth; a machine's id is its position."""

    def __init__(self, machines: Machines, batcher: MachineRenderer, batch_size: int, rank: int, world: int) -> None:
        self._machines, self._batcher = machines, batcher
        self._order = EvaluationOrder(machines.depth, batch_size, rank=rank, world=world)

    def __len__(self) -> int:
        return len(self._order)

    def batch(self, epoch: int, position: int) -> Any:
        """Make a batch."""
        rows = self._order.rows(epoch, position)
        return self._batcher.batch(self._machines[rows], ids=rows.tolist())


ASKED, HALF = "program --program.part machine --program.machine.task ", " --program.machine.half true"
"""What stands before and behind the task's name where a model says how to evaluate it."""


def machine_benchmark(machine: str, pace: Pace = "instruction") -> str:
    """Return the options of `evaluate.py --benchmark` that ask a model for machines of a task at its pace."""
    return ASKED + machine + (HALF if pace == "half" else "")


def trained_paces(benchmarks: Iterable[str]) -> dict[str, Pace]:
    """The pace by task, of what `machine_benchmark` has written; anything else is passed over."""
    told = [text.removeprefix(ASKED) for text in benchmarks if text.startswith(ASKED)]
    return {text.removesuffix(HALF): "half" if text.endswith(HALF) else "instruction" for text in told}


class MachineDataModule(StagedDataModule):
    """Loads machines for training and validation.

    Args:
        tokenizer: the model's tokenizer (the command line links it from the model).
        train: where training machines come from; default the finite-state machine's curriculum.
        validation: what is evaluated during training, of the same machine and pace; default unseen tables at depths 1
            to 24.
        seed: seed of the stream. Not negative.

    Attributes:
        batcher: makes the batches; `MachineBatcher.batch` is open to anyone.

    Raises:
        ValueError: an option is out of range, the parts are of different machines or paces, or the tokenizer does not
            know the words.
    """

    train_source: MachineStream

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        train: MachineStream | None = None,
        validation: MachineSet | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if seed < 0:
            raise ValueError(f"seed: got {seed}; use 0 or more")
        self.train_source = MachineStream() if train is None else train
        self.validation = validation_of(self.train_source, validation)
        self.seed = seed
        self.batcher = MachineBatcher(tokenizer)
        self.benchmarks = (machine_benchmark(self.train_source.machine, self.train_source.pace),)
        self.recipes = {self.train_source.machine: dict(recipe_changes(self.train_source.recipe))}

    @property
    def label_ids(self) -> Tensor:
        """[K] token id of each label, in label order."""
        return self.batcher.label_ids

    @property
    def labels(self) -> LabelSet:
        """Names and texts of the labels."""
        return self.batcher.labels

    def validation_counts(self) -> list[int]:
        """Numbers of loops that occur in validation, in order."""
        return [int(n) for n in np.unique(self.validation.machines().depth)]

    def setup(self, stage: str) -> None:
        """Compare prompts of every stage with the tokenizer, before anything is trained.

        Args:
            stage: Lightning's stage: "fit", "validate", "test" or "predict".
        """
        if stage == "fit":
            for number, part in enumerate(self.stages):
                self.batcher.check(part.draw((self.seed, number))[:CHECKED])
        self.batcher.check(self.validation.machines()[:CHECKED])

    def train_batches(self, rank: int, world: int) -> BatchSource:  # noqa: ARG002
        """Return the stream of one rank."""
        return StreamBatches(self.train_source, self.batcher, self.seed, rank)

    def val_dataloader(self) -> BatchLoader:
        """Return this rank's validation batches."""
        source = SetBatches(self.validation.machines(), self.batcher, self.validation.batch_size, *self.place())
        return BatchLoader(source, resumes=False)
