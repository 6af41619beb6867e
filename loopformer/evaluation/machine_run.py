"""One evaluation on small machines from a loaded model to the files in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loopformer.evaluation.figures import Run
from loopformer.evaluation.machine_benchmark import MachineOptions, evaluate_machines
from loopformer.evaluation.machine_model import MachineModel
from loopformer.evaluation.machine_stops import summarize_stops
from loopformer.evaluation.progress import progress_bar
from loopformer.evaluation.report import write_report
from loopformer.evaluation.summary import write_summary
from loopformer.files import OUTPUTS, SUMMARY, TABLE, refuse_finished, write_json_lines, write_text

HEADINGS = (
    "split", "N", "final %", "complete %", "correct prefix", "median first error", "exact stop %", "tokens", "machines",
)  # fmt: skip
"""One table for models that execute and models that write; a dash stands for what a model does not say."""


def run_machines(
    model: MachineModel, output: Path, options: MachineOptions, name: str, overwrite: bool, console: Console
) -> dict[str, Any]:
    """Evaluate, write outcomes.safetensors, report.html, table.md and summary.json, print the table.

    What an ordinary model wrote goes to outputs.jsonl, word for word. Where only the last state is said there are no
    curves, and so no report.html.

    Args:
        model: the model.
        output: folder for the results.
        options: what to evaluate.
        name: how the model is called.
        overwrite: replace results that the folder holds already.
        console: where the table is printed.

    Returns:
        the summary: that of every benchmark over all splits, and by split under "machine".

    Raises:
        FileExistsError: the folder holds results and `overwrite` is False.
    """
    refuse_finished(output, overwrite)
    with progress_bar(console) as (advance, begin):
        found = evaluate_machines(model, options, advance=advance, begin=begin)
    store, details = found.store, found.details
    summary = summarize_stops(store, found.judged)
    for split, numbers in details.items():
        # How the run stops belongs to the split: a machine that never ends has no end to find. None tells that.
        numbers["exact_stop"] = summary["by_split"][split]["exact_stop"]
        numbers["strict"] = summary["by_split"][split]["strict"] if model.trajectory else None
    if not model.trajectory:
        summary = only_final(summary)
    summary |= {
        "machine": details,
        "half": bool(options.half),
        "recipe": options.recipe,
        "timing": vars(found.timing),
        **model.settings(),
    }
    store.save(output / "outcomes.safetensors", overwrite=True)
    if found.outputs:
        write_json_lines(output / OUTPUTS, found.outputs, overwrite=True)
    if model.trajectory:
        write_report(output / "report.html", [Run(name, store, summary | {"controller": None})], overwrite=True)
    write_text(output / TABLE, machine_markdown(details), overwrite=True)
    write_summary(output / SUMMARY, summary, overwrite=True)  # last: it marks the folder as complete
    pace = ", two loops an instruction" if options.half else ""
    console.print(machine_table(details, f"{name}: {options.task}{pace}, {summary['queries']:,} queries"))
    checks = found.timing.native_checks
    said = f"native check: {checks} calls agree; " if checks else ""
    console.print(f"{said}open {output / ('report.html' if model.trajectory else 'table.md')}")
    return summary


KEPT = ("forced_final", "exact_stop", "early_stop", "late_stop", "missing_stop", "returned", "wrong_time", "end_to_end")
"""What the last state and the stop alone decide."""


def only_final(summary: dict[str, Any]) -> dict[str, Any]:
    """Reduce a summary to what is defined where a model says the last state alone."""

    def cell(numbers: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in numbers.items() if name in ("n", *KEPT)}
        return kept | {"intervals": {name: numbers["intervals"][name] for name in KEPT}}

    facts = ("format", "benchmark", "digests", "labels", "loops", "cap", "trained_steps", "queries", "graphs")
    grouped = {
        name: {label: cell(numbers) for label, numbers in value.items()}
        for name, value in summary.items()
        if name.startswith("by_") and name != "by_steps"
    }
    return {name: summary[name] for name in facts if name in summary} | cell(summary) | grouped


def machine_rows(details: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """The numbers by split and count, then opcodes and jumps of the longest runs (right after a right state)."""
    rows: list[tuple[str, ...]] = []
    for split, numbers in details.items():
        for count, cell in numbers["by_count"].items():
            shares = {name: _percent(cell[name]) for name in ("final", "complete", "exact_stop")}
            prefix, error, tokens = (_number(cell[name]) for name in ("correct_prefix", "first_error", "tokens"))
            asked = "its own" if count == "own" else count
            rows.append(
                (split, asked, shares["final"], shares["complete"], prefix, error, shares["exact_stop"], tokens,
                 str(cell["n"]))
            )  # fmt: skip
    longest = details.get("longer_runs", {})
    parts = {f"after {op}" if op == "END" else op: cell for op, cell in longest.get("by_opcode", {}).items()}
    parts |= {label: longest[key] for key, label in _JUMPS.items() if key in longest}
    rows += [(f"longer_runs: {label}", *[""] * 2, _percent(c), *[""] * 4, str(c["n"])) for label, c in parts.items()]
    return rows


_JUMPS = {"after_taken": "after a taken jump", "after_other": "after any other"}


def machine_markdown(details: dict[str, dict[str, Any]]) -> str:
    """The table as Markdown."""
    lines = [HEADINGS, ("---", *["---:"] * (len(HEADINGS) - 1)), *machine_rows(details)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def machine_table(details: dict[str, dict[str, Any]], title: str) -> Table:
    """The table for the terminal: without intervals it fits 80 columns, so that no name of a split is cut."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=0, show_edge=False)
    for column, heading in enumerate(HEADINGS):
        table.add_column(heading.replace(" ", "\n"), justify="right" if column else "left", overflow="fold")
    for split, asked, *numbers in machine_rows(details):
        shares = (text.partition(" [")[0] for text in numbers)
        table.add_row(split.replace(": after", ":\n  after"), asked.replace(" ", "\n"), *shares)
    return table


def _percent(cell: dict[str, Any] | None) -> str:
    if cell is None or cell["share"] is None:
        return "-"
    return f"{100 * cell['share']:.1f} [{100 * cell['low']:.1f}, {100 * cell['high']:.1f}]"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
