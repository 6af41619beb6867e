"""From the letters of a rollout to the outcome of each query, the small integers every metric counts.

Legend: B queries, L loops looked at, T loops of the reference, T <= L.

Loops and requested counts are numbered from 1; column t - 1 of a [B, T] tensor belongs to loop t. All functions run on
the device of their inputs without waiting for it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

IGNORE = -100
"""Reference value that is not counted (the `ignore_index` of torch)."""

MISSING = 0
"""Stop loop of a query that did not stop by the cap."""


class QueryOutcome(NamedTuple):
    """What happened to each query of a batch.

    Attributes:
        steps: [B] int64 requested count N.
        first_error: [B] int64 first loop t <= N with p_t != x_t; N + 1 where there is none.
        final_correct: [B] bool, p_N = x_N.
        stop: [B] int64 stop loop s, MISSING where none came by the cap.
        returned_correct: [B] bool, the letter at s (at the cap where the stop is missing) equals x_N.
        correct: [B, T] bool, p_t = x_t at a counted loop.
        counted: [B, T] bool, t <= N and x_t is known.
        letters: [B, T] letter p_t read at each loop.
        reference: [B, T] reference state x_t, IGNORE where it is unknown.
        direct: [B, T] letter of the direct readout, of a model that has one.
        initial: [B] state x_0 before the first loop, of a task that has one.
        successors: [B, K] state that follows each of the K letters, of a task whose steps depend on the state alone.
        estimates: [B, L + 1] estimate of the remaining steps at loops 0..L, of a stop rule that makes one.
        instance: [B] int64 instance (graph) that the query is about.
    """

    steps: Tensor
    first_error: Tensor
    final_correct: Tensor
    stop: Tensor
    returned_correct: Tensor
    correct: Tensor
    counted: Tensor
    letters: Tensor
    reference: Tensor
    direct: Tensor | None = None
    initial: Tensor | None = None
    successors: Tensor | None = None
    estimates: Tensor | None = None
    instance: Tensor | None = None


def query_outcome(
    predictions: Tensor,
    reference: Tensor,
    steps: Tensor,
    stop: Tensor,
    cap: int | None = None,
    *,
    direct: Tensor | None = None,
    initial: Tensor | None = None,
    successors: Tensor | None = None,
    estimates: Tensor | None = None,
    instance: Tensor | None = None,
) -> QueryOutcome:
    """Compare the letters of each loop with the reference states.

    Args:
        predictions: [B, L] integer letter read at each loop.
        reference: [B, T] integer reference state after each step, IGNORE where there is none. Columns after the
            requested count are ignored whatever they hold, so queries of different counts may share one trace.
        steps: [B] requested count N, 1 <= N <= T.
        stop: [B] stop loop s <= cap, MISSING where none.
        cap: last loop at which the model may stop, where the letter of a query that never stops is read. Default L.
        direct: [B, L] integer letter of the direct readout at each loop.
        initial: [B] integer state before the first loop.
        successors: [B, K] integer state that follows each letter.
        estimates: [B, L + 1] estimate of the remaining steps at loops 0..L.
        instance: [B] integer instance of each query.

    Raises:
        ValueError: if fewer loops were run than the reference has, or the cap is not among the loops.

    Source: evaluation protocol, definitions of x_t, p_t, N, s and F.
    """
    loops, horizon = predictions.shape[1], reference.shape[1]
    if loops < horizon:
        raise ValueError(f"predictions have {loops} loops but reference has {horizon}: run at least as many loops.")
    for name, part, least in (("direct", direct, horizon), ("estimates", estimates, horizon + 1)):
        if part is not None and part.shape[1] < least:
            raise ValueError(
                f"{name} has {part.shape[1]} columns but needs {least}: run as many loops as the reference."
            )
    cap = loops if cap is None else cap
    if not 1 <= cap <= loops:
        raise ValueError(f"cap is {cap} but predictions have {loops} loops: choose a cap from 1 to {loops}.")
    steps, stop = steps.long(), stop.long()
    loop = torch.arange(1, horizon + 1, device=steps.device)
    counted = (loop <= steps[:, None]) & (reference != IGNORE)
    correct = counted & (predictions[:, :horizon] == reference)
    target = reference.gather(1, steps[:, None] - 1)
    returned = predictions.gather(1, torch.where(stop == MISSING, cap, stop)[:, None] - 1)
    return QueryOutcome(
        steps=steps,
        first_error=first_error(correct, counted, steps),
        final_correct=correct.gather(1, steps[:, None] - 1)[:, 0],
        stop=stop,
        returned_correct=(returned == target)[:, 0],
        correct=correct,
        counted=counted,
        letters=predictions[:, :horizon],
        reference=reference,
        direct=None if direct is None else direct[:, :horizon],
        initial=initial,
        successors=successors,
        estimates=estimates,
        instance=None if instance is None else instance.long(),
    )


def loop_numbers(outcome: QueryOutcome) -> Tensor:
    """[T] int64 numbers of the loops, 1..T."""
    return torch.arange(1, outcome.counted.shape[1] + 1, device=outcome.steps.device)


def count_true(flags: Tensor, dim: int = 1) -> Tensor:
    """Number of true flags along a dimension, as int64; summing in int32 is several times faster on a CPU."""
    return flags.sum(dim=dim, dtype=torch.int32).long()


def first_error(correct: Tensor, counted: Tensor, steps: Tensor) -> Tensor:
    """[B] first counted loop that is wrong, N + 1 where all counted loops are right.

    N + 1 makes min(F - 1, N) = F - 1 and "no error" F > N hold without a special value.

    Args:
        correct: [B, T] bool.
        counted: [B, T] bool.
        steps: [B] requested count N.
    """
    wrong = counted & ~correct
    return torch.where(wrong.any(dim=1), _first_true(wrong), steps) + 1


def stop_loop(stop_logits: Tensor) -> Tensor:
    """[B] first loop whose stop probability is at least 0.5, MISSING where none is.

    The logit is compared with 0, because the sigmoid of a tiny negative number rounds to 0.5. NaN never stops.

    Args:
        stop_logits: [B, L] logit of the stop probability at each loop, L being the cap.
    """
    fires = stop_logits >= 0
    return torch.where(fires.any(dim=1), _first_true(fires) + 1, MISSING)


def _first_true(flags: Tensor) -> Tensor:
    """[B] index of the first true column of [B, T] flags; 0 where there is none."""
    return flags.to(torch.uint8).argmax(dim=1)  # argmax returns the first of equal maxima but is not defined for bool


def check_outcome(outcome: QueryOutcome, horizon: int, cap: int | None = None) -> None:
    """Validate the values of an outcome. Waits for the device, so metrics do it only when asked.

    Args:
        outcome: the outcome of a batch.
        horizon: largest requested count that fits the tables of a metric.
        cap: largest stop loop that fits; None for any.

    Raises:
        ValueError: naming the field, the offending value and the range.
    """
    limits = {"steps": (1, horizon), "stop": (MISSING, torch.iinfo(torch.int64).max if cap is None else cap)}
    for name, (low, high) in limits.items():
        value = getattr(outcome, name)
        bad = value[(value < low) | (value > high)]
        if bad.numel():
            raise ValueError(f"{name} holds {int(bad[0])}, outside {low}..{high}: raise the metric's horizon or cap.")
    bad = outcome.first_error[(outcome.first_error < 1) | (outcome.first_error > outcome.steps + 1)]
    if bad.numel():
        raise ValueError(f"first_error holds {int(bad[0])}, outside 1..N+1: build outcomes with query_outcome().")
