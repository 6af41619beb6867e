"""How a stop rule that keeps an estimate of the remaining steps reads the request and counts down.

Legend: B queries, L loops of the estimates, T loops of the reference. The estimate m_t after loop t should be N - t:
m_0 is the number read from the request, and every loop should take off exactly one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopformer.metrics.functional.family import Family, Ratio
from loopformer.metrics.functional.outcomes import MISSING, QueryOutcome, loop_numbers

SPENT = 0.5
"""A request is spent at the first loop whose estimate is at most this."""


def initial_error(outcome: QueryOutcome) -> Tensor:
    """[B] float64 m_0 - N, in steps."""
    assert outcome.estimates is not None
    return outcome.estimates[:, 0].double() - outcome.steps


def decrement_error(outcome: QueryOutcome) -> Tensor:
    """[B, T] (m_(t-1) - m_t) - 1 at loops t <= N, in steps; 0 after them."""
    assert outcome.estimates is not None
    estimates = outcome.estimates[:, : outcome.counted.shape[1] + 1]
    return (estimates[:, :-1] - estimates[:, 1:] - 1).masked_fill(~requested(outcome), 0.0)


def requested(outcome: QueryOutcome) -> Tensor:
    """[B, T] bool: t <= N."""
    return loop_numbers(outcome) <= outcome.steps[:, None]


def spent_loop(outcome: QueryOutcome) -> Tensor:
    """[B] int64 first loop whose estimate is at most 0.5, MISSING where none is."""
    assert outcome.estimates is not None
    spent = outcome.estimates[:, 1:] <= SPENT
    return torch.where(spent.any(dim=1), spent.to(torch.uint8).argmax(dim=1) + 1, MISSING)


def _tally(outcome: QueryOutcome) -> dict[str, Tensor]:
    first, change, spent = initial_error(outcome), decrement_error(outcome), spent_loop(outcome)
    found = spent != MISSING
    return {
        "queries": torch.ones_like(outcome.steps),
        "initial_error": first,
        "initial_absolute": first.abs(),
        "decrements": outcome.steps,
        "decrement_error": change.sum(dim=1),
        "decrement_absolute": change.abs().sum(dim=1),
        "spent_exact": spent == outcome.steps,
        "spent_early": found & (spent < outcome.steps),
        "spent_late": spent > outcome.steps,
        "spent_missing": ~found,
        "spent_at_stop": found & (spent == outcome.stop),
    }


COUNT_READING = Family(
    name="count_reading",
    columns=(
        "queries", "initial_error", "initial_absolute", "decrements", "decrement_error", "decrement_absolute",
        "spent_exact", "spent_early", "spent_late", "spent_missing", "spent_at_stop",
    ),
    ratios={
        "initial_estimate_error": Ratio("initial_error", "queries"),
        "initial_estimate_absolute_error": Ratio("initial_absolute", "queries"),
        "decrement_error": Ratio("decrement_error", "decrements"),
        "decrement_absolute_error": Ratio("decrement_absolute", "decrements"),
        "spent_exact": Ratio("spent_exact", "queries"),
        "spent_early": Ratio("spent_early", "queries"),
        "spent_late": Ratio("spent_late", "queries"),
        "spent_missing": Ratio("spent_missing", "queries"),
        "spent_at_stop": Ratio("spent_at_stop", "queries"),
    },
    tally=_tally,
    needs=("estimates",),
    dtype=torch.float64,
)  # fmt: skip
"""Mean signed and absolute error, in steps, of the initial estimate and of the decrements at loops 1..N; shares of the
queries whose first loop with an estimate of at most 0.5 comes at, before, after N or never, and equals the stop loop
(evaluation protocol: count reading)."""


def largest_errors(outcome: QueryOutcome) -> Tensor:
    """[2] float64 largest absolute error of an initial estimate and of a decrement; zeros for an empty batch."""
    worst = torch.cat([initial_error(outcome)[:, None], decrement_error(outcome).double()], dim=1).abs()
    columns = torch.cat([worst.new_zeros(1, worst.shape[1]), worst]).amax(dim=0)
    return torch.stack([columns[0], columns[1:].amax()])
