"""Metrics of the disagreement between the coda and the direct head. They need outcomes with `direct`."""

from __future__ import annotations

from typing import ClassVar

from loopformer.metrics.base import FamilyMetric
from loopformer.metrics.functional import READOUTS, Family


class ReadoutMetric(FamilyMetric):
    """Base of the metrics of `READOUTS`."""

    state: ClassVar[str] = "readout_counts"
    family: ClassVar[Family] = READOUTS


class DirectRight(ReadoutMetric):
    """Share of the coda's first errors at which the direct head is right."""

    ratio_name: ClassVar[str] = "readout_direct_right"
    higher_is_better: bool | None = None


class BothSame(ReadoutMetric):
    """Share of the coda's first errors at which both readouts say the same wrong letter."""

    ratio_name: ClassVar[str] = "readout_both_same"
    higher_is_better: bool | None = None


class BothDifferent(ReadoutMetric):
    """Share of the coda's first errors at which the readouts say different wrong letters."""

    ratio_name: ClassVar[str] = "readout_both_different"
    higher_is_better: bool | None = None


class DirectComplete(ReadoutMetric):
    """Share of queries whose direct readout is right at all t <= N."""

    ratio_name: ClassVar[str] = "direct_complete"


class BothComplete(ReadoutMetric):
    """Share of queries of which both readouts are right at all t <= N."""

    ratio_name: ClassVar[str] = "both_complete"
