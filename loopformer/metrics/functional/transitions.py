"""What happens after an error: recovery, wrong loops, wrong stretches.

Legend: B queries, T loops of the reference, H largest requested count.

A wrong stretch is a maximal run of wrong loops. One that touches the requested count is right-censored: it might have
gone on, so its length is a lower bound. Lengths of ended and of censored stretches are therefore kept apart, and
`stretch_survival` uses both (Kaplan and Meier, 1958).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from loopformer.metrics.functional.family import Family, Ratio
from loopformer.metrics.functional.outcomes import QueryOutcome, count_true, loop_numbers


def wrong_loops(outcome: QueryOutcome) -> Tensor:
    """[B, T] bool: counted loops whose letter is wrong."""
    return outcome.counted & ~outcome.correct


def after_wrong(outcome: QueryOutcome) -> Tensor:
    """[B, T - 1] bool: transitions t -> t + 1 (t = 1..N-1, column t - 1) whose previous letter is wrong."""
    return wrong_loops(outcome)[:, :-1] & outcome.counted[:, 1:]


def recovered(outcome: QueryOutcome) -> Tensor:
    """[B, T - 1] bool: those of `after_wrong` whose next letter equals the reference."""
    return after_wrong(outcome) & outcome.correct[:, 1:]


def _tally(outcome: QueryOutcome) -> dict[str, Tensor]:
    wrong, last = wrong_loops(outcome), outcome.steps[:, None] - 1
    loop = loop_numbers(outcome).int()
    starts = count_true(wrong & ~pad(wrong[:, :-1], (1, 0)))
    censored = wrong.gather(1, last)[:, 0]
    clean = (~wrong & (loop <= outcome.steps[:, None])) * loop
    censored_length = torch.where(censored, outcome.steps - clean.amax(dim=1), 0)
    total = count_true(wrong)
    return {
        "queries": torch.ones_like(outcome.steps),
        "loops": count_true(outcome.counted),
        "wrong_loops": total,
        "after_wrong": count_true(after_wrong(outcome)),
        "recovered": count_true(recovered(outcome)),
        "stretches": starts,
        "ended": starts - censored.long(),
        "ended_length": total - censored_length,
        "censored": censored,
        "censored_length": censored_length,
    }


TRANSITIONS = Family(
    name="transitions",
    columns=(
        "queries", "loops", "wrong_loops", "after_wrong", "recovered", "stretches", "ended", "ended_length",
        "censored", "censored_length",
    ),
    ratios={
        "wrong_loop_fraction": Ratio("wrong_loops", "loops"),
        "recovery": Ratio("recovered", "after_wrong"),
        "wrong_stretches": Ratio("stretches", "queries"),
        "stretch_censored": Ratio("censored", "stretches"),
        "stretch_length": Ratio("ended_length", "ended"),
        "stretch_length_censored": Ratio("censored_length", "censored"),
    },
    tally=_tally,
)  # fmt: skip
"""Wrong loops of all loops; recoveries of the transitions after a wrong letter; stretches per query, the share of them
that is right-censored, and the mean lengths, in loops, of ended and of censored ones (evaluation protocol: recovery,
wrong stretches, wrong-loop fraction)."""


def stretch_counts(outcome: QueryOutcome, horizon: int, row: Tensor | None = None, rows: int | None = None) -> Tensor:
    """[H + 1, 2 (H + 1)] int64 table of wrong stretches by requested count and length.

    Column l counts the ended stretches of length l, column H + 1 + l the right-censored ones.

    Args:
        outcome: the outcome of a batch.
        horizon: largest requested count H. A query beyond it fails as an index out of range.
        row: [B] row of the table that each query belongs to; default its requested count.
        rows: number of rows; default H + 1.
    """
    wrong, loop, width = wrong_loops(outcome), loop_numbers(outcome).int(), 2 * (horizon + 1)
    ends = wrong & ~pad(wrong[:, 1:], (0, 1))
    began = ((wrong & ~pad(wrong[:, :-1], (1, 0))) * loop).cummax(dim=1).values
    length = loop - began + 1
    column = length.clamp(max=horizon) + (loop == outcome.steps[:, None]) * (horizon + 1)
    table = outcome.steps.new_zeros(rows or horizon + 1, width)
    # Adding zeros where no stretch ends keeps the shapes known, so nothing waits for the device.
    cells = ((outcome.steps if row is None else row)[:, None] * width + column).flatten()
    table.view(-1).scatter_add_(0, cells, ends.flatten().long())
    return table


def stretch_survival(counts: Tensor) -> Tensor:
    """[H] Kaplan-Meier share of wrong stretches longer than l = 1..H loops; nan where none was observed so long.

    Args:
        counts: [..., 2 (H + 1)] from `stretch_counts`, whose rows are summed.
    """
    ended, censored = counts.reshape(-1, 2, counts.shape[-1] // 2).sum(dim=0)
    at_risk = (ended + censored).flip(0).cumsum(0).flip(0)
    return torch.cumprod(1 - ended[1:].double() / at_risk[1:], dim=0)
