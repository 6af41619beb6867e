"""The suites that lanes ask, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from datamodules.tasks.grammar.balanced import balanced_suite
from datamodules.tasks.grammar.bracket_task import BracketString
from datamodules.tasks.grammar.brackets import TRAINING_ALPHABET, BracketPuzzle, bracket_suite
from datamodules.tasks.grammar.deep_random import count_b_suite
from datamodules.tasks.grammar.lane_items import LaneItem, bracket_item, search_item
from datamodules.tasks.grammar.puzzle import Puzzle
from datamodules.tasks.grammar.suites import count_a_suite, cue_free_suite, original_suite

BALANCED_PAIRS = 120
BRACKETS = "brackets"
SEARCH_SUITES: Mapping[str, Callable[[], list[Puzzle]]] = {
    "original": original_suite,
    "cue_free": cue_free_suite,
    "count_a": count_a_suite,
    "count_b": count_b_suite,
    "balanced": lambda: balanced_suite("test", BALANCED_PAIRS),
}
SUITES = (*SEARCH_SUITES, BRACKETS)


def suite_items(name: str) -> list[LaneItem]:
    """Return the puzzles of a suite.

    Raises:
        ValueError: there is no such suite.
    """
    if name == BRACKETS:
        return [bracket_item(puzzle, name) for puzzle in bracket_suite()]
    if name not in SEARCH_SUITES:
        raise ValueError(f"suite: got {name!r}; use one of {', '.join(SUITES)}")
    return [search_item(puzzle, name) for puzzle in SEARCH_SUITES[name]()]


def string_items(strings: Sequence[BracketString], suite: str) -> list[LaneItem]:
    """Return bracket strings as items, of the training alphabet where they have none of their own.

    A string is correct unless it was spoilt.
    """
    puzzles = [
        BracketPuzzle(
            f"{suite}-{number}", string.depth, string.alphabet or TRAINING_ALPHABET, string.symbols, string.spoilt == 0
        )
        for number, string in enumerate(strings)
    ]
    return [bracket_item(puzzle, suite) for puzzle in puzzles]


def first_pairs(items: Sequence[LaneItem], pairs: int | None) -> list[LaneItem]:
    """Return so many yes and as many no puzzles of each suite, family and level; None for all."""
    if pairs is None:
        return list(items)
    counts: Counter[tuple[str, str, int, bool]] = Counter()
    chosen = []
    for item in items:
        cell = (item.suite, item.family, item.level, item.accept)
        counts[cell] += 1
        if counts[cell] <= pairs:
            chosen.append(item)
    return chosen
