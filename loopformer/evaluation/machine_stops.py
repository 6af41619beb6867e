"""Numbers of stops where some machines have no end that the model could tell.

A model without a stop rule stops where its state says END. A machine that runs for ever never says so, and a model may
have no field that could: a stop is then neither right nor wrong, and no number of stops counts the query.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.evaluation.summary import summarize

STOPPING = (
    "exact_stop", "early_stop", "late_stop", "missing_stop", "returned", "wrong_time", "end_to_end", "strict",
)  # fmt: skip
"""Metrics that the stop decides."""

Cell = dict[str, Any]


def summarize_stops(store: OutcomeStore, judged: Tensor) -> dict[str, Any]:
    """Summarize an evaluation, the numbers of stops over the queries that have one to judge; None without any.

    Args:
        store: the outcomes.
        judged: [Q] bool.
    """
    summary = summarize(store)
    if bool(judged.all()):
        return summary
    told: dict[str, Any] = {}
    if bool(judged.any()):
        part = {name: getattr(store, name)[judged] for name in ("row", "instance", "steps", "stops")}
        told = summarize(replace(store, **part))
    merged = _cell(summary, told, told.get("queries", 0))
    for name, groups in summary.items():
        if name.startswith("by_") and name != "by_steps":
            found = told.get(name, {})
            merged[name] = {
                label: _cell(cell, found.get(label, {}), found.get(label, {}).get("n", 0))
                for label, cell in groups.items()
            }
    return merged | {"by_steps": _by_steps(summary["by_steps"], told.get("by_steps", {"steps": []}))}


def _cell(cell: Cell, told: Cell, n: int) -> Cell:
    """A cell with the stops of another one, which holds `n` queries."""
    kept = told if n else {}
    nothing = {name: [None, None] for name in STOPPING}
    return cell | {
        **{name: kept.get(name) for name in STOPPING},
        "n_of": cell["n_of"] | dict.fromkeys(STOPPING, n),
        "intervals": cell["intervals"] | {name: kept.get("intervals", nothing)[name] for name in STOPPING},
    }


def _by_steps(table: Cell, told: Cell) -> Cell:
    """The lists over requested counts, with the stops of the counts that `told` has."""
    place = {count: number for number, count in enumerate(told["steps"])}
    rows = [place.get(count) for count in table["steps"]]

    def spread(values: list[Any] | None) -> list[Any]:
        return [None if row is None or values is None else values[row] for row in rows]

    def ends(kind: str) -> Cell:
        found = told.get(kind, {})
        return {name: {end: spread(found.get(name, {}).get(end)) for end in ("low", "high")} for name in STOPPING}

    counted = [n or 0 for n in spread(told.get("n"))]
    return table | {
        **{name: spread(told.get(name)) for name in STOPPING},
        "n_of": table["n_of"] | dict.fromkeys(STOPPING, counted),
        **{kind: table[kind] | ends(kind) for kind in ("intervals", "wilson")},
    }
