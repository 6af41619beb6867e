"""Plotly figures of one or several evaluations that are no curves: stop times, first errors, differences.

Colour tells runs apart, as in `loopformer.evaluation.figures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from loopformer.evaluation.figures import Run, stopping
from loopformer.evaluation.page import COLOURS, blank_figure
from loopformer.evaluation.stop_rules import stop_distribution

KINDS = {
    "first_error_repeats": "repeats the state before",
    "first_error_earlier": "an earlier state",
    "first_error_orbit": "later on the orbit",
    "first_error_outside": "off the orbit",
}
"""First-error kinds in the protocol's order (evaluation protocol: first-error kind)."""

SHADES = ("#1d4ed8", "#3b82f6", "#93c5fd", "#94a3b8")
"""Of the first-error kinds: no run's colours."""

NEAR = 20
"""Stop errors beyond this many loops share one bar on each side."""


def stop_distribution_figure(runs: Sequence[Run]) -> go.Figure:
    """Share of queries by stop loop minus N; missing stops have a bar of their own."""
    figure = blank_figure("Stop loop minus N", "Share of queries")
    for colour, run in stopping(runs):
        queries = len(run.store.steps)
        shares = dict.fromkeys(range(-NEAR, NEAR + 1), 0)
        stopped = 0
        for error, count in stop_distribution(run.store):
            shares[max(-NEAR, min(NEAR, error))] += count
            stopped += count
        names = [f"≤ {-NEAR}", *(f"{error:+d}" if error else "0" for error in range(1 - NEAR, NEAR)), f"≥ +{NEAR}"]
        figure.add_trace(
            go.Bar(
                x=[*names, "missing"],
                y=[n / queries for n in (*shares.values(), queries - stopped)],
                name=run.name,
                showlegend=True,
                marker={"color": colour},
                hovertemplate="%{y:.4%}",
            )
        )
    figure.update_xaxes(type="category", tickangle=0, nticks=24)
    return figure.update_yaxes(rangemode="tozero", tickformat=".0%").update_layout(barmode="group", bargap=0.15)


def first_error_figure(runs: Sequence[Run]) -> go.Figure:
    """What the first wrong letter is, as shares of the queries with an error; runs without errors have no bar."""
    figure = blank_figure("Share of the queries with an error", "", 200 + 44 * len(runs))
    names = [run.name for run in reversed(runs)]
    for number, (key, text) in enumerate(KINDS.items()):
        values = [run.summary.get(key) for run in reversed(runs)]
        figure.add_trace(
            go.Bar(
                y=names,
                x=[value or 0 for value in values],
                customdata=[_errors(run) for run in reversed(runs)],
                name=text,
                orientation="h",
                marker={"color": SHADES[number]},
                hovertemplate="%{x:.2%} of %{customdata:,}",
            )
        )
    figure.update_layout(barmode="stack", bargap=0.35, hovermode="y unified", legend={"traceorder": "normal"})
    return figure.update_xaxes(range=[0, 1], tickformat=".0%").update_yaxes(type="category")


def difference_figure(comparison: dict[str, Any], names: dict[str, str]) -> go.Figure:
    """Paired differences to the reference with their intervals, in percentage points.

    Args:
        comparison: from `loopformer.evaluation.compare.compare`.
        names: metrics to show and what they are called.
    """
    runs = [name for name in comparison["runs"] if name != comparison["reference"]]
    shown = {m for run in runs for m in names if comparison["differences"][run]["all"][m]["difference"] is not None}
    figure = blank_figure("Percentage points", "", 150 + 45 * len(shown))
    for run in runs:
        number = comparison["runs"].index(run)
        cells = comparison["differences"][run]["all"]
        known = [metric for metric in names if cells.get(metric, {}).get("difference") is not None]
        values = [100 * cells[metric]["difference"] for metric in known]
        figure.add_trace(
            go.Scatter(
                x=values,
                y=[names[metric] for metric in known],
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [100 * cells[m]["high"] - v for m, v in zip(known, values, strict=True)],
                    "arrayminus": [v - 100 * cells[m]["low"] for m, v in zip(known, values, strict=True)],
                    "thickness": 1.5,
                },
                name=run,
                showlegend=True,
                mode="markers",
                marker={"color": COLOURS[number % len(COLOURS)], "size": 9},
                hovertemplate="%{x:+.2f}",
            )
        )
    figure.update_layout(hovermode="y unified", scattermode="group", scattergap=0.6)
    return figure.update_xaxes(zeroline=True, zerolinewidth=2).update_yaxes(type="category", autorange="reversed")


def _errors(run: Run) -> int:
    counts = run.summary.get("n_of", {})
    return int(counts.get("first_error_outside", run.summary["queries"]))
