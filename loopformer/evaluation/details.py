"""Tables of what goes on beyond the shares: after an error, between readouts, in the countdown, between counts.

Each has one row per metric and one column per run, with the interval and the number that the metric is a share or a
mean of. A metric that no run has is left out; so is a table without metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from loopformer.evaluation.figures import Run
from loopformer.evaluation.tables import UNDEFINED, Cell, Table


class Detail(NamedTuple):
    """A table to be: section title, how to read it, and its metrics: name, text and whether it is a share."""

    title: str
    text: str
    metrics: dict[str, tuple[str, bool]]


DETAILS = (
    Detail(
        "After an error",
        "Whether a run finds back to the reference, and for how long it is wrong. A stretch that touches N is "
        "censored: nobody saw its end.",
        {
            "wrong_loop_fraction": ("Wrong loops", True),
            "recovery": ("Recovery: right after wrong", True),
            "transition_consistency": ("Steps rightly from a wrong letter", True),
            "transition_consistency_unrecovered": ("The same, recoveries left out", True),
            "wrong_stretches": ("Wrong stretches per query", False),
            "stretch_length": ("Their length where they end (loops)", False),
            "stretch_censored": ("Censored stretches", True),
            "stretch_length_censored": ("Their length up to N (loops)", False),
        },
    ),
    Detail(
        "Two readouts",
        "What the direct head says where the readout through C errs first, and complete trajectories by each.",
        {
            "readout_direct_right": ("Direct head right", True),
            "readout_both_same": ("Both wrong, the same letter", True),
            "readout_both_different": ("Both wrong, different letters", True),
            "complete": ("Complete through C", True),
            "direct_complete": ("Complete by the direct head", True),
            "both_complete": ("Complete by both", True),
        },
    ),
    Detail(
        "Countdown",
        "How the stop rule reads the requested count and counts it down. Spent: first loop with an estimate of at most "
        "half a step.",
        {
            "initial_estimate_error": ("Initial estimate minus N (steps)", False),
            "initial_estimate_absolute_error": ("The same, absolute", False),
            "decrement_error": ("Decrement minus 1 per loop (steps)", False),
            "decrement_absolute_error": ("The same, absolute", False),
            "spent_exact": ("Spent at N", True),
            "spent_early": ("Spent before N", True),
            "spent_late": ("Spent after N", True),
            "spent_missing": ("Never spent", True),
            "spent_at_stop": ("Spent at the stop loop", True),
        },
    ),
)

SENSITIVITY = {
    "gains": "Gains: wrong under the smaller count, right under the larger",
    "losses": "Losses: right under the smaller count, wrong under the larger",
}

NEEDED = {"Two readouts": "direct_complete"}
"""A metric without which a table says nothing new."""


def detail_tables(runs: Sequence[Run]) -> list[tuple[str, str, Table]]:
    """Title, explanation and table of each section that some run has numbers for."""
    made = []
    for title, text, metrics in DETAILS:
        known = {
            name: entry for name, entry in metrics.items() if any(run.summary.get(name) is not None for run in runs)
        }
        if known and NEEDED.get(title, next(iter(known))) in known:
            rows = [
                [Cell(label), *(_cell(run, name, is_share) for run in runs)]
                for name, (label, is_share) in known.items()
            ]
            made.append((title, text, Table("", ["", *(run.name for run in runs)], rows)))
    sensitivity = _sensitivity(runs)
    return made if sensitivity is None else [*made, sensitivity]


def _cell(run: Run, name: str, is_share: bool) -> Cell:
    value = run.summary.get(name)
    if value is None:
        return Cell(UNDEFINED)
    scale, unit = (100, "%") if is_share else (1, "")
    digits = 2 if is_share or abs(value) >= 0.01 or value == 0 else None
    low, high = run.summary["intervals"].get(name, (None, None))
    n = run.summary.get("n_of", {}).get(name, run.summary["queries"])
    note = "" if low is None else f"[{_number(scale * low, digits)}, {_number(scale * high, digits)}], "
    return Cell(f"{_number(scale * value, digits)}{unit}", f"{note}n = {n:,}")


def _number(value: float, digits: int | None) -> str:
    return f"{value:.2e}" if digits is None else f"{value:,.{digits}f}"


def _sensitivity(runs: Sequence[Run]) -> tuple[str, str, Table] | None:
    found: list[dict[str, Any] | None] = [run.summary.get("count_sensitivity") for run in runs]
    if not any(each and each["pairs"] for each in found):
        return None
    rows = []
    for name, label in SENSITIVITY.items():
        cells = [
            Cell(UNDEFINED) if not each or not each["pairs"] else
            Cell(f"{100 * each[name] / each['pairs']:.3f}%", f"{each[name]:,} of {each['pairs']:,} pairs")
            for each in found
        ]  # fmt: skip
        rows.append([Cell(label), *cells])
    text = "The same graph at the same loop under two requested counts: does the request change the step?"
    return "Count sensitivity", text, Table("", ["", *(run.name for run in runs)], rows)
