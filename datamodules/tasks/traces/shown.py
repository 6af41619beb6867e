"""How a trace shows a value: its repr where it is a plain value, otherwise a name in angle brackets.

No code of the program runs for it (a repr of its own classes could do anything), and CPython's hidden objects and our
executor's look alike, so that the two can be compared event by event.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import Any

from datamodules.tasks.traces.allowed import OutputLimitError

PLAIN = frozenset({bool, type(None), float})

TEXT = frozenset({str, bytes})

CALLABLE = frozenset({"function", "Function", "method", "builtin_function_or_method", "method_descriptor"})

DEEPEST = 50

SHORT = 10_000
"""Bits of the longest integer written in digits (Python itself refuses those of more than 4,300 digits)."""


def shown(value: Any, limit: int = 100_000) -> str:
    """Show a value.

    Raises:
        OutputLimitError: its text is longer than `limit` characters.
    """
    kind = type(value)
    if kind in PLAIN:
        return repr(value)
    if kind in TEXT:
        if len(value) > limit:
            raise OutputLimitError("the text of a value is too long")
        return repr(value)
    if kind is int:
        return repr(value) if value.bit_length() < SHORT else f"<int of {value.bit_length()} bits>"
    parts: list[str] = []
    _show(value, parts, [limit], [])
    return "".join(parts)


def _put(text: str, parts: list[str], left: list[int]) -> None:
    left[0] -= len(text)
    if left[0] < 0:
        raise OutputLimitError("the text of a value is too long")
    parts.append(text)


def _show(value: Any, parts: list[str], left: list[int], outer: list[int]) -> None:
    kind = type(value)
    if kind in PLAIN or kind in TEXT or kind is int:
        _put(shown(value, left[0]), parts, left)
    elif id(value) in outer or len(outer) > DEEPEST:
        _put("...", parts, left)
    elif (brackets := _brackets(value)) is not None:
        opening, items, closing = brackets
        outer.append(id(value))
        _put(opening, parts, left)
        for position, item in enumerate(items):
            if position:
                _put(", ", parts, left)
            if isinstance(items, type({}.items())):
                _show(item[0], parts, left, outer)
                _put(": ", parts, left)
                item = item[1]  # noqa: PLW2901
            _show(item, parts, left, outer)
        _put(closing, parts, left)
        outer.pop()
    else:
        _put(_named(value), parts, left)


def _brackets(value: Any) -> tuple[str, Any, str] | None:
    """Return how a container opens, what it holds and how it closes; None for what is no plain container."""
    kind = type(value)
    if kind is list:
        return "[", value, "]"
    if kind is tuple:
        return "(", value, ",)" if len(value) == 1 else ")"
    if kind is dict:
        return "{", value.items(), "}"
    if kind in (set, frozenset):
        if not value:
            return f"{kind.__name__}(", (), ")"
        return ("{", value, "}") if kind is set else ("frozenset({", value, "})")
    if kind in (Counter, OrderedDict, defaultdict):
        return f"{kind.__name__}({{", value.items(), "})"
    if kind is deque:
        return "deque([", value, "])"
    if kind in (type({}.keys()), type({}.values())):
        return f"{kind.__name__}([", value, "])"
    if kind is type({}.items()):
        return "dict_items([", list(value), "])"
    return None


def _named(value: Any) -> str:
    kind = type(value)
    if kind in (range, complex, slice, bytearray) or value is Ellipsis or value is NotImplemented:
        return repr(value)
    if kind.__name__ in CALLABLE:
        return f"<{value.__name__}>"
    if isinstance(value, type):
        return f"<class {value.__name__}>"
    if any("__next__" in vars(base) for base in kind.__mro__):
        return "<iterator>"
    if isinstance(value, BaseException):
        return f"<{kind.__name__}>"
    return f"<{kind.__name__} object>"


def snapshot(variables: Mapping[str, Any]) -> dict[str, str]:
    """Show all variables."""
    result = {}
    for name, value in variables.items():
        kind = type(value)
        result[name] = repr(value) if kind in PLAIN or (kind is int and value.bit_length() < SHORT) else shown(value)
    return result
