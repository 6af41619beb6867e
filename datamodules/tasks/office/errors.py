"""Why a program a model wrote counts as invalid: one named reason each, and nothing is ever repaired."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Reason(StrEnum):
    """The named reasons, in the order in which they can arise."""

    NOT_TEXT = "not_text"
    """The output is no text at all (NaN, null, a number, a list)."""
    EMPTY_PROGRAM = "empty_program"
    """The program has no character but blanks."""
    TOO_LONG = "too_long"
    """More characters, or more instructions, than any machine here reads."""

    # Stack machine
    EMPTY_LINE = "empty_line"
    """A line between two instructions is empty."""
    UNKNOWN_OPCODE = "unknown_opcode"
    """The first word of a line is no opcode."""
    WRONG_OPERANDS = "wrong_operands"
    """Too many or too few operands, or one that is not written as the opcode wants it."""
    STACK_UNDERFLOW = "stack_underflow"
    """The opcode needs more values than the stack holds."""
    WRONG_TYPE = "wrong_type"
    """The value on top is not of the type the opcode works on."""
    OUT_OF_RANGE = "out_of_range"
    """A prefix, suffix or slice lies outside the text."""
    NO_TABLE = "no_table"
    """LOOKUP before any TABLE."""
    SECOND_TABLE = "second_table"
    """TABLE although there is a table already."""
    UNKNOWN_KEY = "unknown_key"
    """LOOKUP of a key that the table does not have."""
    OVERFLOW = "overflow"
    """A number of more than 18 digits, or a date outside the years 1 to 9999."""
    LEFTOVERS = "leftovers"
    """More than one value is left."""
    NO_RESULT = "no_result"
    """No value is left; in Python, `result` was never assigned."""

    # Python
    SYNTAX = "syntax_error"
    """It does not parse as Python."""
    UNSUPPORTED = "unsupported"
    """It uses a part of Python that the sandbox does not have."""
    UNKNOWN_NAME = "unknown_name"
    """It uses a name that does not exist in the sandbox."""
    FORBIDDEN = "forbidden"
    """It reached out of the sandbox: a file, a module, the environment, the clock, sleep, entropy."""
    EXCEPTION = "exception"
    """It raised any other exception."""
    TIME_LIMIT = "time_limit"
    """It ran longer than its limit."""
    MEMORY_LIMIT = "memory_limit"
    """It took more memory than its limit."""
    RECURSION_LIMIT = "recursion_limit"
    """It nested calls deeper than its limit."""
    OUTPUT_LIMIT = "output_limit"
    """It printed more than its limit."""
    RESULT_TYPE = "result_type"
    """`result` is neither an integer nor a text."""
    RESULT_TOO_LARGE = "result_too_large"
    """`result` has more than 18 digits, or 256 characters."""
    CRASHED = "crashed"
    """It brought the sandbox's process down; ours went on."""


class ProgramError(Exception):
    """A program is invalid.

    Args:
        reason: the named reason.
        detail: what exactly, in one short line; never more than 200 characters, whatever the program said.
        line: number of the line, from 1; None where no line is to blame.
    """

    def __init__(self, reason: Reason, detail: str = "", line: int | None = None) -> None:
        self.reason = reason
        self.detail = " ".join(detail[:200].split())
        self.line = line
        place = "" if line is None else f" in line {line}"
        super().__init__(f"{reason}{place}: {self.detail}" if self.detail else f"{reason}{place}")


@dataclass(frozen=True)
class Value:
    """The result of a program or the answer of an item.

    Attributes:
        kind: "number", or "text" (a date is the text of its ISO form).
        text: how it is written.
    """

    kind: Literal["number", "text"]
    text: str
