"""Metrics of the first wrong letter's kind, and of following the rules after it.

They need outcomes with `initial` and `successors`.
"""

from __future__ import annotations

from typing import ClassVar

from loopformer.metrics.base import FamilyMetric
from loopformer.metrics.functional import CONSISTENCY, FIRST_ERROR_KINDS, Family


class FirstErrorKind(FamilyMetric):
    """Base of the shares of first errors of one kind; the kinds are tried in the order of the classes below."""

    state: ClassVar[str] = "first_error_kind_counts"
    family: ClassVar[Family] = FIRST_ERROR_KINDS
    higher_is_better: bool | None = None


class RepeatsState(FirstErrorKind):
    """Share of first errors that repeat the previous reference state, which is the start at t = 1."""

    ratio_name: ClassVar[str] = "first_error_repeats"


class EarlierState(FirstErrorKind):
    """Share of first errors at a state visited before the previous one."""

    ratio_name: ClassVar[str] = "first_error_earlier"


class OrbitState(FirstErrorKind):
    """Share of first errors at another state on the start's orbit."""

    ratio_name: ClassVar[str] = "first_error_orbit"


class OutsideState(FirstErrorKind):
    """Share of first errors outside the start's orbit."""

    ratio_name: ClassVar[str] = "first_error_outside"


class TransitionConsistency(FamilyMetric):
    """Share of the transitions after a wrong letter with p_(t+1) = f(p_t), recoveries included."""

    state: ClassVar[str] = "consistency_counts"
    family: ClassVar[Family] = CONSISTENCY
    ratio_name: ClassVar[str] = "transition_consistency"


class UnrecoveredConsistency(TransitionConsistency):
    """Share of the transitions after a wrong letter that do not recover with p_(t+1) = f(p_t)."""

    ratio_name: ClassVar[str] = "transition_consistency_unrecovered"
