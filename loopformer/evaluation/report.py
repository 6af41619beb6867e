"""The report: one HTML page that needs no network, and the same tables as Markdown and in the terminal.

    summary = summarize(store)
    write_report("report.html", [Run("gru", store, summary)])

Several runs overlay in the same figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import plotly.graph_objects as go
from rich.table import Table

from loopformer.evaluation.figures import (
    Run,
    hazard_figure,
    stop_error_figure,
    stop_share_figure,
    success_figure,
    survival_figure,
)
from loopformer.evaluation.outcomes import atomic_path

COLUMNS = {
    "forced_final": "Forced final",
    "complete": "Complete",
    "exact_stop": "Exact stop",
    "end_to_end": "End to end",
    "strict": "Strict",
}
BREAKDOWNS = {
    "by_range": "Requested count",
    "by_training": "Counts in training",
    "by_kind": "Graph kind",
    "by_seed": "Generation seed",
    "by_period": "Cycle length",
    "by_tail": "Steps before the cycle",
}
FIGURES: dict[str, tuple[Callable[[Sequence[Run]], go.Figure], str]] = {
    "Survival": (
        survival_figure,
        "Share of queries without an error up to loop t, at one requested count. Band: 95% bootstrap interval.",
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
    "Wrong stops": (stop_share_figure, "Share of queries that stop too early, too late, or not by the cap."),
}

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>$title</title>
<style>
:root { --page: #ffffff; --text: #1f2937; --quiet: #5b6472; --line: #d9dde3; --stripe: #f6f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171c; --text: #e5e7eb; --quiet: #a3abb8; --line: #343a44; --stripe: #1b1f26; }
}
body { background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 68rem; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .25rem; }
p, caption { color: var(--quiet); margin: .25rem 0 .75rem; }
caption { text-align: left; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; margin: .5rem 0 1rem; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .8rem; text-align: right; white-space: nowrap; }
th { font-weight: 600; }
th[scope=row], td.text, th.text { text-align: left; }
tbody tr:nth-child(even) { background: var(--stripe); }
td small { color: var(--quiet); display: block; }
code { font-size: .85em; }
</style>
<script>$plotly</script>
</head>
<body>
<header>
<h1>$title</h1>
$about
</header>
<main>
$body
</main>
<script>
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function repaint() {
  const style = getComputedStyle(document.documentElement);
  const [page, text, line] = ["--page", "--text", "--line"].map(name => style.getPropertyValue(name).trim());
  const axis = name => ({[name + ".gridcolor"]: line, [name + ".linecolor"]: line, [name + ".tickcolor"]: line});
  for (const plot of document.querySelectorAll(".plotly-graph-div"))
    Plotly.relayout(plot, {"font.color": text, "hoverlabel.bgcolor": page, "hoverlabel.bordercolor": line,
      "hoverlabel.font.color": text, ...axis("xaxis"), ...axis("yaxis")});
}
dark.addEventListener("change", repaint);
repaint();
</script>
</body>
</html>
""")


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
    with atomic_path(path, overwrite) as temporary:
        temporary.write_text(report_html(runs), encoding="utf-8")


def report_html(runs: Sequence[Run]) -> str:
    """The page of one or several runs as text."""
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 (reads 4 MB, only for a page)

    body = ["<h2>Results</h2>", _table("Shares in percent with 95% bootstrap intervals.", ["Run"], _overall(runs))]
    for title, (draw, text) in FIGURES.items():
        plot = draw(runs).to_html(
            full_html=False, include_plotlyjs=False, config={"responsive": True, "displayModeBar": False}
        )
        body += [f"<section><h2>{escape(title)}</h2><p>{escape(text)}</p>", plot, "</section>"]
    for key, title in BREAKDOWNS.items():
        rows = [
            ([label.replace("_", " "), run.name], run.summary[key][label])
            for label in _labels(runs, key)
            for run in runs
            if label in run.summary.get(key, {})
        ]
        if rows:
            caption = f"By {title.lower()}: percent with 95% bootstrap intervals."
            body += [f"<h2>{escape(title)}</h2>", _table(caption, [title, "Run"], rows)]
    title = "Evaluation of " + ", ".join(run.name for run in runs)
    about = "".join(_about(run) for run in runs)
    return PAGE.substitute(title=escape(title), about=about, body="\n".join(body), plotly=get_plotlyjs())


def table_rows(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the plain table: all queries, then each range of requested counts; shares in percent."""
    header = ["N", "queries", *(f"{name.lower()} %" for name in COLUMNS.values())]
    cells = [("all", {"n": summary["queries"], **summary}), *summary["by_range"].items()]
    return header, [[label, f"{cell['n']:,}", *(_share(cell, name) for name in COLUMNS)] for label, cell in cells]


def markdown_table(summary: dict[str, Any]) -> str:
    """The plain table of a summary as Markdown."""
    header, rows = table_rows(summary)
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def rich_table(summary: dict[str, Any], title: str | None = None) -> Table:
    """The plain table of a summary for the terminal."""
    header, rows = table_rows(summary)
    table = Table(title=title)
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _share(cell: dict[str, Any], name: str, between: str = " ") -> str:
    """A share in percent and its interval, a dash where it is undefined."""
    if cell[name] is None:
        return "-"
    low, high = cell["intervals"][name]
    interval = "" if low is None else f"{between}[{100 * low:.2f}, {100 * high:.2f}]"
    return f"{100 * cell[name]:.2f}{interval}"


def _overall(runs: Sequence[Run]) -> list[tuple[list[str], dict[str, Any]]]:
    return [([run.name], {"n": run.summary["queries"], **run.summary}) for run in runs]


def _labels(runs: Sequence[Run], key: str) -> list[str]:
    return list(dict.fromkeys(label for run in runs for label in run.summary.get(key, {})))


def _table(caption: str, heads: list[str], rows: list[tuple[list[str], dict[str, Any]]]) -> str:
    columns = [*COLUMNS.values(), "Correct prefix"]
    head = "".join(f'<th scope="col" class="text">{escape(name)}</th>' for name in heads)
    head += "".join(f'<th scope="col">{name}</th>' for name in ("Queries", *columns))
    lines = []
    for (first, *others), cell in rows:
        shares = "".join(
            f"<td>{text}</td>" for name in COLUMNS if (text := _share(cell, name, "<small>").replace("]", "]</small>"))
        )
        names = f'<th scope="row">{escape(first)}</th>' + "".join(f'<td class="text">{escape(n)}</td>' for n in others)
        lines.append(f"<tr>{names}<td>{cell['n']:,}</td>{shares}<td>{cell['correct_prefix']:.1f}</td></tr>")
    return (
        f'<div class="wide" tabindex="0"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _about(run: Run) -> str:
    summary, meta = run.summary, run.store.metadata
    digests = ", ".join(f"{escape(name)} <code>{escape(digest[:12])}</code>" for name, digest in meta.digests.items())
    return (
        f"<p><strong>{escape(run.name)}</strong>: {escape(meta.benchmark)}, {summary['queries']:,} queries on "
        f"{summary['graphs']:,} graphs, {len(meta.labels)} labels, {meta.loops} loops, cap {meta.cap}"
        f"{'. Digests: ' + digests if digests else ''}.</p>"
    )
