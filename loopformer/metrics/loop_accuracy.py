"""Metric of the letter at each loop."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from loopformer.metrics.base import CurveMetric
from loopformer.metrics.functional import QueryOutcome, loop_accuracy, loop_counts


class LoopAccuracy(CurveMetric):
    """[T] share of right letters at loop t among the queries with N >= t.

    Source: evaluation protocol, per-loop accuracy.

    Args:
        horizon: number of loops T.
        kwargs: options of `CountMetric`.
    """

    state: ClassVar[str] = "loop_counts"

    def __init__(self, horizon: int, **kwargs: Any) -> None:
        super().__init__((horizon, 2), horizon, **kwargs)

    def count(self, outcome: QueryOutcome) -> Tensor:
        """[T, 2] table of one batch."""
        return loop_counts(outcome, self.horizon)

    def compute(self) -> Tensor:
        """[T] accuracy, nan where no query asked for so many steps."""
        return loop_accuracy(self.table)
