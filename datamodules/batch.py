"""The contract between tasks and models: what one batch holds.

Shape legend: B batch, S sequence, T loops, M digits, C cells.

A datamodule builds every prompt view of an example once, when the batch is made; nothing downstream ever tokenises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

import torch
from torch import Tensor

IGNORE = -100
"""Label value that no loss and no metric counts (the same value as torch's `ignore_index`)."""

NO_DIGIT = -1
"""Padding of `Batch.digits`."""

NO_CELL = -1
"""Padding of `PromptView.cells`."""


@dataclass
class PromptView:
    """One rendering of the prompts of a batch, right padded.

    Attributes:
        input_ids: [B, S] token ids; the padding value is arbitrary, everything masks it by `lengths`.
        lengths: [B] number of real tokens. The answer position is the last of them.
        cells: [B, C] token positions of the instance's cells (symbols of a string, cells of a tape, lines of a
            program) in their own order, NO_CELL after the last; None for a task without cells. A field whose value is
            a cell counts in this order.
        shared: [B, 2] number of the group of each row and how many leading tokens the rows of a group have in common;
            None where nothing is in common. A model may compute those once for the whole group.
    """

    input_ids: Tensor
    lengths: Tensor
    cells: Tensor | None = None
    shared: Tensor | None = None

    @property
    def answer_positions(self) -> Tensor:
        """[B] index of the token from which the answer is read."""
        return self.lengths - 1


@dataclass
class Batch:
    """A batch of instances of a procedure.

    Attributes:
        views: prompt views by name. "full" shows the requested count, "executor" does not.
        labels: [B, T] index into the task's label set of the reference state after loop t = 1..T; IGNORE after the
            last step of an example.
        steps: [B] requested count N of each example, in loops.
        initial: [B] label of the state before the first loop (loop 0), IGNORE where the task has none.
        digits: [B, M] token ids of the requested count's decimal digits, left to right, NO_DIGIT after the last.
        instance: [B] id of the instance, unique within its split; metrics use it to count each instance once.
        facts: [B] integers by name, for breakdowns (task specific: kind, seed, tail, period, ...).
        fields: [B, T + 1] values of the named auxiliary state fields at loops 0..T, IGNORE where undefined: a label of
            the field's label set, or the number of a cell (`PromptView.cells`).
    """

    views: dict[str, PromptView]
    labels: Tensor
    steps: Tensor
    initial: Tensor
    digits: Tensor
    instance: Tensor
    facts: dict[str, Tensor] = field(default_factory=dict)
    fields: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.steps.shape[0]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """Return the batch on `device` (Lightning calls this to move batches)."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def select(self, rows: Tensor) -> Batch:
        """Return some examples of the batch: rows [B] bool, or indices."""
        return self._map(lambda tensor: tensor[rows])

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        def visit(value: Any) -> Any:
            if isinstance(value, Tensor):
                return change(value)
            if isinstance(value, dict):
                return {name: visit(item) for name, item in value.items()}
            if value is None:
                return None
            return replace(value, **{f.name: visit(getattr(value, f.name)) for f in fields(value)})

        return cast("Batch", visit(self))
