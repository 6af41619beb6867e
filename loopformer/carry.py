"""What a loop hands to the next: the states of the marked cells, and nothing else.

    carry: {class_path: MarkedCarry, init_args: {fields: [head, top]}}

The heads of a machine carry its state; every other cell enters each loop as it entered the first, with P's output. What
a loop does can then not depend on how many loops there were before it, nor on what a cell has heard of a far end of the
string meanwhile: both differ on strings longer than those of the training.

Shape legend: B batch, N = C + 1 cells and answer, C cells, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from loopformer.state_heads import FieldInputs, MarkerHead, StateHeads


class MarkedCarry(nn.Module):
    """Keep the states of the cells that the model itself marks; the others restart from P's output.

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

    def check(self, heads: StateHeads | None, loops_cells: bool) -> None:
        """Make sure that a network has what the marks need.

        Raises:
            ValueError: its cells do not recur, or a field has no MarkerHead; names field and fix.
        """
        if not loops_cells:
            raise ValueError("carry: needs a recurrence whose cells recur; use FixedRules, or leave carry out")
        readers = {} if heads is None else dict(heads.heads.items())
        markers = [name for name, head in readers.items() if isinstance(head, MarkerHead)]
        for name in self.fields:
            if name not in markers:
                raise ValueError(
                    f"carry.fields: {name} has no MarkerHead in state_heads (there: {', '.join(markers) or 'none'})"
                    "; give it one, or leave carry out"
                )

    def marked(self, cells: Tensor, mask: Tensor, heads: StateHeads) -> Tensor:
        """Find the marked cells: states [B, C, D], real cells [B, C] -> [B, C] bool."""
        with torch.no_grad():
            states = cells[:, None]
            inputs = FieldInputs(answers=states, cells=states, mask=mask)
            found = torch.zeros_like(mask)
            for name in self.fields:
                found.scatter_(1, heads.heads[name](inputs)[:, 0].argmax(-1, keepdim=True), value=True)
        return found

    def forward(self, entering: Tensor, anchor: Tensor, marked: Tensor) -> Tensor:
        """Take what would enter the next loop where it is kept, P's output `anchor` elsewhere.

        Args:
            entering: [B, N, D].
            anchor: [B, N, D].
            marked: [B, C] bool.
        """
        kept = torch.cat([marked, torch.full_like(marked[:, :1], self.answer)], 1)
        return torch.where(kept[..., None], entering, anchor)
