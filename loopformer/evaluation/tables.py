"""Tables of evaluations, as data and as HTML, Markdown, terminal output and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from rich.table import Table as RichTable

from loopformer.evaluation.figures import Run, stops
from loopformer.evaluation.page import swatch
from loopformer.evaluation.words import in_words_of

COLUMNS = {
    "forced_final": "Forced final",
    "complete": "Complete",
    "exact_stop": "Exact stop",
    "end_to_end": "End to end",
    "strict": "Strict",
}
UNDEFINED = "\u2013"  # a dash as wide as a digit

STOPPING = ("exact_stop", "end_to_end", "strict")
"""Columns that say nothing of a run without a stop rule."""

BREAKDOWNS = {
    "by_range": "Requested count",
    "by_training": "Counts in training",
    "by_kind": "Graph kind",
    "by_seed": "Generation seed",
    "by_period": "Cycle length",
    "by_tail": "Steps before the cycle",
    "by_reachable": "Reachable states",
    "by_accept": "Answer",
    "by_family": "Family",
}


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: what it says.
        note: an interval or a number of examples, in small print.
        style: CSS classes, such as better or worse.
        heat: from 0 to 1, drawn as the depth of the background.
        run: number of the run whose colour marks the cell.
    """

    text: str
    note: str = ""
    style: str = ""
    heat: float | None = None
    run: int | None = None


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        caption: what it shows, one line.
        header: names of the columns.
        rows: cells; the first `texts` of each row are words, the others numbers.
        texts: number of leading columns that hold words.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    texts: int = 1

    def html(self) -> str:
        """An element that scrolls on its own where the page is narrow."""
        head = "".join(
            f'<th scope="col" class="{"text" if i < self.texts else "number"}">{escape(name)}</th>'
            for i, name in enumerate(self.header)
        )
        rows = "".join(f"<tr>{''.join(self._cell(i, c) for i, c in enumerate(row))}</tr>" for row in self.rows)
        caption = f'<p class="caption">{escape(self.caption)}</p>' if self.caption else ""
        label = f' aria-label="{escape(self.caption)}"' if self.caption else ""
        return (
            f'{caption}<div class="wide" tabindex="0"><table{label}><thead><tr>{head}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>"
        )

    def _cell(self, column: int, cell: Cell) -> str:
        text = ("" if cell.run is None else swatch(cell.run)) + escape(cell.text)
        text += f"<small>{escape(cell.note)}</small>" if cell.note else ""
        if column == 0:
            return f'<th scope="row">{text}</th>'
        marks = [cell.style, "text" if column < self.texts else "", "" if cell.heat is None else "heat"]
        classes = " ".join(mark for mark in marks if mark)
        style = f' style="--v:{100 * cell.heat:.0f}"' if cell.heat is not None else ""
        class_ = f' class="{classes}"' if classes else ""
        return f"<td{class_}{style}>{text}</td>"

    def markdown(self) -> str:
        """A pipe table."""
        rule = ["---" if i < self.texts else "---:" for i in range(len(self.header))]
        lines = [list(self.header), rule, *(list(self._plain(row)) for row in self.rows)]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

    def rich(self, title: str | None = None) -> RichTable:
        """A table for the terminal."""
        table = RichTable(title=title)
        for index, name in enumerate(self.header):
            table.add_column(name, justify="left" if index < self.texts else "right")
        for row in self.rows:
            table.add_row(*self._plain(row))
        return table

    @staticmethod
    def _plain(row: Sequence[Cell]) -> Iterator[str]:
        return (f"{cell.text} {cell.note}".strip().replace("|", "\\|") for cell in row)


def share(cell: dict[str, Any], name: str) -> Cell:
    """A share in percent with its interval, a dash where it is undefined."""
    value = cell.get(name)
    if value is None:
        return Cell(UNDEFINED)
    low, high = cell["intervals"].get(name, (None, None))
    note = "" if low is None else f"[{100 * low:.2f}, {100 * high:.2f}]"
    return Cell(f"{100 * value:.2f}", note)


def overall_table(runs: Sequence[Run]) -> Table:
    """One row per run: all queries together."""
    rows = []
    for number, run in enumerate(runs):
        cells = [_of_run(run, {**run.summary, "n": run.summary["queries"]}, name) for name in COLUMNS]
        prefix = run.summary["correct_prefix"]
        rows.append([Cell(run.name, run=number), Cell(f"{run.summary['queries']:,}"), *cells, Cell(f"{prefix:.1f}")])
    header = ["Run", "Queries", *(f"{name} %" for name in COLUMNS.values()), "Prefix"]
    return Table("All queries. Percent with 95% bootstrap intervals; correct prefix in loops.", header, rows)


def range_table(run: Run) -> Table:
    """One run: all queries, then each range of requested counts."""
    cells = [("all", {**run.summary, "n": run.summary["queries"]}), *run.summary["by_range"].items()]
    rows = [
        [Cell(label), Cell(f"{cell['n']:,}"), *(_of_run(run, cell, name) for name in COLUMNS)] for label, cell in cells
    ]
    return Table("", ["N", "queries", *(f"{name.lower()} %" for name in COLUMNS.values())], rows)


def breakdown_table(runs: Sequence[Run], key: str) -> Table | None:
    """Every group of a breakdown in every run; None where no run has it."""
    rows = [
        [Cell(label.replace("_", " ")), Cell(run.name, run=number), Cell(f"{cell['n']:,}")]
        + [_of_run(run, cell, name) for name in COLUMNS]
        for label in labels(runs, key)
        for number, run in enumerate(runs)
        if (cell := run.summary.get(key, {}).get(label))
    ]
    title = breakdown_title(runs, key)
    header = [title, "Run", "Queries", *(f"{name} %" for name in COLUMNS.values())]
    return Table(f"By {title.lower()}.", header, rows, texts=2) if rows else None


def breakdown_title(runs: Sequence[Run], key: str) -> str:
    """Return what a breakdown is called in the benchmark of some runs."""
    return in_words_of(runs[0].store.metadata.benchmark, BREAKDOWNS[key])


def heat_table(runs: Sequence[Run], key: str, metric: str) -> Table | None:
    """Heat map of one share: groups of a breakdown down, runs across; None where no run has the breakdown."""
    rows = []
    for label in labels(runs, key):
        cells = [run.summary.get(key, {}).get(label) for run in runs]
        n = next(cell["n"] for cell in cells if cell)
        shown = [
            Cell(UNDEFINED) if cell is None else _of_run(run, cell, metric)
            for run, cell in zip(runs, cells, strict=True)
        ]
        heats = [
            None if cell is None or one.text == UNDEFINED else cell[metric]
            for one, cell in zip(shown, cells, strict=True)
        ]
        rows.append(
            [Cell(label.replace("_", " ")), Cell(f"{n:,}")]
            + [Cell(one.text, one.note, heat=heat) for one, heat in zip(shown, heats, strict=True)]
        )
    return Table("", [breakdown_title(runs, key), "Queries", *(run.name for run in runs)], rows) if rows else None


def difference_table(comparison: dict[str, Any]) -> Table:
    """Differences of every run to the reference, a row per metric: all queries, and yes and no where there are both."""
    others = list(comparison["differences"])
    names = {**COLUMNS, "correct_prefix": "Correct prefix (loops)"}
    groups = {"all": "", "yes": ", yes", "no": ", no"}
    rows = [
        [Cell(text + answer), *(_difference(comparison, run, group, metric) for run in others)]
        for metric, text in names.items()
        for group, answer in groups.items()
        if group in comparison["differences"][others[0]]
    ]
    rows = [row for row in rows if any(cell.text != UNDEFINED for cell in row[1:])]
    return Table(
        f"Difference to {comparison['reference']} over all queries, percentage points (prefix: loops).",
        ["Metric", *others],
        rows,
    )


def range_difference_table(comparison: dict[str, Any]) -> list[Table]:
    """Differences by range of requested counts, and yes and no apart where the benchmark has both.

    Of complete trajectories, and of strict success where there is a stop rule.
    """
    others = list(comparison["differences"])
    tables = []
    for metric in ("complete", "strict"):
        groups = [g for g in comparison["differences"][others[0]] if g != "all"]
        rows = [[Cell(group), *(_difference(comparison, run, group, metric) for run in others)] for group in groups]
        if any(cell.text != UNDEFINED for row in rows for cell in row[1:]):
            by = in_words_of(comparison["benchmark"], "requested count") + (" and answer" if "yes" in groups else "")
            caption = f"{COLUMNS[metric]} by {by}: difference to {comparison['reference']}."
            tables.append(Table(caption, ["N", *others], rows))
    return tables


def stop_rule_table(runs: Sequence[Run]) -> Table:
    """Every stop rule on every run's traces."""
    rows = []
    for number, run in enumerate(runs):
        for rule, values in run.summary.get("stop_rules", {}).items():
            error = values["stop_error"]
            spread = UNDEFINED if error["median"] is None else _signed(error["median"])
            note = "" if error["median"] is None else f"[{_signed(error['p10'])}, {_signed(error['p90'])}]"
            shares = [share(values, name) for name in ("exact_stop", "returned", "end_to_end", "strict")]
            rows.append([Cell(run.name, run=number), Cell(rule), *shares, Cell(spread, note)])
    returned = in_words_of(runs[0].store.metadata.benchmark, "Returned letter %")
    header = ["Run", "Rule", "Exact stop %", returned, "End to end %", "Strict %", "Stop minus N"]
    caption = "Percent with 95% bootstrap intervals; stop loop minus N: median, p10 and p90 over the queries that stop."
    return Table(caption, header, rows, texts=2)


def labels(runs: Sequence[Run], key: str) -> list[str]:
    """Groups of a breakdown over all runs, in order."""
    return list(dict.fromkeys(label for run in runs for label in run.summary.get(key, {})))


def tidy_csv(runs: Sequence[Run]) -> str:
    """Every share of every run and group, one number a line: run, breakdown, group, n, metric, value, low, high."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "breakdown", "group", "n", "metric", "value", "low", "high"])
    for run in runs:
        cells = [("all", "all", {**run.summary, "n": run.summary["queries"]})]
        cells += [
            (key.removeprefix("by_"), label, c) for key in BREAKDOWNS for label, c in run.summary.get(key, {}).items()
        ]
        for breakdown, label, cell in cells:
            for metric, (low, high) in cell["intervals"].items():
                writer.writerow([run.name, breakdown, label, cell["n"], metric, cell[metric], low, high])
    return text.getvalue()


def _difference(comparison: dict[str, Any], run: str, group: str, metric: str) -> Cell:
    cell = comparison["differences"][run][group][metric]
    if cell["difference"] is None:
        return Cell(UNDEFINED)
    scale = 1 if metric == "correct_prefix" else 100
    value, low, high = (scale * cell[name] for name in ("difference", "low", "high"))
    style = "better" if low > 0 else "worse" if high < 0 else ""
    return Cell(f"{value:+.2f}", f"[{low:+.2f}, {high:+.2f}]", style)


def _signed(loops: float) -> str:
    return f"{loops:+.0f}" if round(loops) else "0"


def _hot(run: Run, cell: dict[str, Any] | None, name: str) -> Cell:
    shown = Cell(UNDEFINED) if cell is None else _of_run(run, cell, name)
    return shown if cell is None or shown.text == UNDEFINED else replace(shown, heat=cell[name])


def _of_run(run: Run, cell: dict[str, Any], name: str) -> Cell:
    return Cell(UNDEFINED) if name in STOPPING and not stops(run) else share(cell, name)
