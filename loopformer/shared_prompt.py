"""Reads the common part of several prompts once: the start of a rollout whose rows share their leading tokens.

Several runs of one machine differ in the last tokens of their prompts only. The tokens before are passed through P, R
and C once per group, and the rows' own tokens attend to the group's keys and values; what comes out is the start that
the rows would have had one by one. Training costs less by almost the number of runs in a group.

Shape legend: B rows, G groups, S tokens, S0 shared tokens, D hidden.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from datamodules.batch import PromptView
from loopformer.backbone import Backbone, Geometry, run_layers
from loopformer.recurrence import FixedPrompt, Start
from loopformer.slots import PromptMemory, record_prompt


class _OwnTokens(Cache):
    """Puts the group's keys and values before those of a row's own tokens, and records both as the row's memory."""

    def __init__(self, prefix: PromptMemory, group: Tensor, memory: PromptMemory) -> None:
        super().__init__(layers=[])
        self.prefix, self.group, self.memory = prefix, group, memory

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        del args, kwargs
        keys, values = self.prefix.keys[layer_idx], self.prefix.values[layer_idx]
        return self.memory.update(
            torch.cat([keys[self.group], key_states.to(keys.dtype)], 2),
            torch.cat([values[self.group], value_states.to(values.dtype)], 2),
            layer_idx,
        )


def can_share(recurrence: object, view: PromptView) -> bool:
    """Whether the rows of a view share tokens, all the same number, in prompts of one length, before a single slot."""
    if view.shared is None or not isinstance(recurrence, FixedPrompt) or recurrence.slots != 1:
        return False
    one_length = bool((view.lengths == view.input_ids.shape[1]).all())
    return one_length and bool((view.shared[:, 1] == view.shared[0, 1]).all())


def shared_start(backbone: Backbone, view: PromptView) -> Start:
    """Run P and loop 1 of a `FixedPrompt` with one slot; see `can_share`."""
    assert view.shared is not None
    B, S = view.input_ids.shape
    S0 = int(view.shared[0, 1])
    _, group = torch.unique(view.shared[:, 0], return_inverse=True)
    first = torch.zeros(int(group.max()) + 1, dtype=torch.long, device=group.device)
    first[group] = torch.arange(B, device=group.device)  # any row of the group will do
    prefix, own = backbone.embed(view.input_ids[first, :S0]), backbone.embed(view.input_ids[:, S0:])

    whole = backbone.geometry(own.new_empty(1, S, own.shape[-1]), None, view.answer_positions[:1])
    cos, sin = whole.rotary
    before = Geometry(None, (cos[:, :S0], sin[:, :S0]), view.answer_positions)
    order = torch.arange(S, device=own.device)
    mask = (order <= order[S0:, None]).expand(B, 1, S - S0, S)
    after = Geometry(mask, (cos[:, S0:], sin[:, S0:]), view.answer_positions)

    group_memory = PromptMemory(torch.ones(len(first), S0, dtype=torch.bool, device=own.device), before.rotary)
    slot = (cos[:, -1:].expand(B, -1, -1), sin[:, -1:].expand(B, -1, -1))
    memory = PromptMemory((order < S - 1).expand(B, -1), slot)
    cache: Any = _OwnTokens(group_memory, group, memory)
    prefix = run_layers(backbone.prelude, prefix, before, group_memory)
    own = run_layers(backbone.prelude, own, after, cache)
    prefix_looped = run_layers(backbone.recurrent, prefix, before, group_memory)
    looped = run_layers(backbone.recurrent, own, after, cache)
    record_prompt(backbone.coda, prefix_looped, before, group_memory)
    record_prompt(backbone.coda, looped, after, cache)
    return Start(looped[:, -1:], own[:, -1:], memory)
