"""The shortcut audit of all that models are asked, in the options the evaluation has by default.

    python -m datamodules.grammar_audit            # prints the table of every suite, in a few minutes

What looped models are asked is no suite of contrast pairs, so it is brought into that form first: strings of brackets
get the grammar of the correct ones, and puzzles that ask one answer more often than the other are evened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from datamodules.grammar_sources import BracketDepths, SearchRuns
from datamodules.tasks.grammar.audit import bracket_questions, report
from datamodules.tasks.grammar.bracket_task import BracketString
from datamodules.tasks.grammar.brackets import TRAINING_ALPHABET, BracketPuzzle, bracket_suite
from datamodules.tasks.grammar.lane_suites import SEARCH_SUITES
from datamodules.tasks.grammar.puzzle import Puzzle
from datamodules.tasks.grammar.seeds import seeded

DEPTHS = (2, 4, 6, 8, 16, 24, 32, 48, 64)
PER_DEPTH = 64
LONGEST_RUN = 40
LETTERINGS = 4
SEED = 11
"""The options of an evaluation, which lie outside the data; a test compares them."""


def audited_suites() -> dict[str, list[Puzzle]]:
    """Return the puzzles of every suite by name."""
    strings = BracketDepths(list(DEPTHS), PER_DEPTH, SEED).instances()
    runs = SearchRuns(longest=LONGEST_RUN, letterings=LETTERINGS, seed=SEED).instances()
    return {
        **{name: puzzles() for name, puzzles in SEARCH_SUITES.items()},
        "brackets": bracket_questions(bracket_suite()),
        "bracket_depths": bracket_questions(depth_puzzles(strings)),
        "search_runs": evened(runs),
    }


def depth_puzzles(strings: Sequence[BracketString]) -> list[BracketPuzzle]:
    """Return strings of the training alphabet, yes and no in turn, as puzzles; each two of them are a pair."""
    return [
        BracketPuzzle(f"depths-{at // 2}-{at % 2}", string.depth, TRAINING_ALPHABET, string.symbols, string.spoilt == 0)
        for at, string in enumerate(strings)
    ]


def evened(puzzles: Sequence[Puzzle]) -> list[Puzzle]:
    """Return as many yes as no puzzles, those of the commoner answer drawn.

    All of one family and level count as one pair: they differ by their letters and the order of their rules, so a
    classifier that was trained on one has seen the others.
    """
    answers: dict[bool, list[Puzzle]] = {answer: [p for p in puzzles if p.accept == answer] for answer in (True, False)}
    rng = seeded("evened")
    number = min(map(len, answers.values()))
    drawn = [puzzle for group in answers.values() for puzzle in rng.sample(group, number)]
    return [replace(puzzle, pair=f"{puzzle.family}-{puzzle.level}") for puzzle in drawn]


def main() -> None:
    """Print the table of every suite."""
    print(report(audited_suites()))


if __name__ == "__main__":
    main()
