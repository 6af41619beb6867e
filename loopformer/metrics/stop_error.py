"""Metric of the distance between the stop loop and the requested count."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from torch import Tensor

from loopformer.metrics.base import CountMetric
from loopformer.metrics.functional import QueryOutcome, stop_counts, stop_error


class StopError(CountMetric):
    """Quantile of s - N, in loops, over the queries that stopped.

    Source: evaluation protocol, signed and absolute error with median and p10-p90.

    Args:
        horizon: largest requested count T.
        cap: largest stop loop.
        quantile: from 0 to 1.
        steps: requested counts to include in the value; None includes all.
        kwargs: options of `CountMetric`.

    Raises:
        ValueError: if the quantile is not a share.
    """

    state: ClassVar[str] = "stop_counts"
    absolute: ClassVar[bool] = False
    higher_is_better: bool | None = None  # a signed error is best at zero
    plot_lower_bound: float | None = None
    plot_upper_bound: float | None = None

    def __init__(
        self, horizon: int, cap: int, quantile: float = 0.5, steps: Collection[int] | None = None, **kwargs: Any
    ) -> None:
        super().__init__((horizon + 1, cap + 1), horizon, steps=steps, **kwargs)
        if not 0 <= quantile <= 1:
            raise ValueError(f"quantile is {quantile}: it must lie between 0 and 1.")
        self.cap = cap
        self.quantile = quantile

    def count(self, outcome: QueryOutcome) -> Tensor:
        """[T + 1, C + 1] table of one batch."""
        return stop_counts(outcome, self.horizon, self.cap)

    def compute(self) -> Tensor:
        """[] quantile in loops, nan if no query stopped."""
        return stop_error(self.table, self.quantile, self.absolute)


class AbsoluteStopError(StopError):
    """Quantile of |s - N|, in loops, over the queries that stopped."""

    absolute: ClassVar[bool] = True
    higher_is_better: bool | None = False
    plot_lower_bound: float | None = 0.0
