"""The numbers of an evaluation on execution traces, by run length, and their table.

The accuracy of results carries Wilson intervals: programs are independent. The states of one program are not, so their
share carries intervals of a bootstrap that draws whole programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from datamodules.tasks.traces.scoring import Answer
from loopformer.evaluation.bootstrap import grouped_interval, wilson
from loopformer.evaluation.tables import Cell, Table, share

SHARES = {"accuracy": "Result %", "state_accuracy": "States %"}
"""Shares of a group and their heads in the table."""


def check_edges(edges: Sequence[int]) -> None:
    """Check the first lengths of ranges of run lengths.

    Raises:
        ValueError: no edges, one below 0, or edges out of order.
    """
    if not edges or edges[0] < 0 or list(edges) != sorted(set(edges)):
        raise ValueError(f"edges: got {list(edges)}; give ascending lengths such as [1,10,100], none negative")


def summarize_traces(answers: Sequence[Answer], edges: Sequence[int]) -> dict[str, Any]:
    """Summarize judged answers.

    Args:
        answers: the answers, one or more.
        edges: first length of each range, ascending; the last range has no end.

    Returns:
        "all", a group of all answers, and "by_run_length", a group of each range that has any. A group holds the range
        (`low` to `high`), `count`, the mean run length `steps`, the shares of `SHARES` that are defined, `intervals` of
        them where there are, and mean `tokens`.

    Raises:
        ValueError: no edges, one below 0, or edges out of order.
    """
    check_edges(edges)
    groups = []
    for low, following in zip_longest(edges, edges[1:]):
        part = [one for one in answers if one.steps >= low and (following is None or one.steps < following)]
        if part:
            groups.append(_group(part, low, following))
    return {"all": _group(answers, 0, None), "by_run_length": groups}


def _group(answers: Sequence[Answer], low: int, following: int | None) -> dict[str, Any]:
    count, right = len(answers), sum(one.correct for one in answers)
    found: dict[str, Any] = {
        "low": low,
        "high": max(one.steps for one in answers) if following is None else following - 1,
        "count": count,
        "steps": sum(one.steps for one in answers) / count,
        "accuracy": right / count,
        "tokens": sum(one.tokens for one in answers) / count,
        "intervals": {"accuracy": [float(end) for end in wilson(right, count)]},
    }
    if states := sum(one.states for one in answers):
        found["state_accuracy"] = sum(one.right_states for one in answers) / states
        rows = [(str(number), one.right_states, one.states) for number, one in enumerate(answers)]
        if interval := grouped_interval(rows):
            found["intervals"]["state_accuracy"] = interval
    return found


def traces_table(summary: dict[str, Any]) -> Table:
    """One row per range of run lengths, then one of all."""
    groups = [(f"{group['low']}-{group['high']}", group) for group in summary["by_run_length"]]
    rows = [
        [
            Cell(label),
            Cell(str(group["count"])),
            *(share(group, name) for name in SHARES),
            Cell(f"{group['tokens']:.1f}"),
        ]
        for label, group in [*groups, ("all", summary["all"])]
    ]
    return Table("", ["Events", "Programs", *SHARES.values(), "Tokens"], rows)
