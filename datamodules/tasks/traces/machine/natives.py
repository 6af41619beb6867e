"""Builtins that the executor does not leave to CPython: those that call back, and those that make iterators."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from datamodules.tasks.traces.machine.code import CodeTable
from datamodules.tasks.traces.machine.objects import (
    BackwardIterator,
    CountingIterator,
    FilteringIterator,
    MappingIterator,
    ParallelIterator,
    Position,
    make_iterator,
)

DEFINITIONS = (Path(__file__).parent / "definitions.py").read_text(encoding="utf-8")

DEFINED = [
    "list",
    "tuple",
    "set",
    "frozenset",
    "dict",
    "sum",
    "any",
    "all",
    "sorted",
    "max",
    "min",
    "map",
    "filter",
    "enumerate",
    "zip",
    "next",
]
"""Builtins with a definition of ours, named after them with an underscore."""

DEFINED_METHODS: dict[tuple[type, str], str] = {
    (str, "join"): "join_",
    (list, "extend"): "extend_",
    (list, "sort"): "sort_",
    (set, "update"): "set_update_",
    (dict, "update"): "dict_update_",
}


@cache
def compiled_definitions() -> CodeTable:
    """Return the code of our definitions of builtins, decoded once per process."""
    table = CodeTable()
    table.add(compile(DEFINITIONS, "<builtins>", "exec", dont_inherit=True), prefix="builtin_")
    return table


def _positions(values: tuple[Any, ...]) -> list[Any]:
    return [make_iterator(value) for value in values]


ITERATORS: dict[str, Callable[..., Any]] = {
    "iter": make_iterator,
    "enumerate": lambda values, start=0: CountingIterator(make_iterator(values), start),
    "zip": lambda *values: ParallelIterator(*_positions(values)),
    "map": lambda function, *values: MappingIterator(function, *_positions(values)),
    "filter": lambda function, values: FilteringIterator(function, make_iterator(values)),
}
"""Builtins that make iterators, as ours whose position is data."""

REVERSIBLE = (list, tuple, str, range, bytes)


def _reversed(value: Any) -> Position:
    if isinstance(value, REVERSIBLE):
        return BackwardIterator(value)
    items = list(reversed(value))
    return BackwardIterator(items[::-1])


ITERATORS["reversed"] = _reversed
