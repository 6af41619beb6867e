"""Metrics of a stop rule's estimate of the remaining steps. They need outcomes with `estimates`."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from loopformer.metrics.base import FamilyMetric
from loopformer.metrics.functional import COUNT_READING, Family, QueryOutcome, largest_errors


class CountReadingMetric(FamilyMetric):
    """Base of the metrics of `COUNT_READING`; their sums are float64."""

    state: ClassVar[str] = "count_reading_sums"
    family: ClassVar[Family] = COUNT_READING


class InitialEstimateError(CountReadingMetric):
    """Mean of the initial estimate minus N, in steps."""

    ratio_name: ClassVar[str] = "initial_estimate_error"
    higher_is_better: bool | None = None
    plot_lower_bound: float | None = None
    plot_upper_bound: float | None = None


class AbsoluteInitialEstimateError(InitialEstimateError):
    """Mean distance of the initial estimate from N, in steps."""

    ratio_name: ClassVar[str] = "initial_estimate_absolute_error"
    higher_is_better: bool | None = False


class DecrementError(InitialEstimateError):
    """Mean of what a loop t <= N takes off the estimate, minus the one it should, in steps."""

    ratio_name: ClassVar[str] = "decrement_error"


class AbsoluteDecrementError(AbsoluteInitialEstimateError):
    """Mean absolute error of what a loop t <= N takes off the estimate, in steps."""

    ratio_name: ClassVar[str] = "decrement_absolute_error"


class SpentExactly(CountReadingMetric):
    """Share of queries whose first loop with an estimate of at most 0.5 is N."""

    ratio_name: ClassVar[str] = "spent_exact"


class SpentAtStop(CountReadingMetric):
    """Share of queries whose first loop with an estimate of at most 0.5 is the stop loop."""

    ratio_name: ClassVar[str] = "spent_at_stop"


class LargestReadingError(Metric):
    """Largest absolute error of an initial estimate, in steps, of all queries seen.

    Args:
        kwargs: options of `torchmetrics.Metric`.
    """

    is_differentiable: bool = False
    higher_is_better: bool | None = False
    full_state_update: bool = False
    plot_lower_bound: float | None = 0.0
    state: ClassVar[str] = "largest_errors"
    column: ClassVar[int] = 0
    largest_errors: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state(self.state, torch.zeros(2, dtype=torch.float64), dist_reduce_fx="max")

    def update(self, outcome: QueryOutcome) -> None:
        """Take the queries of a batch into account."""
        self.largest_errors = torch.maximum(self.largest_errors, largest_errors(outcome))

    def compute(self) -> Tensor:
        """[] error in steps; 0 before any query."""
        return self.largest_errors[self.column]

    def plot(self, val: Any = None, ax: Any = None) -> tuple[Any, Any]:
        """Plot one value or a list of them; see `CountMetric.plot`."""
        _, ax = self._plot(val, ax)
        return ax.figure, ax


class LargestDecrementError(LargestReadingError):
    """Largest absolute error of what a loop t <= N takes off the estimate, in steps, of all queries seen."""

    column: ClassVar[int] = 1
