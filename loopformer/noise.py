"""Noise on the state between loops, so that a long rollout meets no state that training never came near.

Shape legend: B batch, L writable positions, D hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class StateNoise(nn.Module):
    """Normal noise on the state that enters the next loop, in units of the prelude's root mean square there.

    Applied in training only, after the bridge. Source: feasibility study of looped executors, brackets.

    Args:
        scale: standard deviation as a fraction of rms(h0).
    """

    def __init__(self, scale: float = 0.15) -> None:
        super().__init__()
        if scale <= 0:
            raise ValueError(f"noise.scale: needs a positive value, got {scale}; leave noise out to have none")
        self.scale = scale

    def forward(self, state: Tensor, anchor: Tensor) -> Tensor:
        """Add noise to the state [B, L, D], given P's output `anchor` [B, L, D] there."""
        size = anchor.detach().float().square().mean(-1, keepdim=True).sqrt()
        return state + (self.scale * size * torch.randn_like(state, dtype=torch.float32)).to(state.dtype)
