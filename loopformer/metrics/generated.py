"""Metrics of traces that an ordinary model wrote.

metrics = generated_metrics(horizon=12, groups={"held_out": (7, 9, 11)})
metrics.update(generated_outcome(*pack_paths(paths), ended, reference, steps))
metrics.compute()["strict/held_out"]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from loopformer.metrics.functional.generated import (
    GENERATED_RATES,
    GeneratedOutcome,
    generated_counts,
    generated_rate,
)


class GeneratedShare(Metric):
    """One share of the responses, computed from a table of counts that adds up over batches and processes.

    Args:
        rate_name: key of `GENERATED_RATES`, where each share is defined.
        horizon: largest requested count T.
        steps: requested counts to include in the value; None includes all. The table holds all of them either way.
        kwargs: options of `torchmetrics.Metric`.

    Raises:
        ValueError: unknown share, a horizon below 1, or a requested count outside 1..T.
    """

    is_differentiable: bool = False
    higher_is_better: bool | None = None  # of some shares it is, of others not
    full_state_update: bool = False
    plot_lower_bound: float | None = 0.0
    plot_upper_bound: float | None = 1.0
    state: ClassVar[str] = "generated_counts"
    generated_counts: Tensor

    def __init__(self, rate_name: str, horizon: int, steps: Collection[int] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if rate_name not in GENERATED_RATES:
            raise ValueError(f"rate_name: got {rate_name!r}; use one of {', '.join(GENERATED_RATES)}")
        if horizon < 1:
            raise ValueError(f"horizon is {horizon}: it must be at least 1 step.")
        outside = sorted(n for n in steps or () if not 1 <= n <= horizon)
        if outside:
            raise ValueError(f"steps holds {outside[0]}, outside 1..{horizon}: raise the horizon or drop the count.")
        self.rate_name = rate_name
        self.horizon = horizon
        self.steps = None if steps is None else tuple(sorted(set(steps)))
        self.add_state(
            self.state, torch.zeros(horizon + 1, 1 + len(GENERATED_RATES), dtype=torch.int64), dist_reduce_fx="sum"
        )

    def update(self, outcome: GeneratedOutcome) -> None:
        """Add the responses of a batch."""
        self.generated_counts = self.generated_counts + generated_counts(outcome, self.horizon)

    def compute(self) -> Tensor:
        """[] share, nan if there are no responses."""
        rows = slice(None) if self.steps is None else list(self.steps)
        return generated_rate(self.generated_counts[rows], self.rate_name)

    def plot(self, val: Any = None, ax: Any = None) -> tuple[Any, Any]:
        """Plot one value or a list of them; see `CountMetric.plot`."""
        _, ax = self._plot(val, ax)
        return ax.figure, ax


def generated_metrics(
    horizon: int, groups: Mapping[str, Collection[int]] | None = None, prefix: str | None = None
) -> MetricCollection:
    """Build the metrics of generated traces; all of them fill one table per batch.

    Args:
        horizon: largest requested count T.
        groups: requested counts by name, such as trained and held_out; adds every share as `name/group`.
        prefix: put before every name, such as `val/trace/`.
    """
    metrics: dict[str, Metric] = {}
    for suffix, steps in [("", None), *((f"/{name}", counts) for name, counts in (groups or {}).items())]:
        for name in GENERATED_RATES:
            metrics[name + suffix] = GeneratedShare(name, horizon, steps)
    return MetricCollection(dict(metrics), prefix=prefix, compute_groups=[list(metrics)])
