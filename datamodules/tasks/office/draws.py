"""Draws of office items: facts and arguments of a given procedure, in the ranges of the specification.

Source: program task, section 1 (table of families). Ranges of longer procedures are those of their single operations;
a text is cut so that every operation left still has something to cut.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import date
from itertools import product

from datamodules.tasks.office.items import FAMILIES, KEYS, SMALLER, YEAR, Facts, Family, OfficeItem, Step

LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"  # no I and no O: they read as digits
CODE_LENGTH = 8
CUTS = ("take_prefix", "take_suffix", "slice")
SHORTEST, LONGEST = 3, 5
SHORT_ADDENDS = (5, 10, 15, 20, 25, 40, 50, 75)

Procedure = tuple[str, ...]
"""Names of operations; a unit procedure begins with the unit it starts from."""

ATOMIC: dict[Family, tuple[Procedure, ...]] = {
    "string": (("take_prefix",), ("take_suffix",), ("slice",), ("reverse",)),
    "unit": (("m", "convert"), ("cm", "convert"), ("kg", "convert"), ("min", "convert"), ("cm", "add")),
    "table": (("add",), ("scale",), ("scale", "add")),
    "date": (("add_days",), ("add_weeks",)),
}
"""Procedures of training, of the in-distribution split and of the template shift."""

COMPOSED: dict[Family, tuple[Procedure, ...]] = {
    "string": (("reverse", "slice"),),
    "unit": (("m", "convert", "add"),),
    "table": (("add_value", "add"),),
    "date": (("add_weeks", "add_days"),),
}
"""The one held-out composition of each family."""

OPERATIONS: dict[Family, tuple[str, ...]] = {
    "string": (*CUTS, "reverse"),
    "unit": ("convert", "add"),
    "table": ("add", "scale", "add_value"),
    "date": ("add_days", "add_weeks"),
}
"""Single operations by family."""


def combinations(family: Family) -> tuple[Procedure, ...]:
    """Return every pair and triple of operations that fits together, but for the pairs that training shows.

    A unit procedure fits if every conversion has a smaller unit to go to; each of the units starts some.
    """
    found: list[Procedure] = []
    for length in (2, 3):
        for names in product(OPERATIONS[family], repeat=length):
            starts: tuple[Procedure, ...] = tuple((unit,) for unit in SMALLER) if family == "unit" else ((),)
            found += [(*start, *names) for start in starts if _fits(start, names)]
    return tuple(procedure for procedure in found if procedure not in ATOMIC[family])


def _fits(start: Procedure, names: Procedure) -> bool:
    unit: str | None = start[0] if start else None
    for name in names:
        if name == "convert":
            if unit not in SMALLER:
                return False
            unit = SMALLER[unit]
    return True


def draw(rng: random.Random, family: Family, procedure: Procedure) -> OfficeItem:
    """Draw facts and arguments for a procedure.

    Raises:
        ValueError: unknown family.
    """
    if family not in FAMILIES:
        raise ValueError(f"family: got {family!r}; use one of {', '.join(FAMILIES)}")
    if family == "string":
        return _draw_string(rng, procedure)
    if family == "unit":
        return _draw_unit(rng, procedure)
    if family == "table":
        return _draw_table(rng, procedure)
    return _draw_date(rng, procedure)


def _draw_string(rng: random.Random, procedure: Procedure) -> OfficeItem:
    one, two = ("".join(rng.choices(LETTERS, k=2)) for _ in range(2))
    code = f"{one}-{rng.randrange(10_000):04}-{two}"
    steps, length = [], CODE_LENGTH
    cuts_left = sum(name in CUTS for name in procedure)
    for name in procedure:
        if name == "reverse":
            steps.append(Step(name))
            continue
        cuts_left -= 1
        kept = rng.randint(SHORTEST + cuts_left, min(LONGEST, length - 1))
        if name == "slice":
            first = rng.randint(1, length - kept + 1)
            steps.append(Step(name, (first, first + kept - 1)))
        else:
            steps.append(Step(name, (kept,)))
        length = kept
    return OfficeItem("string", Facts(code=code), tuple(steps))


def _draw_unit(rng: random.Random, procedure: Procedure) -> OfficeItem:
    unit, *names = procedure
    composed = procedure in COMPOSED["unit"]
    number = rng.randint(1, 8) if composed else rng.randint(2, 19)
    facts = Facts(number=number, unit=unit)
    steps = []
    for name in names:
        if name == "convert":
            unit = SMALLER[unit]
            steps.append(Step(name, (unit,)))
        else:
            steps.append(Step(name, (rng.choice(SHORT_ADDENDS) if composed else rng.randint(2, 40),)))
    return OfficeItem("unit", facts, tuple(steps))


def _draw_table(rng: random.Random, procedure: Procedure) -> OfficeItem:
    table = tuple((key, rng.randint(2, 29)) for key in rng.sample(KEYS, len(KEYS)))
    key, *others = rng.sample(KEYS, len(KEYS))
    largest = 9 if procedure in COMPOSED["table"] else 11
    steps = []
    for name in procedure:
        if name == "add_value":
            steps.append(Step(name, (others.pop(),)))
        else:
            steps.append(Step(name, (rng.randint(2, 7) if name == "scale" else rng.randint(1, largest),)))
    return OfficeItem("table", Facts(table=table, key=key), tuple(steps))


def _draw_date(rng: random.Random, procedure: Procedure) -> OfficeItem:
    day = date(YEAR, rng.randint(1, 12), rng.randint(1, 24)).isoformat()
    composed = procedure in COMPOSED["date"]
    largest = {"add_days": 6, "add_weeks": 3} if composed else {"add_days": 14, "add_weeks": 4}
    return OfficeItem("date", Facts(day=day), tuple(Step(name, (rng.randint(1, largest[name]),)) for name in procedure))


def balanced(procedures: Sequence[Procedure], count: int, rng: random.Random) -> list[Procedure]:
    """Take procedures in turn, in an order of their own each round, so that no two counts differ by more than one."""
    taken: list[Procedure] = []
    while len(taken) < count:
        taken += rng.sample(procedures, len(procedures))
    return taken[:count]
