"""The stop head of architectures 2, 3a and 3b: a small MLP on the answer state, trained with the executor."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from loopformer.halting.base import Halting, HaltingInputs


class StopHead(Halting):
    """LayerNorm, Linear D-width, GELU, Linear width-1 on R's answer state; its gradient reaches R.

    Args:
        width: hidden units.
    """

    trains_executor: ClassVar[bool] = True

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.width = width

    def build(self, hidden_size: int) -> None:
        """See `Halting.build`."""
        self.mlp = nn.Sequential(
            nn.LayerNorm(hidden_size), nn.Linear(hidden_size, self.width), nn.GELU(), nn.Linear(self.width, 1)
        )

    def start(self, inputs: HaltingInputs) -> None:
        """Return no memory: the head sees one state at a time."""

    def step(self, memory: None, state: Tensor | None) -> tuple[None, Tensor]:
        """See `Halting.step`."""
        assert state is not None
        return memory, self.mlp(state.to(next(self.mlp.parameters()).dtype))[:, 0]
