"""Where the two readouts of a model disagree: the coda and the direct head.

Legend: B queries, T loops of the reference.
"""

from __future__ import annotations

from torch import Tensor

from loopformer.metrics.functional.family import Family, Ratio
from loopformer.metrics.functional.outcomes import QueryOutcome


def _tally(outcome: QueryOutcome) -> dict[str, Tensor]:
    assert outcome.direct is not None
    error = outcome.first_error
    failed = error <= outcome.steps
    column = error.clamp(max=outcome.letters.shape[1])[:, None] - 1
    coda, direct, target = (
        part.gather(1, column)[:, 0] for part in (outcome.letters, outcome.direct, outcome.reference)
    )
    complete = (~outcome.counted | (outcome.direct == outcome.reference)).all(dim=1)
    return {
        "queries": error.new_ones(error.shape),
        "first_errors": failed,
        "direct_right": failed & (direct == target),
        "both_same": failed & (direct == coda),
        "both_different": failed & (direct != target) & (direct != coda),
        "direct_complete": complete,
        "both_complete": complete & ~failed,
    }


READOUTS = Family(
    name="readout_disagreement",
    columns=(
        "queries", "first_errors", "direct_right", "both_same", "both_different", "direct_complete", "both_complete",
    ),
    ratios={
        "readout_direct_right": Ratio("direct_right", "first_errors"),
        "readout_both_same": Ratio("both_same", "first_errors"),
        "readout_both_different": Ratio("both_different", "first_errors"),
        "direct_complete": Ratio("direct_complete", "queries"),
        "both_complete": Ratio("both_complete", "queries"),
    },
    tally=_tally,
    needs=("direct",),
)  # fmt: skip
"""At the coda's first error: the direct head is right, both are wrong the same, both are wrong differently. And the
share of queries whose trajectory is complete by the direct head, and by both (evaluation protocol: readout
disagreement; the coda's own share is `complete`)."""
