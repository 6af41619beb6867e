"""Metrics as pure functions: outcome of each query -> table of counts -> number.

The tables are sums over queries, so those of several batches, processes or graphs simply add up.
"""

from loopformer.metrics.functional.first_error import (
    Exposure,
    correct_prefix,
    exposure,
    first_error_counts,
    hazard,
    prefix_length,
    survival,
)
from loopformer.metrics.functional.generated import (
    GENERATED_RATES,
    Ending,
    GeneratedOutcome,
    generated_counts,
    generated_outcome,
    generated_rate,
    generated_rows,
    pack_paths,
    parse_letter,
    parse_path,
)
from loopformer.metrics.functional.loop_accuracy import loop_accuracy, loop_counts
from loopformer.metrics.functional.outcomes import (
    IGNORE,
    MISSING,
    QueryOutcome,
    check_outcome,
    first_error,
    query_outcome,
    stop_loop,
)
from loopformer.metrics.functional.rates import RATES, rate, rate_by_steps, rate_counts, rate_rows
from loopformer.metrics.functional.stop_error import quantile_of_counts, stop_counts, stop_error

__all__ = [
    "GENERATED_RATES",
    "IGNORE",
    "MISSING",
    "RATES",
    "Ending",
    "Exposure",
    "GeneratedOutcome",
    "QueryOutcome",
    "check_outcome",
    "correct_prefix",
    "exposure",
    "first_error",
    "first_error_counts",
    "generated_counts",
    "generated_outcome",
    "generated_rate",
    "generated_rows",
    "hazard",
    "loop_accuracy",
    "loop_counts",
    "pack_paths",
    "parse_letter",
    "parse_path",
    "prefix_length",
    "quantile_of_counts",
    "query_outcome",
    "rate",
    "rate_by_steps",
    "rate_counts",
    "rate_rows",
    "stop_counts",
    "stop_error",
    "stop_loop",
    "survival",
]
