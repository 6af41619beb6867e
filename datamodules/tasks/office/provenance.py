"""Where the literals of a program come from, and whether it works on another input.

Provenance: every literal must occur in the task or in the constant table. A program that brings the answer along, or
that consists of nothing but the answer, is smuggling.

Perturbation: one datum of the task is changed, the same literal in the program likewise; the program has to follow.
Both work on the text of the program by one linear scan; nothing is parsed or evaluated here.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from datamodules.tasks.grammar.seeds import seeded
from datamodules.tasks.office.arms import Language
from datamodules.tasks.office.draws import draw
from datamodules.tasks.office.items import CONSTANTS, Facts, OfficeItem
from datamodules.tasks.office.library import FUNCTIONS
from datamodules.tasks.office.machine import INSTRUCTIONS

ATTEMPTS = 50

_PYTHON = re.compile(
    r"""
      \#[^\n]*
    | (?P<text>"{3}(?:[^\\]|\\.)*?"{3} | '{3}(?:[^\\]|\\.)*?'{3} | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')
    | (?P<name>[^\W\d]\w*)
    | (?P<number>\.?\d[\w.]*)
    """,
    re.VERBOSE | re.DOTALL,
)
_STACK = re.compile(r"(?m)(?P<opcode>^[^ \n]*)|(?P<literal>[^ :\n]+)")
_CALLS = frozenset(call.partition("(")[0] for call in FUNCTIONS)
_PUSHES = frozenset({"PUSH", "PUSH_CODE", "PUSH_DATE", "TABLE", "LOOKUP"})


@dataclass(frozen=True)
class Literal:
    """A literal of a program: its text without quotes, and where that text stands."""

    text: str
    start: int
    end: int


def literals(program: str, language: Language) -> list[Literal]:
    """Find the literals of a program: the operands of a stack program, numbers and texts of a Python program."""
    return list(_stack_literals(program) if language == "stack" else _python_literals(program))


def _stack_literals(program: str) -> Iterator[Literal]:
    for found in _STACK.finditer(program):
        if found["literal"]:
            yield Literal(found["literal"], *found.span("literal"))


def _python_literals(program: str) -> Iterator[Literal]:
    for found in _PYTHON.finditer(program):
        if found["number"]:
            yield Literal(found["number"], *found.span("number"))
        elif found["text"]:
            marks = 3 if found["text"][:3] in ('"""', "'''") and len(found["text"]) >= 6 else 1
            start, end = found.span("text")
            yield Literal(program[start + marks : end - marks], start + marks, end - marks)


def shown(item: OfficeItem) -> frozenset[str]:
    """Return every literal that the task shows, and those of the constant table."""
    return frozenset(_data(item)) | CONSTANTS[item.family]


def _data(item: OfficeItem) -> list[str]:
    """Return the data of the task, one entry for each place where one stands."""
    facts = item.facts
    found = [facts.code, facts.day] if item.family in ("string", "date") else []
    if item.family == "unit":
        found.append(str(facts.number))
    for key, value in facts.table:
        found += [key, str(value)]
    found += [str(argument) for step in item.steps for argument in step.arguments if step.name != "convert"]
    return [text for text in found if text]


@dataclass(frozen=True)
class Provenance:
    """Where the literals of a program come from.

    Attributes:
        known: every literal occurs in the task or in the constant table.
        smuggled: the answer is among the literals that do not, however it is spelt, or the program does nothing but
            push it, or what it is made of.
    """

    known: bool
    smuggled: bool


def provenance(program: str, language: Language, item: OfficeItem) -> Provenance:
    """Check where the literals of a program come from."""
    allowed, answer = shown(item), item.answer().text
    texts = [_decimal(literal.text.removeprefix("-")) for literal in literals(program, language)]
    foreign = [text for text in texts if text not in allowed]
    pushed = (answer in texts or bool(foreign)) and not _works(program, language)
    return Provenance(known=not foreign, smuggled=answer in foreign or pushed)


def _decimal(text: str) -> str:
    """Spell a whole number of Python, such as 0x2b or 4_3, as everybody does; other literals stay as they are."""
    try:
        return str(int(text, 0))
    except ValueError:  # no number, one with leading zeros, or one of thousands of digits
        return text


def _works(program: str, language: Language) -> bool:
    """Whether the program has any operation besides those that bring data in."""
    if language == "stack":
        opcodes = {line.split(" ", 1)[0] for line in program.split("\n")}
        return bool(opcodes & (INSTRUCTIONS.keys() - _PUSHES))
    return any(found["name"] in _CALLS - {"lookup"} for found in _PYTHON.finditer(program))


@dataclass(frozen=True)
class Perturbation:
    """A changed task.

    Attributes:
        item: the task with one datum changed; its answer differs.
        old: the literal of that datum.
        new: what it became.
    """

    item: OfficeItem
    old: str
    new: str

    def apply(self, program: str, language: Language) -> str:
        """Change the literal in a program, wherever it stands."""
        parts, at = [], 0
        for literal in literals(program, language):
            if literal.text == self.old:
                parts += [program[at : literal.start], self.new]
                at = literal.end
        return "".join([*parts, program[at:]])


def perturb(item: OfficeItem) -> Perturbation | None:
    """Change one datum that stands in the task once; None where there is none such that the answer changes.

    The item alone decides: every program for it meets the same change. The input comes first, then the arguments.
    """
    rng = seeded("office-perturbation", item.content())
    counts = Counter([*_data(item), *CONSTANTS[item.family]])
    for slot in _slots(item):
        if counts[slot.text] != 1:
            continue
        for _ in range(ATTEMPTS):
            new, changed = slot.change(rng)
            if new not in counts and changed.answer() != item.answer():
                return Perturbation(changed, slot.text, new)
    return None


@dataclass(frozen=True)
class _Slot:
    """A datum of a task that may be changed."""

    text: str
    change: Callable[[random.Random], tuple[str, OfficeItem]]


def _slots(item: OfficeItem) -> Iterator[_Slot]:
    facts = item.facts
    if item.family == "table":
        used = [facts.key, *(str(step.arguments[0]) for step in item.steps if step.name == "add_value")]
        table = dict(facts.table)
        for key in used:
            yield _Slot(str(table[key]), partial(_change_entry, item, key))
    else:
        yield _Slot(facts.code or facts.day or str(facts.number), partial(_change_input, item))
    for place, step in enumerate(item.steps):
        if step.name in ("add", "scale", "add_days", "add_weeks"):
            yield _Slot(str(step.arguments[0]), partial(_change_argument, item, place))


def _change_input(item: OfficeItem, rng: random.Random) -> tuple[str, OfficeItem]:
    other = draw(rng, item.family, item.procedure).facts
    return other.code or other.day or str(other.number), replace(item, facts=other)


def _change_entry(item: OfficeItem, key: str, rng: random.Random) -> tuple[str, OfficeItem]:
    value = rng.randint(2, 29)
    table = tuple((name, value if name == key else number) for name, number in item.facts.table)
    return str(value), replace(item, facts=Facts(table=table, key=item.facts.key))


def _change_argument(item: OfficeItem, place: int, rng: random.Random) -> tuple[str, OfficeItem]:
    step = draw(rng, item.family, item.procedure).steps[place]
    steps = (*item.steps[:place], step, *item.steps[place + 1 :])
    return str(step.arguments[0]), replace(item, steps=steps)
