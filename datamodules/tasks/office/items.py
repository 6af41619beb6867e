"""An office item: facts, a procedure of one to three operations, and the reference answer.

Operations by family (arguments in brackets):

    string  take_prefix [n], take_suffix [n], slice [a, b] (from 1, inclusive), reverse; the hyphens are removed first
    unit    convert [unit], add [k]
    table   add [k], scale [k], add_value [key]; the value of the first key is looked up first
    date    add_days [n], add_weeks [n]

Source: program task, section 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Literal

from datamodules.tasks.office.errors import Value

Family = Literal["string", "unit", "table", "date"]
FAMILIES: tuple[Family, ...] = ("string", "unit", "table", "date")

KEYS = ("alpha", "beta", "gamma", "delta")
YEAR = 2026
FACTORS: dict[tuple[str, str], int] = {("m", "cm"): 100, ("cm", "mm"): 10, ("kg", "g"): 1000, ("min", "s"): 60}
SMALLER = dict(FACTORS.keys())
"""The unit that each unit converts to."""

CONSTANTS: dict[Family, frozenset[str]] = {
    "string": frozenset(),
    "unit": frozenset(str(factor) for factor in FACTORS.values()),
    "table": frozenset(),
    "date": frozenset(),
}
"""The constant table: literals that a program may hold although the task does not show them."""


@dataclass(frozen=True)
class Step:
    """One operation with its arguments."""

    name: str
    arguments: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What an item is about; a family uses the fields that its name stands at.

    Attributes:
        code: string: such as "AB-1234-CD".
        number: unit: the amount.
        unit: unit: its unit.
        table: table: (key, value) in displayed order.
        key: table: the key looked up first.
        day: date: ISO date.
    """

    code: str = ""
    number: int = 0
    unit: str = ""
    table: tuple[tuple[str, int], ...] = ()
    key: str = ""
    day: str = ""


@dataclass(frozen=True)
class OfficeItem:
    """One question.

    Attributes:
        family: "string", "unit", "table" or "date".
        facts: what it is about.
        steps: the operations, in order.
        wording: name of the wording it is asked in.
        name: identifier within its split, such as "composition-date-05".
    """

    family: Family
    facts: Facts
    steps: tuple[Step, ...]
    wording: str = "standard"
    name: str = ""

    @property
    def procedure(self) -> tuple[str, ...]:
        """Names of the operations, in order; unit procedures name the first unit too."""
        names = tuple(step.name for step in self.steps)
        return (self.facts.unit, *names) if self.family == "unit" else names

    def answer(self) -> Value:
        """Run the operations one by one."""
        return REFERENCES[self.family](self.facts, self.steps)

    def content(self) -> str:
        """What is asked, whatever the wording: no two splits share it. Order of a table's entries does not matter."""
        facts = self.facts
        table = ",".join(f"{key}={value}" for key, value in sorted(facts.table))
        shown = [facts.code, f"{facts.number}{facts.unit}", f"{table}:{facts.key}", facts.day]
        steps = [" ".join([step.name, *map(str, step.arguments)]) for step in self.steps]
        return f"{self.family}|{shown[FAMILIES.index(self.family)]}|{'; '.join(steps)}"


def _string(facts: Facts, steps: tuple[Step, ...]) -> Value:
    text = facts.code.replace("-", "")
    for step in steps:
        numbers = [int(argument) for argument in step.arguments]
        if step.name == "take_prefix":
            text = text[: numbers[0]]
        elif step.name == "take_suffix":
            text = text[-numbers[0] :]
        elif step.name == "slice":
            text = text[numbers[0] - 1 : numbers[1]]
        else:
            text = text[::-1]
    return Value("text", text)


def _unit(facts: Facts, steps: tuple[Step, ...]) -> Value:
    number, unit = facts.number, facts.unit
    for step in steps:
        if step.name == "convert":
            target = str(step.arguments[0])
            number *= FACTORS[unit, target]
            unit = target
        else:
            number += int(step.arguments[0])
    return Value("number", str(number))


def _table(facts: Facts, steps: tuple[Step, ...]) -> Value:
    table = dict(facts.table)
    number = table[facts.key]
    for step in steps:
        argument = step.arguments[0]
        if step.name == "scale":
            number *= int(argument)
        else:
            number += table[str(argument)] if step.name == "add_value" else int(argument)
    return Value("number", str(number))


def _date(facts: Facts, steps: tuple[Step, ...]) -> Value:
    day = date.fromisoformat(facts.day)
    for step in steps:
        count = int(step.arguments[0])
        day += timedelta(days=count) if step.name == "add_days" else timedelta(weeks=count)
    return Value("text", day.isoformat())


REFERENCES = {"string": _string, "unit": _unit, "table": _table, "date": _date}
