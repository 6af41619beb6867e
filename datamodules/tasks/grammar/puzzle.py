"""A puzzle: a grammar, a string, the budgets of the search and the label from a recogniser."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from datamodules.tasks.grammar.grammar import Grammar, GrammarError, check_keys
from datamodules.tasks.grammar.moves import Move, Verdict
from datamodules.tasks.grammar.search import Limits, Search

_TYPES: Mapping[str, type] = {"name": str, "family": str, "level": int, "pair": str, "accept": bool}
"""Types of a puzzle's plain values in JSON."""


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        moves: its moves, in order.
        verdict: how it ended.
    """

    moves: tuple[Move, ...]
    verdict: Verdict


@dataclass(frozen=True)
class Puzzle:
    """One question: does the grammar generate the string?

    Attributes:
        name: unique within its suite.
        family: what the puzzle is made like.
        level: its difficulty within the family.
        pair: name shared by a yes puzzle and its contrast, so that no audit splits them.
        grammar: the grammar.
        string: the string.
        limits: budgets of the search.
        accept: whether the grammar generates the string. Comes from a recogniser, never from the search.
    """

    name: str
    family: str
    level: int
    pair: str
    grammar: Grammar
    string: tuple[str, ...]
    limits: Limits
    accept: bool

    def search(self) -> Search:
        """Return a fresh search of this puzzle."""
        return Search(self.grammar, self.string, self.limits)

    def run(self) -> Run:
        """Run the prescribed search to its end."""
        search = self.search()
        moves = tuple(search.run())
        assert search.verdict is not None
        return Run(moves, search.verdict)

    def content(self) -> str:
        """Return what the puzzle asks, as one text: puzzles with equal contents are the same question."""
        return json.dumps([self.grammar.to_json(), self.string, self.limits.max_depth, self.limits.max_steps])

    def to_json(self) -> dict[str, Any]:
        """Return the puzzle as plain JSON data."""
        return {
            "name": self.name,
            "family": self.family,
            "level": self.level,
            "pair": self.pair,
            "grammar": self.grammar.to_json(),
            "string": list(self.string),
            "max_depth": self.limits.max_depth,
            "max_steps": self.limits.max_steps,
            "accept": self.accept,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Puzzle:
        """Build a puzzle from JSON data.

        Raises:
            GrammarError: a key is missing or unknown, a value has the wrong type, or the grammar, the string or a
                budget is invalid.
        """
        check_keys("puzzle", data, (*_TYPES, "grammar", "string", "max_depth", "max_steps"))
        for name, kind in _TYPES.items():
            if type(data[name]) is not kind:
                raise GrammarError(f"puzzle.{name}: got {data[name]!r}; use a value of type {kind.__name__}")
        grammar = Grammar.from_json(data["grammar"])
        return cls(
            data["name"],
            data["family"],
            data["level"],
            data["pair"],
            grammar,
            grammar.check_string(data["string"]),
            Limits(data["max_depth"], data["max_steps"]),
            data["accept"],
        )
