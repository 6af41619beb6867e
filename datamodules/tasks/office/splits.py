"""Training items, the fixed evaluation items, and the guarantee that they share no question.

    in-distribution  trained procedures in the trained wording
    shift            the same items, reworded
    composition      the held-out composition of each family in the trained wording
    combination      every pair and triple of operations that training does not show, each item in the trained and in
                     every other wording

Evaluation items come from a seed of their own, whatever a run's seed. Training and validation draw on until they hit
none of them, in any wording (`OfficeItem.content`).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache

from datamodules.tasks.grammar.seeds import seeded
from datamodules.tasks.office.draws import ATOMIC, COMPOSED, Procedure, balanced, combinations, draw
from datamodules.tasks.office.items import FAMILIES, Family, OfficeItem
from datamodules.tasks.office.wordings import REWORDED, WORDINGS, find_wording, question

SPLITS = ("in-distribution", "shift", "composition", "combination")

SEED = "office-evaluation-1"
PER_FAMILY = 24
COMBINATIONS_PER_FAMILY = 96
VALIDATION_PER_FAMILY = 6
ATTEMPTS = 10_000


@cache
def evaluation(split: str) -> tuple[OfficeItem, ...]:
    """Return the fixed items of a split, families in turn, so that any multiple of four is balanced.

    Raises:
        ValueError: unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"split: got {split!r}; use one of {', '.join(SPLITS)}")
    if split == "shift":
        return tuple(
            replace(item, wording=REWORDED[index // len(FAMILIES) % len(REWORDED)], name=_renamed(item, "shift"))
            for index, item in enumerate(evaluation("in-distribution"))
        )
    if split == "combination":
        items = _draw_split(split, combinations, COMBINATIONS_PER_FAMILY)
        return tuple(
            replace(item, wording=wording, name=f"{item.name}-{wording}") for item in items for wording in WORDINGS
        )
    procedures = ATOMIC if split == "in-distribution" else COMPOSED
    return _draw_split(split, procedures.__getitem__, PER_FAMILY)


@cache
def reserved() -> frozenset[str]:
    """Return the contents of all evaluation items."""
    return frozenset(item.content() for split in SPLITS for item in evaluation(split))


def validation(per_family: int = VALIDATION_PER_FAMILY) -> tuple[OfficeItem, ...]:
    """Return items to watch a training by: trained procedures, none of them an evaluation or a training item.

    Raises:
        ValueError: per_family is below 1 or above the number that is kept from training.
    """
    if not 1 <= per_family <= VALIDATION_PER_FAMILY:
        raise ValueError(f"per_family: got {per_family}; use 1 to {VALIDATION_PER_FAMILY}")
    return _validation()[: per_family * len(FAMILIES)]


@cache
def _validation() -> tuple[OfficeItem, ...]:
    return _draw_split("validation", ATOMIC.__getitem__, VALIDATION_PER_FAMILY, reserved())


def training(count: int, seed: int, wordings: tuple[str, ...] = ("standard",)) -> list[OfficeItem]:
    """Draw training items: trained procedures, families in turn, procedures and wordings balanced within each.

    A question may come back (the unit family has few), but never one of an evaluation or validation item.

    Args:
        count: number of items.
        seed: seed of this draw.
        wordings: wordings to take in turn.

    Raises:
        ValueError: count is below 1, there is no wording, or one is unknown.
    """
    if count < 1:
        raise ValueError(f"count: got {count}; use 1 or more")
    if not wordings:
        raise ValueError("wordings: the list is empty; name at least one")
    for name in wordings:
        find_wording(name)
    rng = seeded("office-training", seed)
    held_out = reserved() | {item.content() for item in _validation()}
    per_family = -(-count // len(FAMILIES))
    procedures = {family: balanced(ATOMIC[family], per_family, rng) for family in FAMILIES}
    return [
        replace(
            _draw_new(rng, family, procedures[family][row], held_out),
            wording=wordings[row % len(wordings)],
            name=f"training-{family}-{row}",
        )
        for row in range(per_family)
        for family in FAMILIES
    ][:count]


def digest(items: Collection[OfficeItem]) -> str:
    """Return the SHA-256 of names, questions and answers."""
    lines = (f"{item.name}\t{question(item)}\t{item.answer().text}\n" for item in items)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _draw_split(
    split: str,
    procedures: Callable[[Family], tuple[Procedure, ...]],
    per_family: int,
    avoid: frozenset[str] = frozenset(),
) -> tuple[OfficeItem, ...]:
    taken = set(avoid)
    columns: list[list[OfficeItem]] = []
    for family in FAMILIES:
        rng = seeded(SEED, split, family)
        column = []
        for row, procedure in enumerate(balanced(procedures(family), per_family, rng)):
            item = replace(_draw_new(rng, family, procedure, taken), name=f"{split}-{family}-{row:02}")
            taken.add(item.content())
            column.append(item)
        columns.append(column)
    return tuple(item for row in zip(*columns, strict=True) for item in row)


def _draw_new(rng: random.Random, family: Family, procedure: Procedure, avoid: Collection[str]) -> OfficeItem:
    for _ in range(ATTEMPTS):
        item = draw(rng, family, procedure)
        if item.content() not in avoid:
            return item
    raise RuntimeError(f"no new {family} item for {' '.join(procedure)} in {ATTEMPTS:,} draws")


def _renamed(item: OfficeItem, split: str) -> str:
    return f"{split}-{item.name.removeprefix('in-distribution-')}"
