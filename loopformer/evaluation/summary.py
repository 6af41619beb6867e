"""The numbers of one evaluation: summarize an outcome store into a JSON document.

Legend: Q queries, I instances (graphs), T largest requested count, C columns of a tally, D bootstrap draws.

Every share and its interval come from one tally of sums per graph and requested count. Shares of queries, curves and
stop errors are defined in `loopformer.metrics.functional`; nothing is defined here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import MetricCollection

from loopformer.evaluation.bootstrap import Floats, percentile_interval, ratio_draws, resampling_counts, wilson
from loopformer.evaluation.outcomes import OutcomeStore, atomic_path
from loopformer.metrics import PANELS, CountMetric, execution_metrics
from loopformer.metrics.functional import (
    RATES,
    exposure,
    hazard,
    loop_accuracy,
    prefix_length,
    quantile_of_counts,
    rate_by_steps,
    rate_rows,
    survival,
)

Span = tuple[int, int | None]

RANGES: tuple[Span, ...] = (
    (1, 6), (7, 12), (13, 32), (33, 64), (65, 128), (129, 256), (257, None),
)  # fmt: skip
"""Ranges of requested counts (evaluation protocol: breakdowns), and what lies beyond them."""

FACT_RANGES: dict[str, tuple[Span, ...]] = {
    "period": ((1, 1), (2, 4), (5, 8), (9, 16), (17, 26), (27, None)),
    "tail": ((0, 0), (1, 4), (5, 8), (9, 25), (26, None)),
}
"""Ranges of cycle length and of steps before the cycle; other facts are broken down by value."""

HEADLINE = ("forced_final", "complete", "exact_stop", "end_to_end", "strict")
"""The shares that carry intervals at each requested count."""

DECIMALS = 8  # tells apart single queries among 345,600

STOP_QUANTILES = {"p10": 0.1, "median": 0.5, "p90": 0.9}


@dataclass(frozen=True)
class Tally:
    """Sums over the queries of each graph and requested count.

    Attributes:
        sums: [I, T + 1, C] int64; columns: queries, then one per name.
        alive: by panel N, [I, N] int64 queries of each graph without an error up to each loop.
        draws: [D, I] how often the bootstrap picked each graph.
        names: what each column after the first sums; the mean over the queries is what is reported.
    """

    sums: Tensor
    alive: dict[int, Tensor]
    draws: Floats
    names: tuple[str, ...] = (*RATES, "correct_prefix")

    def cell(self, graphs: Tensor | None = None, steps: Sequence[int] | None = None) -> dict[str, Any]:
        """Means and their intervals over some graphs and requested counts.

        Args:
            graphs: [I] bool; None for all.
            steps: requested counts; None for all.
        """
        sums = self.sums if steps is None else self.sums[:, list(steps)]
        rows, draws = sums.sum(dim=1), self.draws
        if graphs is not None:
            rows, draws = rows[graphs], draws[:, graphs.numpy()]
        total = rows.sum(dim=0)
        interval = percentile_interval(ratio_draws(draws, rows[:, 1:], rows[:, :1]))
        ends = zip(self.names, np.stack(interval, axis=1), strict=True)
        return {
            "n": total[0],
            "graphs": (rows[:, 0] > 0).sum(),
            **{name: total[column].double() / total[0] for column, name in enumerate(self.names, 1)},
            "intervals": dict(ends),
        }


def summarize(store: OutcomeStore) -> dict[str, Any]:
    """Summarize one evaluation.

    Args:
        store: the outcomes.

    Returns:
        A document of plain JSON types in a fixed order of keys, undefined numbers being None. Shares are fractions;
        `intervals` hold the 95% bootstrap ends [low, high]; curves are lists over loops 1..T; `by_*` break down.
    """
    meta = store.metadata
    present = sorted(set(store.steps.tolist()))
    panels = [n for n in PANELS if n in set(present)]
    metrics = execution_metrics(present[-1], meta.cap, panels=panels)
    tally = _count(store, metrics, panels)
    values = metrics.compute()
    tables = {name: metric.table for name, metric in metrics.items() if isinstance(metric, CountMetric)}
    overall = tally.cell()
    document = {
        "format": 1,
        "benchmark": meta.benchmark,
        "digests": dict(sorted(meta.digests.items())),
        "labels": list(meta.labels),
        "loops": meta.loops,
        "cap": meta.cap,
        "trained_steps": list(meta.trained_steps),
        "queries": overall.pop("n"),
        **overall,
        "stop_error": {
            "signed": {name: values[f"stop_error_{name}"] for name in STOP_QUANTILES},
            "absolute": {name: values[f"absolute_stop_error_{name}"] for name in STOP_QUANTILES},
        },
        **breakdowns(tally, store.facts, meta.fact_values, present, meta.trained_steps),
        "loop_accuracy": loop_accuracy(tables["loop_accuracy"]),
        "survival": {str(n): _survival(tally, n, tables[f"survival@{n}"]) for n in panels},
        "hazard": {
            "pooled": _hazard(tables["hazard"], present[-1]),
            **{str(n): _hazard(tables[f"hazard@{n}"], n) for n in panels},
        },
        "by_steps": _by_steps(tally, tables, present),
    }
    reduced: dict[str, Any] = plain(document)
    return reduced


def breakdowns(
    tally: Tally,
    facts: Mapping[str, Tensor],
    fact_values: Mapping[str, Sequence[str]],
    present: Sequence[int],
    trained: Sequence[int],
) -> dict[str, Any]:
    """Cells by range of counts, by counts in training and by each fact, as `by_*`.

    Args:
        tally: sums over the queries.
        facts: by name, [I] facts of each graph.
        fact_values: names of the codes of a fact.
        present: requested counts that occur.
        trained: requested counts seen in training; empty where that is unknown.
    """
    return {
        "by_range": _by_group(tally, {_label(span): [n for n in present if _within(n, span)] for span in RANGES}),
        "by_training": _by_group(tally, _training_groups(present, trained)),
        **{f"by_{name}": _by_fact(tally, name, codes, fact_values.get(name)) for name, codes in facts.items()},
    }


def write_summary(path: Path | str, summary: dict[str, Any], overwrite: bool = False) -> None:
    """Write a summary as JSON, atomically.

    Raises:
        FileExistsError: if the file exists and `overwrite` is false.
    """
    with atomic_path(path, overwrite) as temporary:
        temporary.write_text(json.dumps(summary, allow_nan=False) + "\n", encoding="utf-8")


def _count(store: OutcomeStore, metrics: MetricCollection, panels: Sequence[int]) -> Tally:
    """Go through the queries once, filling the metrics and the tally of each graph."""
    graphs, horizon = len(store.stratum), int(store.steps.max())
    sums = torch.zeros(graphs * (horizon + 1), 2 + len(RATES), dtype=torch.int64)
    alive = {n: torch.zeros(graphs, n, dtype=torch.int64) for n in panels}
    for part, outcome in store.outcomes():
        metrics.update(outcome)
        graph = store.instance[part].long()
        rows = torch.cat([rate_rows(outcome), prefix_length(outcome)[:, None]], dim=1)
        sums.index_add_(0, graph * (horizon + 1) + outcome.steps, rows)
        for n, table in alive.items():
            asked = outcome.steps == n
            table.index_add_(0, graph[asked], (outcome.first_error[asked, None] > torch.arange(1, n + 1)).long())
    return Tally(sums.view(graphs, horizon + 1, -1), alive, resampling_counts(store.stratum.numpy()))


def _survival(tally: Tally, n: int, table: Tensor) -> dict[str, Any]:
    interval = percentile_interval(ratio_draws(tally.draws, tally.alive[n], tally.sums[:, n, :1]))
    return {"n": tally.sums[:, n, 0].sum(), "survival": survival(table)[:n], "low": interval.low, "high": interval.high}


def _hazard(table: Tensor, loops: int) -> dict[str, Any]:
    exposed = exposure(table)
    return {"hazard": hazard(table)[:loops], "errors": exposed.errors[:loops], "at_risk": exposed.at_risk[:loops]}


def _by_group(tally: Tally, groups: dict[str, list[int]]) -> dict[str, Any]:
    return {name: tally.cell(steps=steps) for name, steps in groups.items() if steps}


def _training_groups(present: Sequence[int], trained: Sequence[int]) -> dict[str, list[int]]:
    if not trained:
        return {}
    return {
        "trained": [n for n in present if n in trained],
        "held_out": [n for n in present if n not in trained and n < max(trained)],
        "beyond": [n for n in present if n > max(trained)],
    }


def _by_fact(tally: Tally, name: str, codes: Tensor, names: Sequence[str] | None) -> dict[str, Any]:
    if name in FACT_RANGES:
        groups = {_label(span): _inside(codes, span) for span in FACT_RANGES[name]}
    else:
        groups = {names[code] if names else str(code): codes == code for code in codes.unique().tolist()}
    return {label: tally.cell(graphs=graphs) for label, graphs in groups.items() if bool(graphs.any())}


def _by_steps(tally: Tally, tables: dict[str, Tensor], present: Sequence[int]) -> dict[str, Any]:
    """Lists over the requested counts that occur, with bootstrap and Wilson intervals of the headline shares."""
    rates, stops = tables["complete"][present], tables["stop_error_median"][present, 1:]
    error = torch.arange(1, stops.shape[1] + 1) - torch.tensor(present)[:, None]
    bootstrap, single = {}, {}
    for name in HEADLINE:
        column = 1 + list(RATES).index(name)
        draws = ratio_draws(tally.draws, tally.sums[:, present, column], tally.sums[:, present, 0])
        bootstrap[name] = percentile_interval(draws)._asdict()
        single[name] = wilson(rates[:, column].numpy(), rates[:, 0].numpy())._asdict()
    return {
        "steps": present,
        "n": rates[:, 0],
        **{name: rate_by_steps(rates, name) for name in RATES},
        "intervals": bootstrap,
        "wilson": single,
        "stop_error": {
            label: [quantile_of_counts(values, counts, q) for values, counts in zip(error, stops, strict=True)]
            for label, q in STOP_QUANTILES.items()
        },
    }


def _within(n: int, span: Span) -> bool:
    return span[0] <= n and (span[1] is None or n <= span[1])


def _inside(codes: Tensor, span: Span) -> Tensor:
    return (codes >= span[0]) & (codes <= (span[1] if span[1] is not None else torch.iinfo(codes.dtype).max))


def _label(span: Span) -> str:
    low, high = span
    return f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}"


def plain(value: Any) -> Any:
    """Reduce tensors and arrays to JSON types, nan to None."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return round(value, DECIMALS) if math.isfinite(value) else None
    return value
