"""When does the answer state settle? The stopping criterion of fixed-point solvers, watched while a model loops.

The relative change of loop t is |h_t - h_(t-1)| / |h_t|, h_0 being the prelude's output at the answer position. Deep
equilibrium models stop on it, and so do zero-shot exits of recurrent-depth models.

Shape legend: B examples, T loops of a chunk, D hidden, V tolerances.
"""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Relative changes below which a state counts as settled."""


def relative_change(states: Tensor) -> Tensor:
    """[..., T + 1, D] states of loops 0..T -> [..., T] change of each loop relative to the norm of its new state."""
    states = states.float()
    return (states[..., 1:, :] - states[..., :-1, :]).norm(dim=-1) / states[..., 1:, :].norm(dim=-1)


class Convergence:
    """Finds the first loop whose relative change is below each tolerance; keeps one state, whatever the loops.

    Args:
        initial: [B, D] state of loop 0.

    Attributes:
        stops: [B, V] int16 first loops, 0 where there is none so far.
    """

    def __init__(self, initial: Tensor) -> None:
        self.stops = torch.zeros(len(initial), len(TOLERANCES), dtype=torch.int16, device=initial.device)
        self._last = initial
        self._tolerances = torch.tensor(TOLERANCES, device=initial.device)
        self._loops = 0

    def update(self, states: Tensor) -> None:
        """Watch the next loops: [B, T, D]."""
        change = relative_change(torch.cat([self._last[:, None].to(states.dtype), states], 1))
        below = change[..., None] < self._tolerances
        first = self._loops + 1 + below.to(torch.uint8).argmax(1)
        found = below.any(1) & (self.stops == 0)
        self.stops = torch.where(found, first.to(torch.int16), self.stops)
        self._last, self._loops = states[:, -1], self._loops + states.shape[1]
