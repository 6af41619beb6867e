"""Contrast pairs: one grammar, two strings of the same letters, two runs that look alike, one label each.

A pair gives nothing away but by the order of the letters, and the no string passes cheap rules that know of the order
too (`cheap_rules`); which ones, its maker says.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from datamodules.tasks.grammar.cheap_rules import Rule
from datamodules.tasks.grammar.draws import draw_string
from datamodules.tasks.grammar.grammar import Grammar
from datamodules.tasks.grammar.moves import CUT, Move
from datamodules.tasks.grammar.puzzle import Puzzle, Run
from datamodules.tasks.grammar.recogniser import recognises
from datamodules.tasks.grammar.search import Limits

STRINGS = 16
"""Strings drawn of a grammar."""

FATAL = ("PRN", "REJ", "CUT")
"""Moves that give up a branch."""

_DEEPER = {"TRY": 1, "ACC": 0, "BT": 0}
"""By how much a move changes the depth; those not named end a frame."""


@dataclass(frozen=True)
class Pair:
    """A yes puzzle, its contrast and their runs."""

    yes: Puzzle
    no: Puzzle
    yes_run: Run
    no_run: Run

    @property
    def lengths(self) -> tuple[int, int]:
        """Moves of the yes run and of the no run."""
        return len(self.yes_run.moves), len(self.no_run.moves)

    @property
    def moves(self) -> set[Move]:
        """The moves that both runs show."""
        return {*self.yes_run.moves} & {*self.no_run.moves}

    def is_matched(self) -> bool:
        """Tell whether the runs have nearly one length, die at one depth, and are both cut or both decided."""
        yes, no = self.lengths
        cuts = CUT in self.yes_run.moves, CUT in self.no_run.moves
        # A run that ends in unknown without a CUT has used up its budget and decides nothing.
        decided = self.no_run.verdict == ("unknown" if cuts[1] else "reject")
        near = abs(yes - no) <= tolerance(yes)
        return near and decided and cuts[0] == cuts[1] and fatal_depth(self.yes_run) == fatal_depth(self.no_run)


def tolerance(moves: int) -> int:
    """Return by how much the no run may differ from a yes run of that many moves."""
    return max(3, moves // 10)


def fatal_depth(run: Run) -> int:
    """Return the greatest depth at which a branch of the run was pruned, rejected or cut, 0 if none was."""
    depth = deepest = 0
    for move in run.moves:
        if move.op in FATAL:
            deepest = max(deepest, depth)
        depth += _DEEPER.get(move.op, -1)
    return deepest


def matched_pairs(
    grammar: Grammar, runs: tuple[int, int], letters: tuple[int, int], rules: Collection[Rule], rng: random.Random
) -> Iterator[Pair]:
    """Yield the matched pairs of some strings of a grammar.

    Every string comes with two budgets of depth: one that cuts nothing, and one just enough for the yes run, which may
    cut what is deeper.

    Args:
        grammar: the grammar.
        runs: fewest and most moves of the yes run, uncut.
        letters: fewest and most letters of a string.
        rules: what the no string passes; a wrong string is dropped soonest if the strictest come first.
        rng: draws the strings, their swaps and the budgets.
    """
    shortest_run, longest_run = runs
    drawn = (draw_string(grammar, rng, letters[1]) for _ in range(STRINGS))
    for string in dict.fromkeys(string for string in drawn if string is not None and len(string) >= letters[0]):
        free = Puzzle("", "balanced", 0, "", grammar, string, Limits(4 * len(string)), accept=True)
        run = _run(free, longest_run)
        if run is None or run.verdict != "accept" or len(run.moves) < shortest_run:
            continue
        puzzles = (replace(free, string=other) for other in _swaps(string, rng))
        others = [puzzle.string for puzzle in puzzles if all(rule(puzzle) for rule in rules)]
        depth = sum(_DEEPER.get(move.op, -1) for move in run.moves)
        for limits in (free.limits, Limits(depth + rng.randint(0, 1))):
            yes = replace(free, limits=limits)
            yes_run = yes.run()
            deepest = fatal_depth(yes_run)
            for other in others:
                no = replace(yes, string=other, accept=False)
                no_run = _run(no, len(yes_run.moves) + tolerance(len(yes_run.moves)), deepest)
                if no_run is None:
                    continue
                pair = Pair(yes, no, yes_run, no_run)
                # Both labels are the recogniser's; it comes last because it costs most.
                if pair.is_matched() and not recognises(grammar, other) and recognises(grammar, string):
                    yield pair


def _run(puzzle: Puzzle, longest: int, deepest: int | None = None) -> Run | None:
    """Return the run of a puzzle, None as soon as it has more moves than that, or a branch given up deeper down."""
    search = puzzle.search()
    moves: list[Move] = []
    depth = 0
    while search.verdict is None:
        if len(moves) == longest:
            return None
        move = search.step()
        if deepest is not None and depth > deepest and move.op in FATAL:
            return None
        depth += _DEEPER.get(move.op, -1)
        moves.append(move)
    return Run(tuple(moves), search.verdict)


def _swaps(string: tuple[str, ...], rng: random.Random) -> list[tuple[str, ...]]:
    """Return the distinct strings that differ by one swap, in random order."""
    found = set()
    for i, j in combinations(range(len(string)), 2):
        swapped = list(string)
        swapped[i], swapped[j] = swapped[j], swapped[i]
        found.add(tuple(swapped))
    ordered = sorted(found - {string})
    rng.shuffle(ordered)
    return ordered
