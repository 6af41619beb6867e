"""Reads what a model wrote, whatever it is: prose, broken JSON, ten megabytes of one bracket.

Nothing here raises. JSON is read as the standard has it, so NaN and a key given twice are malformed. A written run is
read move by move, so that a text that breaks off or goes wrong later still shows the moves before.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

_BLANKS = re.compile(r"[ \t\n\r]*")
_LOOP_TIMES = 4
_LOOP_CHARACTERS = 64
_LONGEST_PERIOD = 4_096

Ending = Literal["closed", "stops", "broken", "more"]
"""How a written array ends: with its bracket, without it between two items, in or after something that is no JSON or
with text behind the bracket, or not looked at since it has more items than asked for."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


@dataclass(frozen=True)
class WrittenArray:
    """The items of a written array.

    Attributes:
        items: the items read, plain JSON data.
        ends: position in the text behind each item.
        ending: how the array ends.
    """

    items: list[Any]
    ends: list[int]
    ending: Ending


def read_value(text: object) -> tuple[bool, Any]:
    """Read a text that is to hold one JSON value and nothing else; return whether it does, and the value."""
    if not isinstance(text, str):
        return False, None
    value, end = _read(text, _skip(text, 0))
    if end is None or _skip(text, end) != len(text):
        return False, None
    return True, value


def read_array(text: object, limit: int) -> WrittenArray:
    """Read a text that is to hold one JSON array, up to `limit` items of it."""
    items: list[Any] = []
    ends: list[int] = []
    at = _skip(text, 0) if isinstance(text, str) else 0
    if not isinstance(text, str) or text[at : at + 1] != "[":
        return WrittenArray(items, ends, "broken")
    at = _skip(text, at + 1)
    if text[at : at + 1] == "]":
        return WrittenArray(items, ends, _closing(text, at))
    while at < len(text):
        if len(items) == limit:
            return WrittenArray(items, ends, "more")
        value, end = _read(text, at)
        if end is None:
            return WrittenArray(items, ends, "broken")
        items.append(value)
        ends.append(end)
        at = _skip(text, end)
        mark = text[at : at + 1]
        if mark == "]":
            return WrittenArray(items, ends, _closing(text, at))
        if mark not in ("", ","):
            return WrittenArray(items, ends, "broken")
        at = _skip(text, at + 1)
    return WrittenArray(items, ends, "stops")


def loops(text: object) -> bool:
    """Tell whether a text ends in one block over and over: at least 4 times, at least 64 characters, cut anywhere."""
    if not isinstance(text, str):
        return False
    tail = text[-_LOOP_TIMES * _LONGEST_PERIOD :]
    for period in range(1, len(tail) // _LOOP_TIMES + 1):
        span = max(_LOOP_TIMES * period, _LOOP_CHARACTERS)
        if span <= len(tail) and tail[-span:-period] == tail[len(tail) - span + period :]:
            return True
    return False


def _skip(text: str, at: int) -> int:
    blanks = _BLANKS.match(text, at)
    return blanks.end() if blanks else at


def _read(text: str, at: int) -> tuple[Any, int | None]:
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        # ValueError: no JSON, or a number with thousands of digits; RecursionError: brackets nested without end.
        return None, None


def _closing(text: str, at: int) -> Ending:
    return "closed" if _skip(text, at + 1) == len(text) else "broken"
