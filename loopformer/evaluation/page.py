"""One self-contained HTML page: style, plotly and figures in a single file that opens without network.

    sections = [Section("Survival", "How to read it.", figure_html(figure))]
    write_page("report.html", "Evaluation", "<p>What it is.</p>", sections)

Colours follow the reader's light or dark setting, figures included. Wide tables scroll on their own, their first
column staying in sight.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import NamedTuple

import plotly.graph_objects as go

from loopformer.files import write_text

COLOURS = ("#3b82f6", "#f97316", "#10b981", "#d946ef", "#eab308", "#ef4444")
"""Mid tones, readable on white and on near-black; they repeat after six runs."""

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>$title</title>
<style>
:root { --page: #ffffff; --text: #1f2937; --quiet: #5b6472; --line: #e2e6eb; --stripe: #f7f8fa; --heat: #3b82f6;
  --good: #047857; --bad: #c2410c; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171c; --text: #e5e7eb; --quiet: #a3abb8; --line: #2e343e; --stripe: #1a1e25; --heat: #3b82f6;
    --good: #34d399; --bad: #fb923c; }
}
html { scroll-behavior: smooth; }
body { background: var(--page); color: var(--text); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif;
  margin: 0 auto; max-width: 70rem; padding: 2rem 1.25rem 5rem; }
h1 { font-size: 1.75rem; letter-spacing: -.01em; line-height: 1.2; margin: 0 0 .75rem; }
h2 { font-size: 1.25rem; letter-spacing: -.005em; margin: 0 0 .25rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
p { margin: .25rem 0 .75rem; max-width: 46rem; }
section > p, .about, .caption { color: var(--quiet); }
.about strong { color: var(--text); }
section { border-top: 1px solid var(--line); margin-top: 2.25rem; padding-top: 1.5rem; }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; margin-top: 1.25rem; font-size: .9rem; }
a { color: var(--heat); text-decoration: none; }
a:hover { text-decoration: underline; }
p.caption { font-size: .9rem; margin: 1rem 0 0; max-width: none; }
.wide { overflow-x: auto; }
table { border-collapse: separate; border-spacing: 0; font-size: .9rem; font-variant-numeric: tabular-nums;
  margin: .5rem 0 1rem; }
th, td { border-bottom: 1px solid var(--line); padding: .4rem .7rem; text-align: right; vertical-align: top;
  white-space: nowrap; }
th { font-weight: 600; }
thead th { border-bottom: 2px solid var(--line); vertical-align: bottom; }
th[scope=row], td.text, th.text { text-align: left; }
th[scope=row] { min-width: 7rem; white-space: normal; }
tr > :first-child { background: var(--page); left: 0; padding-left: .25rem; position: sticky; z-index: 1; }
td small, th small { color: var(--quiet); display: block; font-size: .78rem; font-weight: 400; }
td.best { font-weight: 650; }
td.better { color: var(--good); } td.worse { color: var(--bad); }
td.heat { background: color-mix(in srgb, var(--heat) calc(var(--v) * .55%), transparent);
  border: 2px solid var(--page); border-radius: .4rem; min-width: 4.5rem; }
.swatch { border-radius: .2rem; display: inline-block; height: .7rem; margin-right: .5rem; width: .7rem; }
code { font-size: .85em; }
details { border-bottom: 1px solid var(--line); padding: .5rem 0; }
summary { cursor: pointer; font-weight: 600; }
footer { color: var(--quiet); font-size: .85rem; margin-top: 3rem; }
@media (max-width: 40rem) { body { padding: 1.25rem .9rem 3rem; } th, td { padding: .35rem .6rem; } }
@media print { nav { display: none; } section { break-inside: avoid; } }
</style>
<script>$plotly</script>
</head>
<body>
<header>
<h1>$title</h1>
<div class="about">$about</div>
<nav aria-label="Sections">$nav</nav>
</header>
<main>
$body
</main>
<script>
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function repaint() {
  const style = getComputedStyle(document.documentElement);
  const [page, text, line] = ["--page", "--text", "--line"].map(name => style.getPropertyValue(name).trim());
  for (const plot of document.querySelectorAll(".plotly-graph-div")) {
    const change = {"font.color": text, "hoverlabel.bgcolor": page, "hoverlabel.bordercolor": line,
      "hoverlabel.font.color": text};
    for (const axis of Object.keys(plot.layout).filter(name => /^[xy]axis/.test(name)))
      for (const part of ["gridcolor", "linecolor", "tickcolor", "zerolinecolor"]) change[axis + "." + part] = line;
    (plot.layout.updatemenus || []).forEach((_, i) => Object.assign(change, {["updatemenus[" + i + "].bgcolor"]: page,
      ["updatemenus[" + i + "].bordercolor"]: line, ["updatemenus[" + i + "].font.color"]: text}));
    Plotly.relayout(plot, change);
  }
}
dark.addEventListener("change", repaint);
repaint();
</script>
</body>
</html>
""")


class Section(NamedTuple):
    """A part of a page.

    Attributes:
        title: its heading, also its link in the navigation.
        text: one sentence that says how to read it; plain text.
        body: its HTML.
    """

    title: str
    text: str
    body: str


def page_html(title: str, about: str, sections: Sequence[Section]) -> str:
    """Return a page as text.

    Args:
        title: heading, plain text.
        about: HTML below the heading.
        sections: the parts in order.
    """
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 (reads 4 MB, only for a page)

    anchors = [re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") for section in sections]
    nav = "".join(f'<a href="#{a}">{escape(s.title)}</a>' for a, s in zip(anchors, sections, strict=True))
    body = "\n".join(
        f'<section id="{anchor}"><h2>{escape(s.title)}</h2><p>{escape(s.text)}</p>\n{s.body}</section>'
        for anchor, s in zip(anchors, sections, strict=True)
    )
    return PAGE.substitute(title=escape(title), about=about, nav=nav, body=body, plotly=get_plotlyjs())


def write_page(path: Path | str, title: str, about: str, sections: Sequence[Section], overwrite: bool = False) -> None:
    """Write a page, atomically.

    Raises:
        FileExistsError: if the file exists and `overwrite` is false.
    """
    write_text(path, page_html(title, about, sections), overwrite)


def figure_html(figure: go.Figure) -> str:
    """A figure as an element of a page, which brings plotly itself."""
    html: str = figure.to_html(
        full_html=False, include_plotlyjs=False, config={"responsive": True, "displayModeBar": False}
    )
    return html


def blank_figure(x: str, y: str, height: int = 400) -> go.Figure:
    """An empty figure with labelled axes, transparent so that it fits a light and a dark page."""
    return go.Figure(
        layout={
            "template": "none",
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "system-ui, sans-serif", "size": 13},
            "xaxis": {"title": {"text": x}, "zeroline": False},
            "yaxis": {"title": {"text": y}, "zeroline": False, "automargin": True},
            "hovermode": "x unified",
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
            "margin": {"l": 64, "r": 16, "t": 48, "b": 48},
            "height": height,
        }
    )


def swatch(index: int) -> str:
    """A small square in the colour that run number `index` has in every figure."""
    return f'<span class="swatch" style="background:{COLOURS[index % len(COLOURS)]}"></span>'
