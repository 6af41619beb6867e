"""The numbers of an evaluation in the grammar lanes, by lane and suite, yes and no apart everywhere.

Shares carry Wilson intervals, as if puzzles were independent, and intervals of a bootstrap that draws whole structures:
the letterings of one structure, its yes and its no are one draw, so these are the honest ones where a suite asks a
structure several times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from datamodules.tasks.grammar.checker import KindTally
from datamodules.tasks.grammar.lane_items import LaneItem
from datamodules.tasks.grammar.lane_scores import LaneScore
from datamodules.tasks.grammar.lanes import HISTORY, Lane
from loopformer.evaluation.bootstrap import LEVEL, grouped_interval, wilson
from loopformer.evaluation.grammar_summary import ANSWERS, SPANS, span_name, survival_curve

KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(frozen=True)
class ScoredLane:
    """One scored puzzle of one lane.

    Attributes:
        item: the puzzle.
        lane: the lane.
        score: what the model's replies scored.
        planted: wrong moves of the planted history, None without one.
        new_tokens: tokens written, those of a thought included; None where nobody counted.
        thought_tokens: tokens of the thought; None where there could be none.
    """

    item: LaneItem
    lane: Lane
    score: LaneScore
    planted: int | None = None
    new_tokens: int | None = None
    thought_tokens: int | None = None

    def record(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        plain = {"suite": self.item.suite, "item": self.item.name, "lane": self.lane, "planted": self.planted}
        facts = {"family": self.item.family, "form": self.item.form, "level": self.item.level, "depth": self.item.depth}
        tokens = {"new_tokens": self.new_tokens, "thought_tokens": self.thought_tokens}
        return {**plain, **facts, "accept": self.item.accept, **self.score.record(), **tokens}


def _span(item: LaneItem) -> str:
    steps = len(item.moves)
    return next(span_name(first, last) for first, last in SPANS if steps >= first and (last is None or steps <= last))


BREAKDOWNS: Mapping[str, Callable[[LaneItem], str]] = {
    "family": lambda item: item.family,
    "form": lambda item: item.form,
    "level": lambda item: str(item.level),
    "depth": lambda item: str(item.depth),
    "steps": _span,
}
"""What the results of a lane and suite are broken down by; `steps` are ranges of run lengths, in moves."""

SHARES: Mapping[str, Callable[[LaneScore], bool | None]] = {
    "answer": lambda score: score.answer,
    "complete": lambda score: score.complete,
    "exact_stop": lambda score: score.exact_stop,
}
"""Shares of a cell; each counts only the replies for which the question arises.

What is complete here is called strict of looped models, whose stop is no part of the run."""


def summarize_lanes(rows: Sequence[ScoredLane]) -> dict[str, Any]:
    """Summarize scored lanes.

    Returns:
        {"lanes": {lane: {suite: group}}, "answer_by_run": {lane: {suite: counts}}}: a group holds a cell of all
        puzzles, cells of the yes and of the no, breakdowns, the accuracy of every kind of move, pooled ("moves") and by
        answer ("moves_by_answer"), and the survival of runs by answer (`survival_curve`, as of looped models); planted
        histories have a group for each number of wrong moves. The counts cross the answers of lane answer with the runs
        of another lane, puzzle by puzzle, pooled and by answer. Undefined numbers are None.
    """
    lanes: dict[str, Any] = {}
    for (lane, suite), part in _grouped(rows, lambda row: (row.lane, row.item.suite)).items():
        group = _group(part)
        if lane == "planted":
            by_wrong = _grouped(part, lambda row: str(row.planted))
            group["planted"] = {wrong: _group(some) for wrong, some in sorted(by_wrong.items())}
        lanes.setdefault(lane, {})[suite] = group
    return {"level": LEVEL, "replies": len(rows), "lanes": lanes, "answer_by_run": _cross_tables(rows)}


def _group(rows: Sequence[ScoredLane]) -> dict[str, Any]:
    found = {**_cell(rows), **_by_answer(rows)}
    for name, label_of in BREAKDOWNS.items():
        parts = _grouped(rows, lambda row, label_of=label_of: label_of(row.item))  # type: ignore[misc]
        found[f"by_{name}"] = {label: _by_answer(part) for label, part in sorted(parts.items(), key=_order)}
    found["moves"] = _moves(rows)
    found["moves_by_answer"] = {name: _moves(_of_answer(rows, value)) for name, value in ANSWERS.items()}
    longest = max((len(row.item.moves) for row in rows), default=0)
    found["survival"] = {name: _survival(_of_answer(rows, value), longest) for name, value in ANSWERS.items()}
    stated = [row for row in rows if row.score.answer is not None and row.score.complete is not None]
    if stated:
        found["stated_answer_by_run"] = _cross_by_answer([(row, row.score.answer) for row in stated])
    return found


def _by_answer(rows: Sequence[ScoredLane]) -> dict[str, Any]:
    """Cells of the yes and of the no puzzles."""
    return {name: _cell(_of_answer(rows, value)) for name, value in ANSWERS.items()}


def _of_answer(rows: Sequence[ScoredLane], accept: bool) -> list[ScoredLane]:
    return [row for row in rows if row.item.accept == accept]


def _moves(rows: Sequence[ScoredLane]) -> dict[str, Any]:
    """Accuracy of every kind of move that was judged."""
    tally = KindTally()
    for row in rows:
        tally.judged.update(row.score.judged)
        tally.correct.update(row.score.correct)
    return {kind: rate(tally.correct[kind], total) for kind, total in sorted(tally.judged.items())}


def _survival(rows: Sequence[ScoredLane], longest: int) -> dict[str, list[Any]]:
    """The curve of the runs, by moves of the whole run; planted moves are never an error."""
    runs = [row for row in rows if row.score.length]
    steps = [len(row.item.moves) for row in runs]
    # What stands behind the last move is no error of the run; its index is the number of moves, as if there were none.
    firsts = [n if row.score.first_error is None else row.score.first_error for row, n in zip(runs, steps, strict=True)]
    return survival_curve(torch.tensor(steps).long(), torch.tensor(firsts).long() + 1, longest)


def _cell(rows: Sequence[ScoredLane]) -> dict[str, Any]:
    """Shares with intervals, and where and how runs first went wrong."""
    scores = [row.score for row in rows]
    cell: dict[str, Any] = {"n": len(rows), "intervals": {}, "structures": {}}
    for name, share_of in SHARES.items():
        known = [(row, flag) for row in rows if (flag := share_of(row.score)) is not None]
        found = rate(sum(flag for _, flag in known), len(known))
        cell[name], cell["intervals"][name] = found["right"], found["interval"]
        cell["structures"][name] = grouped_interval([(row.item.structure, flag, 1) for row, flag in known])
    runs = [row for row in rows if row.score.length]
    lengths = sum(row.score.length for row in runs)
    # The prefix score of a run is the share of its moves before the first error; `moves_right` pools all moves.
    cell["prefix"] = float(np.mean([_prefix(row.score) for row in runs])) if runs else None
    cell["structures"]["prefix"] = grouped_interval([(r.item.structure, _prefix(r.score), 1) for r in runs])
    cell["moves_before_first_error"] = float(np.mean([_before(row.score) for row in runs])) if runs else None
    cell["moves_right"] = sum(row.score.right for row in runs) / lengths if lengths else None
    cell["errors"] = dict(Counter(score.error for score in scores if score.error is not None).most_common())
    firsts = Counter(score.first_error for score in scores if score.first_error is not None)
    cell["first_errors"] = {str(at): firsts[at] for at in sorted(firsts)}
    for name, counts in (
        ("new_tokens", [row.new_tokens for row in rows if row.new_tokens is not None]),
        ("thought_tokens", [row.thought_tokens for row in rows if row.thought_tokens is not None]),
    ):
        if counts:
            cell[name] = {"mean": sum(counts) / len(counts), "largest": max(counts)}
    return cell


def rate(right: int, total: int) -> dict[str, Any]:
    """Return number, share and Wilson interval."""
    ends = [float(end) for end in wilson(right, total)] if total else None
    return {"n": total, "right": right / total if total else None, "interval": ends}


def _before(score: LaneScore) -> int:
    """Moves right before the first error of the scored part of a run."""
    if score.first_error is None:
        return score.length
    # In lane states `right` counts all moves; elsewhere nothing is read behind the first error.
    return min(score.right, score.first_error)


def _prefix(score: LaneScore) -> float:
    return _before(score) / score.length


def _cross(pairs: Iterable[tuple[bool | None, bool | None]]) -> dict[str, int]:
    """Does the right answer come with the right run? Counts of puzzles."""
    counts = Counter((bool(answer), bool(complete)) for answer, complete in pairs)
    names = {True: "right", False: "wrong"}
    return {
        f"answer_{names[answer]}_run_{'complete' if complete else 'wrong'}": counts[answer, complete]
        for answer in (True, False)
        for complete in (True, False)
    }


def _cross_by_answer(rows: Sequence[tuple[ScoredLane, bool | None]]) -> dict[str, Any]:
    """Cross the answers that go with some rows with their runs: all of them, then the yes and the no puzzles."""
    apart = {
        name: _cross((answer, row.score.complete) for row, answer in rows if row.item.accept == value)
        for name, value in ANSWERS.items()
    }
    return {**_cross((answer, row.score.complete) for row, answer in rows), **apart}


def _cross_tables(rows: Sequence[ScoredLane]) -> dict[str, Any]:
    """Cross the answers of lane answer with the runs of the lanes that make one run of a puzzle."""
    answers = {row.item.key: row.score.answer for row in rows if row.lane == "answer"}
    tables: dict[str, Any] = {}
    for (lane, suite), part in _grouped(rows, lambda row: (row.lane, row.item.suite)).items():
        both = [row for row in part if row.item.key in answers and lane in ("written", "gym")]
        if both:
            tables.setdefault(lane, {})[suite] = _cross_by_answer([(row, answers[row.item.key]) for row in both])
    return tables


def markdown(summary: dict[str, Any]) -> str:
    """The tables: every lane and suite; runs by length and by depth; kinds of moves. In percent."""
    shares = (*SHARES, "prefix")
    heads = ["lane", "suite", *(f"{name.replace('_', ' ')} {answer}" for name in shares for answer in ANSWERS)]
    rows = []
    for lane, suites in summary["lanes"].items():
        for suite, group in suites.items():
            names = {"": group, **{f", {wrong} wrong": part for wrong, part in group.get("planted", {}).items()}}
            for more, cell in names.items():
                rows.append([f"{lane}{more}", f"{suite} ({cell['n']})", *_shares(cell, shares)])
    lines = _table(heads, rows)
    for lane, counts in summary.get("left_out", {}).items():
        short = f"runs of at most {HISTORY} moves, or " if lane == "planted" else ""
        told = ", ".join(f"{suite} {n}" for suite, n in counts.items())
        lines += ["", f"Puzzles not asked, {lane}: {told} ({short}letters cannot write them or write them twice)"]
    for lane, suites in summary["lanes"].items():
        for suite, group in suites.items():
            lines += ["", *_breakdown_table(lane, suite, group)]
    for lane, tables in summary["answer_by_run"].items():
        for suite, counts in tables.items():
            for answer in ANSWERS:
                lines += ["", f"Answers by runs, {lane}, {suite}, {answer}: {_counts(counts[answer])}"]
    return "\n".join(lines) + "\n"


def _breakdown_table(lane: str, suite: str, group: dict[str, Any]) -> list[str]:
    share = "answer" if lane == "answer" else "complete"
    rows = [
        [f"{name} {label}", str(cell["yes"]["n"] + cell["no"]["n"]), *_shares(cell, (share, "prefix"))]
        for name in ("family", "form", "level", "steps")
        for label, cell in group[f"by_{name}"].items()
    ]
    lines = _table([f"{lane}, {suite}", "puzzles", f"{share} yes", f"{share} no", "prefix yes", "prefix no"], rows)
    errors = {f"{name} {error}": n for name in ANSWERS for error, n in group[name]["errors"].items()}
    lines += ["", f"First errors: {_counts(errors)}"] if errors else []
    for answer, found in group["moves_by_answer"].items():
        moves = [f"{kind} {100 * cell['right']:.1f} of {cell['n']}" for kind, cell in found.items()]
        lines += ["", f"Right moves, {answer}: {', '.join(moves)}"] if moves else []
    return lines


def _shares(cell: dict[str, Any], names: Sequence[str]) -> list[str]:
    return [_percent(cell[answer], name) for name in names for answer in ANSWERS]


def _percent(cell: dict[str, Any], name: str) -> str:
    if cell[name] is None:
        return "-"
    # The wider of both intervals: Wilson's counts letterings as independent, the bootstrap has no width at 0 and 1.
    both = [ends for ends in (cell["structures"][name], cell["intervals"].get(name)) if ends]
    if not both:
        return f"{100 * cell[name]:.1f}"
    low, high = min(ends[0] for ends in both), max(ends[1] for ends in both)
    return f"{100 * cell[name]:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in counts.items())


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *rows)]


def _order(entry: tuple[str, Any]) -> tuple[int, str]:
    """Numbers by size, ranges by their first number, names by the alphabet."""
    first = entry[0].partition("-")[0].rstrip("+")
    return (int(first), "") if first.isdigit() else (0, entry[0])


def _grouped(rows: Iterable[ScoredLane], key: Callable[[ScoredLane], KeyT]) -> dict[KeyT, list[ScoredLane]]:
    found: dict[KeyT, list[ScoredLane]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found
