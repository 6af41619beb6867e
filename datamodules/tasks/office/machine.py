"""The stack machine. One instruction a line, words apart by one space; anything else is invalid, with a named reason.

    PUSH n              push the number n
    PUSH_CODE text      push a text
    STRIP_HYPHENS       remove the hyphens of the text on top
    REVERSE             reverse the text on top
    TAKE_PREFIX n       keep the first n characters of the text on top
    TAKE_SUFFIX n       keep the last n characters of the text on top
    SLICE a b           keep characters a to b of the text on top, counted from 1, both included
    ADD k               add k to the number on top
    MUL k               multiply the number on top by k
    ADD_TOP             replace the two numbers on top by their sum
    TABLE k:v ...       set the table (once)
    LOOKUP key          push the value of a key of the table
    PUSH_DATE iso       push a date
    ADD_DAYS n          add n days to the date on top
    ADD_WEEKS n         add n weeks to the date on top

The result is the single value left.

Source: program task, section 1. `run` works on nothing but these fifteen instructions: what a model wrote is never
executed in any other sense.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, timedelta

from datamodules.tasks.office.errors import ProgramError, Reason, Value

MAX_LINES = 64
MAX_CHARACTERS = 4_000
LARGEST = 10**18

_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_TEXT = re.compile(r"[!-~]{1,64}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ENTRY = re.compile(r"([a-z]{1,16}):(0|-?[1-9][0-9]{0,17})")
_KEY = re.compile(r"[a-z]{1,16}")

Cell = int | str | date


@dataclass
class Machine:
    """State of the machine: a stack of numbers, texts and dates, and at most one table."""

    stack: list[Cell] = field(default_factory=list)
    table: dict[str, int] | None = None

    def step(self, line: str) -> None:
        """Run one instruction.

        Raises:
            ProgramError: it is invalid here.
        """
        opcode, *operands = line.split(" ")
        if opcode not in INSTRUCTIONS:
            raise ProgramError(Reason.UNKNOWN_OPCODE, opcode)
        instruction = INSTRUCTIONS[opcode]
        arity = instruction.operands
        if arity is not None and len(operands) != arity:
            raise ProgramError(Reason.WRONG_OPERANDS, f"{opcode} takes {arity}, got {len(operands)}")
        instruction.run(self, operands)

    def result(self) -> Value:
        """Return the single value left.

        Raises:
            ProgramError: there is none, or more than one.
        """
        if not self.stack:
            raise ProgramError(Reason.NO_RESULT, "the stack is empty")
        if len(self.stack) > 1:
            raise ProgramError(Reason.LEFTOVERS, f"{len(self.stack)} values are left")
        return as_value(self.stack[0])

    def number(self) -> int:
        """Pop a number."""
        cell = self._pop()
        if not isinstance(cell, int):
            raise ProgramError(Reason.WRONG_TYPE, "needs a number on top")
        return cell

    def text(self) -> str:
        """Pop a text."""
        cell = self._pop()
        if not isinstance(cell, str):
            raise ProgramError(Reason.WRONG_TYPE, "needs a text on top")
        return cell

    def day(self) -> date:
        """Pop a date."""
        cell = self._pop()
        if not isinstance(cell, date):
            raise ProgramError(Reason.WRONG_TYPE, "needs a date on top")
        return cell

    def push(self, cell: Cell) -> None:
        """Push a value."""
        if isinstance(cell, int) and not -LARGEST < cell < LARGEST:
            raise ProgramError(Reason.OVERFLOW, "more than 18 digits")
        self.stack.append(cell)

    def _pop(self) -> Cell:
        if not self.stack:
            raise ProgramError(Reason.STACK_UNDERFLOW, "the stack is empty")
        return self.stack.pop()


def as_value(cell: Cell) -> Value:
    """Return a cell as the value of a program."""
    return Value("number", str(cell)) if isinstance(cell, int) else Value("text", str(cell))


def split_lines(program: str) -> list[str]:
    """Split a program into its lines; one line break at the very end belongs to the last line.

    Raises:
        ProgramError: the program is empty or too long.
    """
    if len(program) > MAX_CHARACTERS:
        raise ProgramError(Reason.TOO_LONG, f"{len(program)} characters, at most {MAX_CHARACTERS}")
    if not program.strip():
        raise ProgramError(Reason.EMPTY_PROGRAM)
    lines = program.removesuffix("\n").split("\n")
    if len(lines) > MAX_LINES:
        raise ProgramError(Reason.TOO_LONG, f"{len(lines)} lines, at most {MAX_LINES}")
    return lines


def trace(program: str) -> tuple[list[Cell | None], Value]:
    """Run a program; return the value on top after each instruction (None where there is none) and the result.

    Raises:
        ProgramError: the program is invalid; the error names the line.
    """
    machine = Machine()
    tops: list[Cell | None] = []
    for number, line in enumerate(split_lines(program), 1):
        try:
            if not line:
                raise ProgramError(Reason.EMPTY_LINE)  # noqa: TRY301  (gets its line number below)
            machine.step(line)
        except ProgramError as error:
            raise ProgramError(error.reason, error.detail, number) from None
        tops.append(machine.stack[-1] if machine.stack else None)
    return tops, machine.result()


def run(program: str) -> Value:
    """Run a program and return its result.

    Raises:
        ProgramError: the program is invalid.
    """
    return trace(program)[1]


def _operand(pattern: re.Pattern[str], text: str, what: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise ProgramError(Reason.WRONG_OPERANDS, f"{text[:40]!r} is not {what}")
    return found


def _integer(text: str) -> int:
    return int(_operand(_NUMBER, text, "a number").group())


def _date(text: str) -> date:
    try:
        return date.fromisoformat(_operand(_DATE, text, "a date such as 2026-01-31").group())
    except ValueError:
        raise ProgramError(Reason.WRONG_OPERANDS, f"{text} is not in the calendar") from None


def _push_code(machine: Machine, operands: list[str]) -> None:
    machine.push(_operand(_TEXT, operands[0], "a text").group())


def _take_prefix(machine: Machine, operands: list[str]) -> None:
    count = _integer(operands[0])
    _keep(machine, lambda _: (1, count))


def _take_suffix(machine: Machine, operands: list[str]) -> None:
    count = _integer(operands[0])
    _keep(machine, lambda length: (length - count + 1, length))


def _slice(machine: Machine, operands: list[str]) -> None:
    first, last = _integer(operands[0]), _integer(operands[1])
    _keep(machine, lambda _: (first, last))


def _keep(machine: Machine, bounds: Callable[[int], tuple[int, int]]) -> None:
    text = machine.text()
    first, last = bounds(len(text))
    if not 1 <= first <= last <= len(text):
        raise ProgramError(Reason.OUT_OF_RANGE, f"characters {first} to {last} of {len(text)}")
    machine.push(text[first - 1 : last])


def _add_top(machine: Machine, operands: list[str]) -> None:  # noqa: ARG001
    machine.push(machine.number() + machine.number())


def _table(machine: Machine, operands: list[str]) -> None:
    if machine.table is not None:
        raise ProgramError(Reason.SECOND_TABLE)
    if not operands:
        raise ProgramError(Reason.WRONG_OPERANDS, "TABLE takes at least 1, got 0")
    entries = [_operand(_ENTRY, operand, "an entry such as alpha:3").groups() for operand in operands]
    machine.table = {key: int(value) for key, value in entries}
    if len(machine.table) < len(entries):
        raise ProgramError(Reason.WRONG_OPERANDS, "a key occurs twice")


def _lookup(machine: Machine, operands: list[str]) -> None:
    key = _operand(_KEY, operands[0], "a key").group()
    if machine.table is None:
        raise ProgramError(Reason.NO_TABLE)
    if key not in machine.table:
        raise ProgramError(Reason.UNKNOWN_KEY, key)
    machine.push(machine.table[key])


def _shift(machine: Machine, operand: str, unit: int) -> None:
    count, day = _integer(operand), machine.day()
    try:
        machine.push(day + timedelta(days=count * unit))
    except OverflowError:
        raise ProgramError(Reason.OVERFLOW, "a date outside the years 1 to 9999") from None


@dataclass(frozen=True)
class Instruction:
    """One opcode.

    Attributes:
        operands: how many it takes, None for one or more.
        run: what it does.
        usage: how it is written, for the list of instructions in a prompt.
        meaning: what it does, likewise.
    """

    operands: int | None
    run: Callable[[Machine, list[str]], None]
    usage: str
    meaning: str


INSTRUCTIONS: dict[str, Instruction] = {
    instruction.usage.split(" ")[0]: instruction
    for instruction in (
        Instruction(1, lambda m, o: m.push(_integer(o[0])), "PUSH n", "push the number n"),
        Instruction(1, _push_code, "PUSH_CODE text", "push a text"),
        Instruction(0, lambda m, _: m.push(m.text().replace("-", "")), "STRIP_HYPHENS", "remove the hyphens"),
        Instruction(0, lambda m, _: m.push(m.text()[::-1]), "REVERSE", "reverse the text"),
        Instruction(1, _take_prefix, "TAKE_PREFIX n", "keep the first n characters"),
        Instruction(1, _take_suffix, "TAKE_SUFFIX n", "keep the last n characters"),
        Instruction(2, _slice, "SLICE a b", "keep characters a to b, counted from 1, both included"),
        Instruction(1, lambda m, o: m.push(_integer(o[0]) + m.number()), "ADD k", "add k to the number on top"),
        Instruction(1, lambda m, o: m.push(_integer(o[0]) * m.number()), "MUL k", "multiply the number on top by k"),
        Instruction(0, _add_top, "ADD_TOP", "replace the two numbers on top by their sum"),
        Instruction(None, _table, "TABLE key:value ...", "set the table"),
        Instruction(1, _lookup, "LOOKUP key", "push the value of a key"),
        Instruction(1, lambda m, o: m.push(_date(o[0])), "PUSH_DATE iso", "push a date"),
        Instruction(1, lambda m, o: _shift(m, o[0], 1), "ADD_DAYS n", "add n days to the date on top"),
        Instruction(1, lambda m, o: _shift(m, o[0], 7), "ADD_WEEKS n", "add n weeks to the date on top"),
    )
}
"""Every instruction, in the order of the prompt's list."""
