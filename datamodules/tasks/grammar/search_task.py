"""The prescribed search as a `Procedure`: one step is one move, and the string's symbols are the cells.

    Rules: A s> a s b; B s> c.
    String: a a c b b.
    Move:

Nonterminals are written s, t, u, ... (the start symbol first), terminals as they are, and every rule begins with the
letter that stands for trying it. The other moves have letters of their own, so every move is one token. The budget of
depth is not in the prompt; `search_recipes` makes runs without a CUT.

Eight named fields tell the state of the top frame before every move, undefined behind the last: where the terminals
before its first nonterminal end in the string (`left`) and where those behind its last one begin (`right`), the first
cell that the former contradict (`clash`, what PRN pref is decided by), which rule first names the symbol that the
string has next (`ahead`), its depth as the number of a cell, its phase, how many rules were tried there, and whether
it is the root.

Source: feasibility study of looped executors, grammar search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

from datamodules.tasks.grammar.grammar import Grammar
from datamodules.tasks.grammar.moves import ACC, BT, CUT, DONE, PRN_LONG, PRN_PREFIX, REJ_NO_PROD, REJ_TERM, Move
from datamodules.tasks.grammar.puzzle import Puzzle
from datamodules.tasks.grammar.search import Limits
from datamodules.tasks.grammar.suites import FAMILIES
from datamodules.tasks.procedure import CELLS, UNDEFINED, LabelSet, Procedure

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
OTHER_MOVES = (PRN_PREFIX, PRN_LONG, REJ_TERM, REJ_NO_PROD, CUT, BT, DONE, ACC)
MOST_RULES = len(LETTERS) - len(OTHER_MOVES)
NONTERMINALS = "stuvwxyz"
TERMINALS = "abcde"
PHASES = ("entered", "await_bt", "expanding")
AHEAD = (*(f"p{index}" for index in range(MOST_RULES)), "none", "end")
FREE = Limits(max_depth=256)
"""Budget of depth that cuts nothing."""

SEARCH_LABELS = LabelSet(
    (*(move.kind for move in OTHER_MOVES), *(f"TRY p{index}" for index in range(MOST_RULES))),
    tuple(f" {letter}" for letter in LETTERS[MOST_RULES:] + LETTERS[:MOST_RULES]),
)
"""The moves without a production, S to Z, then TRY of each production, A to R."""


def label_of(move: Move) -> int:
    """Return the label of a move."""
    return len(OTHER_MOVES) + int(move.value[1:]) if move.op == "TRY" else OTHER_MOVES.index(move)


class SearchTask(Procedure[Puzzle]):
    """Runs the search on a puzzle of at most 18 rules, 8 nonterminals and the terminals a to e."""

    views: ClassVar[tuple[str, ...]] = ("executor",)
    labels = SEARCH_LABELS
    fields: Mapping[str, LabelSet | None] = MappingProxyType(
        {
            "left": CELLS,
            "right": CELLS,
            "clash": CELLS,
            "ahead": LabelSet(AHEAD, tuple(f" {rule}" for rule in AHEAD)),
            "depth": CELLS,
            "phase": LabelSet(PHASES, tuple(f" {phase}" for phase in PHASES)),
            "tried": LabelSet(
                tuple(map(str, range(MOST_RULES + 1))), tuple(f" {count}" for count in range(MOST_RULES + 1))
            ),
            "root": LabelSet(("no", "yes"), (" no", " yes")),
        }
    )

    def prompt(self, instance: Puzzle, view: str) -> str:
        """Return the prompt; there is one view, in which the number of moves does not occur.

        Raises:
            ValueError: unknown view, or a grammar that these letters cannot write.
        """
        if view not in self.views:
            raise ValueError(f"view: got {view!r}; use one of {', '.join(self.views)}")
        return f"{self._rules(instance)} {' '.join(instance.string)}.\nMove:"

    def cells(self, instance: Puzzle, view: str) -> list[int]:  # noqa: ARG002
        """Return the ":" before the string, its symbols and the "." behind it."""
        begin = len(self._rules(instance))
        return [begin - 1, *range(begin + 1, begin + 2 * len(instance.string), 2), begin + 2 * len(instance.string)]

    def steps(self, instance: Puzzle) -> int:
        """Return the number of moves."""
        return len(_run(instance)[0])

    def initial(self, instance: Puzzle) -> None:
        """Return no label: there is no move before the first."""
        del instance

    def states(self, instance: Puzzle) -> Sequence[int]:
        """Return the moves."""
        return _run(instance)[0]

    def field_states(self, instance: Puzzle) -> Mapping[str, Sequence[int]]:
        """Return the state of the top frame before every move."""
        return _run(instance)[1]

    def facts(self, instance: Puzzle) -> dict[str, int]:
        """Return the level (as `depth`), the family and the answer."""
        family = FAMILIES.index(instance.family)
        return {"depth": instance.level, "family": family, "accept": int(instance.accept)}

    @staticmethod
    def _rules(instance: Puzzle) -> str:
        names = _names(instance.grammar)
        rules = "; ".join(
            f"{LETTERS[index]} {names[rule.lhs]}> {' '.join(names[symbol] for symbol in rule.rhs)}"
            for index, rule in enumerate(instance.grammar.productions)
        )
        return f"Rules: {rules}.\nString:"


def _names(grammar: Grammar) -> dict[str, str]:
    """How the symbols are written: the start is the first nonterminal."""
    heads = [grammar.start, *(symbol for symbol in grammar.nonterminals if symbol != grammar.start)]
    odd = [symbol for symbol in grammar.terminals if symbol not in tuple(TERMINALS)]
    if len(heads) > len(NONTERMINALS) or len(grammar.productions) > MOST_RULES or odd:
        raise ValueError(
            f"grammar: {len(heads)} nonterminals, {len(grammar.productions)} rules and the terminals "
            f"{' '.join(grammar.terminals)}; use at most {len(NONTERMINALS)}, {MOST_RULES}, and {' '.join(TERMINALS)}"
        )
    return {**dict(zip(heads, NONTERMINALS, strict=False)), **{symbol: symbol for symbol in grammar.terminals}}


@lru_cache(maxsize=4_096)
def _run(puzzle: Puzzle) -> tuple[list[int], dict[str, list[int]]]:
    """Run the search once: labels of the moves and the fields of steps 0..N."""
    search = puzzle.search()
    moves: list[int] = []
    fields: dict[str, list[int]] = {name: [] for name in SearchTask.fields}
    while search.verdict is None:
        stack = search.frames()
        for name, value in _top(stack, puzzle.grammar, puzzle.string).items():
            fields[name].append(value)
        moves.append(label_of(search.step()))
    return moves, {name: [*values, UNDEFINED] for name, values in fields.items()}


def _top(stack: list[dict[str, Any]], grammar: Grammar, string: Sequence[str]) -> dict[str, int]:
    """Fields of the top frame. Cell 0 stands before the string (and for no clash), cell `length` + 1 behind it."""
    frame = stack[-1]
    form, length = frame["form"], len(string)
    inner = [at for at, symbol in enumerate(form) if symbol in grammar.alternatives]
    left = inner[0] if inner else len(form)
    behind = len(form) - 1 - inner[-1] if inner else 0
    clashes = (at for at, symbol in enumerate(form[:left], 1) if at > length or symbol != string[at - 1])
    return {
        "left": min(left, length) + 1,
        "right": max(length - behind, 0) + 1,
        "clash": next(clashes, 0),
        "ahead": AHEAD.index(_first_rule(grammar, string[left]) if left < length else "end"),
        "depth": min(len(stack) - 1, length + 1),
        "phase": PHASES.index(frame["phase"]),
        "tried": len(frame["tried"]),
        "root": int(len(stack) == 1),
    }


def _first_rule(grammar: Grammar, symbol: str) -> str:
    """The first rule, as p0, p1, ..., whose right side names a symbol."""
    named = (f"p{index}" for index, rule in enumerate(grammar.productions) if symbol in rule.rhs)
    return next(named, "none")
