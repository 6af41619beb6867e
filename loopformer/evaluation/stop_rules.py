"""Stop rules side by side on the same traces: what would each have returned?

All follow from an outcome store, without the model:

    forced     stops at the requested count N: the ceiling of any rule that knows when to stop.
    learned    the model's own stop rule.
    oracle     stops at N where the letter there is right, else at the first loop by the cap whose letter is x_N: the
               ceiling of any rule that may look at the answer.
    repeat     stops at the first loop whose letter is that of the loop before: early exit on a stable prediction.
    converged  stops at the first loop whose answer state moved by less than `TOLERANCE` of its own norm (see
               `loopformer.evaluation.convergence`).

The last two know nothing of N. They suit a task whose answer settles; executing N steps is not one, and how badly they
do on it says how much a count has to be read. Where each query has a trace of its own, they look no further than N:
later loops were not all read.

Legend: Q queries, I graphs, L loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopformer.evaluation.bootstrap import percentile_interval, ratio_draws, resampling_counts
from loopformer.evaluation.convergence import TOLERANCES
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.metrics.functional import MISSING, QueryOutcome, stop_loop
from loopformer.metrics.functional.rates import RATES

TOLERANCE = 0.05
"""Relative change of the answer state below which `converged` stops; one of `TOLERANCES`."""

SHARES = ("exact_stop", "early_stop", "late_stop", "missing_stop", "returned", "end_to_end", "strict")
CHUNK = 16_384


def stop_rules(store: OutcomeStore, tolerance: float = TOLERANCE) -> dict[str, dict[str, Any]]:
    """Compare the rules.

    Args:
        store: the outcomes; `converged` is left out where they do not say when the state settled.
        tolerance: of `converged`, one of `TOLERANCES`.

    Returns:
        by rule, the `SHARES` of its queries as fractions, their 95% bootstrap `intervals`, and the median, p10 and p90
        of stop loop minus N over the queries that stop (`stop_error`).
    """
    per_trace = {"repeat": repeat_stops(store.letters[:, : store.metadata.cap])}
    if store.converged is not None:
        per_trace["converged"] = store.converged[:, TOLERANCES.index(tolerance)].long()
    cap, shared = store.metadata.cap, len(store.letters) < len(store.steps)
    with_rule = bool((store.stops != MISSING).any()) or cap > int(store.steps.max())
    names = ["forced", *(["learned"] if with_rule else []), "oracle", *per_trace]
    graphs = len(store.stratum)
    sums = {name: torch.zeros(graphs, 1 + len(SHARES), dtype=torch.int64) for name in names}
    errors: dict[str, list[Tensor]] = {name: [] for name in names}
    for part, outcome in store.outcomes(chunk=CHUNK):
        rows, steps = store.row[part].long(), outcome.steps
        letters = store.letters[rows]
        target = store.reference[rows].gather(1, steps[:, None] - 1)
        stops = {
            "forced": steps,
            "learned": outcome.stop,
            "oracle": _oracle(letters[:, :cap] == target, outcome),
            **{name: _seen(stop[rows], outcome, cap, shared) for name, stop in per_trace.items()},
        }
        for name in names:
            stop = stops[name]
            at = torch.where(stop == MISSING, cap, stop)[:, None] - 1
            judged = outcome._replace(stop=stop, returned_correct=(letters.gather(1, at) == target)[:, 0])
            shares = torch.stack([torch.ones_like(steps), *(RATES[share](judged).long() for share in SHARES)], 1)
            sums[name].index_add_(0, store.instance[part].long(), shares)
            errors[name].append((stop - steps)[stop != MISSING])
    draws = resampling_counts(store.stratum.numpy())
    return {name: _summary(sums[name].numpy(), torch.cat(errors[name]), draws) for name in names}


def repeat_stops(letters: Tensor) -> Tensor:
    """[R, L] letters -> [R] first loop whose letter is that of the loop before, MISSING where there is none."""
    same = letters[:, 1:] == letters[:, :-1]
    return stop_loop(torch.cat([torch.zeros_like(same[:, :1]), same], 1).float() - 0.5)


def stop_distribution(store: OutcomeStore) -> list[tuple[int, int]]:
    """How often each value of stop loop minus N occurs, over the queries that stopped, in rising order."""
    stopped = store.stops != MISSING
    values, counts = (store.stops - store.steps)[stopped].unique(return_counts=True)
    return list(zip(values.tolist(), counts.tolist(), strict=True))


def _oracle(right: Tensor, outcome: QueryOutcome) -> Tensor:
    """[Q, cap] whether each loop's letter is x_N -> stop of the oracle."""
    return torch.where(outcome.final_correct, outcome.steps, stop_loop(right.float() - 0.5))


def _seen(stop: Tensor, outcome: QueryOutcome, cap: int, shared: bool) -> Tensor:
    """Stops within the loops that were read: all up to the cap on shared traces, else up to N."""
    last = torch.full_like(stop, cap) if shared else outcome.steps
    return torch.where(stop <= last, stop, MISSING)


def _summary(sums: Any, errors: Tensor, draws: Any) -> dict[str, Any]:
    total = sums.sum(0)
    interval = percentile_interval(ratio_draws(draws, sums[:, 1:], sums[:, :1]))
    ends = np.round(np.stack(interval, 1), 8).tolist()
    quantiles = (
        torch.quantile(errors.double(), torch.tensor([0.1, 0.5, 0.9]).double()).tolist() if len(errors) else None
    )
    return {
        **{share: round(float(n / total[0]), 8) for share, n in zip(SHARES, total[1:], strict=True)},
        "intervals": dict(zip(SHARES, ends, strict=True)),
        "stop_error": dict(zip(("p10", "median", "p90"), quantiles or [None] * 3, strict=True)),
    }
