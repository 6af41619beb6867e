"""The numbers of one evaluation on grammar machines, made from its outcome store alone.

Yes and no are told apart everywhere: a model that always pops, or always accepts, is right on one of them.

Every share has two 95% intervals. `intervals` are Wilson's, as if instances were independent. `structures` count a
structure once: the search asks each in several letterings, and short strings of brackets come again and again. They are
made by a bootstrap that draws whole structures; where all draws are equal, as at 0 and 1, by Wilson's formula for as
many trials as there are structures (`n_structures`). Where the two differ, `structures` is the honest one. A store
without the fact `structure` has None in its place.

Legend: I instances, T loops, K moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from datamodules.tasks.grammar.lane_items import LAST_NO, LAST_YES
from loopformer.evaluation.bootstrap import grouped_interval, wider, wilson
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.metrics.functional import (
    MISSING,
    QueryOutcome,
    exposure,
    first_error_table,
    prefix_length,
    survival,
)
from loopformer.metrics.functional.rates import complete, exact_stop, forced_final, strict

SHARES: Mapping[str, Callable[[QueryOutcome], Tensor]] = {
    "forced_answer": forced_final,
    "complete": complete,
    "exact_stop": exact_stop,
    "strict": strict,
}
"""Shares of a cell beside `answer`. The forced answer is the reference's last move, made where the reference makes it:
whoever asks for it tells the model when to stop, and how a refusal ends."""

SHOWN = ("answer", "complete", "exact_stop", "strict")
"""Shares that the table shows."""

ANSWERS = {"yes": True, "no": False}
SPANS = ((1, 6), (7, 14), (15, 21), (22, 64), (65, 128), (129, None))
"""Ranges of run lengths, in moves."""


NO_VERDICT = -1


@dataclass(frozen=True)
class _Runs:
    """The runs of some instances.

    Attributes:
        outcome: what happened in each.
        accept: [I] bool, whether the answer is yes.
        shares: by name, [I] bool whether the instance counts towards it.
        structure: [I] number of its structure; None if the store does not tell.
    """

    outcome: QueryOutcome
    accept: Tensor
    shares: dict[str, Tensor]
    structure: Tensor | None

    def of(self, rows: Tensor) -> _Runs:
        """Keep some instances ([I] bool)."""
        kept = {name: value[rows] for name, value in self.outcome._asdict().items() if value is not None}
        return _Runs(
            self.outcome._replace(**kept),
            self.accept[rows],
            {name: share[rows] for name, share in self.shares.items()},
            None if self.structure is None else self.structure[rows],
        )


def summarize_grammar(store: OutcomeStore) -> dict[str, Any]:
    """Summarize one evaluation.

    Args:
        store: the outcomes; needs the facts `accept`, `depth` and `suite`, and `structure` for the intervals over
            structures.

    Returns:
        A document of plain JSON types; undefined numbers are None.
    """
    runs = _runs(store)
    steps, everywhere = runs.outcome.steps, torch.ones_like(runs.accept)
    depth, suite = store.facts["depth"], store.facts["suite"].bool()
    longest = max(store.metadata.trained_steps, default=0)
    spans = {span_name(first, last): _within(steps, first, last) for first, last in SPANS}
    return {
        "format": 2,
        "benchmark": store.metadata.benchmark,
        "digests": dict(sorted(store.metadata.digests.items())),
        "labels": list(store.metadata.labels),
        "trained_steps": list(store.metadata.trained_steps),
        "instances": len(steps),
        **_cell(runs),
        **_by_answer(runs, everywhere),
        "by_depth": {str(d): _by_answer(runs, (depth == d) & ~suite) for d in sorted(set(depth[~suite].tolist()))},
        **({"by_family": _by_family(store, runs)} if "family" in store.facts else {}),
        "suite": _by_answer(runs, suite),
        "by_training": {
            "trained": _by_answer(runs, steps <= longest),
            "beyond": _by_answer(runs, steps > longest),
        },
        "by_steps": {name: _by_answer(runs, rows) for name, rows in spans.items() if rows.any()},
        "moves": _moves(store, runs, everywhere),
        "moves_by_answer": {name: _moves(store, runs, runs.accept == value) for name, value in ANSWERS.items()},
        "answer_by_run": {
            **_cross_table(runs),
            **{name: _cross_table(runs.of(runs.accept == value)) for name, value in ANSWERS.items()},
        },
        "survival": {name: _survival(runs.of(runs.accept == value).outcome) for name, value in ANSWERS.items()},
    }


def _runs(store: OutcomeStore) -> _Runs:
    outcome = _join([outcome for _, outcome in store.outcomes()])
    accept = store.facts["accept"].bool()
    answers = {"answer": own_verdicts(store) == accept.long()}
    shares = answers | {name: share(outcome) for name, share in SHARES.items()}
    return _Runs(outcome, accept, shares, store.facts.get("structure"))


def own_verdicts(store: OutcomeStore) -> Tensor:
    """[I] what each run answers: 1 for yes, 0 for no, `NO_VERDICT` where it gives no answer.

    That is the verdict of the move at which the model itself stops, whatever the reference does there. A run that never
    stops, or stops at a move that ends no run, gives none; nor does a model without a stop rule.
    """
    ops = [label.partition(" ")[0] for label in store.metadata.labels]
    verdicts = torch.tensor([1 if op in LAST_YES else 0 if op in LAST_NO else NO_VERDICT for op in ops])
    stops = store.stops.long()
    last = store.letters[store.row.long(), (stops - 1).clamp(min=0)].long()
    return torch.where(stops == MISSING, NO_VERDICT, verdicts[last])


def _join(parts: Sequence[QueryOutcome]) -> QueryOutcome:
    """Put the outcomes of several chunks below each other; what a store does not hold stays None."""
    held = [name for name, value in parts[0]._asdict().items() if value is not None]
    return parts[0]._replace(**{name: torch.cat([getattr(part, name) for part in parts]) for name in held})


def _cell(runs: _Runs) -> dict[str, Any]:
    """Shares with intervals, moves before the first error, and where first errors happened."""
    n, outcome = len(runs.accept), runs.outcome
    once = torch.ones(n, dtype=torch.int64)
    count = None if runs.structure is None else len(runs.structure.unique())
    cell: dict[str, Any] = {"n": n, "n_structures": count, "intervals": {}, "structures": {}}
    for name, share in runs.shares.items():
        right = int(share.sum())
        cell[name] = right / n if n else None
        cell["intervals"][name] = [float(end) for end in wilson(right, n)] if n else None
        cell["structures"][name] = _over_structures(runs.structure, share.long(), once)
    wrong = outcome.first_error[outcome.first_error <= outcome.steps]
    cell["moves_before_first_error"] = float(prefix_length(outcome).double().mean()) if n else None
    cell["first_errors"] = {str(loop): int((wrong == loop).sum()) for loop in sorted(set(wrong.tolist()))}
    return cell


def _over_structures(structure: Tensor | None, right: Tensor, total: Tensor) -> list[float] | None:
    """Interval of a share whose structures are independent.

    Args:
        structure: [I] number of each instance's structure; None if unknown.
        right: [I] how much each instance adds to the numerator of the share.
        total: [I] and to its denominator.
    """
    if structure is None or not int(total.sum()):
        return None
    counted = total > 0
    names = list(map(str, structure[counted].tolist()))
    found = grouped_interval(list(zip(names, right[counted].tolist(), total[counted].tolist(), strict=True)))
    if found is not None and found[0] < found[1]:
        return found
    groups = len(set(names))
    # At 0 and 1 the share times the groups is exact, which Wilson's ends need.
    return [float(end) for end in wilson(groups * (int(right.sum()) / int(total.sum())), groups)]


def _by_answer(runs: _Runs, rows: Tensor) -> dict[str, Any]:
    """Cells of the yes and of the no among some instances."""
    return {name: _cell(runs.of(rows & (runs.accept == value))) for name, value in ANSWERS.items()}


def _by_family(store: OutcomeStore, runs: _Runs) -> dict[str, Any]:
    """Cells of every family, within and beyond the trained run lengths apart."""
    beyond = runs.outcome.steps > max(store.metadata.trained_steps, default=0)
    names, family = store.metadata.fact_values["family"], store.facts["family"]
    return {
        names[number]: {
            place: _by_answer(runs, (family == number) & rows)
            for place, rows in (("trained", ~beyond), ("beyond", beyond))
        }
        for number in sorted(set(family.tolist()))
    }


def _moves(store: OutcomeStore, runs: _Runs, rows: Tensor) -> dict[str, Any]:
    """Accuracy of every kind of move of some instances, whatever came before, and what is written in its place."""
    outcome = runs.outcome
    horizon = outcome.correct.shape[1]
    row = store.row.long()
    reference, written = store.reference[row, :horizon], store.letters[row, :horizon]
    table = {}
    for number, name in enumerate(store.metadata.labels):
        of_kind = outcome.counted & (reference == number) & rows[:, None]
        right = of_kind & outcome.correct
        n = int(of_kind.sum())
        if not n:
            continue
        instead = torch.bincount(written[of_kind & ~outcome.correct].long(), minlength=len(store.metadata.labels))
        table[name] = {
            "n": n,
            "right": int(right.sum()) / n,
            "interval": [float(end) for end in wilson(int(right.sum()), n)],
            "structures": _over_structures(runs.structure, right.sum(1), of_kind.sum(1)),
            "instead": {store.metadata.labels[k]: int(c) for k, c in enumerate(instead.tolist()) if c},
        }
    return table


def _cross_table(runs: _Runs) -> dict[str, int]:
    """Does the right answer come with the right run? Counts of instances.

    A complete run ends in the right verdict, but a model that stops too early, or never, answers otherwise.
    """
    answer, complete = runs.shares["answer"], runs.shares["complete"]
    return {
        f"answer_{told}_run_{made}": int((answers & finished).sum())
        for told, answers in (("right", answer), ("wrong", ~answer))
        for made, finished in (("complete", complete), ("wrong", ~complete))
    }


def _survival(outcome: QueryOutcome) -> dict[str, list[Any]]:
    return survival_curve(outcome.steps, outcome.first_error, outcome.correct.shape[1])


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
    """Head and rows of the table by depth, yes and no apart: shares in percent with the wider of both intervals."""
    groups = {f"depth {depth}": cells for depth, cells in summary["by_depth"].items()}
    groups |= {"suite": summary["suite"]} if summary["suite"]["yes"]["n"] else {}
    groups["all"] = {answer: summary[answer] for answer in ANSWERS}
    rows = []
    for name, cells in groups.items():
        for answer in ANSWERS:
            cell = cells[answer]
            rows.append([f"{name}, {answer}", _structures(cell), *(_percent(cell, share) for share in SHOWN)])
    return ["strings", "structures", *(share.replace("_", " ") for share in SHOWN)], rows


def _structures(cell: dict[str, Any]) -> str:
    """Structures of all instances, such as 12 of 64."""
    return f"{'-' if cell['n_structures'] is None else cell['n_structures']} of {cell['n']}"


def _percent(cell: dict[str, Any], name: str) -> str:
    if cell[name] is None:
        return "-"
    ends = wider(cell["intervals"][name], cell["structures"][name])
    assert ends is not None, "a share that is known has an interval"
    return f"{100 * cell[name]:.1f} [{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]"


def grammar_table(summary: dict[str, Any], title: str) -> Table:
    """The table for a terminal, in percent, the intervals below the shares."""
    head, rows = table_rows(summary)
    table = Table(title=title)
    for name in head:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(cell.replace(" [", "\n[") for cell in row))
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
