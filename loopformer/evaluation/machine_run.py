"""One evaluation on small machines from a loaded model to the files in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loopformer.checkpoint import Checkpoint
from loopformer.evaluation.figures import Run
from loopformer.evaluation.machine_benchmark import MachineOptions, evaluate_machines
from loopformer.evaluation.progress import progress_bar
from loopformer.evaluation.report import write_report
from loopformer.evaluation.summary import summarize, write_summary
from loopformer.files import write_text

HEADINGS = ("split", "N", "complete %", "machines")


def run_machines(
    checkpoint: Checkpoint, output: Path, options: MachineOptions, name: str, overwrite: bool, console: Console
) -> dict[str, Any]:
    """Evaluate, write outcomes.safetensors, report.html, table.md and summary.json, print the table.

    Args:
        checkpoint: the model.
        output: folder for the results.
        options: what to evaluate.
        name: how the model is called.
        overwrite: replace results that the folder holds already.
        console: where the table is printed.

    Returns:
        the summary: that of every benchmark over all splits, and by split under "machine".
    """
    with progress_bar(console) as (advance, begin):
        store, timing, details = evaluate_machines(checkpoint, options, advance=advance, begin=begin)
    summary = summarize(store)
    for split, numbers in details.items():
        # How the run stops belongs to the split: a machine that never ends has no end to find.
        numbers["exact_stop"] = summary["by_split"][split]["exact_stop"]
        numbers["strict"] = summary["by_split"][split]["strict"]
    summary["machine"] = details
    summary["timing"] = vars(timing)
    store.save(output / "outcomes.safetensors", overwrite)
    write_report(output / "report.html", [Run(name, store, summary | {"controller": None})], overwrite)
    write_text(output / "table.md", machine_markdown(details), overwrite)
    write_summary(output / "summary.json", summary, overwrite)  # last: it marks the folder as complete
    console.print(machine_table(details, f"{name}: {options.task}, {summary['queries']:,} queries"))
    console.print(f"native check: {timing.native_checks} calls agree; open {output / 'report.html'}")
    return summary


def machine_rows(details: dict[str, dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Complete trajectories by split and count, then opcodes and jumps of the longest runs, as text."""
    rows = []
    for split, numbers in details.items():
        for count, cell in numbers["complete"].items():
            rows.append((split, "its own" if count == "own" else count, _percent(cell), str(cell["n"])))
    for split in ("longer_runs",) if "longer_runs" in details else ():
        parts = {f"after {op}" if op == "END" else op: cell for op, cell in details[split]["by_opcode"].items()}
        parts |= {label: details[split][key] for key, label in _JUMPS.items() if key in details[split]}
        rows += [(f"{split}: {label}", "", _percent(cell), str(cell["n"])) for label, cell in parts.items()]
    if "ending" in details:
        rows.append(("ending: exact stop", "its own", f"{100 * details['ending']['exact_stop']:.1f}", ""))
    return rows


_JUMPS = {"after_taken": "after a taken jump", "after_other": "after any other"}


def machine_markdown(details: dict[str, dict[str, Any]]) -> str:
    """The table as Markdown."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---|---|---|---|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in machine_rows(details))]) + "\n"


def machine_table(details: dict[str, dict[str, Any]], title: str) -> Table:
    """The table for the terminal."""
    table = Table(*HEADINGS, title=title)
    for row in machine_rows(details):
        table.add_row(*row)
    return table


def _percent(cell: dict[str, Any]) -> str:
    if cell["share"] is None:
        return "-"
    return f"{100 * cell['share']:.1f} [{100 * cell['low']:.1f}, {100 * cell['high']:.1f}]"
