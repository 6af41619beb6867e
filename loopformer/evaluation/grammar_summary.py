"""The numbers of one evaluation on grammar machines, made from its outcome store alone.

Yes and no are told apart everywhere: a model that always pops, or always accepts, is right on one of them. Shares carry
95% Wilson intervals, since every instance is asked once.

Legend: I instances, T loops, K moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from loopformer.evaluation.bootstrap import wilson
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.metrics.functional import (
    RATES,
    QueryOutcome,
    exposure,
    first_error_table,
    prefix_length,
    rate_rows,
    survival,
)

SHARES = {"answer": "forced_final", "complete": "complete", "exact_stop": "exact_stop", "strict": "strict"}
"""Shares of a cell, by what they are called here, with their names in `RATES`."""

ANSWERS = {"yes": True, "no": False}
SPANS = ((1, 6), (7, 14), (15, 21), (22, 64), (65, 128), (129, None))
"""Ranges of run lengths, in moves."""


def summarize_grammar(store: OutcomeStore) -> dict[str, Any]:
    """Summarize one evaluation.

    Args:
        store: the outcomes; needs the facts `accept`, `depth` and `suite`.

    Returns:
        A document of plain JSON types; undefined numbers are None.
    """
    outcome = _join([outcome for _, outcome in store.outcomes()])
    accept, depth = store.facts["accept"].bool(), store.facts["depth"]
    suite = store.facts["suite"].bool()
    longest = max(store.metadata.trained_steps, default=0)
    spans = {span_name(first, last): _within(outcome.steps, first, last) for first, last in SPANS}
    return {
        "format": 1,
        "benchmark": store.metadata.benchmark,
        "digests": dict(sorted(store.metadata.digests.items())),
        "labels": list(store.metadata.labels),
        "trained_steps": list(store.metadata.trained_steps),
        "instances": len(outcome.steps),
        **_cell(outcome, torch.ones_like(accept)),
        **_by_answer(outcome, torch.ones_like(accept), accept),
        "by_depth": {
            str(d): _by_answer(outcome, (depth == d) & ~suite, accept) for d in sorted(set(depth[~suite].tolist()))
        },
        **({"by_family": _by_family(store, outcome, accept)} if "family" in store.facts else {}),
        "suite": _by_answer(outcome, suite, accept),
        "by_training": {
            "trained": _by_answer(outcome, outcome.steps <= longest, accept),
            "beyond": _by_answer(outcome, outcome.steps > longest, accept),
        },
        "by_steps": {name: _by_answer(outcome, rows, accept) for name, rows in spans.items() if rows.any()},
        "moves": _moves(store, outcome, torch.ones_like(accept)),
        "moves_by_answer": {name: _moves(store, outcome, accept == value) for name, value in ANSWERS.items()},
        "answer_by_run": {
            **_cross_table(outcome),
            **{name: _cross_table(_select(outcome, accept == value)) for name, value in ANSWERS.items()},
        },
        "survival": {name: _survival(outcome, accept == value) for name, value in ANSWERS.items()},
    }


def _join(parts: Sequence[QueryOutcome]) -> QueryOutcome:
    """Put the outcomes of several chunks below each other; what a store does not hold stays None."""
    held = [name for name, value in parts[0]._asdict().items() if value is not None]
    return parts[0]._replace(**{name: torch.cat([getattr(part, name) for part in parts]) for name in held})


def _select(outcome: QueryOutcome, rows: Tensor) -> QueryOutcome:
    """Keep some instances ([I] bool)."""
    return outcome._replace(**{name: value[rows] for name, value in outcome._asdict().items() if value is not None})


def _cell(outcome: QueryOutcome, rows: Tensor) -> dict[str, Any]:
    """Shares with intervals, moves before the first error, and where first errors happened, of some instances."""
    part = _select(outcome, rows)
    sums = rate_rows(part).sum(0).tolist() if len(part.steps) else [0] * (1 + len(RATES))
    n = sums[0]
    cell: dict[str, Any] = {"n": n, "intervals": {}}
    for name, rate in SHARES.items():
        right = sums[1 + list(RATES).index(rate)]
        cell[name] = right / n if n else None
        cell["intervals"][name] = [float(end) for end in wilson(right, n)] if n else None
    wrong = part.first_error[part.first_error <= part.steps]
    cell["moves_before_first_error"] = float(prefix_length(part).double().mean()) if n else None
    cell["first_errors"] = {str(loop): int((wrong == loop).sum()) for loop in sorted(set(wrong.tolist()))}
    return cell


def _by_answer(outcome: QueryOutcome, rows: Tensor, accept: Tensor) -> dict[str, Any]:
    """Cells of the yes and of the no among some instances."""
    return {name: _cell(outcome, rows & (accept == value)) for name, value in ANSWERS.items()}


def _by_family(store: OutcomeStore, outcome: QueryOutcome, accept: Tensor) -> dict[str, Any]:
    """Cells of every family, within and beyond the trained run lengths apart."""
    beyond = outcome.steps > max(store.metadata.trained_steps, default=0)
    names, family = store.metadata.fact_values["family"], store.facts["family"]
    return {
        names[number]: {
            place: _by_answer(outcome, (family == number) & rows, accept)
            for place, rows in (("trained", ~beyond), ("beyond", beyond))
        }
        for number in sorted(set(family.tolist()))
    }


def _moves(store: OutcomeStore, outcome: QueryOutcome, rows: Tensor) -> dict[str, Any]:
    """Accuracy of every kind of move of some instances, whatever came before, and what is written in its place."""
    horizon = outcome.correct.shape[1]
    row = store.row.long()
    reference, written = store.reference[row, :horizon], store.letters[row, :horizon]
    table = {}
    for number, name in enumerate(store.metadata.labels):
        of_kind = outcome.counted & (reference == number) & rows[:, None]
        n, right = int(of_kind.sum()), int((of_kind & outcome.correct).sum())
        if not n:
            continue
        instead = torch.bincount(written[of_kind & ~outcome.correct].long(), minlength=len(store.metadata.labels))
        table[name] = {
            "n": n,
            "right": right / n,
            "interval": [float(end) for end in wilson(right, n)],
            "instead": {store.metadata.labels[k]: int(c) for k, c in enumerate(instead.tolist()) if c},
        }
    return table


def _cross_table(outcome: QueryOutcome) -> dict[str, int]:
    """Does the right answer come with the right run? Counts of instances."""
    complete, answer = outcome.first_error > outcome.steps, outcome.final_correct
    return {
        "answer_right_run_complete": int((answer & complete).sum()),
        "answer_right_run_wrong": int((answer & ~complete).sum()),
        "answer_wrong_run_wrong": int((~answer & ~complete).sum()),
    }


def _survival(outcome: QueryOutcome, rows: Tensor) -> dict[str, list[Any]]:
    part = _select(outcome, rows)
    return survival_curve(part.steps, part.first_error, outcome.correct.shape[1])


def survival_curve(steps: Tensor, first_error: Tensor, horizon: int) -> dict[str, list[Any]]:
    """Share of the runs of at least t moves without an error up to move t, and how many there are, by t from 1.

    Args:
        steps: [I] int64 moves of each run.
        first_error: [I] int64 its first wrong move, from 1; one more than its moves where there is none.
        horizon: the most moves, T.

    Returns:
        `runs` and `survival`, T numbers each, survival None where no run is that long; both empty without any run.
    """
    if not len(steps):
        return {"runs": [], "survival": []}
    counts = first_error_table(steps, first_error, horizon)
    observed = exposure(counts).observed.tolist()
    curve = [None if not n else float(value) for value, n in zip(survival(counts), observed, strict=True)]
    return {"runs": observed, "survival": curve}


def _within(steps: Tensor, first: int, last: int | None) -> Tensor:
    return (steps >= first) & (steps <= (int(steps.max()) if last is None else last))


def span_name(first: int, last: int | None) -> str:
    """Name of a range of run lengths."""
    return f"{first}+" if last is None else f"{first}-{last}"


def table_rows(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table by depth: yes and no apart."""
    names = [f"{share} {answer}" for share in SHARES for answer in ANSWERS]
    groups = {f"depth {depth}": cell for depth, cell in summary["by_depth"].items()}
    groups |= {"suite": summary["suite"]} if summary["suite"]["yes"]["n"] else {}
    groups["all"] = {answer: summary[answer] for answer in ANSWERS}
    rows = []
    for name, cell in groups.items():
        values = [cell[answer][share] for share in SHARES for answer in ANSWERS]
        rows.append([name, *("-" if value is None else f"{100 * value:.1f}" for value in values)])
    return ["strings", *names], rows


def grammar_table(summary: dict[str, Any], title: str) -> Table:
    """The table for a terminal, in percent."""
    head, rows = table_rows(summary)
    table = Table(title=title)
    for name in head:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def grammar_markdown(summary: dict[str, Any]) -> str:
    """The table as Markdown, in percent, and the accuracy of every kind of move."""
    head, rows = table_rows(summary)
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *("| " + " | ".join(r) + " |" for r in rows)]
    lines += ["", "| move | moves yes | moves no | right yes | right no |", "|---|---|---|---|---|"]
    for name in summary["moves"]:
        cells = [summary["moves_by_answer"][answer].get(name) for answer in ANSWERS]
        counts = [str(cell["n"] if cell else 0) for cell in cells]
        shares = [f"{100 * cell['right']:.2f}" if cell else "-" for cell in cells]
        lines.append("| " + " | ".join([name, *counts, *shares]) + " |")
    return "\n".join(lines) + "\n"
