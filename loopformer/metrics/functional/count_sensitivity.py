"""Does the requested count change what happens at a loop that two requests share?

Pairs of queries on the same instance with requested counts N < N' are compared at every loop t <= N. An executor that
does not see the count answers both alike; for any other, a gain is a letter that is wrong under N and right under N', a
loss the reverse.

Legend: B queries, I instances, T largest requested count, C requested counts in ascending order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from loopformer.metrics.functional.outcomes import QueryOutcome


class Sensitivity(NamedTuple):
    """Pairs by loop t = 1..T, each [T] int64.

    Attributes:
        asked: queries with N >= t.
        right: those of them with the right letter at t.
        pairs: pairs N < N' of queries on one instance with N >= t.
        gains: those of them that are wrong under N and right under N'.
        losses: those of them that are right under N and wrong under N'.
    """

    asked: Tensor
    right: Tensor
    pairs: Tensor
    gains: Tensor
    losses: Tensor


def paired_counts(outcome: QueryOutcome, instances: int, horizon: int) -> Tensor:
    """[I, T + 1, T, 2] int64: asked and right letters by instance, requested count and loop.

    Args:
        outcome: the outcome of a batch, with `instance`.
        instances: number of instances I.
        horizon: largest requested count T.

    Raises:
        ValueError: if the outcome does not know its instances.
    """
    if outcome.instance is None:
        raise ValueError("outcome lacks instance, which count sensitivity needs: pass instance to query_outcome().")
    cells = torch.stack([outcome.counted, outcome.correct], dim=2).long()
    cells = pad(cells, (0, 0, 0, horizon - cells.shape[1]))
    table = cells.new_zeros(instances * (horizon + 1), horizon, 2)
    return table.index_add_(0, outcome.instance * (horizon + 1) + outcome.steps, cells).view(instances, -1, horizon, 2)


def count_sensitivity(asked: Tensor, right: Tensor) -> Sensitivity:
    """Count the pairs of each loop.

    Args:
        asked: [I, C, T] queries by instance, requested count (ascending) and loop t <= N.
        right: [I, C, T] those of them with the right letter.
    """
    asked, right = asked.int(), right.int()
    asked_before, right_before = (part.cumsum(dim=1, dtype=torch.int32) - part for part in (asked, right))
    # Loops beyond the shorter request drop out by themselves: nothing is asked there.
    return Sensitivity(
        asked=asked.sum(dim=(0, 1)),
        right=right.sum(dim=(0, 1)),
        pairs=(asked_before * asked).sum(dim=(0, 1)),
        gains=((asked_before - right_before) * right).sum(dim=(0, 1)),
        losses=(right_before * (asked - right)).sum(dim=(0, 1)),
    )


def pairwise_changes(asked: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[C, C] pairs, gains and losses of requested counts N (row) < N' (column), summed over instances and loops t <= N.

    Args:
        asked: [I, C, T] as in `count_sensitivity`.
        right: [I, C, T].
    """
    flat_asked, flat_right = (part.transpose(0, 1).flatten(1).double() for part in (asked, right))
    flat_wrong = flat_asked - flat_right

    def upper(shorter: Tensor, longer: Tensor) -> Tensor:
        return (shorter @ longer.T).triu(diagonal=1).long()

    return upper(flat_asked, flat_asked), upper(flat_wrong, flat_right), upper(flat_right, flat_wrong)
