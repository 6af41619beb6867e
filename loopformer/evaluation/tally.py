"""One pass over an outcome store: sums per graph and requested count, from which every table and interval is made.

Legend: Q queries, I instances (graphs), C requested counts that occur, T largest of them, W columns, D bootstrap draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopformer.evaluation.bootstrap import Floats, Interval, percentile_interval, ratio_draws, resampling_counts
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.metrics import STOP_QUANTILES
from loopformer.metrics.functional import (
    FAMILIES,
    MISSING,
    Family,
    QueryOutcome,
    decrement_error,
    first_error_counts,
    initial_error,
    loop_counts,
    quantile_of_counts,
    requested,
    spent_loop,
    stop_counts,
    stretch_counts,
)


@dataclass(frozen=True)
class Reading:
    """The count reading of a store whose stop rule estimates the remaining steps.

    Attributes:
        initial: [Q] float64 error of the initial estimate, in steps.
        spent: [Q] first loop with an estimate of at most 0.5, 0 where none is.
        largest: [Q] float64 largest absolute decrement error of each query.
        by_loop: [T, 3] float64 queries with N >= t, and their sums of signed and of absolute decrement errors at t.
    """

    initial: Tensor
    spent: Tensor
    largest: Tensor
    by_loop: Tensor


@dataclass(frozen=True)
class Tally:
    """Sums over the queries of each graph and requested count, and what cannot be summed.

    Attributes:
        present: the C requested counts, ascending.
        families: the families of ratios whose columns `sums` holds, in order.
        sums: [I, C, W] float64 (counts, exact).
        first_errors: [T + 1, T + 2] queries by requested count and first error.
        letters: [T, 2] counted and right letters by loop.
        stop_table: [T + 1, cap + 1] queries by requested count and stop loop.
        alive: by panel N, [I, N] queries of each graph without an error up to each loop.
        stretches: [C, 2 (T + 1)] wrong stretches by length, ended and censored.
        asked: [I, C, T] bool, whether a query counts at each loop; `right` whether its letter is right there.
        right: see `asked`.
        column: [Q] index of each query's requested count.
        instance: [Q] graph of each query.
        stops: [Q] stop loop of each query.
        draws: [D, I] how often the bootstrap picked each graph, or its structure.
        reading: the count reading, or None.
    """

    present: list[int]
    families: tuple[Family, ...]
    sums: Tensor
    first_errors: Tensor
    letters: Tensor
    stop_table: Tensor
    alive: dict[int, Tensor]
    stretches: Tensor
    asked: Tensor
    right: Tensor
    column: Tensor
    instance: Tensor
    stops: Tensor
    draws: Floats
    reading: Reading | None

    @cached_property
    def by_graph(self) -> Tensor:
        """[I, W] sums over all requested counts."""
        return self.sums.sum(dim=1)

    @cached_property
    def pairs(self) -> dict[str, tuple[int, int]]:
        """Columns of numerator and denominator of every metric."""
        pairs, offset = {}, 0
        for family in self.families:
            for name in family.ratios:
                above, below = family.pair(name)
                pairs[name] = (offset + above, offset + below)
            offset += len(family.columns)
        return pairs

    def values(self, sums: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Every metric of [..., W] sums, and the number n that each is a share or a mean of."""
        values = {name: sums[..., a] / sums[..., b] for name, (a, b) in self.pairs.items()}
        return values, {name: sums[..., b].long() for name, (_, b) in self.pairs.items()}

    def interval(self, rows: Tensor, names: Sequence[str], draws: Floats | None = None) -> Interval:
        """Bootstrap interval of some metrics: rows [I, ..., W] -> ends [...] with the metrics last."""
        above, below = (rows[..., [self.pairs[name][side] for name in names]] for side in (0, 1))
        values = ratio_draws(self.draws if draws is None else draws, above.flatten(1), below.flatten(1))
        return Interval(*(end.reshape(above.shape[1:]) for end in percentile_interval(values)))

    def cell(self, graphs: Tensor | None = None, steps: Sequence[int] | None = None) -> dict[str, Any]:
        """Every metric with its n, its interval and the stop errors, over some graphs and requested counts.

        Args:
            graphs: [I] bool; None for all.
            steps: requested counts; None for all.
        """
        chosen = torch.ones(len(self.present), dtype=torch.bool)
        if steps is not None:
            chosen = torch.isin(torch.tensor(self.present), torch.tensor(list(steps)))
        rows = self.by_graph if steps is None else self.sums[:, chosen].sum(dim=1)
        draws, queries = self.draws, chosen[self.column]
        if graphs is not None:
            rows, draws, queries = rows[graphs], draws[:, graphs.numpy()], queries & graphs[self.instance]
        values, denominators = self.values(rows.sum(dim=0))
        n = denominators.pop("forced_final")
        return {
            "n": n,
            "graphs": (rows[:, 0] > 0).sum(),
            **values,
            "n_of": {name: count for name, count in denominators.items() if not bool(count == n)},
            "intervals": dict(zip(values, np.stack(self.interval(rows, list(values), draws), axis=1), strict=True)),
            "stop_error": self.stop_error(queries),
        }

    def stop_error(self, queries: Tensor) -> dict[str, Any]:
        """Signed and absolute distance of the stop loop from N, over the chosen queries ([Q] bool) that stopped."""
        queries = queries & (self.stops != MISSING)
        steps = torch.tensor(self.present)[self.column]
        return distances(self.stops[queries] - steps[queries])


def distances(errors: Tensor) -> dict[str, Any]:
    """Number, mean, median, p10 and p90 of whole-loop errors [n] and of their absolute values; None if there are none.

    Args:
        errors: [n] int64.
    """
    low = int(errors.min()) if len(errors) else 0
    counts = torch.bincount(errors - low, minlength=1)
    values = torch.arange(low, low + len(counts))
    document: dict[str, Any] = {"n": len(errors)}
    for name, each in (("signed", values), ("absolute", values.abs())):
        mean = (each * counts).sum().double() / counts.sum()
        quantiles = {label: quantile_of_counts(each, counts, q) for label, q in STOP_QUANTILES.items()}
        document[name] = {**quantiles, "mean": mean}
    return document


def count_store(store: OutcomeStore, panels: Sequence[int]) -> Tally:
    """Go through the queries once.

    Args:
        store: the outcomes.
        panels: requested counts whose survival gets an interval.
    """
    present, column = torch.unique(store.steps.long(), return_inverse=True)
    graphs, counts, horizon = len(store.stratum), len(present), int(present[-1])
    alive = {n: torch.zeros(graphs, n, dtype=torch.int64) for n in panels}
    asked = torch.zeros(graphs * counts, horizon, dtype=torch.bool)
    right = torch.zeros_like(asked)
    tables: list[tuple[Tensor, ...]] = []
    rows: list[Tensor] = []
    readings: list[tuple[Tensor, ...]] = []
    families: tuple[Family, ...] = ()
    for part, outcome in store.outcomes():
        graph, cell = store.instance[part].long(), store.instance[part].long() * counts + column[part]
        families = tuple(family for family in FAMILIES if family.available(outcome))
        rows.append(torch.cat([family.rows(outcome).double() for family in families], dim=1))
        asked[cell], right[cell] = outcome.counted, outcome.correct
        table = (
            first_error_counts(outcome, horizon),
            loop_counts(outcome, horizon),
            stop_counts(outcome, horizon, store.metadata.cap),
            stretch_counts(outcome, horizon, column[part], counts),
        )
        tables = [table if not tables else tuple(a.add_(b) for a, b in zip(tables[0], table, strict=True))]
        for n, survivors in alive.items():
            chosen = outcome.steps == n
            survivors.index_add_(0, graph[chosen], (outcome.first_error[chosen, None] > torch.arange(1, n + 1)).long())
        if outcome.estimates is not None:
            readings.append(_read(outcome))
    queries = torch.cat(rows)
    sums = queries.new_zeros(graphs * counts, queries.shape[1])
    sums.index_add_(0, store.instance.long() * counts + column, queries)
    first_errors, letters, stop_table, stretches = tables[0]
    return Tally(
        present=present.tolist(),
        families=families,
        sums=sums.view(graphs, counts, -1),
        first_errors=first_errors,
        letters=letters,
        stop_table=stop_table,
        alive=alive,
        stretches=stretches,
        asked=asked.view(graphs, counts, horizon),
        right=right.view(graphs, counts, horizon),
        column=column,
        instance=store.instance.long(),
        stops=store.stops.long(),
        draws=_draws(store),
        reading=_join(readings) if readings else None,
    )


def _draws(store: OutcomeStore) -> Floats:
    """[D, I] draws of graphs, or of whole structures where the store tells them: letterings are not independent."""
    structure = store.facts.get("structure")
    return resampling_counts(store.stratum.numpy(), groups=None if structure is None else structure.numpy())


def _read(outcome: QueryOutcome) -> tuple[Tensor, ...]:
    change, within = decrement_error(outcome), requested(outcome)
    size = change.abs()
    by_loop = torch.stack([part.sum(dim=0, dtype=torch.float32) for part in (within, change, size)], dim=1)
    return initial_error(outcome), spent_loop(outcome), size.amax(dim=1), by_loop.double()


def _join(parts: Sequence[tuple[Tensor, ...]]) -> Reading:
    initial, spent, largest, by_loop = zip(*parts, strict=True)
    return Reading(torch.cat(initial), torch.cat(spent), torch.cat(largest), torch.stack(by_loop).sum(dim=0))
