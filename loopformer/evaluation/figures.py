"""Plotly figures of one or several evaluations, drawn from their summaries.

Colour tells runs apart, dash tells quantities apart. Backgrounds are transparent and text takes its colour from the
page, so a figure fits a light and a dark one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.evaluation.page import COLOURS, blank_figure

SHARES = {
    "forced_final": ("forced final", "dot"),
    "complete": ("complete trajectory", "dash"),
    "end_to_end": ("end to end", "dashdot"),
    "strict": ("strict", "solid"),
}
NEEDS_STOP = ("end_to_end", "strict")

WINDOW = 9
"""Loops over which the line of the hazard is taken; odd, so that it is centred."""

STOPS = {"early_stop": ("early", "dot"), "late_stop": ("late", "dash"), "missing_stop": ("missing", "solid")}


class Run(NamedTuple):
    """An evaluation to show.

    Attributes:
        name: how the run is called in legends and tables.
        store: its outcomes.
        summary: what `summarize` made of them.
    """

    name: str
    store: OutcomeStore
    summary: dict[str, Any]


def survival_figure(runs: Sequence[Run]) -> go.Figure:
    """Share of queries without an error up to each loop, with its bootstrap band; a menu chooses the count."""
    figure = blank_figure("Loop t", "Share of queries with F > t")
    counts = sorted({count for run in runs for count in run.summary["survival"]}, key=int)
    owners: list[str] = []
    for count in counts:
        for colour, run in _coloured(runs):
            if count not in run.summary["survival"]:
                continue
            panel = run.summary["survival"][count]
            loops = list(range(1, len(panel["survival"]) + 1))
            group = f"{run.name}, N = {count}"
            line = go.Scatter(
                x=loops,
                y=panel["survival"],
                name=run.name,
                legendgroup=group,
                mode="lines" if len(loops) > 1 else "markers",
                line={"color": colour, "width": 2},
                hovertemplate="%{y:.4f}",
            )
            for trace in (_band(loops, panel["low"], panel["high"], colour, group), line):
                figure.add_trace(trace.update(visible=count == counts[-1]))
                owners.append(count)
    if len(counts) > 1:
        buttons = [
            {"label": f"N = {count}", "method": "update", "args": [{"visible": [owner == count for owner in owners]}]}
            for count in reversed(counts)
        ]
        menu = {"buttons": buttons, "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom", "pad": {"b": 4}}
        figure.update_layout(updatemenus=[menu])
    return figure


def hazard_figure(runs: Sequence[Run]) -> go.Figure:
    """Share of first errors at each loop among the queries still correct before it, over all requested counts.

    Single loops are noisy where errors are rare: they are dots, and the line is the hazard over a window of loops,
    errors and risk sets summed.
    """
    figure = blank_figure("Loop t", "First-error hazard")
    for colour, run in _coloured(runs):
        pooled = run.summary["hazard"]["pooled"]
        loops = list(range(1, len(pooled["hazard"]) + 1))
        figure.add_trace(
            go.Scatter(
                x=loops,
                y=pooled["hazard"],
                customdata=list(zip(pooled["errors"], pooled["at_risk"], strict=True)),
                name=run.name,
                legendgroup=run.name,
                showlegend=False,
                mode="markers",
                marker={"color": colour, "size": 4, "opacity": 0.45},
                hovertemplate="%{y:.5f} (%{customdata[0]:,} of %{customdata[1]:,})",
            )
        )
        errors, at_risk = (np.convolve(pooled[name], np.ones(WINDOW)) for name in ("errors", "at_risk"))
        centred = slice(WINDOW // 2, WINDOW // 2 + len(loops))
        figure.add_trace(
            go.Scatter(
                x=loops,
                y=[float(e / n) if n else None for e, n in zip(errors[centred], at_risk[centred], strict=True)],
                name=run.name,
                legendgroup=run.name,
                mode="lines",
                line={"color": colour, "width": 2},
                hovertemplate="%{y:.5f}",
            )
        )
    return figure.update_yaxes(rangemode="tozero")


def success_figure(runs: Sequence[Run]) -> go.Figure:
    """Final letter, complete trajectory, end-to-end and strict success at each requested count.

    Of several runs strict success is shown (complete trajectories where no run has a stop rule); the rest waits in the
    legend.
    """
    figure = blank_figure("Requested count N", "Share of queries")
    main = "strict" if any(stops(run) for run in runs) else "complete"
    for colour, run in _coloured(runs):
        by_steps = run.summary["by_steps"]
        for offset, (name, (text, dash)) in enumerate(SHARES.items()):
            if name in NEEDS_STOP and not stops(run):
                continue
            shade = COLOURS[offset] if len(runs) == 1 else colour
            label = text.capitalize() if len(runs) == 1 else f"{run.name}, {text}"
            shown = len(runs) == 1 or name == main or (name == "complete" and not stops(run))
            if name == (main if stops(run) else "complete"):
                ends = by_steps["intervals"][name]
                band = _band(by_steps["steps"], ends["low"], ends["high"], shade, label)
                figure.add_trace(band)
            figure.add_trace(_line(by_steps, by_steps[name], label, shade, dash, shown))
    return figure


def stop_error_figure(runs: Sequence[Run]) -> go.Figure:
    """Stop loop minus requested count: median with the band from p10 to p90, over the queries that stopped."""
    figure = blank_figure("Requested count N", "Stop loop minus N (loops)")
    for colour, run in stopping(runs):
        by_steps = run.summary["by_steps"]
        error = by_steps["stop_error"]
        figure.add_trace(_band(by_steps["steps"], error["p10"], error["p90"], colour, run.name))
        figure.add_trace(_line(by_steps, error["median"], run.name, colour, "solid", True, "%{y:.1f}"))
    return figure.update_yaxes(autorangeoptions={"include": [-2, 2]})  # an all-exact run keeps a readable axis


def stop_share_figure(runs: Sequence[Run]) -> go.Figure:
    """Share of early, late and missing stops at each requested count."""
    figure = blank_figure("Requested count N", "Share of queries")
    for colour, run in stopping(runs):
        for offset, (name, (text, dash)) in enumerate(STOPS.items()):
            shade = COLOURS[offset] if len(runs) == 1 else colour
            label = text.capitalize() if len(runs) == 1 else f"{run.name}, {text}"
            figure.add_trace(_line(run.summary["by_steps"], run.summary["by_steps"][name], label, shade, dash, True))
    return figure.update_yaxes(rangemode="tozero")


def stops(run: Run) -> bool:
    """Whether a run has a stop rule: it stopped, or was watched for longer than it was asked to run."""
    return bool((run.store.stops > 0).any()) or run.store.metadata.cap > int(run.store.steps.max())


def stopping(runs: Sequence[Run]) -> list[tuple[str, Run]]:
    """The runs with a stop rule, each with its colour among all."""
    return [(colour, run) for colour, run in _coloured(runs) if stops(run)]


def _coloured(runs: Sequence[Run]) -> list[tuple[str, Run]]:
    return [(COLOURS[index % len(COLOURS)], run) for index, run in enumerate(runs)]


def _line(
    by_steps: dict[str, Any],
    values: Sequence[float | None],
    label: str,
    colour: str,
    dash: str,
    shown: bool,
    hover: str = "%{y:.4f}",
) -> go.Scatter:
    return go.Scatter(
        x=by_steps["steps"],
        y=values,
        name=label,
        legendgroup=label,
        mode="lines" if len(by_steps["steps"]) > 1 else "markers",
        line={"color": colour, "dash": dash, "width": 2},
        visible=True if shown else "legendonly",
        hovertemplate=hover,
    )


def _band(
    x: Sequence[int], low: Sequence[float | None], high: Sequence[float | None], colour: str, group: str
) -> go.Scatter:
    """A shaded region that appears and disappears with the line of its legend group."""
    inside = [(t, a, b) for t, a, b in zip(x, low, high, strict=True) if a is not None and b is not None]
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return go.Scatter(
        x=[t for t, _, _ in inside] + [t for t, _, _ in reversed(inside)],
        y=[a for _, a, _ in inside] + [b for _, _, b in reversed(inside)],
        fill="toself",
        fillcolor=f"rgba({red},{green},{blue},0.18)",
        line={"width": 0},
        mode="lines",
        legendgroup=group,
        showlegend=False,
        hoverinfo="skip",
    )
