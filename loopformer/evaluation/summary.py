"""The numbers of one evaluation: summarize an outcome store into a JSON document.

Legend: Q queries, I instances (graphs), T largest requested count, C requested counts that occur.

Every metric is defined in `loopformer.metrics.functional`; nothing is defined here. Keys of the document:

    queries, graphs, and every metric by name   over all queries; a *cell* is these with n in place of queries:
        shares              forced_final, complete, exact_stop, early_stop, late_stop, missing_stop, returned,
                            wrong_time, end_to_end, strict; correct_prefix (mean loops)
        after an error      wrong_loop_fraction, recovery, wrong_stretches (per query), stretch_censored (share),
                            stretch_length and stretch_length_censored (mean loops)
        first error         first_error_repeats, _earlier, _orbit, _outside (shares of the queries with an error)
        off the path        transition_consistency, transition_consistency_unrecovered
        readouts            readout_direct_right, readout_both_same, readout_both_different (at the coda's first error),
                            direct_complete, both_complete
        countdown           initial_estimate_error, initial_estimate_absolute_error, decrement_error,
                            decrement_absolute_error (steps), spent_exact, _early, _late, _missing, spent_at_stop
        n_of                what each metric is a share or a mean of, where that is not the number of queries
        intervals           [low, high] of each metric: 95%, bootstrap over graphs (over structures, if there are)
        stop_error          n, and signed and absolute p10, median, p90, mean (loops) of the queries that stopped
    by_range, by_training, by_kind, by_seed, by_period, by_tail, by_reachable, by_accept, ...   cells by label
    by_steps                lists over the requested counts `steps`: n, every metric, n_of, intervals and wilson of the
                            shares (low, high), stop_error (p10, median, p90)
    loop_accuracy, survival, hazard             curves over loops 1..T
    stretches               by "all" and by range: n, ended, censored, length of the ended, length_censored, and their
                            Kaplan-Meier survival (share longer than 1, 2, ... loops)
    count_sensitivity       pairs of requests N < N' on one graph at one loop: pairs, gains (wrong under N, right under
                            N'), losses; by_loop; by_pair (matrices over `steps`, row N, column N'); None for one count
    count_reading           the countdown in detail, or None: initial_error and decrement_error (steps), spent: first
                            loop with an estimate of at most 0.5, missing, minus N and minus the stop loop

A metric whose tensors the store lacks is left out, in every cell alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from loopformer.evaluation.bootstrap import Interval, percentile_interval, ratio_draws, wilson
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.evaluation.tally import Reading, Tally, count_store, distances
from loopformer.files import write_text
from loopformer.metrics import PANELS, STOP_QUANTILES
from loopformer.metrics.functional import (
    MISSING,
    RATES,
    Sensitivity,
    count_sensitivity,
    exposure,
    hazard,
    loop_accuracy,
    pairwise_changes,
    quantile_of_counts,
    stretch_survival,
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

FACT_NAMES = {"accept": ("no", "yes")}
"""Names of the codes of a fact, where the store has none."""

IDENTIFIERS = ("graph", "structure")
"""Facts that tell instances apart instead of grouping them."""

PAIRED = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Requested counts of the matrices of count sensitivity; those that occur, in pairs."""

INSTANCES = 16
"""Instances whose pairs of requests are counted together; bounds the memory."""

DECIMALS = 8  # tells apart single queries among 345,600


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
    tally = count_store(store, panels)
    ranges = {_label(span): [n for n in present if _within(n, span)] for span in RANGES}
    overall = tally.cell()
    document = {
        "format": 2,
        "benchmark": meta.benchmark,
        "digests": dict(sorted(meta.digests.items())),
        "labels": list(meta.labels),
        "loops": meta.loops,
        "cap": meta.cap,
        "trained_steps": list(meta.trained_steps),
        "queries": overall.pop("n"),
        **overall,
        **breakdowns(tally, store.facts, meta.fact_values, present, meta.trained_steps),
        "loop_accuracy": loop_accuracy(tally.letters),
        "survival": {str(n): _survival(tally, n) for n in panels},
        "hazard": {
            "pooled": _hazard(tally.first_errors, present[-1]),
            **{str(n): _hazard(_only(tally.first_errors, n), n) for n in panels},
        },
        "stretches": {name: _stretches(tally, steps) for name, steps in {"all": present, **ranges}.items() if steps},
        "count_sensitivity": _count_sensitivity(tally),
        "count_reading": None if tally.reading is None else _count_reading(tally, tally.reading),
        "by_steps": _by_steps(tally),
    }
    reduced: dict[str, Any] = plain(document)
    return reduced


class Cells(Protocol):
    """A tally that gives the numbers of some graphs and requested counts."""

    def cell(self, graphs: Tensor | None = None, steps: Sequence[int] | None = None) -> dict[str, Any]:
        """Every metric with its n and its interval."""
        ...


def breakdowns(
    tally: Cells,
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
        **{
            f"by_{name}": _by_fact(tally, name, codes, fact_values.get(name, FACT_NAMES.get(name)))
            for name, codes in facts.items()
            if name not in IDENTIFIERS
        },
    }


def write_summary(path: Path | str, summary: dict[str, Any], overwrite: bool = False) -> None:
    """Write a summary as JSON, atomically.

    Raises:
        FileExistsError: if the file exists and `overwrite` is false.
    """
    write_text(path, json.dumps(summary, allow_nan=False) + "\n", overwrite)


def _only(table: Tensor, n: int) -> Tensor:
    """The table with nothing but the row of requested count n."""
    kept = torch.zeros_like(table)
    kept[n] = table[n]
    return kept


def _survival(tally: Tally, n: int) -> dict[str, Any]:
    queries = tally.sums[:, tally.present.index(n), :1]
    interval = percentile_interval(ratio_draws(tally.draws, tally.alive[n], queries))
    curve = survival(_only(tally.first_errors, n))[:n]
    return {"n": queries.sum().long(), "survival": curve, "low": interval.low, "high": interval.high}


def _hazard(table: Tensor, loops: int) -> dict[str, Any]:
    exposed = exposure(table)
    return {"hazard": hazard(table)[:loops], "errors": exposed.errors[:loops], "at_risk": exposed.at_risk[:loops]}


def _by_group(tally: Cells, groups: dict[str, list[int]]) -> dict[str, Any]:
    return {name: tally.cell(steps=steps) for name, steps in groups.items() if steps}


def _training_groups(present: Sequence[int], trained: Sequence[int]) -> dict[str, list[int]]:
    if not trained:
        return {}
    return {
        "trained": [n for n in present if n in trained],
        "held_out": [n for n in present if n not in trained and n < max(trained)],
        "beyond": [n for n in present if n > max(trained)],
    }


def _by_fact(tally: Cells, name: str, codes: Tensor, names: Sequence[str] | None) -> dict[str, Any]:
    if name in FACT_RANGES:
        groups = {_label(span): _inside(codes, span) for span in FACT_RANGES[name]}
    else:
        groups = {names[code] if names else str(code): codes == code for code in codes.unique().tolist()}
    return {label: tally.cell(graphs=graphs) for label, graphs in groups.items() if bool(graphs.any())}


def _stretches(tally: Tally, steps: Sequence[int]) -> dict[str, Any]:
    table = tally.stretches[torch.isin(torch.tensor(tally.present), torch.tensor(list(steps)))].sum(dim=0)
    ended, censored = table.view(2, -1)
    length = torch.arange(len(ended))
    seen = int((length * (ended + censored > 0)).max())
    return {
        "n": table.sum(),
        "ended": ended.sum(),
        "censored": censored.sum(),
        "length": {label: quantile_of_counts(length, ended, q) for label, q in STOP_QUANTILES.items()},
        "length_censored": {label: quantile_of_counts(length, censored, q) for label, q in STOP_QUANTILES.items()},
        "survival": stretch_survival(table)[:seen],
    }


def _count_sensitivity(tally: Tally) -> dict[str, Any] | None:
    """Totals, curves over loops, and matrices of pairs; None where every graph was asked one count."""
    if len(tally.present) == 1:
        return None
    parts = [
        count_sensitivity(asked, right)
        for asked, right in zip(tally.asked.split(INSTANCES), tally.right.split(INSTANCES), strict=True)
    ]
    by_loop = Sensitivity(*(torch.stack(each).sum(dim=0) for each in zip(*parts, strict=True)))
    shown = [n for n in tally.present if n in PAIRED]
    rows = [tally.present.index(n) for n in shown]
    pairs, gains, losses = pairwise_changes(tally.asked[:, rows], tally.right[:, rows])
    return {
        **{name: getattr(by_loop, name).sum() for name in ("pairs", "gains", "losses")},
        "by_loop": by_loop._asdict(),
        "by_pair": {"steps": shown, "pairs": pairs, "gains": gains, "losses": losses},
    }


def _count_reading(tally: Tally, reading: Reading) -> dict[str, Any]:
    def quantiles(values: Tensor) -> dict[str, Any]:
        return dict(zip(STOP_QUANTILES, np.quantile(values.numpy(), list(STOP_QUANTILES.values())), strict=True))

    steps = torch.tensor(tally.present)[tally.column]
    found = reading.spent != MISSING
    both = found & (tally.stops != MISSING)
    n, signed, absolute = reading.by_loop.unbind(dim=1)
    return {
        "n": len(steps),
        "initial_error": {
            "signed": {**quantiles(reading.initial), "mean": reading.initial.mean()},
            "absolute": {**quantiles(reading.initial.abs()), "mean": reading.initial.abs().mean()},
            "largest": reading.initial.abs().max(),
        },
        "decrement_error": {
            "largest": reading.largest.max(),
            "by_loop": {"n": n.long(), "signed": signed / n, "absolute": absolute / n},
        },
        "spent": {
            "missing": (~found).sum(),
            "minus_steps": distances(reading.spent[found] - steps[found]),
            "minus_stop": distances(reading.spent[both] - tally.stops[both]),
        },
    }


def _by_steps(tally: Tally) -> dict[str, Any]:
    """Lists over the requested counts that occur, with bootstrap and Wilson intervals of the shares of queries."""
    sums, stops = tally.sums.sum(dim=0), tally.stop_table[tally.present, 1:]
    values, denominators = tally.values(sums)
    error = torch.arange(1, stops.shape[1] + 1) - torch.tensor(tally.present)[:, None]
    ends = tally.interval(tally.sums, list(RATES))
    single = wilson(sums[:, [tally.pairs[name][0] for name in RATES]].numpy(), sums[:, :1].numpy())
    n = denominators["forced_final"]
    return {
        "steps": tally.present,
        "n": n,
        **values,
        "n_of": {name: count for name, count in denominators.items() if not bool((count == n).all())},
        "intervals": _named(ends),
        "wilson": _named(single),
        "stop_error": {
            label: [quantile_of_counts(each, counts, q) for each, counts in zip(error, stops, strict=True)]
            for label, q in STOP_QUANTILES.items()
        },
    }


def _named(interval: Interval) -> dict[str, Any]:
    """Ends [C, R] as lists by name of the rate."""
    return {name: {"low": interval.low[:, i], "high": interval.high[:, i]} for i, name in enumerate(RATES)}


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
