"""Own puzzles for the grammar lanes: a file of `Puzzle.to_json` objects, one a line, in place of a suite's name.

    python evaluate.py --checkpoint DIR_OR_HUB_ID --benchmark grammar --grammar.lane written --output OUT \
        --grammar.puzzles mine.jsonl

The file's path, as it was given, is the name of its suite in all results.
"""

from __future__ import annotations

from pathlib import Path

from datamodules.tasks.grammar.grammar import GrammarError
from datamodules.tasks.grammar.lane_items import LaneItem, search_item
from datamodules.tasks.grammar.puzzle import Puzzle
from loopformer.evaluation.json_lines import read_object

ENDING = ".jsonl"


def is_puzzle_file(suite: object) -> bool:
    """Tell whether the name of a suite is a file of own puzzles."""
    return isinstance(suite, str) and suite.endswith(ENDING)


def read_puzzles(path: str) -> list[LaneItem]:
    """Read the puzzles of a file.

    Args:
        path: the file, which is the name of the suite too.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it holds no puzzle, or a line is no puzzle, has a name for the second time, or an answer that its
            own run contradicts (names line, field and fix).
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"grammar.puzzles: there is no {path}; name a file of puzzles, one JSON object a line")
    items: dict[str, LaneItem] = {}
    with Path(path).open(encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                item = _parsed(line, path, f"{path} line {number}")
                if item.name in items:
                    raise ValueError(f"{path} line {number}: puzzle.name: {item.name!r} is there already; rename one")
                items[item.name] = item
    if not items:
        raise ValueError(f"grammar.puzzles: {path} holds no puzzle; write one JSON object a line")
    return [*items.values()]


def _parsed(line: str, path: str, place: str) -> LaneItem:
    found = read_object(line, place)
    try:
        item = search_item(Puzzle.from_json(found), path)
    except GrammarError as error:
        raise ValueError(f"{place}: {error}") from None
    # A run that was cut off tells nothing; one that came to its end is no label, but shows that a label is wrong.
    if item.verdict == ("reject" if item.accept else "accept"):
        raise ValueError(
            f"{place}: puzzle.accept: got {item.accept}, but the search ends in {item.verdict}; ask a recogniser again"
        )
    return item
