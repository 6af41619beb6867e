"""The looped transformer: composes backbone, recurrence, bridge, readouts and halting, and rolls them out.

Shape legend: B batch, S sequence, T loops, K labels, L writable positions, D hidden.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from datamodules.batch import Batch
from loopformer.adaptation import Adaptation, RecurrentBlock
from loopformer.backbone import Backbone, take_positions
from loopformer.bridge import Bridge
from loopformer.carry import Carry
from loopformer.halting import Halting, HaltingInputs
from loopformer.look_back import look_back as start_looking_back
from loopformer.look_back import look_for_the_same
from loopformer.noise import StateNoise
from loopformer.own_tensors import own_tensor_names
from loopformer.recurrence import Recurrence, Start
from loopformer.rollout import Rollout
from loopformer.shared_prompt import can_share, shared_start
from loopformer.state_heads import FieldInputs, StateHeads

LETTERS = [f" {letter}" for letter in string.ascii_uppercase]


class DirectHead(nn.Module):
    """Linear D-K with bias on R's answer state: a second readout, past C. Never fed back.

    Its loss makes the state itself say the answer; without it the lookup may settle in C.
    """

    def build(self, hidden_size: int, num_labels: int) -> None:
        """Create the parameters."""
        self.linear = nn.Linear(hidden_size, num_labels)

    def forward(self, state: Tensor) -> Tensor:
        """[..., D] -> [..., K] in float32."""
        with torch.autocast(state.device.type, enabled=False):
            return self.linear(state.to(self.linear.weight.dtype)).float()


class LoopedTransformer(nn.Module):
    """A decoder split P/R/C whose R is applied T times.

    Args:
        backbone: the decoder with its tokenizer and split.
        recurrence: which positions loop.
        bridge: re-entry map between loops, or None.
        direct_head: second readout, or None.
        halting: stop rule, or None (the number of loops is then supplied).
        adaptation: what of the backbone is trained.
        labels: texts of the answers, one token each; the order defines the label numbers.
        state_heads: readouts of named state fields, extra targets of the training, or None.
        noise: noise on the state between loops in training, or None.
        look_back: start P's heads as heads that look a few tokens back (`loopformer.look_back`), where P is not
            pretrained; a pretrained one stays as it is.
        look_up: start P as a look-up: its first layer's heads look back, those of the others look for tokens like their
            own (see there). A pretrained P stays as it is.
        carry: what of the state a loop hands to the next, or None: all.

    Raises:
        ValueError: a label is not exactly one token of the backbone's tokenizer, or carry lacks what it needs.
    """

    label_ids: Tensor

    def __init__(
        self,
        backbone: Backbone,
        recurrence: Recurrence,
        bridge: Bridge | None = None,
        direct_head: DirectHead | None = None,
        halting: Halting | None = None,
        adaptation: Adaptation = RecurrentBlock(),  # noqa: B008
        labels: list[str] = LETTERS,
        state_heads: StateHeads | None = None,
        noise: StateNoise | None = None,
        look_back: bool = False,
        look_up: bool = False,
        carry: Carry | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.recurrence = recurrence
        self.bridge = bridge
        self.direct_head = direct_head
        self.halting = halting
        self.adaptation = adaptation
        self.state_heads = state_heads
        self.noise = noise
        self.carry = carry
        if carry is not None:
            carry.check(state_heads, recurrence, bridge)
        self.labels = list(labels)
        self.register_buffer("label_ids", torch.tensor(backbone.label_ids(self.labels)), persistent=False)
        for part in (bridge, halting, state_heads):
            if part is not None:
                part.build(backbone.hidden_size)
        if carry is not None:
            carry.build(backbone.hidden_size, state_heads)
        if direct_head is not None:
            direct_head.build(backbone.hidden_size, len(self.labels))
        if (look_back or look_up) and backbone.reference is None:
            back = 1 if look_up else len(backbone.prelude)
            start_looking_back(backbone.prelude[:back], backbone.lm.model.rotary_emb.inv_freq)
            look_for_the_same(backbone.prelude[back:])
        adaptation.apply(backbone)

    def train(self, mode: bool = True) -> LoopedTransformer:
        """Set the mode of the trained parts; the frozen part of the backbone stays in eval mode on purpose."""
        super().train(mode)
        self.backbone.eval()
        for module in self.adaptation.trained_modules(self.backbone):
            module.train(mode)
        return self

    @property
    def count_free(self) -> bool:
        """Whether the executor's prompt lacks the requested count, so that one trace serves all counts."""
        return self.recurrence.view == "executor"

    def own_tensor_names(self) -> set[str]:
        """Names in `state_dict` that cannot be loaded from the base again: what checkpoints must hold."""
        return own_tensor_names(self, self.backbone, self.adaptation)

    def start(self, batch: Batch) -> Start:
        """Run P and loop 1 on the executor's prompt view."""
        view = batch.views[self.recurrence.view]
        if can_share(self.recurrence, view):
            return shared_start(self.backbone, view)
        return self.start_from(view.input_ids, view.lengths, cells=view.cells)

    def start_from(
        self,
        input_ids: Tensor,
        lengths: Tensor,
        attention_mask: Tensor | None = None,
        cells: Tensor | None = None,
    ) -> Start:
        """Run P and loop 1.

        Args:
            input_ids: [B, S].
            lengths: [B] numbers of real tokens.
            attention_mask: [B, S], needed only if padding is not on the right.
            cells: [B, C] token positions of the cells, NO_CELL after the last, where the task has some.
        """
        hidden = self.backbone.embed(input_ids)
        if attention_mask is None:
            answers = lengths - 1
        else:
            order = torch.arange(input_ids.shape[1], device=input_ids.device)
            answers = (attention_mask.long() * order).argmax(-1)
        geometry = self.backbone.geometry(hidden, attention_mask, answers)
        geometry.cells = cells
        hidden = self.recurrence.prelude(self.backbone, hidden, geometry, lengths)
        start = self.recurrence.first(self.backbone, hidden, geometry, lengths)
        if cells is not None:
            start.cells, start.cell_mask = take_positions(hidden, cells.clamp(min=0)), cells >= 0
        return start

    def states(self, start: Start) -> Iterator[Tensor]:
        """Yield the states [B, L, D] of loops 1, 2, 3, ... without end."""
        state = start.state
        while True:
            yield state
            inputs = None if self.carry is None else self.field_inputs(state, start)
            entering = self.entering(state, start.anchor, inputs)
            state = self.recurrence.step(self.backbone, entering, start.memory)

    def entering(self, state: Tensor, anchor: Tensor, inputs: FieldInputs | None) -> Tensor:
        """What enters the next loop: bridge, carry, and in training noise.

        Args:
            state: [B, L, D] after a loop.
            anchor: [B, L, D] P's output there.
            inputs: what the state heads may read of it; only a carry needs it.
        """
        entering = state if self.bridge is None else self.bridge(state, anchor)
        if self.carry is not None:
            assert self.state_heads is not None
            assert inputs is not None
            entering = self.carry(entering, anchor, inputs, self.state_heads)
        return self.noise(entering, anchor) if self.noise is not None and self.training else entering

    def field_inputs(self, state: Tensor, start: Start) -> FieldInputs:
        """What the state heads may read of one state [B, L, D] before C has seen it."""
        answer, cells = self.recurrence.answer(state, start.memory), self.recurrence.cells(state, start.memory)
        return FieldInputs(
            answers=answer[:, None],
            cells=None if cells is None else cells[:, None],
            anchors=start.cells,
            mask=start.cell_mask,
        )

    def read(self, states: list[Tensor], start: Start) -> Tensor:
        """Label logits through C: T states [B, L, D] -> [B, T, K] float32."""
        return self.backbone.label_logits(self.recurrence.read(self.backbone, states, start.memory), self.label_ids)

    def read_fields(self, states: list[Tensor], answers: list[Tensor], start: Start) -> dict[str, Tensor]:
        """Logits [B, T + 1, V] of the state fields at loop 0 and at the T loops of `states` [B, L, D]."""
        assert self.state_heads is not None
        recurrence, memory, every = self.recurrence, start.memory, [start.anchor, *states]
        recurring = [recurrence.cells(state, memory) for state in every]
        cells = [state for state in recurring if state is not None]
        return self.state_heads(
            FieldInputs(
                answers=torch.stack([recurrence.answer(start.anchor, memory), *answers], 1),
                coda=recurrence.read(self.backbone, every, memory) if self.state_heads.reads_coda else None,
                cells=torch.stack(cells, 1) if cells else None,
                anchors=start.cells,
                mask=start.cell_mask,
            )
        )

    def halting_inputs(self, batch: Batch) -> HaltingInputs:
        """Collect what the halting part asked for from the prompts."""
        assert self.halting is not None
        prompt_state = None
        if self.halting.prompt_view is not None:
            view = batch.views[self.halting.prompt_view]
            with torch.no_grad():
                prompt_state = self.backbone.prelude_answer_state(view.input_ids, view.lengths)
        with torch.no_grad():
            embeddings = self.backbone.lm.model.embed_tokens(batch.digits.clamp(min=0))
        return HaltingInputs(prompt_state, batch.digits, embeddings)

    def halt(self, inputs: HaltingInputs, answers: list[Tensor | None]) -> tuple[Tensor, Tensor | None]:
        """Run the halting part over the answer states of loops 1..T.

        Returns:
            stop logits [B, T] and, where the part estimates it, the remaining steps [B, T + 1] at loops 0..T.
        """
        assert self.halting is not None
        memory: Any = self.halting.start(inputs)
        logits, remaining = [], [self.halting.remaining(memory)]
        for answer in answers:
            memory, logit = self.halting.step(memory, answer)
            logits.append(logit)
            remaining.append(self.halting.remaining(memory))
        known = [r for r in remaining if r is not None]
        return torch.stack(logits, 1), torch.stack(known, 1) if known else None

    def rollout(self, batch: Batch, loops: int) -> Rollout:
        """Run loops 1..`loops` on a batch, whatever the stop rule says, and read everything out.

        Raises:
            ValueError: `loops` is below 1.
        """
        if loops < 1:
            raise ValueError(f"loops: needs at least 1, got {loops}")
        start = self.start(batch)
        states = list(islice(self.states(start), loops))
        answers = [self.recurrence.answer(state, start.memory) for state in states]
        stacked = torch.stack(answers, 1)
        fields = {} if self.state_heads is None else self.read_fields(states, answers, start)
        direct = initial = stop = remaining = None
        if self.direct_head is not None:
            direct = self.direct_head(stacked)
            initial = self.direct_head(self.recurrence.answer(start.anchor, start.memory))
        if self.halting is not None:
            stop, remaining = self.halt(self.halting_inputs(batch), list(answers))
        return Rollout(self.read(states, start), direct, stop, initial, remaining, stacked, fields)
