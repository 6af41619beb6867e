"""How far the stop loop lies from the requested count.

Legend: T largest requested count, C cap. Row N and column s of the table count the queries that asked for N steps and
stopped at loop s; column 0 holds the missing stops, which have no error and are reported as a rate of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopformer.metrics.functional.outcomes import QueryOutcome


def stop_counts(outcome: QueryOutcome, horizon: int, cap: int) -> Tensor:
    """[T + 1, C + 1] int64 table of queries by requested count N and stop loop s.

    Args:
        outcome: the outcome of a batch.
        horizon: largest requested count T.
        cap: largest stop loop C. A stop beyond it fails as an index out of range.
    """
    table = outcome.steps.new_zeros(horizon + 1, cap + 1)
    cell = (outcome.steps, outcome.stop)
    return table.index_put_(cell, torch.ones_like(outcome.steps), accumulate=True)


def stop_error(counts: Tensor, quantile: float = 0.5, absolute: bool = False) -> Tensor:
    """[] quantile of s - N, in loops, over the queries that stopped; nan if none did.

    Source: evaluation protocol, signed and absolute error with median and p10-p90.

    Args:
        counts: [T + 1, C + 1] from `stop_counts`.
        quantile: from 0 to 1.
        absolute: take |s - N|.
    """
    requested = torch.arange(counts.shape[0], device=counts.device)[:, None]
    stop = torch.arange(1, counts.shape[1], device=counts.device)
    error = stop - requested
    return quantile_of_counts(error.abs() if absolute else error, counts[:, 1:], quantile)


def quantile_of_counts(values: Tensor, counts: Tensor, quantile: float) -> Tensor:
    """[] linearly interpolated quantile of `values` repeated `counts` times, as `numpy.quantile` defines it.

    Args:
        values: integers of any shape.
        counts: of the same shape, how often each value occurs.
        quantile: from 0 to 1.
    """
    values, order = values.flatten().sort()
    cumulative = counts.flatten()[order].cumsum(0)
    total = cumulative[-1]
    rank = (total - 1).clamp(min=0).double() * quantile  # double first: float32 cannot rank 345,600 queries exactly
    below, above = (
        values[torch.searchsorted(cumulative, r.long(), right=True).clamp(max=len(values) - 1)]
        for r in (rank.floor(), rank.ceil())
    )
    return torch.where(total > 0, torch.lerp(below.double(), above.double(), rank - rank.floor()), torch.nan)
