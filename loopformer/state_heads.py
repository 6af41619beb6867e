"""Named fields of the state, read at every loop: extra targets that say what the state has to carry.

A head per field reads the states of loops 0..T (loop 0 is the prelude's). Its cross-entropy against the task's field
labels (`Batch.fields`) is one more loss term. Nothing it reads out is fed back, so a model can be used without, but for
the carries (`loopformer.carry`): one takes marks as the choice of what is carried on, one hands on what is read out.

    state_heads:
      class_path: StateHeads
      init_args:
        heads:
          symbol: {class_path: ClassHead, init_args: {values: 6}}     # a label of a label set, from the answer's state
          next: {class_path: PointerHead}                             # a cell of the prompt, from the answer's state
          head: {class_path: MarkerHead}                              # a cell, from the recurring cells' own states

Shape legend: B batch, T loops, C cells, D hidden, V values of a field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

CELLS = "cells"
"""Size of a field whose value is a cell: as many values as the instance has cells."""


@dataclass
class FieldInputs:
    """What the heads may read, at loops 0..T.

    Attributes:
        answers: [B, T + 1, D] answer states; the first is P's, the others R's.
        coda: [B, T + 1, D] the same behind C, if a head asked for it.
        cells: [B, T + 1, C, D] states of the cells, where the cells recur.
        anchors: [B, C, D] P's output at the cells, where the task has cells.
        mask: [B, C] bool, the real cells.
        marks: [B, T + 1, C] logits of the `MarkerHead`s by field, -inf for padding, for heads that read there.
    """

    answers: Tensor
    coda: Tensor | None = None
    cells: Tensor | None = None
    anchors: Tensor | None = None
    mask: Tensor | None = None
    marks: Mapping[str, Tensor] = field(default_factory=dict)


class FieldHead(nn.Module):
    """Interface of the head of one field.

    Attributes:
        size: number of values of the field, or CELLS.
        reads_coda: whether it needs the answer's state behind C.
    """

    size: int | str = CELLS
    reads_coda: bool = False

    def build(self, hidden_size: int) -> None:
        """Create the parameters for states of width `hidden_size`."""
        raise NotImplementedError

    def forward(self, inputs: FieldInputs) -> Tensor:
        """Return the field's logits [B, T + 1, V] in float32."""
        raise NotImplementedError


class ClassHead(FieldHead):
    """Linear D-V with bias on the answer's state: the field is a label of a label set.

    Args:
        values: number V of labels.
        source: "state" reads the state itself, "coda" what C makes of it.
        delay: loops after which the state is asked. With 0 the answer's state at loop t tells the field of loop t; with
            1 it tells, at loop t, what the field was when the loop began: what it had to look up for this loop's
            label. The field must be undefined at the last `delay` loops; nothing can tell it there.
    """

    def __init__(self, values: int, source: Literal["state", "coda"] = "state", delay: int = 0) -> None:
        super().__init__()
        if values < 2:
            raise ValueError(f"state_heads.values: a field has at least 2 labels, got {values}")
        if delay < 0:
            raise ValueError(f"state_heads.delay: needs at least 0, got {delay}")
        self.size = values
        self.reads_coda = source == "coda"
        self.delay = delay

    def build(self, hidden_size: int) -> None:
        """See `FieldHead.build`."""
        assert isinstance(self.size, int)
        self.linear = nn.Linear(hidden_size, self.size)

    def forward(self, inputs: FieldInputs) -> Tensor:
        """See `FieldHead.forward`."""
        states = inputs.coda if self.reads_coda else inputs.answers
        assert states is not None
        late = [states[:, -1:]] * min(self.delay, states.shape[1])
        return _linear(self.linear, torch.cat([states[:, self.delay :], *late], 1) if late else states)


class PointerHead(FieldHead):
    """Scaled dot products of the answer's state with P's output at the cells: the field is a cell of a fixed prompt."""

    def build(self, hidden_size: int) -> None:
        """See `FieldHead.build`."""
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)
        self.key = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, inputs: FieldInputs) -> Tensor:
        """See `FieldHead.forward`; V is C, padding cells get -inf.

        Raises:
            ValueError: the prompts have no cells.
        """
        anchors, mask = _cells_of(inputs.anchors, inputs.mask, "PointerHead")
        query, key = _linear(self.query, inputs.answers), _linear(self.key, anchors)
        scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
        return scores.masked_fill(~mask[:, None], -torch.inf)


class MarkerHead(FieldHead):
    """Linear D-1 on every recurring cell's state: the field is the cell that carries a mark."""

    def build(self, hidden_size: int) -> None:
        """See `FieldHead.build`."""
        self.linear = nn.Linear(hidden_size, 1)

    def forward(self, inputs: FieldInputs) -> Tensor:
        """See `FieldHead.forward`; V is C, padding cells get -inf.

        Raises:
            ValueError: the cells do not recur, or the prompts have none.
        """
        return _marks(self.linear, inputs, "MarkerHead")


class MarkedClassHead(ClassHead):
    """A label of P's output at the cell that another field marks: Linear D-V, pooled by a softmax of its marks.

    What a cell is then shows in P's output itself, without a word from R. The output is read at the scale of 1: an
    embedding that has never been trained is so small that a head on it hardly learns, nor P through the head. The marks
    get no gradient from here: they are learnt by their own labels, and P's output by what stands at the mark.

    Args:
        values: number V of labels.
        at: field whose `MarkerHead` marks the cell.
        eps: added to mean squares.
    """

    def __init__(self, values: int, at: str, eps: float = 1e-6) -> None:
        super().__init__(values)
        self.at = at
        self.eps = eps

    def forward(self, inputs: FieldInputs) -> Tensor:
        """See `FieldHead.forward`; `inputs.marks` holds the field's logits.

        Raises:
            ValueError: the cells do not recur, or the prompts have none.
        """
        anchors, _ = _cells_of(inputs.anchors, inputs.mask, "MarkedClassHead")
        labels = _linear(self.linear, rms_norm(anchors.float(), anchors.shape[-1:], eps=self.eps))
        return inputs.marks[self.at].detach().softmax(-1) @ labels


class StateHeads(nn.Module):
    """The heads of all fields.

    Args:
        heads: a head by field name.

    Raises:
        ValueError: there is no head, or one reads at the mark of a field that no `MarkerHead` marks.
    """

    def __init__(self, heads: dict[str, FieldHead]) -> None:
        super().__init__()
        if not heads:
            raise ValueError("state_heads.heads: name at least one field, or leave state_heads out")
        markers = [name for name, head in heads.items() if isinstance(head, MarkerHead)]
        odd = [(name, at) for name, head in heads.items() if (at := getattr(head, "at", None)) not in (None, *markers)]
        for name, at in odd:
            there = ", ".join(markers) or "there is none"
            raise ValueError(f"state_heads.{name}.at: got {at!r}; name a field with a MarkerHead ({there})")
        self.heads = nn.ModuleDict(heads)

    @property
    def reads_coda(self) -> bool:
        """Whether a head needs the answer's state behind C."""
        return any(head.reads_coda for head in self.heads.values())

    @property
    def sizes(self) -> dict[str, int | str]:
        """Number of values by field name, or CELLS."""
        return {name: head.size for name, head in self.heads.items()}  # type: ignore[misc]

    def build(self, hidden_size: int) -> None:
        """Create the parameters of every head."""
        for head in self.heads.values():
            head.build(hidden_size)  # type: ignore[operator]

    def forward(self, inputs: FieldInputs) -> dict[str, Tensor]:
        """Return the logits [B, T + 1, V] of every field."""
        marks = {name: head(inputs) for name, head in self.heads.items() if isinstance(head, MarkerHead)}
        inputs = replace(inputs, marks=marks)
        return {name: marks[name] if name in marks else head(inputs) for name, head in self.heads.items()}


def _linear(layer: nn.Module, states: Tensor) -> Tensor:
    weight = next(layer.parameters())
    with torch.autocast(states.device.type, enabled=False):
        result: Tensor = layer(states.to(weight.dtype)).float()
    return result


def _marks(layer: nn.Module, inputs: FieldInputs, head: str) -> Tensor:
    """A logit [B, T + 1, C] for every recurring cell, -inf for padding."""
    cells, mask = _cells_of(inputs.cells, inputs.mask, head)
    return _linear(layer, cells)[..., 0].masked_fill(~mask[:, None], -torch.inf)


def _cells_of(states: Tensor | None, mask: Tensor | None, head: str) -> tuple[Tensor, Tensor]:
    if states is None or mask is None:
        raise ValueError(
            f"state_heads: {head} needs "
            + ("prompts with cells" if head == "PointerHead" else "a recurrence whose cells recur (FixedRules)")
            + "; this model and task have none, use ClassHead"
        )
    return states, mask
