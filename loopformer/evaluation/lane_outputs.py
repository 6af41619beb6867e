"""Files of what a model wrote in the grammar lanes: one JSON object a line, scored without the model.

    python -m loopformer.evaluation.lane_outputs prompts --suite cue_free --lane written > prompts.jsonl
    python -m loopformer.evaluation.lane_outputs score --outputs outputs.jsonl --output results/lanes

    {"suite": "cue_free", "item": "nesting-2-0-no", "lane": "written", "output": "[{...", "new_tokens": 212}

A line of `prompts` with `output` added is such a line; docs/grammar.md tells every field. An output's shape is never an
error; a file that is not made of such lines, or lacks puzzles of a suite, is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from jsonargparse import auto_cli

from datamodules.tasks.grammar.bracket_task import BracketTask
from datamodules.tasks.grammar.lane_items import LaneItem
from datamodules.tasks.grammar.lane_scores import can_ask, prompts, score_moves, score_reply
from datamodules.tasks.grammar.lanes import (
    LANES,
    PLANTED,
    SINGLE_MOVES,
    JsonNotation,
    LabelNotation,
    Lane,
    Notation,
)
from datamodules.tasks.grammar.search_task import SearchTask
from loopformer.errors import one_line_errors
from loopformer.evaluation.grammar_questions import (
    MADE_WITH,
    PUZZLES,
    GrammarOptions,
    made_with,
    options_of,
    suite_puzzles,
)
from loopformer.evaluation.json_lines import read_object
from loopformer.evaluation.lane_summary import ScoredLane, markdown, summarize_lanes
from loopformer.evaluation.name_list import Names, Numbers
from loopformer.evaluation.puzzle_file import is_puzzle_file
from loopformer.evaluation.summary import write_summary
from loopformer.files import SCORES, SUMMARY, TABLE, refuse_finished, write_json_lines, write_text

JSON, LETTERS = "json", "letters"
OF_PROMPTS = ("text", "begun")
"""Fields of a line of `prompts` that say nothing of the output, so that it may stay in the line."""


@dataclass(frozen=True)
class LaneOutput:
    """What a model wrote for one puzzle in one lane.

    Attributes:
        suite: the puzzle's suite.
        item: its name.
        lane: the lane.
        output: the reply, of any type; in the lanes of single moves the list of replies. A thought that was not closed
            within its budget stands there behind "<think>", and is no reply.
        planted: wrong moves of the planted history, None without one.
        ended: whether the reply ended within its budget; in the lanes of single moves also a list, one for every reply.
        new_tokens: tokens written, those of a thought included; None where nobody counted.
        thought_tokens: tokens of the thought before the reply; None where there could be none.
        notation: "json" or "letters".
        made: options that made the suite (`grammar_questions.made_with`); None for a fixed suite.
    """

    suite: str
    item: str
    lane: Lane
    output: object
    planted: int | None = None
    ended: bool | list[bool] = True
    new_tokens: int | None = None
    thought_tokens: int | None = None
    notation: str = JSON
    made: dict[str, Any] | None = None

    def record(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return asdict(self)


def find_notation(name: str, item: LaneItem) -> Notation:
    """Return the notation in which a puzzle was asked."""
    if name == JSON:
        return JsonNotation()
    return LabelNotation(SearchTask() if item.machine == "search" else BracketTask())


def read_outputs(path: Path) -> Iterator[LaneOutput]:
    """Read a file of outputs.

    Raises:
        ValueError: a line is no JSON object of the described form (names line, field and fix).
    """
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _parsed(line, f"{path} line {number}")


def _parsed(line: str, place: str) -> LaneOutput:
    found = {name: value for name, value in read_object(line, place).items() if name not in OF_PROMPTS}
    fields = LaneOutput.__dataclass_fields__
    for name in ("suite", "item", "lane", "output"):
        if name not in found:
            raise ValueError(f"{place}: {name} is missing; every line needs suite, item, lane and output")
    if unknown := set(found) - set(fields):
        raise ValueError(f"{place}: unknown field {min(unknown)}; use some of {', '.join(fields)}")
    suites = (*PUZZLES, found["suite"] if is_puzzle_file(found["suite"]) else "FILE.jsonl")
    known: dict[str, Sequence[object]] = {"suite": suites, "lane": LANES, "notation": (JSON, LETTERS)}
    planted, single = found.get("lane") == "planted", found.get("lane") in SINGLE_MOVES
    known["planted"] = PLANTED if planted else (None,)
    for name, values in known.items():
        value = found.get(name, JSON if name == "notation" else None)
        if not any(value is one or (type(value) is type(one) and value == one) for one in values):
            raise ValueError(f"{place}: {name}={value!r}; use {' or '.join(map(str, values))}")
    for name in ("new_tokens", "thought_tokens"):
        tokens = found.get(name)
        if tokens is not None and (type(tokens) is not int or tokens < 0):
            raise ValueError(f"{place}: {name}={tokens!r}; use a whole number, not negative")
    if not isinstance(found["item"], str):
        raise ValueError(f"{place}: item={found['item']!r}; use a name")  # noqa: TRY004
    ended = found.get("ended", True)
    if any(type(one) is not bool for one in (ended if isinstance(ended, list) and single else [ended])):
        lists = ", or a list of them" if single else ""
        raise ValueError(f"{place}: ended={ended!r}; use true or false{lists}")
    try:
        options_of(found["suite"], found.get("made"))
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    return LaneOutput(**found)


def asked_items(outputs: Iterable[LaneOutput]) -> list[LaneItem]:
    """Return all puzzles of the suites that occur in some outputs.

    Raises:
        ValueError: the outputs of one suite come from different options.
    """
    suites: dict[str, dict[str, Any] | None] = {}
    for one in outputs:
        if suites.setdefault(one.suite, one.made) != one.made:
            raise ValueError(
                f"made: {one.suite} was made with {suites[one.suite]} and with {one.made}; score these files apart"
            )
    return [item for suite, made in suites.items() for item in suite_puzzles(suite, options_of(suite, made))]


def score_outputs(outputs: Iterable[LaneOutput], items: Sequence[LaneItem]) -> list[ScoredLane]:
    """Score outputs.

    Args:
        outputs: what a model wrote.
        items: the puzzles that were asked, and possibly more.

    Raises:
        ValueError: an unknown puzzle, or two outputs for the same call.
    """
    known = {item.key: item for item in items}
    seen: set[tuple[str, str, int | None]] = set()
    scored = []
    for one in outputs:
        key = f"{one.suite}/{one.item}"
        if key not in known:
            raise ValueError(f"item: got {key!r}; use a name such as {next(iter(known))}")
        call = (key, one.lane, one.planted)
        if call in seen:
            raise ValueError(f"item: {key} has two outputs in lane {one.lane}; leave one of them")
        seen.add(call)
        scored.append(_score(one, known[key]))
    return scored


def _score(one: LaneOutput, item: LaneItem) -> ScoredLane:
    if one.lane in SINGLE_MOVES:
        found = score_moves(item, one.lane, one.output, one.ended)
    else:
        notation = find_notation(one.notation, item)
        asked = prompts(item, one.lane, notation, listing=False) if can_ask(item, one.lane, notation) else []
        call = next((prompt for prompt in asked if prompt.planted == one.planted), None)
        if call is None:
            raise ValueError(f"item: {item.key} is not asked in lane {one.lane}; leave it out")
        found = score_reply(item, one.lane, notation, call, one.output, one.ended is True)
    return ScoredLane(item, one.lane, found, one.planted, one.new_tokens, one.thought_tokens)


def check_complete(outputs: Sequence[LaneOutput], items: Sequence[LaneItem]) -> None:
    """Check that every lane has every puzzle of its suites.

    Args:
        outputs: what a model wrote.
        items: all puzzles of these suites.

    Raises:
        ValueError: nothing is there, or puzzles are missing.
    """
    if not outputs:
        raise ValueError("outputs: there are none; write one JSON object a line")
    present = Counter((one.lane, one.suite, one.notation) for one in outputs)
    for (lane, suite, notation), found in present.items():
        calls = len(PLANTED) if lane == "planted" else 1
        of_suite = [item for item in items if item.suite == suite]
        wanted = calls * sum(can_ask(item, lane, find_notation(notation, item)) for item in of_suite)
        if found < wanted:
            raise ValueError(
                f"outputs: lane {lane} has {found} of the {wanted} replies of {suite}; add the others, or pass "
                "--partial true"
            )


def left_out(asked: Iterable[tuple[Lane, str, str]], items: Sequence[LaneItem]) -> dict[Lane, dict[str, int]]:
    """Count the puzzles that were not asked, by lane and suite; those of which none was left out are not named.

    Args:
        asked: lanes, suites and names of notations.
        items: the puzzles of these suites.
    """
    found: dict[Lane, dict[str, int]] = {}
    for lane, suite, notation in dict.fromkeys(asked):
        of_suite = [item for item in items if item.suite == suite]
        if count := sum(not can_ask(item, lane, find_notation(notation, item)) for item in of_suite):
            found.setdefault(lane, {})[suite] = count
    return found


def write_results(
    output: Path, scored: Sequence[ScoredLane], more: dict[str, Any], overwrite: bool = False
) -> dict[str, Any]:
    """Write scores.jsonl, table.md and, last, summary.json; return the summary.

    Raises:
        FileExistsError: there are results already and `overwrite` is False.
    """
    summary = {"format": 1, "benchmark": "grammar", **more, **summarize_lanes(scored)}
    write_json_lines(output / SCORES, (row.record() for row in scored), overwrite)
    write_text(output / TABLE, markdown(summary), overwrite)
    write_summary(output / SUMMARY, summary, overwrite)
    return summary


def show(
    suite: str = "cue_free",
    lane: str = "written",
    listing: bool = True,
    depths: Numbers | None = None,
    per_depth: int | None = None,
    families: Names | None = None,
    suites: Names | None = None,
    longest: int | None = None,
    letterings: int | None = None,
) -> None:
    """Print the calls of a lane, one JSON object a line; `begun` is how the run begins before the reply.

    The options from `depths` on are those of `evaluate.py --grammar`, by default as there; they stand in `made`.

    Args:
        suite: name of the suite, or a file of own puzzles that ends in .jsonl.
        lane: name of the lane.
        listing: say how the machine moves.
        depths: of bracket_depths: openers of the strings.
        per_depth: of bracket_depths: correct strings at each depth, and as many wrong ones.
        families: of search_runs: families of puzzles.
        suites: of search_runs: how the no puzzles are made.
        longest: of search_runs: most moves.
        letterings: of search_runs: letterings of each kind.
    """
    if lane not in LANES:
        raise ValueError(f"lane: got {lane!r}; use one of {', '.join(get_args(Lane))}")
    if suite not in PUZZLES and not is_puzzle_file(suite):
        raise ValueError(f"suite: got {suite!r}; use one of {', '.join(PUZZLES)}, or FILE.jsonl")
    decides = {
        "depths": depths, "per_depth": per_depth, "families": families, "suites": suites, "longest": longest,
        "letterings": letterings,
    }  # fmt: skip
    given = {name: value for name, value in decides.items() if value is not None}
    if idle := set(given) - set(MADE_WITH.get(suite, ())):
        raise ValueError(f"{min(idle)}: decides nothing of {suite}; leave it out")
    options = GrammarOptions(**given)  # type: ignore[arg-type]
    made = made_with(suite, options)
    for item in suite_puzzles(suite, options):
        calls = prompts(item, lane, JsonNotation(), listing) if can_ask(item, lane, JsonNotation()) else []
        for prompt in calls:
            print(json.dumps({"suite": suite, "item": item.name, "lane": lane, "made": made, **asdict(prompt)}))


def run(outputs: Path, output: Path, partial: bool = False, overwrite: bool = False) -> None:
    """Score a file of outputs.

    Args:
        outputs: the file, one JSON object a line.
        output: folder for the results.
        partial: score what is there, although puzzles are missing.
        overwrite: replace results that the output folder holds already.
    """
    refuse_finished(output, overwrite)
    found = list(read_outputs(outputs))
    items = asked_items(found)
    scored = score_outputs(found, items)
    if not partial:
        check_complete(found, items)
    not_asked = left_out(((one.lane, one.suite, one.notation) for one in found), items)
    print(markdown(write_results(output, scored, {"left_out": not_asked}, overwrite)))


def main() -> None:
    """Run the command line."""
    with one_line_errors():
        auto_cli({"score": run, "prompts": show}, as_positional=False, exit_on_error=False)


if __name__ == "__main__":
    main()
