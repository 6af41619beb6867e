"""The GRU controller of architecture 4: it reads the request once and then counts by watching the executor."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loopformer.halting.base import Halting, HaltingInputs

REMAINING_SCALE = 12.0
"""The remaining-work readout predicts steps divided by this (the largest trained depth)."""


class GRUController(Halting):
    """m0 = tanh(Linear(LayerNorm(P state))); each loop a GRUCell on tanh(Linear(LayerNorm(R state))); logit Linear(m).

    Both states are detached: the controller's loss never reaches the executor. Source: architecture spec, "Parts".

    Args:
        width: memory size.
        predict_remaining: add the training-only readout of the remaining steps (dropped at export).
    """

    prompt_view: ClassVar[str | None] = "full"

    def __init__(self, width: int = 128, predict_remaining: bool = False) -> None:
        super().__init__()
        self.width = width
        self.predict_remaining = predict_remaining

    def build(self, hidden_size: int) -> None:
        """See `Halting.build`."""
        self.read_prompt = nn.Sequential(nn.LayerNorm(hidden_size), nn.Linear(hidden_size, self.width), nn.Tanh())
        self.read_state = nn.Sequential(nn.LayerNorm(hidden_size), nn.Linear(hidden_size, self.width), nn.Tanh())
        self.cell = nn.GRUCell(self.width, self.width)
        self.stop = nn.Linear(self.width, 1)
        self.remaining_readout = nn.Linear(self.width, 1) if self.predict_remaining else None

    def start(self, inputs: HaltingInputs) -> Tensor:
        """Return m0 [B, width]."""
        assert inputs.prompt_state is not None
        return self.read_prompt(inputs.prompt_state.detach().to(self.stop.weight.dtype))

    def step(self, memory: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `Halting.step`."""
        assert state is not None
        with torch.autocast(memory.device.type, enabled=False):
            dtype = self.stop.weight.dtype
            memory = self.cell(self.read_state(state.detach().to(dtype)), memory.to(dtype))
            return memory, self.stop(memory)[:, 0]

    def project(self, states: Tensor) -> Tensor:
        """See `Halting.project`: the cell's input gates, [..., D] -> [..., 3 width]."""
        with torch.autocast(states.device.type, enabled=False):
            read = self.read_state(states.detach().to(self.stop.weight.dtype))
            return F.linear(read, self.cell.weight_ih, self.cell.bias_ih)

    def advance(self, memory: Tensor, projected: Tensor) -> tuple[Tensor, Tensor]:
        """See `Halting.advance`: the rest of the cell, which depends on the request's memory."""
        with torch.autocast(memory.device.type, enabled=False):
            memory = memory.to(self.stop.weight.dtype)  # autocast has made the first one
            reset, update, new = projected.chunk(3, -1)
            reset_memory, update_memory, new_memory = F.linear(memory, self.cell.weight_hh, self.cell.bias_hh).chunk(
                3, -1
            )
            gate = torch.sigmoid(update + update_memory)
            candidate = torch.tanh(new + torch.sigmoid(reset + reset_memory) * new_memory)
            memory = candidate + gate * (memory - candidate)
            return memory, self.stop(memory)[:, 0]

    def remaining(self, memory: Tensor) -> Tensor | None:
        """See `Halting.remaining`."""
        if self.remaining_readout is None:
            return None
        with torch.autocast(memory.device.type, enabled=False):
            return self.remaining_readout(memory.to(self.stop.weight.dtype))[:, 0] * REMAINING_SCALE
