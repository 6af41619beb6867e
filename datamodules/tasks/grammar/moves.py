"""Moves: what a search or the bracket machine does in one step, as objects and as JSON.

A move in text is one JSON object, `{"op": "TRY", "production": "p3"}`; a written run is one JSON array of moves. The
`kind` of a move is what results are broken down by: its op, with the reason where it has one.

Source: specification of the grammar task, sections "The prescribed search" and "Suites" (brackets).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["accept", "reject", "unknown"]
"""How a run ends."""


@dataclass(frozen=True)
class Move:
    """One step of a run.

    Attributes:
        op: what is done, "TRY", "BT", "PUSH", ...
        key: name of the argument, "production", "reason" or "expected"; empty for a move without one.
        value: the argument.
    """

    op: str
    key: str = ""
    value: str = ""

    @property
    def kind(self) -> str:
        """Name by which results are broken down: the op, with its reason if it has one ("PRN long")."""
        return f"{self.op} {self.value}" if self.key == "reason" and self.op != "CUT" else self.op

    @property
    def label(self) -> str:
        """Name as a label of a looped model: the op and its argument ("TRY p3")."""
        return f"{self.op} {self.value}" if self.key and self.op != "CUT" else self.op

    def to_json(self) -> dict[str, str]:
        """Return the move as plain JSON data."""
        return {"op": self.op, self.key: self.value} if self.key else {"op": self.op}

    @classmethod
    def from_json(cls, data: object) -> Move:
        """Read a move.

        Raises:
            ValueError: the data is no move at all: no object, an unknown op, a key too many or too few, ...
        """
        op = data.get("op") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(op, str) or op not in _ARGUMENTS:
            raise ValueError(f"move: use an object with an op of {', '.join(_ARGUMENTS)}")
        key, values = _ARGUMENTS[op]
        if set(data) != {"op", key} - {""}:
            raise ValueError(f"{op}: got the keys {', '.join(map(str, data))}; use op and {key or 'nothing else'}")
        value = data[key] if key else ""
        if not isinstance(value, str) or (values is not None and value not in values):
            raise ValueError(f"{op}.{key}: use {'one of ' + ', '.join(sorted(values)) if values else 'a text'}")
        return cls(op, key, value)

    def text(self) -> str:
        """Return the move as a model is to write it."""
        return json.dumps(self.to_json())


PRN_PREFIX = Move("PRN", "reason", "pref")
PRN_LONG = Move("PRN", "reason", "long")
REJ_TERM = Move("REJ", "reason", "term")
REJ_NO_PROD = Move("REJ", "reason", "no_prod")
CUT = Move("CUT", "reason", "max_depth")
BT = Move("BT")
DONE = Move("DONE")
ACC = Move("ACC")

_ARGUMENTS: Mapping[str, tuple[str, frozenset[str] | None]] = {
    "TRY": ("production", None),
    "PRN": ("reason", frozenset({"pref", "long"})),
    "REJ": ("reason", frozenset({"term", "no_prod"})),
    "CUT": ("reason", frozenset({"max_depth"})),
    "PUSH": ("expected", None),
    **dict.fromkeys(("BT", "DONE", "ACC", "CENTER", "POP", "ACCEPT", "REJECT"), ("", None)),
}
"""Key of every op's argument and, where they are few, its values."""

SEARCH_KINDS = ("TRY", "PRN pref", "PRN long", "REJ term", "REJ no_prod", "CUT", "BT", "DONE", "ACC")
"""Kinds of the moves of the search."""


def try_production(name: str) -> Move:
    """Return the move that tries one production."""
    return Move("TRY", "production", name)


def run_text(moves: Iterable[Move]) -> str:
    """Return a written run: one JSON array of moves."""
    return json.dumps([move.to_json() for move in moves])


def count_kinds(moves: Iterable[Move]) -> Counter[str]:
    """Return how many moves of each kind a run has."""
    return Counter(move.kind for move in moves)


PHRASES = (
    ", ",
    *(Move(op).text() for op in ("BT", "DONE", "ACC", "CENTER", "POP", "ACCEPT", "REJECT")),
    *(move.text() for move in (PRN_PREFIX, PRN_LONG, REJ_TERM, REJ_NO_PROD, CUT)),
    *(try_production(f"p{index}").text() for index in range(32)),
    *(Move("PUSH", "expected", closer).text() for closer in "abcdeuvwxy)]"),
)
"""Texts of the moves of the suites and what stands between two moves, for tokenizers that make one token of each."""
