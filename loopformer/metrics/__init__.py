"""Metrics of looped execution as torchmetrics: sums of counts, exact in any number of processes.

`functional` defines each metric once; the classes here only keep its table. `execution_metrics` composes them.
"""

from loopformer.metrics.base import CountMetric, CurveMetric, FamilyMetric
from loopformer.metrics.collection import PANELS, STOP_QUANTILES, execution_metrics
from loopformer.metrics.count_reading import (
    AbsoluteDecrementError,
    AbsoluteInitialEstimateError,
    DecrementError,
    InitialEstimateError,
    LargestDecrementError,
    LargestReadingError,
    SpentAtStop,
    SpentExactly,
)
from loopformer.metrics.count_sensitivity import CountGains, CountLosses
from loopformer.metrics.field_accuracy import FieldAccuracy
from loopformer.metrics.first_error import CorrectPrefix, Hazard, Survival
from loopformer.metrics.first_error_kind import (
    EarlierState,
    OrbitState,
    OutsideState,
    RepeatsState,
    TransitionConsistency,
    UnrecoveredConsistency,
)
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
from loopformer.metrics.readouts import BothComplete, BothDifferent, BothSame, DirectComplete, DirectRight
from loopformer.metrics.stop_error import AbsoluteStopError, StopError
from loopformer.metrics.transitions import (
    CensoredStretchLength,
    Recovery,
    StretchCensored,
    StretchLength,
    StretchSurvival,
    WrongLoopFraction,
    WrongStretches,
)

__all__ = [
    "PANELS",
    "STOP_QUANTILES",
    "AbsoluteDecrementError",
    "AbsoluteInitialEstimateError",
    "AbsoluteStopError",
    "BothComplete",
    "BothDifferent",
    "BothSame",
    "CensoredStretchLength",
    "Complete",
    "CorrectPrefix",
    "CountGains",
    "CountLosses",
    "CountMetric",
    "CurveMetric",
    "DecrementError",
    "DirectComplete",
    "DirectRight",
    "EarlierState",
    "EarlyStop",
    "EndToEnd",
    "ExactStop",
    "FamilyMetric",
    "FieldAccuracy",
    "ForcedFinal",
    "GeneratedShare",
    "Hazard",
    "InitialEstimateError",
    "LargestDecrementError",
    "LargestReadingError",
    "LateStop",
    "LoopAccuracy",
    "MissingStop",
    "OrbitState",
    "OutsideState",
    "QueryOutcome",
    "RateMetric",
    "Recovery",
    "RepeatsState",
    "Returned",
    "SpentAtStop",
    "SpentExactly",
    "StopError",
    "StretchCensored",
    "StretchLength",
    "StretchSurvival",
    "Strict",
    "Survival",
    "TransitionConsistency",
    "UnrecoveredConsistency",
    "WrongLoopFraction",
    "WrongStretches",
    "WrongTime",
    "execution_metrics",
    "generated_metrics",
    "query_outcome",
    "stop_loop",
]
