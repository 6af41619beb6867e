"""Accuracy of the letter at each loop.

Legend: T largest requested count.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from loopformer.metrics.functional.outcomes import QueryOutcome, count_true


def loop_counts(outcome: QueryOutcome, horizon: int) -> Tensor:
    """[T, 2] int64 counted queries and right letters at loops 1..T.

    Args:
        outcome: the outcome of a batch.
        horizon: number of loops T, at least those of the batch's reference.

    Raises:
        ValueError: if the batch has more loops than the table.
    """
    missing = horizon - outcome.counted.shape[1]
    if missing < 0:
        raise ValueError(f"reference has {outcome.counted.shape[1]} loops, horizon is {horizon}: raise the horizon.")
    return pad(torch.stack([count_true(outcome.counted, 0), count_true(outcome.correct, 0)], dim=1), (0, 0, 0, missing))


def loop_accuracy(counts: Tensor) -> Tensor:
    """[T] share of p_t = x_t among the queries with N >= t; nan where there are none.

    Source: evaluation protocol, per-loop accuracy.

    Args:
        counts: [T, 2] from `loop_counts`.
    """
    return counts[:, 1].double() / counts[:, 0]
