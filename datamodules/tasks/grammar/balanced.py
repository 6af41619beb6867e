"""Our own suite of contrast pairs, which repairs what the published suites lack.

- no puzzle twice; grammar, budgets and letter counts are the same in a pair, so only the order of the letters decides;
- the runs of a pair have nearly one length and die at one greatest depth, and neither label has the longer runs;
- every pair stands for one kind of move that both its runs show, REJ term, REJ no_prod, PRN long and CUT equally often;
- forms with several nonterminals, a chain of unit rules and a dead symbol in every grammar;
- the no string passes every rule of `cheap_rules.LOCAL_RULES`;
- train, validation and test never share a shape (`shapes`).

A search that met a CUT cannot end in reject: the no puzzles that stand for CUT have the label no and a run that ends in
unknown.

    puzzles = balanced_suite("test", 120)     # 240 puzzles, the yes of each pair first
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count
from typing import TypeAlias

from datamodules.tasks.grammar.cheap_rules import LOCAL_RULES
from datamodules.tasks.grammar.draws import draw_branching, redraw_letters
from datamodules.tasks.grammar.moves import CUT, PRN_LONG, REJ_NO_PROD, REJ_TERM, Move
from datamodules.tasks.grammar.pairs import Pair, matched_pairs
from datamodules.tasks.grammar.puzzle import Puzzle
from datamodules.tasks.grammar.seeds import seeded
from datamodules.tasks.grammar.shapes import Split, split_of

Cell: TypeAlias = tuple[Move, int]
"""What a pair stands for: a move and a level."""

QUOTA_MOVES = (REJ_TERM, REJ_NO_PROD, PRN_LONG, CUT)
RUN_LENGTHS = ((20, 200), (201, 300), (301, 400))
"""Fewest and most moves of a run at the levels 0, 1, 2."""

STRICTEST_FIRST = tuple(reversed(list(LOCAL_RULES.values())))
"""The rules that a no string passes, those that see most letters first."""

LETTERS = (10, 16)
"""Fewest and most letters of a string: with fewer, the first and last three or four are nearly all there is to see."""

LETTERINGS = 4
"""Letterings tried of a shape; at most one of them gives a pair."""

DRIFT = 20
"""Moves that all yes runs of a level may be longer, or shorter, than all its no runs together."""


def balanced_suite(split: Split, pairs: int, seed: int = 0) -> list[Puzzle]:
    """Return that many pairs of one split: quota moves and levels equally often, one pair per grammar.

    Args:
        split: "train", "validation" or "test"; decides the shapes.
        pairs: number of pairs; a multiple of 12 fills every cell equally.
        seed: master seed; every attempt at a grammar has its own generator.
    """
    cells = [(move, level) for level in range(len(RUN_LENGTHS)) for move in QUOTA_MOVES]
    wanted = Counter(cells[index % len(cells)] for index in range(pairs))
    longer: Counter[int] = Counter()  # per level: moves the yes runs are longer than the no runs, in sum
    chosen: list[tuple[Cell, Pair]] = []
    seen: set[str] = set()
    for pair in _grammars(split, seed, seen, wanted, longer):
        cell = max(_cells(pair), key=lambda cell: wanted[cell])
        wanted[cell] -= 1
        longer[cell[1]] += pair.lengths[0] - pair.lengths[1]
        seen |= {pair.yes.content(), pair.no.content()}
        chosen.append((cell, pair))
    chosen.sort(key=lambda entry: cells.index(entry[0]))
    return [
        replace(puzzle, name=f"{split}-{index}-{answer}", pair=f"{split}-{index}", level=level)
        for index, ((_, level), pair) in enumerate(chosen)
        for puzzle, answer in ((pair.yes, "yes"), (pair.no, "no"))
    ]


def _grammars(split: Split, seed: int, seen: set[str], wanted: Counter[Cell], longer: Counter[int]) -> Iterator[Pair]:
    """Yield at most one wanted pair of every shape that is drawn, until nothing is wanted any more."""
    for attempt in count():
        if not wanted.total():
            return
        rng = seeded("balanced", seed, split, attempt)
        drawn = draw_branching(rng)
        if split_of(drawn) != split:
            continue
        letterings = chain([drawn], (redraw_letters(drawn, rng) for _ in range(LETTERINGS - 1)))
        levels = [level for (_, level), number in wanted.items() if number]
        runs = RUN_LENGTHS[min(levels)][0], RUN_LENGTHS[max(levels)][1]
        pairs = (pair for grammar in letterings for pair in matched_pairs(grammar, runs, LETTERS, STRICTEST_FIRST, rng))
        found = next((pair for pair in pairs if _is_wanted(pair, seen, wanted, longer)), None)
        if found is not None:
            yield found


def _cells(pair: Pair) -> list[Cell]:
    """Return the cells a pair could fill, none if its runs are of two levels."""
    few, many = sorted(pair.lengths)
    levels = [level for level, (least, most) in enumerate(RUN_LENGTHS) if least <= few and many <= most]
    shown = pair.moves
    # Only pairs that stand for CUT may have one: all others have a verdict.
    moves = [CUT] if CUT in shown else [move for move in QUOTA_MOVES if move in shown]
    return [(move, level) for move in moves for level in levels]


def _is_wanted(pair: Pair, seen: set[str], wanted: Counter[Cell], longer: Counter[int]) -> bool:
    cells = [cell for cell in _cells(pair) if wanted[cell]]
    if not cells or seen & {pair.yes.content(), pair.no.content()}:
        return False
    # The sum of the differences in length must stay near zero, or come nearer to it.
    now = longer[cells[0][1]]
    return abs(now + pair.lengths[0] - pair.lengths[1]) <= max(DRIFT, abs(now) - 1)
