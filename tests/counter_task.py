"""A task small enough to check by hand: a mark walks over named cells to the right and reads each."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import ClassVar

from datamodules.procedure import InstanceSet, InstanceStream
from datamodules.tasks.procedure import CELLS, UNDEFINED, LabelSet, Procedure

LETTERS = ("A", "B", "C")
Word = tuple[int, ...]


class WalkTask(Procedure[Word]):
    """Step t reads cell t; the field `at` is the cell read next (none at the end), `last` the letter read last."""

    views: ClassVar[tuple[str, ...]] = ("executor",)
    labels = LabelSet(LETTERS, tuple(f" {letter}" for letter in LETTERS))
    fields: ClassVar[Mapping[str, LabelSet | None]] = {"at": CELLS, "last": labels}

    def prompt(self, instance: Word, view: str) -> str:
        return "Word:" + "".join(self.labels.texts[label] for label in instance) + "\nRead:"

    def cells(self, instance: Word, view: str) -> Sequence[int]:
        return [6 + 2 * index for index in range(len(instance))]

    def steps(self, instance: Word) -> int:
        return len(instance)

    def initial(self, instance: Word) -> None:
        return None

    def states(self, instance: Word) -> Sequence[int]:
        return instance

    def field_states(self, instance: Word) -> Mapping[str, Sequence[int]]:
        return {"at": [*range(len(instance)), UNDEFINED], "last": [UNDEFINED, *instance]}

    def facts(self, instance: Word) -> Mapping[str, int]:
        return {"length": len(instance)}


class WalkStream(InstanceStream[Word]):
    """Words of one to `stage + 2` letters."""

    def __init__(self, batches_per_epoch: int = 4, batch_size: int = 3) -> None:
        super().__init__(batches_per_epoch)
        self.procedure = WalkTask()
        self.stages = [2, 3]
        self.batch_size = batch_size

    def draw(self, rng: random.Random, stage: int) -> list[Word]:
        return [tuple(rng.choices(range(3), k=rng.randint(1, self.stages[stage]))) for _ in range(self.batch_size)]

    def counts(self) -> list[int]:
        return [1, 2, 3]


class WalkSet(InstanceSet[Word]):
    """A few words, of trained and of greater length."""

    def __init__(self, batch_size: int = 2) -> None:
        super().__init__(batch_size)
        self.procedure = WalkTask()

    def instances(self) -> list[Word]:
        return [(0, 1), (2,), (1, 1), (2, 0), (0, 1, 2, 0, 1)]
