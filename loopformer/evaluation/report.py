"""The report: one HTML page that needs no network, and the same tables as Markdown and in the terminal.

    summary = summarize(store)
    write_report("report.html", [Run("gru", store, summary)])

Several runs overlay in the same figures; `loopformer.evaluation.compare` adds their differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from loopformer.evaluation.bar_figures import (
    KINDS,
    difference_figure,
    first_error_figure,
    stop_distribution_figure,
)
from loopformer.evaluation.details import detail_tables
from loopformer.evaluation.figures import (
    Run,
    hazard_figure,
    stop_error_figure,
    stop_share_figure,
    stops,
    success_figure,
    survival_figure,
)
from loopformer.evaluation.page import Section, figure_html, page_html, swatch
from loopformer.evaluation.tables import (
    BREAKDOWNS,
    COLUMNS,
    breakdown_table,
    breakdown_title,
    difference_table,
    heat_table,
    overall_table,
    range_difference_table,
    stop_rule_table,
)
from loopformer.evaluation.words import in_words_of
from loopformer.files import write_text

FIGURES: dict[str, tuple[Callable[[Sequence[Run]], go.Figure], str]] = {
    "Survival": (
        survival_figure,
        "Share of queries without an error up to loop t, at the count in the menu. Band: 95% bootstrap interval.",
    ),
    "First-error hazard": (
        hazard_figure,
        "Share of first errors at loop t (dots) or nearby (line) among the queries still right before, over all N.",
    ),
    "Success by requested count": (
        success_figure,
        "Strict: stopped at N, every letter right. End to end: stopped at N, last letter right. Band: 95% bootstrap.",
    ),
    "Stop time": (
        stop_error_figure,
        "Stop loop minus requested count: median, and p10 to p90 as a band, over the queries that stopped.",
    ),
    "Distribution of stops": (
        stop_distribution_figure,
        "Share of queries by stop loop minus requested count, over all N; the outer bars hold everything beyond.",
    ),
    "Wrong stops": (stop_share_figure, "Share of queries that stop too early, too late, or not by the cap."),
}


STOP_FIGURES = ("Stop time", "Distribution of stops", "Wrong stops")
"""Figures that need a run with a stop rule."""

STOP_RULES = (
    "What each rule would have returned from the same loops. Forced: stops at N. Learned: the model's own. Oracle: at "
    "N, or else where the right letter first comes by. Repeat: at the first letter that comes twice in a row. "
    "Converged: when the answer state moves by less than 5% of its norm."
)


def write_report(path: Path | str, runs: Sequence[Run], overwrite: bool = False) -> None:
    """Write the page of one or several runs, atomically.

    Args:
        path: the HTML file.
        runs: evaluations to show; they overlay in every figure.
        overwrite: replace an existing file.

    Raises:
        FileExistsError: if the file exists and `overwrite` is false.
        ValueError: if there are no runs or two have the same name.
    """
    names = [run.name for run in runs]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"runs are called {names}: give at least one run, and each a name of its own.")
    write_text(path, report_html(runs), overwrite)


def report_html(runs: Sequence[Run], comparison: dict[str, Any] | None = None) -> str:
    """The page of one or several runs as text; `comparison` is what `compare` returns."""
    kind = "Evaluation" if comparison is None else "Comparison"
    title = f"{kind} of " + ", ".join(run.name for run in runs)
    return page_html(title, "".join(_about(n, run) for n, run in enumerate(runs)), _sections(runs, comparison))


def _sections(runs: Sequence[Run], comparison: dict[str, Any] | None) -> list[Section]:
    say = partial(in_words_of, runs[0].store.metadata.benchmark)
    made = [Section("Results", "All queries together.", overall_table(runs).html())]
    if comparison is not None:
        made.append(_differences(comparison))
    for title, (draw, text) in FIGURES.items():
        if title not in STOP_FIGURES or any(stops(run) for run in runs):
            figure = draw(runs)
            figure.update_layout(xaxis_title_text=say(figure.layout.xaxis.title.text))
            made.append(Section(say(title), say(text), figure_html(figure)))
    if any("stop_rules" in run.summary for run in runs):
        made.append(Section("Stop rules side by side", say(STOP_RULES), stop_rule_table(runs).html()))
    if any(run.summary.get(kind) is not None for run in runs for kind in KINDS):
        text = say("What the first wrong letter is, in this order of precedence.")
        made.append(Section("First errors", text, figure_html(first_error_figure(runs))))
    made += [Section(title, say(text), table.html()) for title, text, table in detail_tables(runs)]
    return [*made, *_breakdowns(runs)]


def _differences(comparison: dict[str, Any]) -> Section:
    names = {**COLUMNS}
    body = figure_html(difference_figure(comparison, names)) + difference_table(comparison).html()
    body += "".join(table.html() for table in range_difference_table(comparison))
    text = (
        "Paired: both runs answer the same graphs. 95% intervals by bootstrap over graphs, with the same draws for "
        "both; coloured where the interval leaves out zero."
    )
    return Section(f"Differences to {comparison['reference']}", in_words_of(comparison["benchmark"], text), body)


def _breakdowns(runs: Sequence[Run]) -> list[Section]:
    """Heat maps of one share, and every share in a part that unfolds."""
    metric = "strict" if all(stops(run) for run in runs) else "complete"
    maps, details = [], []
    for key in BREAKDOWNS:
        title = breakdown_title(runs, key)
        table = heat_table(runs, key, metric)
        if table is not None:
            maps.append(f"<h3>{escape(title)}</h3>{table.html()}")
        full = breakdown_table(runs, key)
        if full is not None:
            details.append(f"<details><summary>{escape(title)}: every share</summary>{full.html()}</details>")
    if not maps:
        return []
    return [
        Section(
            "Breakdowns", f"{COLUMNS[metric]} in percent, by kinds of queries; deeper colour is better.", "".join(maps)
        ),
        Section("Breakdowns in full", "Every share of every group.", "".join(details)),
    ]


def _about(number: int, run: Run) -> str:
    summary, meta = run.summary, run.store.metadata
    graphs = in_words_of(meta.benchmark, "graphs")
    digests = ", ".join(f"{escape(name)} <code>{escape(digest[:12])}</code>" for name, digest in meta.digests.items())
    return (
        f"<p>{swatch(number)}<strong>{escape(run.name)}</strong>: {escape(meta.benchmark)}, {summary['queries']:,} "
        f"queries on {summary['graphs']:,} {graphs}, {len(meta.labels)} labels, {meta.loops} loops, cap {meta.cap}"
        f"{'. Digests: ' + digests if digests else ''}.</p>"
    )
