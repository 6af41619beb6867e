"""The re-entry bridge: what happens to a state before it enters the recurrent block again.

Shape legend: B batch, L writable positions, D hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Bridge(nn.Module):
    """Interface of bridges. `build` creates the parameters once the backbone's width is known."""

    def build(self, hidden_size: int) -> None:
        """Create the parameters for states of width `hidden_size`."""
        raise NotImplementedError

    def forward(self, state: Tensor, anchor: Tensor) -> Tensor:
        """Map the state [B, L, D] to the next loop's input, given P's output `anchor` [B, L, D] there."""
        raise NotImplementedError


def at_scale_of(anchor: Tensor, x: Tensor, eps: float) -> Tensor:
    """X [..., D] with the root mean square over channels of `anchor` [..., D]; both in float32, eps inside the root."""

    def mean_square(values: Tensor) -> Tensor:
        return values.square().mean(-1, keepdim=True) + eps

    return x * (mean_square(anchor) / mean_square(x)).sqrt()


class ReentryBridge(Bridge):
    """y = W (g * (x / rms(x) * rms(h0))), with g ones and W the identity at the start, no bias.

    It takes the state back to the scale that R met in loop 1, so that norms cannot drift over many loops. The root
    mean square is per position over channels, in float32, with eps inside the root. Source: architecture spec, "Parts".

    Args:
        eps: added to the mean square.
        projection: learn W (a D x D matrix).
        gain: learn g. With neither, the bridge has no parameters and only restores the scale.
    """

    def __init__(self, eps: float = 1e-6, projection: bool = True, gain: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.projection = projection
        self.learns_gain = gain

    def build(self, hidden_size: int) -> None:
        """See `Bridge.build`."""
        if self.learns_gain:
            self.gain = nn.Parameter(torch.ones(hidden_size))
        if self.projection:
            self.weight = nn.Parameter(torch.eye(hidden_size))

    def forward(self, state: Tensor, anchor: Tensor) -> Tensor:
        """See `Bridge.forward`."""
        y = at_scale_of(anchor.float(), state.float(), self.eps)
        if self.learns_gain:
            y = self.gain * y
        if self.projection:
            y = F.linear(y.to(self.weight.dtype), self.weight)
        return y.to(state.dtype)


class ReinjectionBridge(ReentryBridge):
    """y = W (g * (x / rms(x) * rms(h0))) + u * h0: the re-entry bridge, and P's output again at every loop.

    u is ones at the start. What a cell is (its symbol) need not survive in the state: it comes anew with every loop.
    Source: feasibility study of looped executors, brackets.

    Args:
        eps: see `ReentryBridge`.
        projection: see `ReentryBridge`.
    """

    def build(self, hidden_size: int) -> None:
        """See `Bridge.build`."""
        super().build(hidden_size)
        self.again = nn.Parameter(torch.ones(hidden_size))

    def forward(self, state: Tensor, anchor: Tensor) -> Tensor:
        """See `Bridge.forward`."""
        return super().forward(state, anchor) + (self.again * anchor.float()).to(state.dtype)
