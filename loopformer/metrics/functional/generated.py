"""Generated traces: from the text an ordinary model wrote to the category and the successes of each response.

Legend: B responses, L letters written at most, T steps of the reference at most.

Source: evaluation protocol, "generated traces (baselines)".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from loopformer.metrics.functional.outcomes import IGNORE


class Ending(IntEnum):
    """How a response ended; every response has exactly one."""

    EXACT = 0
    """Well formed, exactly N letters, then the end token."""
    EARLY = 1
    """Well formed, fewer than N letters, then the end token."""
    LATE = 2
    """Well formed, more than N letters, then the end token."""
    MALFORMED = 3
    """Anything else before the end token."""
    BUDGET = 4
    """No end token within the budget of new tokens, whatever was written."""


class GeneratedOutcome(NamedTuple):
    """What happened to each response of a batch.

    Attributes:
        steps: [B] int64 requested count N.
        ending: [B] int64 values of `Ending`.
        last_correct: [B] bool, the response is well formed and its last letter equals x_N.
        path_correct: [B] bool, exactly N letters were written, each equal to x_t.
    """

    steps: Tensor
    ending: Tensor
    last_correct: Tensor
    path_correct: Tensor


def parse_path(text: str, names: Sequence[str]) -> list[int] | None:
    """Read a written path: label names separated by single spaces, and nothing else.

    One space may stand before the first name, as it does where the text continues a prompt that ends at a colon.

    Args:
        text: what the model wrote, without its end token.
        names: name of each label.

    Returns:
        The labels, or None where the text is not of that form (an empty one is not).
    """
    index = {name: label for label, name in enumerate(names)}
    labels = [index.get(word) for word in text.removeprefix(" ").split(" ")]
    return None if None in labels else [label for label in labels if label is not None]


def parse_letter(text: str, names: Sequence[str]) -> list[int] | None:
    """Read a direct answer: stripped of white space at both ends, it is exactly one label name.

    Returns:
        A list of this one label, or None.
    """
    word = text.strip()
    return [list(names).index(word)] if word in names else None


def pack_paths(paths: Sequence[Sequence[int] | None]) -> tuple[Tensor, Tensor]:
    """Put parsed paths into tensors.

    Returns:
        [B, L] int64 letters, IGNORE after the last, and [B] int64 number of letters, 0 where the parse failed.
    """
    known = [[] if path is None else list(path) for path in paths]
    written = torch.tensor([len(path) for path in known], dtype=torch.int64)
    letters = torch.full((len(known), max((len(path) for path in known), default=0)), IGNORE, dtype=torch.int64)
    for row, path in enumerate(known):
        letters[row, : len(path)] = torch.tensor(path, dtype=torch.int64)
    return letters, written


def generated_outcome(
    letters: Tensor, written: Tensor, ended: Tensor, reference: Tensor, steps: Tensor, asked: Tensor | None = None
) -> GeneratedOutcome:
    """Compare written letters with the reference states.

    Args:
        letters: [B, L] letters written, IGNORE after the last (`pack_paths`).
        written: [B] number of letters, 0 for a text that is not well formed.
        ended: [B] bool, the end token came within the budget.
        reference: [B, T] letters that should be written; whatever stands after the last is ignored.
        steps: [B] requested count N.
        asked: [B] number of letters that should be written; default `steps` (1 where the final letter alone is asked
            for, with x_N as the only reference).
    """
    steps = steps.long()
    asked = steps if asked is None else asked.long()
    formed = written > 0
    ending = torch.where(written < asked, Ending.EARLY, torch.where(written > asked, Ending.LATE, Ending.EXACT))
    ending = torch.where(formed, ending, Ending.MALFORMED)
    target = reference.gather(1, asked[:, None] - 1)[:, 0]
    last = letters.new_full(written.shape, IGNORE)
    if letters.shape[1]:
        last = letters.gather(1, (written - 1).clamp(min=0)[:, None])[:, 0]
    common = min(letters.shape[1], reference.shape[1])
    position = torch.arange(1, common + 1, device=steps.device)
    agree = (letters[:, :common] == reference[:, :common]) | (position > asked[:, None])
    return GeneratedOutcome(
        steps=steps,
        ending=torch.where(ended, ending, Ending.BUDGET).long(),
        last_correct=formed & (last == target),
        path_correct=(written == asked) & agree.all(dim=1),
    )


def last_letter(outcome: GeneratedOutcome) -> Tensor:
    """[B] the last letter of a well-formed response is x_N, whenever and however it ended."""
    return outcome.last_correct


def exact_stop(outcome: GeneratedOutcome) -> Tensor:
    """[B] exactly N letters, then the end token."""
    return outcome.ending == Ending.EXACT


def strict(outcome: GeneratedOutcome) -> Tensor:
    """[B] exact stop with the right last letter (a looped model's end-to-end success)."""
    return exact_stop(outcome) & outcome.last_correct


def strict_path(outcome: GeneratedOutcome) -> Tensor:
    """[B] exact stop with every letter right (a looped model's strict autonomous success)."""
    return exact_stop(outcome) & outcome.path_correct


def early(outcome: GeneratedOutcome) -> Tensor:
    """[B] fewer than N letters, then the end token."""
    return outcome.ending == Ending.EARLY


def late(outcome: GeneratedOutcome) -> Tensor:
    """[B] more than N letters, then the end token."""
    return outcome.ending == Ending.LATE


def malformed(outcome: GeneratedOutcome) -> Tensor:
    """[B] ended, but not letters separated by single spaces."""
    return outcome.ending == Ending.MALFORMED


def budget(outcome: GeneratedOutcome) -> Tensor:
    """[B] no end token within the budget."""
    return outcome.ending == Ending.BUDGET


GENERATED_RATES: dict[str, Callable[[GeneratedOutcome], Tensor]] = {
    rate.__name__: rate for rate in (last_letter, exact_stop, strict, strict_path, early, late, malformed, budget)
}
"""Every share by name; the order is that of the columns of `generated_rows`."""


def generated_rows(outcome: GeneratedOutcome) -> Tensor:
    """[B, 1 + R] int64: a one for the response itself, then whether it counts towards each of `GENERATED_RATES`."""
    queries = torch.ones_like(outcome.steps)
    return torch.stack([queries, *(share(outcome).long() for share in GENERATED_RATES.values())], dim=1)


def generated_counts(outcome: GeneratedOutcome, horizon: int) -> Tensor:
    """[T + 1, 1 + R] int64: row N holds the number of responses that were asked for N, and how many count."""
    rows = generated_rows(outcome)
    return rows.new_zeros(horizon + 1, rows.shape[1]).index_add_(0, outcome.steps, rows)


def generated_rate(counts: Tensor, name: str) -> Tensor:
    """[] share called `name` over all responses of the table, nan if it is empty.

    Args:
        counts: [T + 1, 1 + R] from `generated_counts`.
        name: a key of `GENERATED_RATES`.
    """
    total = counts.sum(dim=0)
    return total[1 + list(GENERATED_RATES).index(name)].double() / total[0]
