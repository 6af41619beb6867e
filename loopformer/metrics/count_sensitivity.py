"""Metrics of pairs of requests on one instance: does the count change a letter? They need outcomes with `instance`."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from loopformer.metrics.base import CurveMetric
from loopformer.metrics.functional import QueryOutcome, Sensitivity, count_sensitivity, paired_counts


class SensitivityMetric(CurveMetric):
    """Base of the paired metrics. The table of pairs can only be made from all queries of an instance, so it is kept.

    Args:
        instances: number of instances I; they are numbered from 0.
        horizon: largest requested count T. The table takes 16 I T (T + 1) bytes.
        kwargs: options of `CountMetric`.
    """

    state: ClassVar[str] = "paired_counts"
    higher_is_better: bool | None = None

    def __init__(self, instances: int, horizon: int, **kwargs: Any) -> None:
        super().__init__((instances, horizon + 1, horizon, 2), horizon, **kwargs)
        self.instances = instances

    def count(self, outcome: QueryOutcome) -> Tensor:
        """[I, T + 1, T, 2] table of one batch."""
        return paired_counts(outcome, self.instances, self.horizon)

    def sensitivity(self) -> Sensitivity:
        """All pairs seen, by loop."""
        asked, right = getattr(self, self.state).unbind(-1)
        return count_sensitivity(asked, right)


class CountGains(SensitivityMetric):
    """[T] share of the pairs N < N' at loop t <= N that are wrong under N and right under N'."""

    def compute(self) -> Tensor:
        """[T] share, nan where there is no pair."""
        found = self.sensitivity()
        return found.gains.double() / found.pairs


class CountLosses(SensitivityMetric):
    """[T] share of the pairs N < N' at loop t <= N that are right under N and wrong under N'."""

    def compute(self) -> Tensor:
        """[T] share, nan where there is no pair."""
        found = self.sensitivity()
        return found.losses.double() / found.pairs
