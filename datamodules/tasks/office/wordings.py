"""Wordings of an office question.

The words of an operation do not depend on its neighbours, so that wording and procedure vary independently.
Numbers, codes, keys and dates always stand in the text as a program has to write them.
"""

from __future__ import annotations

from dataclasses import dataclass

from datamodules.tasks.office.items import Family, OfficeItem, Step


@dataclass(frozen=True)
class Wording:
    """How questions of every family are put.

    Attributes:
        name: for configuration and error messages.
        given: opening of each family, with places {code}, {number}, {unit}, {table}, {key}, {day}.
        entry: one table entry, with places {key} and {value}.
        entries: what stands between two entries.
        steps: words of each operation, with places {0} and {1} for its arguments; {unit} is the current unit.
        joint: what stands between two operations.
        close: end of the question, by family.
    """

    name: str
    given: dict[Family, str]
    entry: str
    entries: str
    steps: dict[str, str]
    joint: str
    close: dict[Family, str]

    def question(self, item: OfficeItem) -> str:
        """Write the question of an item."""
        facts, family = item.facts, item.family
        table = self.entries.join(self.entry.format(key=key, value=value) for key, value in facts.table)
        given = self.given[family].format(
            code=facts.code, number=facts.number, unit=facts.unit, table=table, key=facts.key, day=facts.day
        )
        return given + self.joint.join(self._words(item)) + self.close[family]

    def _words(self, item: OfficeItem) -> list[str]:
        words, unit = [], item.facts.unit
        for step in item.steps:
            words.append(self._one(item.family, step, unit))
            unit = str(step.arguments[0]) if step.name == "convert" else unit
        return words

    def _one(self, family: Family, step: Step, unit: str) -> str:
        name = f"{family}.{step.name}" if f"{family}.{step.name}" in self.steps else step.name
        return self.steps[name].format(*step.arguments, unit=unit)


WORDINGS = {
    wording.name: wording
    for wording in (
        Wording(
            name="standard",
            given={
                "string": "Code: {code}. Remove the hyphens, then ",
                "unit": "Amount: {number} {unit}. Take it, then ",
                "table": "Table: {table}. Take the value of {key}, then ",
                "date": "Date: {day}. Take it, then ",
            },
            entry="{key} = {value}",
            entries=", ",
            steps={
                "take_prefix": "keep the first {0} characters",
                "take_suffix": "keep the last {0} characters",
                "slice": "keep characters {0} to {1}",
                "reverse": "reverse the text",
                "convert": "convert it to {0}",
                "unit.add": "add {0} {unit}",
                "table.add": "add {0}",
                "scale": "multiply by {0}",
                "add_value": "add the value of {0}",
                "add_days": "add {0} days",
                "add_weeks": "add {0} weeks",
            },
            joint=", then ",
            close={
                "string": ". What is the text?",
                "unit": ". What is the number?",
                "table": ". What is the number?",
                "date": ". What is the date?",
            },
        ),
        Wording(
            name="notes",
            given={
                "string": "Article number {code}, written without its hyphens. ",
                "unit": "We have {number} {unit} of it. ",
                "table": "Stock list: {table}. Begin with {key}. ",
                "date": "The order came in on {day}. ",
            },
            entry="{key}: {value}",
            entries="; ",
            steps={
                "take_prefix": "Only its leading {0} characters matter",
                "take_suffix": "Only its trailing {0} characters matter",
                "slice": "Only positions {0} through {1} matter",
                "reverse": "It is read from right to left",
                "convert": "We count in {0}",
                "unit.add": "Another {0} {unit} come on top",
                "table.add": "Another {0} come on top",
                "scale": "This is needed {0} times over",
                "add_value": "All of {0} comes on top",
                "add_days": "{0} days go by",
                "add_weeks": "{0} weeks go by",
            },
            joint=". ",
            close={
                "string": ". Which characters does that give?",
                "unit": ". How many is that?",
                "table": ". How many is that?",
                "date": ". Which day is it?",
            },
        ),
        Wording(
            name="mail",
            given={
                "string": "Could you look at {code} for me? Drop every hyphen. Next, ",
                "unit": "Could you work something out for me? Somebody measured {number} {unit}. Next, ",
                "table": "Could you check these for me: {table}? Look up {key}. Next, ",
                "date": "Could you check my calendar? We start from {day}. Next, ",
            },
            entry="{value} for {key}",
            entries=" and ",
            steps={
                "take_prefix": "cut everything behind the opening {0} characters",
                "take_suffix": "cut everything before the closing {0} characters",
                "slice": "cut out the part that runs from place {0} up to and including place {1}",
                "reverse": "write it backwards",
                "convert": "express that in {0}",
                "unit.add": "increase it by {0} {unit}",
                "table.add": "increase it by {0}",
                "scale": "take it {0} times",
                "add_value": "put the entry of {0} on it",
                "add_days": "move {0} days ahead",
                "add_weeks": "move {0} weeks ahead",
            },
            joint=", and after that ",
            close={
                "string": ". Which text is left? Thanks!",
                "unit": ". Which number is it? Thanks!",
                "table": ". Which number is it? Thanks!",
                "date": ". Which date is it? Thanks!",
            },
        ),
    )
}
"""Wordings by name; "standard" is the one of training and of the in-distribution and composition splits."""

REWORDED = tuple(name for name in WORDINGS if name != "standard")
"""The wordings of the template shift, taken in turn."""


def find_wording(name: str) -> Wording:
    """Look up a wording.

    Raises:
        ValueError: no such wording.
    """
    if name not in WORDINGS:
        raise ValueError(f"wording: got {name!r}; use one of {', '.join(WORDINGS)}")
    return WORDINGS[name]


def question(item: OfficeItem) -> str:
    """Write the question of an item in its own wording."""
    return find_wording(item.wording).question(item)
