"""Metrics of looped execution as torchmetrics: sums of counts, exact in any number of processes.

`functional` defines each metric once; the classes here only keep its table. `execution_metrics` composes them.
"""

from loopformer.metrics.base import CountMetric, CurveMetric
from loopformer.metrics.collection import PANELS, execution_metrics
from loopformer.metrics.first_error import CorrectPrefix, Hazard, Survival
from loopformer.metrics.functional import QueryOutcome, query_outcome, stop_loop
from loopformer.metrics.generated import GeneratedShare, generated_metrics
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
from loopformer.metrics.stop_error import AbsoluteStopError, StopError

__all__ = [
    "PANELS",
    "AbsoluteStopError",
    "Complete",
    "CorrectPrefix",
    "CountMetric",
    "CurveMetric",
    "EarlyStop",
    "EndToEnd",
    "ExactStop",
    "ForcedFinal",
    "GeneratedShare",
    "Hazard",
    "LateStop",
    "LoopAccuracy",
    "MissingStop",
    "QueryOutcome",
    "RateMetric",
    "Returned",
    "StopError",
    "Strict",
    "Survival",
    "WrongTime",
    "execution_metrics",
    "generated_metrics",
    "query_outcome",
    "stop_loop",
]
