"""Metrics as pure functions: outcome of each query -> table of counts -> number.

The tables are sums over queries, so those of several batches, processes or graphs simply add up.
"""

from loopformer.metrics.functional.count_reading import (
    COUNT_READING,
    decrement_error,
    initial_error,
    largest_errors,
    requested,
    spent_loop,
)
from loopformer.metrics.functional.count_sensitivity import (
    Sensitivity,
    count_sensitivity,
    paired_counts,
    pairwise_changes,
)
from loopformer.metrics.functional.family import Family, Ratio
from loopformer.metrics.functional.field_accuracy import field_counts
from loopformer.metrics.functional.first_error import (
    Exposure,
    correct_prefix,
    exposure,
    first_error_counts,
    first_error_table,
    hazard,
    prefix_length,
    survival,
)
from loopformer.metrics.functional.first_error_kind import CONSISTENCY, FIRST_ERROR_KINDS, UNVISITED, first_visits
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
from loopformer.metrics.functional.rates import RATES, SHARES, rate, rate_by_steps, rate_counts, rate_rows
from loopformer.metrics.functional.readouts import READOUTS
from loopformer.metrics.functional.stop_error import quantile_of_counts, stop_counts, stop_error
from loopformer.metrics.functional.transitions import TRANSITIONS, stretch_counts, stretch_survival

FAMILIES = (SHARES, TRANSITIONS, FIRST_ERROR_KINDS, CONSISTENCY, READOUTS, COUNT_READING)
"""Every family of ratios; those whose `needs` an outcome lacks are left out of its tables."""

__all__ = [
    "CONSISTENCY",
    "COUNT_READING",
    "FAMILIES",
    "FIRST_ERROR_KINDS",
    "GENERATED_RATES",
    "IGNORE",
    "MISSING",
    "RATES",
    "READOUTS",
    "SHARES",
    "TRANSITIONS",
    "UNVISITED",
    "Ending",
    "Exposure",
    "Family",
    "GeneratedOutcome",
    "QueryOutcome",
    "Ratio",
    "Sensitivity",
    "check_outcome",
    "correct_prefix",
    "count_sensitivity",
    "decrement_error",
    "exposure",
    "field_counts",
    "first_error",
    "first_error_counts",
    "first_error_table",
    "first_visits",
    "generated_counts",
    "generated_outcome",
    "generated_rate",
    "generated_rows",
    "hazard",
    "initial_error",
    "largest_errors",
    "loop_accuracy",
    "loop_counts",
    "pack_paths",
    "paired_counts",
    "pairwise_changes",
    "parse_letter",
    "parse_path",
    "prefix_length",
    "quantile_of_counts",
    "query_outcome",
    "rate",
    "rate_by_steps",
    "rate_counts",
    "rate_rows",
    "requested",
    "spent_loop",
    "stop_counts",
    "stop_error",
    "stop_loop",
    "stretch_counts",
    "stretch_survival",
    "survival",
]
