"""The collection of metrics that training and evaluation share.

metrics = execution_metrics(horizon=12, cap=28, groups={"held_out": (7, 9, 11)})
metrics.update(query_outcome(letters, labels, steps, stop_loop(stop_logits)))
metrics.compute()["end_to_end/held_out"]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torchmetrics import MetricCollection

from loopformer.metrics.base import CountMetric, FamilyMetric
from loopformer.metrics.count_reading import (
    AbsoluteDecrementError,
    AbsoluteInitialEstimateError,
    CountReadingMetric,
    DecrementError,
    InitialEstimateError,
    SpentAtStop,
    SpentExactly,
)
from loopformer.metrics.first_error import CorrectPrefix, Hazard, Survival
from loopformer.metrics.first_error_kind import (
    EarlierState,
    OrbitState,
    OutsideState,
    RepeatsState,
    TransitionConsistency,
    UnrecoveredConsistency,
)
from loopformer.metrics.loop_accuracy import LoopAccuracy
from loopformer.metrics.rates import (
    Complete,
    EarlyStop,
    EndToEnd,
    ExactStop,
    ForcedFinal,
    LateStop,
    MissingStop,
    RateMetric,
    Returned,
    Strict,
    WrongTime,
)
from loopformer.metrics.readouts import BothComplete, BothDifferent, BothSame, DirectComplete, DirectRight
from loopformer.metrics.stop_error import AbsoluteStopError, StopError
from loopformer.metrics.transitions import (
    CensoredStretchLength,
    Recovery,
    StretchCensored,
    StretchLength,
    WrongLoopFraction,
    WrongStretches,
)

PANELS = (6, 12, 32, 256)
"""Requested counts at which survival and hazard are shown (evaluation protocol)."""

EXECUTION: tuple[type[RateMetric], ...] = (ForcedFinal, Complete)
HALTING: tuple[type[RateMetric], ...] = (
    ExactStop,
    EarlyStop,
    LateStop,
    MissingStop,
    Returned,
    WrongTime,
    EndToEnd,
    Strict,
)
ERRORS: tuple[type[FamilyMetric], ...] = (
    WrongLoopFraction,
    Recovery,
    WrongStretches,
    StretchCensored,
    StretchLength,
    CensoredStretchLength,
)
WORLD: tuple[type[FamilyMetric], ...] = (
    RepeatsState,
    EarlierState,
    OrbitState,
    OutsideState,
    TransitionConsistency,
    UnrecoveredConsistency,
)
DIRECT: tuple[type[FamilyMetric], ...] = (DirectRight, BothSame, BothDifferent, DirectComplete, BothComplete)
READING: tuple[type[CountReadingMetric], ...] = (
    InitialEstimateError,
    AbsoluteInitialEstimateError,
    DecrementError,
    AbsoluteDecrementError,
    SpentExactly,
    SpentAtStop,
)
STOP_QUANTILES = {"p10": 0.1, "median": 0.5, "p90": 0.9}


class SharedTables(MetricCollection):
    """A collection whose groups are known from the start, at the price of one update per group and batch.

    The collection of the library hands a group's table on to all its members after every update, which for a hundred
    metrics costs more than counting does. Here the members take it over when the values are computed or one is asked
    for; a metric that was taken out of the collection before an update does not see it.
    """

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Fill the table of each group once."""
        for members in self.compute_groups.values():
            getattr(self, members[0]).update(*args, **kwargs)
        self._state_is_copy = False

    def reset(self) -> None:
        """Empty the table of each group."""
        for members in self.compute_groups.values():
            getattr(self, members[0]).reset()
        self._state_is_copy = False

    def compute(self) -> dict[str, Any]:
        """Compute every value from its group's table."""
        self._compute_groups_create_state_ref()
        for members in self.compute_groups.values():
            for name in members:
                getattr(self, name)._computed = None  # noqa: SLF001 (a value of before the last update)
        return super().compute()


def execution_metrics(
    horizon: int,
    cap: int | None = None,
    panels: Collection[int] = PANELS,
    groups: Mapping[str, Collection[int]] | None = None,
    prefix: str | None = None,
    direct: bool = False,
    world: bool = False,
    estimates: bool = False,
) -> MetricCollection:
    """Build the metrics of an executor; each is updated with a `QueryOutcome`.

    The metrics fall into compute groups (first error, letters by loop, rates, transitions, stop errors, and one for
    each option); each fills one table per batch, however many panels and groups of counts are shown. The groups are
    named rather than discovered: discovery compares states after the first batch and would merge two that agree by
    coincidence.

    Args:
        horizon: largest requested count T.
        cap: largest stop loop. None leaves out the metrics of the stop, for a model without halting.
        panels: requested counts with curves of their own, `survival@12`; those beyond the horizon are left out.
        groups: requested counts by name, such as trained and held_out; adds every scalar as `name/group`.
        prefix: put before every name, such as `val/`.
        direct: add the disagreement of the readouts; the outcomes must hold `direct`.
        world: add first-error kinds and transition consistency; the outcomes must hold `initial` and `successors`.
        estimates: add the count reading; the outcomes must hold `estimates`.

    Returns:
        A collection of scalars and of curves [T] (`survival`, `hazard`, `loop_accuracy`, and the panels).

    Raises:
        ValueError: if a group names a requested count outside 1..T.
    """
    metrics: dict[str, CountMetric] = {
        "survival": Survival(horizon),
        "hazard": Hazard(horizon),
        "loop_accuracy": LoopAccuracy(horizon),
    }
    for count in (n for n in panels if n <= horizon):
        metrics[f"survival@{count}"] = Survival(horizon, steps=(count,))
        metrics[f"hazard@{count}"] = Hazard(horizon, steps=(count,))
    ratios = ERRORS + (WORLD if world else ()) + (DIRECT if direct else ()) + (READING if estimates else ())
    for suffix, steps in [("", None), *((f"/{name}", counts) for name, counts in (groups or {}).items())]:
        metrics[f"correct_prefix{suffix}"] = CorrectPrefix(horizon, steps=steps)
        for kind in EXECUTION + (HALTING if cap is not None else ()):
            metrics[kind.rate_name + suffix] = kind(horizon, steps=steps)
        for ratio in ratios:
            metrics[ratio.ratio_name + suffix] = ratio(horizon, steps=steps)
        if cap is not None:
            for label, quantile in STOP_QUANTILES.items():
                metrics[f"stop_error_{label}{suffix}"] = StopError(horizon, cap, quantile, steps)
                metrics[f"absolute_stop_error_{label}{suffix}"] = AbsoluteStopError(horizon, cap, quantile, steps)
    shared: dict[str, list[str]] = {}
    for name, metric in metrics.items():
        shared.setdefault(metric.state, []).append(name)
    return SharedTables(dict(metrics), prefix=prefix, compute_groups=list(shared.values()))
