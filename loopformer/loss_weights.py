"""Weights of an executor run's loss terms, and what a network makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from lightning.pytorch.utilities import rank_zero_warn

from loopformer.fixed_rules import FixedRules
from loopformer.halting import StopHead
from loopformer.looped import LoopedTransformer
from loopformer.state_heads import CELLS

FIELD = "field_"
"""Before a field's name in the names of the loss terms."""


@dataclass
class LossWeights:
    """Weights of the loss terms of an executor run.

    Attributes:
        letter: cross-entropy of the readout through C, at every loop.
        direct: the same of the direct head. None: 0.25 in models that have one.
        initial: cross-entropy of the direct head at loop 0 against the start state. Extra supervision, absent from the
            published recipe; from scratch it shortens the plateau before the lookup forms.
        stop: balanced stop loss of the halting part. None: 0.1 in models that have one.
        loops: how an example's loops share its weight in the letter and direct losses of training. "example": equally,
            so that shallow loops, which every example has, weigh most. "equal": so that over the training data every
            loop has the same total weight (`loopformer.losses.equal_loop_weights`). Validation losses always use
            "example", so that runs compare.
        fields: cross-entropy of the named state fields (models with state heads): one weight for all, or by name.
        smoothing: label smoothing of all of these in training (not of stop). Plain cross-entropy is content with a
            state that is right by any margin, so that what is kept over many loops may change a little in each. A
            smoothed label wants one margin, the same after every loop.
    """

    letter: float = 1.0
    direct: float | None = None
    initial: float = 0.0
    stop: float | None = None
    loops: Literal["example", "equal"] = "example"
    fields: float | dict[str, float] = 0.5
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"losses.smoothing: got {self.smoothing}; use 0 or more, below 1")

    def of(self, term: str) -> float:
        """Return the weight of a loss term; a field's is called `field_NAME`."""
        if term.startswith(FIELD):
            return self.fields[term.removeprefix(FIELD)] if isinstance(self.fields, dict) else self.fields
        weight: float = getattr(self, term)
        return weight

    def settled(self, network: LoopedTransformer) -> LossWeights:
        """Return the weights with numbers for None, and tell what the network makes of them.

        Raises:
            ValueError: a loss needs a part that the network lacks, or leaves a readout untrained.
        """
        if network.direct_head is None:
            if self.initial:
                raise ValueError("losses.initial: needs network.direct_head, which reads loop 0; add it or set 0")
            if self.direct:
                rank_zero_warn(f"losses.direct: {self.direct} is ignored, network.direct_head is null; set it to null")
        elif self.direct == 0 and not self.initial:
            raise ValueError("losses.direct: 0 would leave the direct head untrained; set network.direct_head to null")
        if network.halting is None:
            if self.stop:
                rank_zero_warn(f"losses.stop: {self.stop} is ignored, network.halting is null; set it to null")
        elif self.stop == 0:
            rank_zero_warn("losses.stop: 0 leaves network.halting untrained; set network.halting to null")
        self._check_fields(network)
        # Cells that recur are the work itself, and its end can be seen in them; a lookup in a table has none.
        ends = isinstance(network.recurrence, FixedRules)
        if isinstance(network.halting, StopHead) and network.count_free and not ends:
            rank_zero_warn(
                "network.halting: a StopHead sees only the loops' states, and recurrence.view 'executor' hides the "
                "count from them: it cannot know when to stop. Use view 'full' or a GRUController"
            )
        return replace(
            self,
            direct=_given(self.direct, 0.25 if network.direct_head is not None else 0.0),
            stop=_given(self.stop, 0.1 if network.halting is not None else 0.0),
        )

    def _check_fields(self, network: LoopedTransformer) -> None:
        sizes = {} if network.state_heads is None else network.state_heads.sizes
        if self.smoothing and (cells := sorted(name for name, size in sizes.items() if size == CELLS)):
            raise ValueError(
                f"losses.smoothing: {cells[0]!r} is a cell of the prompt, and padding can have no share of its label; "
                "set smoothing to 0, or read only fields of a label set"
            )
        if isinstance(self.fields, dict):
            heads = set() if network.state_heads is None else set(network.state_heads.sizes)
            if odd := sorted(heads ^ set(self.fields)):
                raise ValueError(
                    f"losses.fields: {odd[0]!r} has a weight or a head in network.state_heads, not both; "
                    "give one number for all fields, or exactly one weight per head"
                )


def _given(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
