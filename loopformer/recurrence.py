"""Recurrences: which positions loop, and what they see of the prompt.

A recurrence turns the prelude's output into a state, advances it by one loop at a time, and reads states out through
the coda. It owns no parameters: the layers are the backbone's. The re-entry bridge stands between its steps.

Shape legend: B batch, S sequence, T loops, L writable positions, D hidden.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loopformer.backbone import Backbone, Geometry, run_layers, take_positions
from loopformer.slots import FusedSlots, HuggingFaceSlots, PromptMemory, record_prompt, slots_for


@dataclass
class Start:
    """What a recurrence makes of a prompt.

    Attributes:
        state: [B, L, D] state after loop 1.
        anchor: [B, L, D] output of P at the same positions (the bridge scales by it).
        memory: whatever later steps and reads need of the prompt.
        cells: [B, C, D] output of P at the task's cells, where it has some.
        cell_mask: [B, C] bool, the real cells among them.
    """

    state: Tensor
    anchor: Tensor
    memory: Any
    cells: Tensor | None = None
    cell_mask: Tensor | None = None


class Recurrence(ABC):
    """One interface for every way to loop.

    Args:
        view: prompt view the executor reads: "executor" (no count in the prompt) or "full".

    Attributes:
        loops_cells: whether a state is exactly the task's cells and the answer, [B, C + 1, D].
        writable: positions L that loop; None where the prompt decides.
    """

    loops_cells: bool = False
    writable: int | None = None

    def __init__(self, view: str = "executor") -> None:
        self.view = view

    def prelude(self, backbone: Backbone, hidden: Tensor, geometry: Geometry, lengths: Tensor) -> Tensor:
        """Apply P to the embeddings `hidden` [B, S, D]."""
        del lengths
        return run_layers(backbone.prelude, hidden, geometry)

    def cells(self, state: Tensor, memory: Any) -> Tensor | None:
        """Return the states [B, C, D] of the task's cells, None where they do not recur."""
        del state, memory
        return None

    @abstractmethod
    def first(self, backbone: Backbone, hidden: Tensor, geometry: Geometry, lengths: Tensor) -> Start:
        """Apply loop 1 to the prelude's output `hidden` [B, S, D]; `lengths` [B] counts real tokens."""

    @abstractmethod
    def step(self, backbone: Backbone, state: Tensor, memory: Any) -> Tensor:
        """Apply one further loop: [B, L, D] -> [B, L, D]."""

    @abstractmethod
    def answer(self, state: Tensor, memory: Any) -> Tensor:
        """Return the answer position's vector of a state: [B, L, D] -> [B, D]."""

    @abstractmethod
    def read(self, backbone: Backbone, states: list[Tensor], memory: Any) -> Tensor:
        """Run C on the states of several loops, T times [B, L, D] -> [B, T, D] (before the final norm)."""


class FullSequence(Recurrence):
    """Every position loops (architectures 1 and 2): each step is R over the whole sequence."""

    def __init__(self, view: str = "full") -> None:
        super().__init__(view)

    def first(self, backbone: Backbone, hidden: Tensor, geometry: Geometry, lengths: Tensor) -> Start:
        """See `Recurrence.first`; the memory is the batch's geometry."""
        del lengths
        return Start(run_layers(backbone.recurrent, hidden, geometry), hidden, geometry)

    def step(self, backbone: Backbone, state: Tensor, memory: Geometry) -> Tensor:
        """See `Recurrence.step`."""
        return run_layers(backbone.recurrent, state, memory)

    def answer(self, state: Tensor, memory: Geometry) -> Tensor:
        """See `Recurrence.answer`."""
        return take_positions(state, memory.answer_positions)

    def cells(self, state: Tensor, memory: Geometry) -> Tensor | None:
        """See `Recurrence.cells`."""
        return None if memory.cells is None else take_positions(state, memory.cells.clamp(min=0))

    def read(self, backbone: Backbone, states: list[Tensor], memory: Geometry) -> Tensor:
        """See `Recurrence.read`."""
        return torch.stack(
            [take_positions(run_layers(backbone.coda, s, memory), memory.answer_positions) for s in states], 1
        )


class FixedPrompt(Recurrence):
    """Only the last positions of the prompt loop (architectures 3 to 5): the rest is a memory made in loop 1.

    Loop 1 passes every position through R and C and keeps each layer's keys and values of the prompt; later loops
    compute only the slots, which see the loop-1 prompt and their own newest selves. C has its own memory, from prompt
    states that passed R exactly once. The memory stays in the autograd graph and lives for one rollout.

    Args:
        slots: how many positions are writable, counted from the end of the prompt; the last is the answer's.
        view: see `Recurrence`.
        fused: False keeps to the library's layer calls even where the equal, faster path exists.
    """

    def __init__(self, slots: int = 1, view: str = "executor", fused: bool = True) -> None:
        super().__init__(view)
        if slots < 1:
            raise ValueError(f"recurrence.slots: needs at least 1, got {slots}")
        self.slots = self.writable = slots
        self.fused = fused

    def _kernel(self, backbone: Backbone) -> FusedSlots | HuggingFaceSlots:
        return slots_for(backbone.recurrent + backbone.coda) if self.fused else HuggingFaceSlots()

    def first(self, backbone: Backbone, hidden: Tensor, geometry: Geometry, lengths: Tensor) -> Start:
        """See `Recurrence.first`; the memory holds R's and C's keys and values of the prompt."""
        B, S = hidden.shape[:2]
        positions = geometry.answer_positions[:, None] + torch.arange(1 - self.slots, 1, device=hidden.device)
        order = torch.arange(S, device=hidden.device)
        # Real tokens before the first slot. With left padding they start where the row's tokens start.
        begin = geometry.answer_positions + 1 - lengths
        readable = (order >= begin[:, None]) & (order < positions[:, :1])
        cos, sin = (take_positions(part.expand(B, -1, -1), positions) for part in geometry.rotary)
        memory = PromptMemory(readable, (cos, sin))
        looped = run_layers(backbone.recurrent, hidden, geometry, memory)
        record_prompt(backbone.coda, looped, geometry, memory)
        return Start(take_positions(looped, positions), take_positions(hidden, positions), memory)

    def step(self, backbone: Backbone, state: Tensor, memory: PromptMemory) -> Tensor:
        """See `Recurrence.step`."""
        return self._kernel(backbone)(backbone.recurrent, state[:, None], memory)[:, 0]

    def answer(self, state: Tensor, memory: PromptMemory) -> Tensor:
        """See `Recurrence.answer`."""
        del memory
        return state[:, -1]

    def read(self, backbone: Backbone, states: list[Tensor], memory: PromptMemory) -> Tensor:
        """See `Recurrence.read`: all loops in one pass, as groups that do not see each other."""
        return self._kernel(backbone)(backbone.coda, torch.stack(states, 1), memory)[:, :, -1]
