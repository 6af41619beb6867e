"""What a loop hands to the next: a chosen part of the state, and nothing else.

    carry: {class_path: MarkedCarry, init_args: {fields: [head, top]}}      # cells recur: the marked ones alone
    carry: {class_path: FieldCarry}                                         # the answer's state: what its fields say

By default a loop hands on all that it has. What a loop does can then depend on how many loops there were before it, and
on whatever the state has picked up meanwhile: both differ in runs longer than those of the training.

Shape legend: B batch, L writable positions, N = C + 1 cells and answer, C cells, D hidden, V values of a field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from loopformer.bridge import Bridge, at_scale_of
from loopformer.recurrence import Recurrence
from loopformer.state_heads import ClassHead, FieldHead, FieldInputs, MarkerHead, StateHeads


class Carry(nn.Module):
    """Interface of carries."""

    def build(self, hidden_size: int, heads: StateHeads | None) -> None:
        """Create the parameters, if there are any."""

    def check(self, heads: StateHeads | None, recurrence: Recurrence, bridge: Bridge | None) -> None:
        """Make sure that a network has what the carry needs.

        Raises:
            ValueError: it has not; names field and fix.
        """
        raise NotImplementedError

    def forward(self, entering: Tensor, anchor: Tensor, inputs: FieldInputs, heads: StateHeads) -> Tensor:
        """Choose what enters the next loop.

        Args:
            entering: [B, L, D] what would enter it, behind the bridge.
            anchor: [B, L, D] P's output there.
            inputs: what the heads may read of the state, one loop of it.
            heads: the readouts of the state's fields.

        Returns:
            [B, L, D].
        """
        raise NotImplementedError


class MarkedCarry(Carry):
    """Keep the states of the cells that the model itself marks; the others restart from P's output.

    The heads of a machine carry its state; every other cell enters each loop as it entered the first.

    The marks are the most likely cells of some state fields, read from the state by their `MarkerHead`s, in training as
    in evaluation; labels are never looked at. The choice passes no gradient: a mark is learnt by its field's loss.

    Args:
        fields: names of the fields; each marks one cell.
        answer: keep the answer's state too. By default it restarts, and reads the cells anew in every loop.

    Raises:
        ValueError: there is no field, or one is named twice.
    """

    def __init__(self, fields: Sequence[str], answer: bool = False) -> None:
        super().__init__()
        if not fields or len(set(fields)) != len(fields):
            raise ValueError(f"carry.fields: got {list(fields)}; name one state field or more, each once")
        self.fields = list(fields)
        self.answer = answer

    def check(self, heads: StateHeads | None, recurrence: Recurrence, bridge: Bridge | None) -> None:
        """See `Carry.check`: the cells must recur, and every field needs a `MarkerHead`."""
        del bridge
        if not recurrence.loops_cells:
            raise ValueError("carry: MarkedCarry needs a recurrence whose cells recur; use FixedRules, or FieldCarry")
        _check_fields(self.fields, heads, MarkerHead)

    def marked(self, inputs: FieldInputs, heads: StateHeads) -> Tensor:
        """Find the marked cells [B, C] bool by the marks in the cells' states [B, 1, C, D]."""
        assert inputs.mask is not None
        with torch.no_grad():
            found = torch.zeros_like(inputs.mask)
            for name in self.fields:
                found.scatter_(1, heads.heads[name](inputs)[:, 0].argmax(-1, keepdim=True), value=True)
        return found

    def forward(self, entering: Tensor, anchor: Tensor, inputs: FieldInputs, heads: StateHeads) -> Tensor:
        """See `Carry.forward`: `entering` [B, N, D] where it is kept, P's output elsewhere."""
        marked = self.marked(inputs, heads)
        kept = torch.cat([marked, torch.full_like(marked[:, :1], self.answer)], 1)
        return torch.where(kept[..., None], entering, anchor)


class FieldCarry(Carry):
    """Hand on nothing but the most likely value of every field: the sum of one learnt vector for each.

    The state is read by the `ClassHead`s, in training as in evaluation (labels are never looked at), and the sum takes
    the scale of P's output, in float32. A value is then as fresh after a thousand loops as after one; what the fields
    do not name is lost. Gradients pass the choice as if the probabilities had been handed on (straight through).

    Args:
        fields: names of the fields; None for all.
        eps: added to mean squares.
    """

    def __init__(self, fields: Sequence[str] | None = None, eps: float = 1e-6) -> None:
        super().__init__()
        if fields is not None and (not fields or len(set(fields)) != len(fields)):
            raise ValueError(
                f"carry.fields: got {list(fields)}; name one state field or more, each once, or none at all"
            )
        self.fields = None if fields is None else list(fields)
        self.eps = eps

    def check(self, heads: StateHeads | None, recurrence: Recurrence, bridge: Bridge | None) -> None:
        """See `Carry.check`: one position loops, every field is a label that its state tells, nothing else enters."""
        if bridge is not None:
            raise ValueError("carry: FieldCarry stands in for the bridge; set bridge null")
        if recurrence.writable != 1:
            raise ValueError(
                "carry: FieldCarry needs one looping position; use FixedPrompt with slots 1, or MarkedCarry"
            )
        if heads is None:
            raise ValueError("carry: FieldCarry hands on state fields, and there are none; set state_heads")
        _check_fields(self._chosen(heads), heads, ClassHead)
        for name in self._chosen(heads):
            head = heads.heads[name]
            if type(head) is not ClassHead or head.delay or head.reads_coda:
                raise ValueError(
                    f"carry.fields: {name} is not told by the state at its own loop; use ClassHead with delay 0 and "
                    "source state"
                )

    def _chosen(self, heads: StateHeads) -> list[str]:
        return list(heads.heads) if self.fields is None else self.fields

    def build(self, hidden_size: int, heads: StateHeads | None) -> None:
        """See `Carry.build`: a vector for every value of every field."""
        assert heads is not None
        sizes = {name: cast("int", heads.sizes[name]) for name in self._chosen(heads)}
        self.values = nn.ParameterDict(
            {name: nn.Parameter(torch.randn(size, hidden_size)) for name, size in sizes.items()}
        )

    def forward(self, entering: Tensor, anchor: Tensor, inputs: FieldInputs, heads: StateHeads) -> Tensor:
        """See `Carry.forward`; L is 1."""
        with torch.autocast(entering.device.type, enabled=False):
            parts = []
            for name, vectors in self.values.items():
                likely = heads.heads[name](inputs).softmax(-1)  # [B, 1, V] float32
                chosen = torch.zeros_like(likely).scatter_(-1, likely.argmax(-1, keepdim=True), 1.0)
                # In this order the second term is exactly zero: no bit of the state passes but the choice.
                parts.append((chosen + (likely - likely.detach())) @ vectors.float())
            return at_scale_of(anchor.float(), torch.stack(parts).sum(0), self.eps).to(entering.dtype)


def _check_fields(fields: Sequence[str], heads: StateHeads | None, kind: type[FieldHead]) -> None:
    readers = {} if heads is None else dict(heads.heads.items())
    known = [name for name, head in readers.items() if isinstance(head, kind)]
    for name in fields:
        if name not in known:
            raise ValueError(
                f"carry.fields: {name} has no {kind.__name__} in state_heads (there: {', '.join(known) or 'none'})"
                "; give it one, or leave carry out"
            )
