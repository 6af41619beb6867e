"""The halting interface.

Shape legend: B batch, T loops, D hidden, M digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn


@dataclass
class HaltingInputs:
    """What a halting part may look at before the first loop.

    Attributes:
        prompt_state: [B, D] output of P at the answer position of the view the part asked for, or None.
        digit_ids: [B, M] token ids of the requested count's digits, left to right, padded with -1.
        digit_embeddings: [B, M, D] frozen token embeddings of those digits.
    """

    prompt_state: Tensor | None
    digit_ids: Tensor
    digit_embeddings: Tensor


class Halting(nn.Module):
    """Base of stop rules: `start` makes a memory from the prompt, `step` advances it by one loop.

    A part detaches what it must not train: the executor's state, for controllers with a loss of their own.

    Attributes:
        prompt_view: name of the prompt view whose P state `start` needs, or None.
        reads_state: whether `step` looks at the executor's state. If not, stop times follow from the counts alone.
        trains_executor: whether the stop loss may reach the executor.
    """

    prompt_view: ClassVar[str | None] = None
    reads_state: ClassVar[bool] = True
    trains_executor: ClassVar[bool] = False

    def build(self, hidden_size: int) -> None:
        """Create the parameters for a backbone of width `hidden_size`."""
        raise NotImplementedError

    def start(self, inputs: HaltingInputs) -> Any:
        """Return the memory before loop 1."""
        raise NotImplementedError

    def step(self, memory: Any, state: Tensor | None) -> tuple[Any, Tensor]:
        """Advance by one loop.

        Args:
            memory: what `start` or the previous `step` returned.
            state: [B, D] the executor's answer state after this loop; None if `reads_state` is False.

        Returns:
            the new memory and the stop logit [B].
        """
        raise NotImplementedError

    def project(self, states: Tensor) -> Tensor:
        """Return what `advance` needs of the executor's answer states, [..., D] -> [..., X].

        It depends on no request, so requests that watch one executor run share it.
        """
        return states

    def advance(self, memory: Any, projected: Tensor) -> tuple[Any, Tensor]:
        """Advance by one loop like `step`, on a projected state [B, X]."""
        return self.step(memory, projected)

    def remaining(self, memory: Any) -> Tensor | None:
        """Return the predicted number of remaining steps [B], for parts that estimate it."""
        del memory
        return None
