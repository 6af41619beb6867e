"""Shares of queries: final letter, complete trajectory, stop, and the successes that combine them.

Legend: B queries, T largest requested count, R kinds of share.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from loopformer.metrics.functional.family import Family, Ratio
from loopformer.metrics.functional.first_error import prefix_length
from loopformer.metrics.functional.outcomes import MISSING, QueryOutcome


def forced_final(outcome: QueryOutcome) -> Tensor:
    """[B] p_N = x_N, the stop ignored (evaluation protocol: forced final accuracy)."""
    return outcome.final_correct


def complete(outcome: QueryOutcome) -> Tensor:
    """[B] p_t = x_t for all t <= N (evaluation protocol: complete trajectory)."""
    return outcome.first_error > outcome.steps


def exact_stop(outcome: QueryOutcome) -> Tensor:
    """[B] s = N (evaluation protocol: exact stop)."""
    return outcome.stop == outcome.steps


def early_stop(outcome: QueryOutcome) -> Tensor:
    """[B] s < N (evaluation protocol: early stop)."""
    return (outcome.stop != MISSING) & (outcome.stop < outcome.steps)


def late_stop(outcome: QueryOutcome) -> Tensor:
    """[B] s > N (evaluation protocol: late stop)."""
    return outcome.stop > outcome.steps


def missing_stop(outcome: QueryOutcome) -> Tensor:
    """[B] no stop by the cap (evaluation protocol: missing stop)."""
    return outcome.stop == MISSING


def returned(outcome: QueryOutcome) -> Tensor:
    """[B] the letter at s, or at the cap, equals x_N (evaluation protocol: returned letter correct)."""
    return outcome.returned_correct


def wrong_time(outcome: QueryOutcome) -> Tensor:
    """[B] the returned letter is correct though s != N (evaluation protocol: wrong-time coincidence)."""
    return outcome.returned_correct & (outcome.stop != outcome.steps)


def end_to_end(outcome: QueryOutcome) -> Tensor:
    """[B] s = N and p_s = x_N (evaluation protocol: end-to-end success)."""
    return exact_stop(outcome) & outcome.final_correct


def strict(outcome: QueryOutcome) -> Tensor:
    """[B] s = N and the trajectory is complete (evaluation protocol: strict autonomous success)."""
    return exact_stop(outcome) & complete(outcome)


RATES: dict[str, Callable[[QueryOutcome], Tensor]] = {
    rate.__name__: rate
    for rate in (
        forced_final,
        complete,
        exact_stop,
        early_stop,
        late_stop,
        missing_stop,
        returned,
        wrong_time,
        end_to_end,
        strict,
    )
}
"""Every share by name; the order is that of the columns of `rate_rows`."""


def rate_rows(outcome: QueryOutcome) -> Tensor:
    """[B, 1 + R] int64: a one for the query itself, then whether it counts towards each of `RATES`.

    Summed over any set of queries these rows give the counts from which `rate` computes.
    """
    queries = torch.ones_like(outcome.steps)
    return torch.stack([queries, *(share(outcome).long() for share in RATES.values())], dim=1)


def rate_counts(outcome: QueryOutcome, horizon: int) -> Tensor:
    """Count queries and successes by requested count.

    Args:
        outcome: the outcome of a batch.
        horizon: largest requested count T.

    Returns:
        [T + 1, 1 + R] int64: row N holds the number of queries that asked for N and how many count towards each rate.
    """
    rows = rate_rows(outcome)
    return rows.new_zeros(horizon + 1, rows.shape[1]).index_add_(0, outcome.steps, rows)


def rate_by_steps(counts: Tensor, name: str) -> Tensor:
    """[...] share called `name` in each row of the table, nan where it counts no query.

    Args:
        counts: [..., 1 + R] sums of `rate_rows`, such as [T + 1, 1 + R] from `rate_counts`.
        name: a key of `RATES`.
    """
    return counts[..., 1 + list(RATES).index(name)].double() / counts[..., 0]


def rate(counts: Tensor, name: str) -> Tensor:
    """[] share called `name` over all queries of the table, nan if it is empty.

    Args:
        counts: [T + 1, 1 + R] from `rate_counts`.
        name: a key of `RATES`.
    """
    return rate_by_steps(counts.sum(dim=0), name)


def _tally(outcome: QueryOutcome) -> dict[str, Tensor]:
    shares = {name: share(outcome) for name, share in RATES.items()}
    return {"queries": torch.ones_like(outcome.steps), **shares, "prefix": prefix_length(outcome)}


SHARES = Family(
    name="shares",
    columns=("queries", *RATES, "prefix"),
    ratios={**{name: Ratio(name, "queries") for name in RATES}, "correct_prefix": Ratio("prefix", "queries")},
    tally=_tally,
)
"""`RATES` and the correct prefix as a family, so that they are broken down together with the other families."""
