"""One table of cells by seeds, from the evaluations' summary files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from rich.table import Table

from loopformer.cells.matrix import Job

SHARES = ("forced_final", "complete", "exact_stop", "end_to_end", "strict")


def table_rows(jobs: Iterable[Job], shares: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: for each cell and share its percent at each seed, their mean and their range.

    A dash stands for what is not evaluated, and for shares that a model without a stop rule does not have.
    """
    found: dict[str, dict[int, Job]] = {}
    for job in jobs:
        found.setdefault(job.cell.name, {})[job.seed] = job
    seeds = sorted({seed for runs in found.values() for seed in runs})
    header = ["cell", "percent", *(f"seed {seed}" for seed in seeds), "mean", "min", "max"]
    rows = []
    for name, runs in found.items():
        summaries = {
            seed: json.loads(job.summary.read_text(encoding="utf-8"))
            for seed, job in runs.items()
            if job.summary.is_file()
        }
        for share in shares:
            values = {seed: summary[share] for seed, summary in summaries.items() if summary.get(share) is not None}
            known = list(values.values())
            spread = [sum(known) / len(known), min(known), max(known)] if known else [None] * 3
            cells = [*(values.get(seed) for seed in seeds), *spread]
            rows.append([name, share.replace("_", " "), *("-" if v is None else f"{100 * v:.2f}" for v in cells)])
    return header, rows


def rich_table(jobs: Iterable[Job], shares: Sequence[str]) -> Table:
    """The table for the terminal."""
    header, rows = table_rows(jobs, shares)
    table = Table()
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index < 2 else "right", overflow="fold")
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before[0] != row[0]:
            table.add_section()
        table.add_row(*row)
    return table


def markdown_table(jobs: Iterable[Job], shares: Sequence[str]) -> str:
    """The table as Markdown."""
    header, rows = table_rows(jobs, shares)
    lines = [header, ["---", "---", *["---:"] * (len(header) - 2)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
