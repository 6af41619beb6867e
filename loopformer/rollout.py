"""What a rollout says, loop by loop: the contract between the model and its losses and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor


@dataclass
class Rollout:
    """What a model says at loops 1..T.

    Shape legend: B batch, T loops, K labels, D hidden, V values of a field.

    Attributes:
        letter_logits: [B, T, K] label logits read through C.
        direct_logits: [B, T, K] label logits of the direct head, if there is one.
        stop_logits: [B, T] of the halting part, if there is one.
        initial_logits: [B, K] the direct head on P's answer state (loop 0), if there is one.
        remaining: [B, T + 1] the halting part's estimate of the remaining steps at loops 0..T, if it makes one.
        answer_states: [B, T, D] R's answer states.
        field_logits: [B, T + 1, V] of every named state field at loops 0..T; empty without state heads.
    """

    letter_logits: Tensor
    direct_logits: Tensor | None
    stop_logits: Tensor | None
    initial_logits: Tensor | None
    remaining: Tensor | None
    answer_states: Tensor
    field_logits: dict[str, Tensor] = field(default_factory=dict)

    def detach(self) -> Rollout:
        """Return the rollout cut from the autograd graph."""
        return self._map(lambda tensor: tensor.detach())

    def select(self, rows: Tensor) -> Rollout:
        """Return some rows ([B] bool) of the rollout."""
        return self._map(lambda tensor: tensor[rows])

    def _map(self, change: Callable[[Tensor], Tensor]) -> Rollout:
        def visit(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: change(item) for name, item in value.items()}
            return None if value is None else change(value)

        return replace(self, **{name: visit(value) for name, value in vars(self).items()})
