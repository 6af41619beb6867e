"""A few writable positions ("slots") against a fixed prompt memory: the inner loop of a fixed-prompt recurrence.

The prompt's keys and values are made once, by the first pass, and kept after RoPE. A later application of a layer
computes only the slots: they attend to the memory (without the slots' own old entries) plus their own fresh keys and
values. Two paths give equal numbers:

- `HuggingFaceSlots` calls the library's layers with a Cache that appends the fresh entries: any decoder fits.
- `FusedSlots` scores memory and fresh entries apart and joins them in one softmax, so the memory is never copied, and
  several independent groups of slots (all loops of a rollout, for the coda) share one pass.

Shape legend: B batch, G groups, L slots, M tokens of a group's own, S sequence, D hidden, H query heads, J key heads,
E head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, apply_rotary_pos_emb
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from loopformer.backbone import Geometry, run_layers
from loopformer.deferred import DeferredLinears

FUSED_LAYERS = (Qwen2DecoderLayer, Qwen3DecoderLayer, LlamaDecoderLayer, MistralDecoderLayer)


class BranchMemory:
    """Keys and values of each group's own prompt tokens, where groups continue one prompt differently.

    The first pass through the layers runs over all of a group's tokens and records all but the slots at their end;
    later passes run over the slots alone and find the others here.

    Args:
        slots: number of slots at the end of the groups' tokens.

    Attributes:
        keys: by absolute layer number, [B, J, G, M, E] after RoPE; `values` alike.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.recording = True
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put the recorded entries of the first G groups before fresh ones [B, J, G, L, E]; the first pass records."""
        if self.recording:
            kept = keys.shape[3] - self.slots
            self.keys[layer], self.values[layer] = keys[:, :, :, :kept], values[:, :, :, :kept]
            return keys, values
        G = keys.shape[2]
        stored = self.keys[layer][:, :, :G], self.values[layer][:, :, :G]
        return torch.cat([stored[0], keys], 3), torch.cat([stored[1], values], 3)

    def select(self, groups: Tensor) -> None:
        """Keep some groups of each row, groups [B, G'] in their new order."""
        rows = torch.arange(len(groups), device=groups.device)[:, None]
        for stored in (self.keys, self.values):
            for layer, part in stored.items():
                stored[layer] = part.transpose(1, 2)[rows, groups].transpose(1, 2)


class PromptMemory(Cache):
    """Keys and values of the prompt by layer number, recorded by a first pass through the layers.

    Attributes:
        keys: by absolute layer number, [B, J, S, E] after RoPE; `values` alike.
        readable: [B, S] bool, the prompt positions that slots may attend to: real tokens that are no slots themselves.
        rotary: position embeddings of the slots, [B, L, E] each.
        branches: tokens that each group has of its own between the prompt and the slots, or None.
        linears: applies the linear maps of the loops (see `loopformer.deferred`).
    """

    def __init__(self, readable: Tensor, rotary: tuple[Tensor, Tensor], branches: BranchMemory | None = None) -> None:
        super().__init__(layers=[])
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.branches = branches
        self.readable = readable
        self.rotary = rotary
        self.linears = DeferredLinears()
        self.bias: Tensor | None = torch.zeros(readable.shape, device=readable.device)
        self.bias.masked_fill_(~readable, -torch.inf)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Record what a layer just computed (called by the layer itself) and hand it on unchanged."""
        del args, kwargs
        # Once here instead of at every loop: the cast to autocast's type, and the layout that products read in place.
        self.keys[layer_idx] = key_states.to(value_states.dtype).contiguous()
        self.values[layer_idx] = value_states.contiguous()
        return key_states, value_states


class _Appended(Cache):
    """A read-only view of a memory that appends the slots' fresh keys and values for one layer call."""

    def __init__(self, memory: PromptMemory) -> None:
        super().__init__(layers=[])
        self.memory = memory

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        del args, kwargs
        keys, values = self.memory.keys[layer_idx], self.memory.values[layer_idx]
        return torch.cat([keys, key_states.to(keys.dtype)], 2), torch.cat([values, value_states.to(values.dtype)], 2)


@dataclass
class HuggingFaceSlots:
    """Applies layers to slots through the library's own forward; groups run one after another."""

    def __call__(self, layers: list[nn.Module], slots: Tensor, memory: PromptMemory) -> Tensor:
        """Slots [B, G, L, D] -> [B, G, L, D]."""
        B, _, L, _ = slots.shape
        causal = torch.ones(L, L, dtype=torch.bool, device=slots.device).tril()
        mask = torch.cat([memory.readable[:, None, None].expand(B, 1, L, -1), causal.expand(B, 1, L, L)], -1)
        geometry = Geometry(mask, memory.rotary, memory.readable.new_empty(0))
        cache = _Appended(memory)
        return torch.stack([run_layers(layers, group, geometry, cache) for group in slots.unbind(1)], 1)


class FusedSlots:
    """Applies layers to all groups of slots at once, reading the memory in place."""

    def __call__(self, layers: list[nn.Module], slots: Tensor, memory: PromptMemory) -> Tensor:
        """Slots [B, G, L, D] -> [B, G, L, D]."""
        B, G, L, D = slots.shape
        rotary = cast("tuple[Tensor, Tensor]", tuple(part.repeat(1, G, 1) if G > 1 else part for part in memory.rotary))
        hidden = slots.reshape(B, G * L, D)
        for layer in layers:
            inner = cast("Any", layer)
            attended = self._attend(inner.self_attn, inner.input_layernorm(hidden), rotary, memory, G, L)
            hidden = hidden + attended
            hidden = hidden + self._feed_forward(inner.mlp, inner.post_attention_layernorm(hidden), memory)
        return hidden.reshape(B, G, L, D)

    @staticmethod
    def _feed_forward(mlp: Any, hidden: Tensor, memory: PromptMemory) -> Tensor:
        linear = memory.linears
        gated = mlp.act_fn(linear(mlp.gate_proj, hidden)) * linear(mlp.up_proj, hidden)
        return linear(mlp.down_proj, gated)

    @staticmethod
    def _attend(
        attention: Any, hidden: Tensor, rotary: tuple[Tensor, Tensor], memory: PromptMemory, G: int, L: int
    ) -> Tensor:
        B, N, _ = hidden.shape
        E = attention.head_dim
        heads = (B, N, -1, E)
        linear = memory.linears
        query, key = linear(attention.q_proj, hidden).view(heads), linear(attention.k_proj, hidden).view(heads)
        if hasattr(attention, "q_norm"):  # Qwen3
            query, key = attention.q_norm(query), attention.k_norm(key)
        value = linear(attention.v_proj, hidden).view(heads).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query.transpose(1, 2), key.transpose(1, 2), *rotary)
        query = query.to(value.dtype) * attention.scaling

        H, J = query.shape[1], key.shape[1]
        stored_keys, stored_values = memory.keys[attention.layer_idx], memory.values[attention.layer_idx]
        S = stored_keys.shape[2]
        # All query heads of a key head, all groups and slots are rows of one product against that head's memory.
        rows = query.reshape(B, J, (H // J) * N, E)
        from_memory = (rows @ stored_keys.transpose(2, 3)).float()
        if memory.bias is not None:
            from_memory = from_memory + memory.bias[:, None, None]

        query = query.view(B, J, H // J, G, L, E)
        key, value = key.to(value.dtype).view(B, J, G, L, E), value.reshape(B, J, G, L, E)
        if memory.branches is not None:
            key, value = memory.branches.extend(attention.layer_idx, key, value)
        M = key.shape[3]  # a group's own entries: the slots, after the tokens of its branch
        key, value = key[:, :, None], value[:, :, None]
        if M == 1:
            own = (query * key).sum(-1, keepdim=True).float()
        else:
            causal = torch.ones(L, M, dtype=torch.bool, device=query.device).tril(M - L)
            own = (query @ key.transpose(-1, -2)).float().masked_fill(~causal, -torch.inf)
        weights = torch.cat([from_memory, own.reshape(B, J, -1, M)], -1).softmax(-1).to(value.dtype)
        own_weights = weights[..., S:].view(B, J, H // J, G, L, M)
        mixed = (weights[..., :S] @ stored_values).view(B, J, H // J, G, L, E)
        mixed = mixed + (own_weights * value if M == 1 else own_weights @ value)
        return linear(attention.o_proj, mixed.view(B, H, N, E).transpose(1, 2).reshape(B, N, H * E))


def record_prompt(layers: list[nn.Module], hidden: Tensor, geometry: Geometry, memory: PromptMemory) -> None:
    """Fill the memory with what `layers` make of the prompt's states [B, S, D], and nothing more.

    Nobody reads the last layer's output at the prompt's positions: where the layer is known, only its keys and values
    are computed.
    """
    hidden = run_layers(layers[:-1], hidden, geometry, memory)
    for layer in layers[-1:]:
        if not isinstance(layer, FUSED_LAYERS):
            run_layers([layer], hidden, geometry, memory)
            continue
        attention = cast("Any", layer).self_attn
        normed = cast("Any", layer).input_layernorm(hidden)
        key = attention.k_proj(normed).view(*normed.shape[:2], -1, attention.head_dim)
        value = attention.v_proj(normed).view(*normed.shape[:2], -1, attention.head_dim).transpose(1, 2)
        if hasattr(attention, "k_norm"):  # Qwen3
            key = attention.k_norm(key)
        key, _ = apply_rotary_pos_emb(key.transpose(1, 2), key.transpose(1, 2), *geometry.rotary)
        memory.update(key, value, attention.layer_idx)


def slots_for(layers: list[nn.Module]) -> FusedSlots | HuggingFaceSlots:
    """Choose the fused path where every layer is of a kind it is tested for, else the library's own forward."""
    return FusedSlots() if all(isinstance(layer, FUSED_LAYERS) for layer in layers) else HuggingFaceSlots()
