"""Puzzles as the lanes ask them: one face for the search and for the bracket machine.

    item = search_item(puzzle, "cue_free")
    item.moves          # the reference run
    item.states()       # what the gym shows before every one of them

Source: specification of the grammar task, section "Ways to run a model (lanes) and scores".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from datamodules.tasks.grammar.brackets import BracketMachine, BracketPuzzle
from datamodules.tasks.grammar.grammar import Grammar
from datamodules.tasks.grammar.moves import Move, Verdict
from datamodules.tasks.grammar.puzzle import Puzzle

Machine = Literal["search", "brackets"]
Form = Literal["terminals", "regular", "linear", "branching"]

LETTERED = ("original", "cue_free", "count_a", "search_runs")
"""Suites that ask every structure in several letterings."""

LAST_YES = ("ACC", "ACCEPT")
"""Ops that end a run in accept."""
LAST_NO = ("PRN", "REJ", "CUT", "DONE", "REJECT")
"""Ops that can end a run otherwise."""


@dataclass(frozen=True)
class LaneItem:
    """One puzzle with its reference run.

    Attributes:
        name: unique within its suite.
        suite: name of the suite.
        machine: what runs it, "search" or "brackets".
        family: what it is made like.
        structure: puzzles of one structure differ in letters and answer alone; intervals resample structures.
        form: the grammar's form (`form_of`); of brackets, how many types of brackets occur: "one type", "both types".
        level: difficulty within the family; of brackets, the number of openers.
        depth: deepest frame of the run; of brackets, the most closers expected at once.
        accept: the answer, from a recogniser.
        moves: the reference run.
        verdict: how it ends; a search that was cut or used up its budget ends in "unknown".
        puzzle: the puzzle itself.
    """

    name: str
    suite: str
    machine: Machine
    family: str
    structure: str
    form: str
    level: int
    depth: int
    accept: bool
    moves: tuple[Move, ...]
    verdict: Verdict
    puzzle: Puzzle | BracketPuzzle

    @property
    def key(self) -> str:
        """Name that is unique over all suites."""
        return f"{self.suite}/{self.name}"

    def question(self) -> str:
        """Return the puzzle as text: what is asked, in every lane."""
        if isinstance(self.puzzle, Puzzle):
            limits = {"max_depth": self.puzzle.limits.max_depth, "max_steps": self.puzzle.limits.max_steps}
            parts = {"Grammar": self.puzzle.grammar.to_json(), "String": list(self.puzzle.string), "Limits": limits}
        else:
            alphabet = self.puzzle.alphabet
            parts = {
                "Brackets": dict(alphabet.closer_of),
                "Centre": alphabet.centre,
                "String": list(self.puzzle.string),
            }
        return "\n".join(f"{name}: {json.dumps(value)}" for name, value in parts.items())

    def states(self) -> list[Any]:
        """Return the state before every move, as plain JSON data: the stack of frames, or the machine's registers."""
        found: list[Any] = []
        if isinstance(self.puzzle, Puzzle):
            search = self.puzzle.search()
            while search.verdict is None:
                found.append(search.frames())
                search.step()
        else:
            machine = BracketMachine(self.puzzle.alphabet, self.puzzle.string)
            while machine.verdict is None:
                found.append(machine.to_json())
                machine.step()
        return found


def search_item(puzzle: Puzzle, suite: str) -> LaneItem:
    """Run the search on a puzzle. Letterings of one family and level are one structure; else a pair is."""
    run = puzzle.run()
    lettered = suite in LETTERED
    return LaneItem(
        name=puzzle.name,
        suite=suite,
        machine="search",
        family=puzzle.family,
        structure=f"{puzzle.family}-{puzzle.level}" if lettered else puzzle.pair,
        form=form_of(puzzle.grammar),
        level=puzzle.level,
        depth=_deepest(run.moves),
        accept=puzzle.accept,
        moves=run.moves,
        verdict=run.verdict,
        puzzle=puzzle,
    )


def bracket_item(puzzle: BracketPuzzle, suite: str) -> LaneItem:
    """Run the bracket machine on a puzzle. The openers are its structure, whatever the alphabet."""
    moves = tuple(puzzle.run())
    first, second, *_ = puzzle.alphabet.symbols
    openers = "".join({first: "1", second: "2"}.get(symbol, "") for symbol in puzzle.string)
    return LaneItem(
        name=puzzle.name,
        suite=suite,
        machine="brackets",
        family="brackets",
        structure=f"openers {openers or 'none'}",
        form="both types" if len(set(openers)) == 2 else "one type",
        level=puzzle.depth,
        depth=sum(move.op == "PUSH" for move in moves),
        accept=puzzle.accept,
        moves=moves,
        verdict="accept" if moves[-1].op in LAST_YES else "reject",
        puzzle=puzzle,
    )


def form_of(grammar: Grammar) -> Form:
    """Return the form of a grammar, by its right-hand sides.

    "terminals" have no nonterminals at all, "regular" ones at most one, at the end, "linear" ones at most one anywhere;
    "branching" is every other grammar.
    """
    places = [
        [at for at, symbol in enumerate(p.rhs) if symbol in grammar.alternatives] + [len(p.rhs) - 1]
        for p in grammar.productions
    ]
    if all(len(place) == 1 for place in places):
        return "terminals"
    if any(len(place) > 2 for place in places):
        return "branching"
    return "regular" if all(place[0] == place[-1] for place in places) else "linear"


def _deepest(moves: Sequence[Move]) -> int:
    """Return the greatest index of a frame in a run."""
    depth = deepest = 0
    for move in moves:
        depth += {"TRY": 1, "BT": 0, "ACC": 0}.get(move.op, -1)
        deepest = max(deepest, depth)
    return deepest
