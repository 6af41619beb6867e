"""What the first wrong letter is, and whether a model that is off the path still follows the rules.

Both need the world of each query: the start state x_0 and the successor f of every letter.

Legend: B queries, T loops of the reference, K letters.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from loopformer.metrics.functional.family import Family, Ratio
from loopformer.metrics.functional.outcomes import QueryOutcome, count_true
from loopformer.metrics.functional.transitions import after_wrong, recovered

UNVISITED = 2**31 - 1
"""First visit of a letter that the run never comes to; later than any loop."""


def first_visits(initial: Tensor, successors: Tensor) -> Tensor:
    """[B, K] first step at which the run from the start is at each letter (0 for the start), or UNVISITED.

    Args:
        initial: [B] start state x_0.
        successors: [B, K] f of each letter.
    """
    K = successors.shape[1]
    state = initial.long()[:, None]
    visits = torch.full(successors.shape, UNVISITED, dtype=torch.int64, device=successors.device)
    for step in range(K):  # K letters are all visited within K - 1 steps
        visits = visits.scatter_reduce(1, state, torch.full_like(state, step), "amin")
        state = successors.gather(1, state).long()
    return visits


def _kind_tally(outcome: QueryOutcome) -> dict[str, Tensor]:
    assert outcome.initial is not None
    assert outcome.successors is not None
    error = outcome.first_error
    failed = error <= outcome.steps
    column = error.clamp(max=outcome.letters.shape[1])[:, None] - 1
    letter = outcome.letters.long().gather(1, column)
    before = pad(outcome.reference[:, :-1], (1, 0)).gather(1, column)[:, 0]
    previous = torch.where(error == 1, outcome.initial, before)
    visit = first_visits(outcome.initial, outcome.successors).gather(1, letter)[:, 0]
    repeats = letter[:, 0] == previous
    earlier = ~repeats & (visit < error)
    orbit = ~repeats & ~earlier & (visit < UNVISITED)
    kinds = {"repeats": repeats, "earlier": earlier, "orbit": orbit, "outside": ~repeats & ~earlier & ~orbit}
    return {"first_errors": failed, **{name: kind & failed for name, kind in kinds.items()}}


FIRST_ERROR_KINDS = Family(
    name="first_error_kinds",
    columns=("first_errors", "repeats", "earlier", "orbit", "outside"),
    ratios={f"first_error_{kind}": Ratio(kind, "first_errors") for kind in ("repeats", "earlier", "orbit", "outside")},
    tally=_kind_tally,
    needs=("initial", "successors"),
)
"""Kinds of the first wrong letter, tried in this order: it repeats the previous reference state (the start, at t = 1);
it is an earlier visited state; another state on the start's orbit; outside the orbit. Shares of the queries with an
error (evaluation protocol: first-error kind)."""


def _consistency_tally(outcome: QueryOutcome) -> dict[str, Tensor]:
    assert outcome.successors is not None
    follows = outcome.successors.gather(1, outcome.letters[:, :-1].long()) == outcome.letters[:, 1:]
    wrong, back = after_wrong(outcome), recovered(outcome)
    return {
        "after_wrong": count_true(wrong),
        "consistent": count_true(wrong & follows),
        "unrecovered": count_true(wrong & ~back),
        "consistent_unrecovered": count_true(wrong & ~back & follows),
    }


CONSISTENCY = Family(
    name="transition_consistency",
    columns=("after_wrong", "consistent", "unrecovered", "consistent_unrecovered"),
    ratios={
        "transition_consistency": Ratio("consistent", "after_wrong"),
        "transition_consistency_unrecovered": Ratio("consistent_unrecovered", "unrecovered"),
    },
    tally=_consistency_tally,
    needs=("successors",),
)
"""Share of the transitions after a wrong letter with p_(t+1) = f(p_t): of all of them, and of those that do not recover
(evaluation protocol: transition consistency, with and without recoveries)."""
