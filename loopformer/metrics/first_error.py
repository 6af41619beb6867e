"""Metrics of the first error: survival, hazard, correct prefix."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from torch import Tensor

from loopformer.metrics.base import CountMetric, CurveMetric
from loopformer.metrics.functional import QueryOutcome, correct_prefix, first_error_counts, hazard, survival


class FirstErrorMetric(CountMetric):
    """Base of the metrics computed from the table of requested count and first error.

    Args:
        horizon: largest requested count T.
        steps: requested counts to include in the value; None includes all.
        kwargs: options of `CountMetric`.
    """

    state: ClassVar[str] = "first_error_counts"

    def __init__(self, horizon: int, steps: Collection[int] | None = None, **kwargs: Any) -> None:
        super().__init__((horizon + 1, horizon + 2), horizon, steps=steps, **kwargs)

    def count(self, outcome: QueryOutcome) -> Tensor:
        """[T + 1, T + 2] table of one batch."""
        return first_error_counts(outcome, self.horizon)


class Survival(FirstErrorMetric, CurveMetric):
    """[T] share of queries whose first error comes after loop t, among those with N >= t.

    `steps=(n,)` makes it the panel of one requested count. Source: evaluation protocol, survival at t.
    """

    def compute(self) -> Tensor:
        """[T] survival, nan where no query asked for so many steps."""
        return survival(self.table)


class Hazard(FirstErrorMetric, CurveMetric):
    """[T] share of first errors at loop t among the queries still correct before it.

    Source: evaluation protocol, first-error hazard.
    """

    higher_is_better: bool | None = False

    def compute(self) -> Tensor:
        """[T] hazard, nan on an empty risk set."""
        return hazard(self.table)


class CorrectPrefix(FirstErrorMetric):
    """Mean number of loops before the first error, min(F - 1, N). Source: evaluation protocol, correct prefix."""

    plot_upper_bound: float | None = None

    def compute(self) -> Tensor:
        """[] mean in loops."""
        return correct_prefix(self.table)
