"""The affine timer of architecture 5: a scalar memory, read from the digits of the request, counted down by loops.

Four numbers count (a, b, w, c); D + 2 read. The timer never looks at the executor, so its stop times depend on the
request alone. `loopformer.timer_fit` says how its numbers are found.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from loopformer.halting.base import Halting, HaltingInputs


class DigitReader(nn.Module):
    """s = g s + v . e(digit) + v0 over the digits, left to right from s = 0.

    e is the frozen token embedding; sums run in float64 and the result is float32.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(10.0))
        self.projection = nn.Parameter(torch.zeros(hidden_size))
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self, digit_ids: Tensor, digit_embeddings: Tensor) -> Tensor:
        """Read numbers: digit_ids [B, M] (negative = no digit) and their embeddings [B, M, D] -> [B] float32."""
        values = digit_embeddings.detach().double() @ self.projection.double() + self.offset.double()
        number = values.new_zeros(values.shape[0])
        for m in range(values.shape[1]):
            number = torch.where(digit_ids[:, m] >= 0, self.gain.double() * number + values[:, m], number)
        return number.float()


class AffineTimer(Halting):
    """m_t = a m_(t-1) + b from m_0 = the number read; stop logit w m_t + c (m detached).

    At the start a = 1 and b = 0. Source: architecture spec, "Parts".
    """

    reads_state: ClassVar[bool] = False

    def build(self, hidden_size: int) -> None:
        """See `Halting.build`."""
        self.reader = DigitReader(hidden_size)
        self.decay = nn.Parameter(torch.ones(()))
        self.decrement = nn.Parameter(torch.zeros(()))
        self.stop_weight = nn.Parameter(torch.zeros(()))
        self.stop_bias = nn.Parameter(torch.zeros(()))

    def start(self, inputs: HaltingInputs) -> Tensor:
        """Return the number read from the prompt, [B] float32."""
        return self.reader(inputs.digit_ids, inputs.digit_embeddings)

    def step(self, memory: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `Halting.step`."""
        del state
        memory = self.decay * memory + self.decrement
        return memory, self.stop_weight * memory.detach() + self.stop_bias

    def remaining(self, memory: Tensor) -> Tensor:
        """See `Halting.remaining`: the memory is the estimate."""
        return memory
