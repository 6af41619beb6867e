"""Metrics of what happens after an error: recovery, wrong loops, wrong stretches."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from torch import Tensor

from loopformer.metrics.base import CurveMetric, FamilyMetric
from loopformer.metrics.functional import TRANSITIONS, Family, QueryOutcome, stretch_counts, stretch_survival


class TransitionMetric(FamilyMetric):
    """Base of the metrics of `TRANSITIONS`."""

    state: ClassVar[str] = "transition_counts"
    family: ClassVar[Family] = TRANSITIONS


class Recovery(TransitionMetric):
    """Share of the transitions after a wrong letter whose next letter equals the reference."""

    ratio_name: ClassVar[str] = "recovery"


class WrongLoopFraction(TransitionMetric):
    """Wrong loops of all loops t <= N."""

    ratio_name: ClassVar[str] = "wrong_loop_fraction"
    higher_is_better: bool | None = False


class WrongStretches(TransitionMetric):
    """Maximal runs of wrong loops per query."""

    ratio_name: ClassVar[str] = "wrong_stretches"
    higher_is_better: bool | None = False
    plot_upper_bound: float | None = None


class StretchCensored(TransitionMetric):
    """Share of the wrong stretches that touch the requested count."""

    ratio_name: ClassVar[str] = "stretch_censored"
    higher_is_better: bool | None = None


class StretchLength(TransitionMetric):
    """Mean length, in loops, of the wrong stretches that ended."""

    ratio_name: ClassVar[str] = "stretch_length"
    higher_is_better: bool | None = False
    plot_upper_bound: float | None = None


class CensoredStretchLength(TransitionMetric):
    """Mean length, in loops, of the right-censored wrong stretches: a lower bound of what they would have been."""

    ratio_name: ClassVar[str] = "stretch_length_censored"
    higher_is_better: bool | None = False
    plot_upper_bound: float | None = None


class StretchSurvival(CurveMetric):
    """[T] Kaplan-Meier share of wrong stretches that last longer than l = 1..T loops, censored ones included.

    Source: evaluation protocol, wrong stretches.

    Args:
        horizon: largest requested count T.
        steps: requested counts to include in the value; None includes all.
        kwargs: options of `CountMetric`.
    """

    state: ClassVar[str] = "stretch_counts"
    higher_is_better: bool | None = False

    def __init__(self, horizon: int, steps: Collection[int] | None = None, **kwargs: Any) -> None:
        super().__init__((horizon + 1, 2 * (horizon + 1)), horizon, steps=steps, **kwargs)

    def count(self, outcome: QueryOutcome) -> Tensor:
        """[T + 1, 2 (T + 1)] table of one batch."""
        return stretch_counts(outcome, self.horizon)

    def compute(self) -> Tensor:
        """[T] survival of the stretches, nan where none was observed so long."""
        return stretch_survival(self.table)
