"""What all metrics share: one table of counts that adds up over batches and processes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.plot import plot_curve

from loopformer.metrics.functional import Family, QueryOutcome, check_outcome


class CountMetric(Metric):
    """A metric that keeps one table of counts and computes its value from it.

    Metrics of one family keep the same table under the same state name, so a MetricCollection fills it once for all of
    them (`execution_metrics`). Exact in any number of processes, also where some saw no batch.

    Args:
        shape: shape of the table.
        horizon: largest requested count T.
        steps: requested counts to include in the value; None includes all. The table holds all of them either way.
        validate_args: check the values of every batch, which waits for the device. Off by default.
        dtype: of the table; int64 is exact whatever the number of queries.
        kwargs: options of `torchmetrics.Metric`.

    Raises:
        ValueError: if the horizon is not positive or a requested count lies outside 1..T.
    """

    is_differentiable: bool = False
    higher_is_better: bool | None = True
    full_state_update: bool = False
    plot_lower_bound: float | None = 0.0
    plot_upper_bound: float | None = 1.0

    state: ClassVar[str]
    """Name of the table; equal for the metrics that may share it."""

    def __init__(
        self,
        shape: Sequence[int],
        horizon: int,
        steps: Collection[int] | None = None,
        validate_args: bool = False,
        dtype: torch.dtype = torch.int64,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if horizon < 1:
            raise ValueError(f"horizon is {horizon}: it must be at least 1 loop.")
        outside = sorted(n for n in steps or () if not 1 <= n <= horizon)
        if outside:
            raise ValueError(f"steps holds {outside[0]}, outside 1..{horizon}: raise the horizon or drop the count.")
        self.horizon = horizon
        self.steps = None if steps is None else tuple(sorted(set(steps)))
        self.validate_args = validate_args
        self.add_state(self.state, torch.zeros(*shape, dtype=dtype), dist_reduce_fx="sum")

    @abstractmethod
    def count(self, outcome: QueryOutcome) -> Tensor:
        """Return the table of one batch."""

    def update(self, outcome: QueryOutcome) -> None:
        """Add the queries of a batch."""
        if self.validate_args:
            check_outcome(outcome, self.horizon, getattr(self, "cap", None))
        setattr(self, self.state, getattr(self, self.state) + self.count(outcome))

    @property
    def table(self) -> Tensor:
        """The counts, with the rows of the requested counts left out by `steps` set to zero."""
        table: Tensor = getattr(self, self.state)
        if self.steps is None:
            return table
        keep = torch.zeros(self.horizon + 1, dtype=torch.int64)
        keep[list(self.steps)] = 1
        return table * keep.to(table.device).view(-1, *[1] * (table.dim() - 1))

    def plot(self, val: Any = None, ax: Any = None) -> tuple[Any, Any]:
        """Plot one value or a list of them.

        Args:
            val: results of `compute` or `forward`; by default the current value is computed.
            ax: matplotlib axes to draw on; by default a new figure is made.

        Returns:
            The figure and its axes.
        """
        _, ax = self._plot(val, ax)
        return ax.figure, ax


class FamilyMetric(CountMetric):
    """One metric of a `Family`: a quotient of two columns of the family's table of sums by requested count.

    Args:
        horizon: largest requested count T.
        steps: requested counts to include in the value; None includes all.
        kwargs: options of `CountMetric`.
    """

    family: ClassVar[Family]
    ratio_name: ClassVar[str]
    """Key of `family.ratios`, where the metric is defined."""

    def __init__(self, horizon: int, steps: Collection[int] | None = None, **kwargs: Any) -> None:
        shape = (horizon + 1, len(self.family.columns))
        super().__init__(shape, horizon, steps=steps, dtype=self.family.dtype, **kwargs)

    def count(self, outcome: QueryOutcome) -> Tensor:
        """[T + 1, C] table of one batch."""
        return self.family.counts(outcome, self.horizon)

    def compute(self) -> Tensor:
        """[] the quotient, nan where the denominator is zero."""
        return self.family.value(self.table.sum(dim=0), self.ratio_name)


class CurveMetric(CountMetric):
    """A metric whose value is a curve over loops 1..T, nan where it is undefined; a scalar if T = 1 (torchmetrics)."""

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Any = None) -> tuple[Any, Any]:
        """Plot one curve or several over the loops.

        Args:
            val: [T] curve or a list of curves; by default the current value is computed.
            ax: matplotlib axes to draw on; by default a new figure is made.

        Returns:
            The figure and its axes.
        """
        val = self.compute() if val is None else val
        loops = torch.arange(1, self.horizon + 1)
        for curve in [val] if isinstance(val, Tensor) else val:
            points = curve.reshape(-1)  # torchmetrics squeezes the curve of a single loop
            _, ax = plot_curve((loops, points, loops), ax=ax, label_names=("loop", type(self).__name__))
        ax.set_ylim(self.plot_lower_bound, self.plot_upper_bound)
        return ax.figure, ax
