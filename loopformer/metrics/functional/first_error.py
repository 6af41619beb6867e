"""The first error of a trajectory: survival, hazard and correct prefix, all from one table of counts.

Legend: T largest requested count. Row N and column F of the table count the queries that asked for N steps and made
their first error at loop F; F = N + 1 means none. Such a query is right-censored: nothing is known of it after N.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loopformer.metrics.functional.outcomes import QueryOutcome


class Exposure(NamedTuple):
    """Queries by loop t = 1..T, each [T] int64.

    Attributes:
        observed: those with N >= t.
        at_risk: those of them with F >= t.
        survived: those of them with F > t.
    """

    observed: Tensor
    at_risk: Tensor
    survived: Tensor

    @property
    def errors(self) -> Tensor:
        """[T] those with F = t."""
        return self.at_risk - self.survived


def first_error_counts(outcome: QueryOutcome, horizon: int) -> Tensor:
    """[T + 1, T + 2] int64 table of queries by requested count N and first error F.

    Args:
        outcome: the outcome of a batch.
        horizon: largest requested count T. A query beyond it fails as an index out of range, it is never miscounted.
    """
    return first_error_table(outcome.steps, outcome.first_error, horizon)


def first_error_table(steps: Tensor, first_error: Tensor, horizon: int) -> Tensor:
    """[T + 1, T + 2] int64 table of queries by requested count N and first error F.

    Args:
        steps: [B] int64 N of each query.
        first_error: [B] int64 F of each query.
        horizon: largest requested count T, see `first_error_counts`.
    """
    table = steps.new_zeros(horizon + 1, horizon + 2)
    return table.index_put_((steps, first_error), torch.ones_like(steps), accumulate=True)


def exposure(counts: Tensor) -> Exposure:
    """Count the observed, the at-risk and the surviving queries of each loop.

    Args:
        counts: [T + 1, T + 2] from `first_error_counts`.
    """
    # tail[n, f]: queries with N >= n and F >= f
    tail = counts.flip(0, 1).cumsum(0).cumsum(1).flip(0, 1)
    return Exposure(observed=tail[1:, 0], at_risk=tail.diagonal()[1:], survived=tail.diagonal(offset=1)[1:])


def survival(counts: Tensor) -> Tensor:
    """[T] share of the queries with N >= t whose first error comes after t; nan where no query asked for t.

    For rows of one single N this is the survival panel of the evaluation protocol (first error F; survival at t).

    Args:
        counts: [T + 1, T + 2] from `first_error_counts`.
    """
    exposed = exposure(counts)
    return exposed.survived.double() / exposed.observed


def hazard(counts: Tensor) -> Tensor:
    """[T] (# F = t) / (# F >= t); nan on an empty risk set (evaluation protocol: first-error hazard).

    Args:
        counts: [T + 1, T + 2] from `first_error_counts`.
    """
    exposed = exposure(counts)
    return exposed.errors.double() / exposed.at_risk


def prefix_length(outcome: QueryOutcome) -> Tensor:
    """[B] int64 min(F - 1, N), the loops before the first error."""
    return outcome.first_error - 1  # F never exceeds N + 1


def correct_prefix(counts: Tensor) -> Tensor:
    """[] mean of min(F - 1, N) in loops; nan if there are no queries (evaluation protocol: correct prefix).

    Args:
        counts: [T + 1, T + 2] from `first_error_counts`, where F - 1 never exceeds N.
    """
    prefix = torch.arange(-1, counts.shape[1] - 1, device=counts.device)
    return (counts * prefix).sum().double() / counts.sum()
