"""Metrics that are shares of queries: final letter, complete trajectory, stop, end-to-end and strict success."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from torch import Tensor

from loopformer.metrics.base import CountMetric
from loopformer.metrics.functional import RATES, QueryOutcome, rate, rate_counts


class RateMetric(CountMetric):
    """Base of the shares, computed from the table of successes by requested count.

    Args:
        horizon: largest requested count T.
        steps: requested counts to include in the value; None includes all.
        kwargs: options of `CountMetric`.
    """

    state: ClassVar[str] = "rate_counts"
    rate_name: ClassVar[str]
    """Key of `functional.RATES`, where each share is defined."""

    def __init__(self, horizon: int, steps: Collection[int] | None = None, **kwargs: Any) -> None:
        super().__init__((horizon + 1, 1 + len(RATES)), horizon, steps=steps, **kwargs)

    def count(self, outcome: QueryOutcome) -> Tensor:
        """[T + 1, 1 + R] table of one batch."""
        return rate_counts(outcome, self.horizon)

    def compute(self) -> Tensor:
        """[] share, nan if there are no queries."""
        return rate(self.table, self.rate_name)


class ForcedFinal(RateMetric):
    """Share of p_N = x_N, the stop ignored."""

    rate_name: ClassVar[str] = "forced_final"


class Complete(RateMetric):
    """Share of queries with p_t = x_t at all t <= N."""

    rate_name: ClassVar[str] = "complete"


class ExactStop(RateMetric):
    """Share of s = N."""

    rate_name: ClassVar[str] = "exact_stop"


class EarlyStop(RateMetric):
    """Share of s < N."""

    rate_name: ClassVar[str] = "early_stop"
    higher_is_better: bool | None = False


class LateStop(RateMetric):
    """Share of s > N."""

    rate_name: ClassVar[str] = "late_stop"
    higher_is_better: bool | None = False


class MissingStop(RateMetric):
    """Share of queries without a stop by the cap."""

    rate_name: ClassVar[str] = "missing_stop"
    higher_is_better: bool | None = False


class Returned(RateMetric):
    """Share of queries whose letter at the stop loop, or at the cap, equals x_N."""

    rate_name: ClassVar[str] = "returned"


class WrongTime(RateMetric):
    """Share of queries whose returned letter is right though s != N: coincidences, neither good nor bad."""

    rate_name: ClassVar[str] = "wrong_time"
    higher_is_better: bool | None = None


class EndToEnd(RateMetric):
    """Share of s = N and p_s = x_N."""

    rate_name: ClassVar[str] = "end_to_end"


class Strict(RateMetric):
    """Share of s = N with a complete trajectory."""

    rate_name: ClassVar[str] = "strict"
