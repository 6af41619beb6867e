"""Recurring cells and answer against fixed rules: the inner loop of the FixedRules recurrence.

A prompt falls into three parts: the cells (symbols of a string, cells of a tape), the answer (its last token) and the
rules (everything else). The rules see only the rules before them; cells and answer are recomputed at every loop:

- in a "window" layer a cell attends to the cells at most `window` places away, itself included, with rotary positions
  counted in cells; nothing else reaches it, so what it does cannot depend on how long the string is;
- in a "rules" layer it attends to all rules, without rotary positions, and to no cell, not even itself: a look-up of
  what it is, which its own likeness would drown;
- in a "full" layer a cell attends to all rules, all cells and the answer, without rotary positions;
- the answer always attends to all rules, all cells and itself, without rotary positions.

Padding is masked everywhere. The layers are the library's; only their attention is done here.

Shape legend: B batch, G groups (loops read at once), C cells, N = C + 1 cells and answer, M rules, S tokens, W window
places, D hidden, H query heads, J key heads, E head width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from loopformer.backbone import Backbone, Geometry, apply_layer, take_positions
from loopformer.slots import FUSED_LAYERS

Reach = Literal["window", "rules", "full"]
"""What a layer lets a cell attend to."""


@dataclass
class Layout:
    """Where the parts of a batch's prompts lie.

    Attributes:
        moving: [B, N] token positions of the cells (0 for padding) and, last, of the answer.
        cell_mask: [B, C] bool, the real cells.
        rules: [B, M] token positions of the rules in their order, then arbitrary ones.
        rule_mask: [B, M] bool, the real rules.
    """

    moving: Tensor
    cell_mask: Tensor
    rules: Tensor
    rule_mask: Tensor

    @classmethod
    def of(cls, geometry: Geometry, lengths: Tensor, tokens: int) -> Layout:
        """Take prompts of `tokens` S columns apart; `lengths` [B] counts their real ones.

        Raises:
            ValueError: the prompts have no cells.
        """
        if geometry.cells is None:
            raise ValueError("recurrence: FixedRules needs prompts with cells; this task has none, use FixedPrompt")
        cells, answers = geometry.cells, geometry.answer_positions
        cell_mask = cells >= 0
        moving = torch.cat([cells.clamp(min=0), answers[:, None]], 1)
        order = torch.arange(tokens, device=cells.device)
        is_rule = (order > (answers - lengths)[:, None]) & (order < answers[:, None])
        # A padded cell must not hide token 0: it is written to a column that is cut off again.
        taken = torch.zeros(len(cells), tokens + 1, dtype=torch.bool, device=cells.device)
        taken.scatter_(1, torch.where(cell_mask, cells, tokens), value=True)
        is_rule &= ~taken[:, :tokens]
        width = int(is_rule.sum(1).max()) if len(cells) else 0
        rules = (~is_rule).long().argsort(dim=1, stable=True)[:, :width]
        return cls(moving, cell_mask, rules, is_rule.gather(1, rules))


@dataclass
class CellMemory:
    """What every loop needs of a batch.

    Attributes:
        layout: where the parts lie.
        rotary: cosines and sines of cell numbers, [1, C, E] each.
        window: cells that a cell sees to either side.
        keys: by absolute layer number, [B, J, M, E] of the rules, without rotary positions; `values` alike.
    """

    layout: Layout
    rotary: tuple[Tensor, Tensor]
    window: int
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, backbone: Backbone, hidden: Tensor, layout: Layout, window: int) -> CellMemory:
        """Make the memory of a batch, still without rules."""
        cells = torch.arange(layout.cell_mask.shape[1], device=hidden.device)[None]
        return cls(layout, backbone.lm.model.rotary_emb(hidden, cells), window)


def pass_rules(backbone: Backbone, layers: list[nn.Module], rules: Tensor, memory: CellMemory) -> Tensor:
    """Run the rules [B, M, D] through layers once, causally among themselves, and remember their keys and values."""
    geometry = backbone.geometry(rules, None, memory.layout.moving[:, -1]) if rules.shape[1] else None
    for layer in layers:
        attention = _attention_of(layer)
        keys, values = _keys_and_values(attention, cast("Any", layer).input_layernorm(rules))
        memory.keys[attention.layer_idx], memory.values[attention.layer_idx] = keys, values
        if geometry is not None:
            rules = apply_layer(layer, rules, geometry)
    return rules


def update_cells(layer: nn.Module, states: Tensor, memory: CellMemory, reach: Reach) -> Tensor:
    """Apply a layer to cells and answer: [B, G, N, D] -> [B, G, N, D]."""
    inner = cast("Any", layer)
    attention = _attention_of(layer)
    hidden = inner.input_layernorm(states)
    query = _heads(attention.q_proj(hidden), attention, "q_norm")
    keys, values = _keys_and_values(attention, hidden)
    if reach != "full":
        near = (query[..., :-1, :], keys[..., :-1, :], values[..., :-1, :])
        if reach == "window":
            cells = _window_attention(attention, *near, memory)
        else:
            cells = _rules_attention(attention, near[0], memory)
        answer = _full_attention(attention, query[..., -1:, :], keys, values, memory)
        mixed = torch.cat([cells, answer], -2)
    else:
        mixed = _full_attention(attention, query, keys, values, memory)
    states = states + _merge_heads(attention, mixed)
    return cast("Tensor", states + inner.mlp(inner.post_attention_layernorm(states)))


def update_answer(layer: nn.Module, states: Tensor, memory: CellMemory) -> Tensor:
    """Apply a layer to the answer alone, when nobody reads the cells any more: [B, G, N, D] -> [B, G, D]."""
    inner = cast("Any", layer)
    attention = _attention_of(layer)
    hidden = inner.input_layernorm(states)
    query = _heads(attention.q_proj(hidden[..., -1:, :]), attention, "q_norm")
    keys, values = _keys_and_values(attention, hidden)
    answer = states[..., -1:, :] + _merge_heads(attention, _full_attention(attention, query, keys, values, memory))
    return cast("Tensor", (answer + inner.mlp(inner.post_attention_layernorm(answer)))[..., 0, :])


def gather_rules(hidden: Tensor, layout: Layout) -> Tensor:
    """Rules of a batch in compact order: [B, S, D] -> [B, M, D]."""
    return take_positions(hidden, layout.rules)


def scatter_parts(hidden: Tensor, rules: Tensor, moving: Tensor, layout: Layout) -> Tensor:
    """Write the parts back to their tokens: rules [B, M, D], cells and answer [B, N, D] -> [B, S, D]."""
    B, S, D = hidden.shape
    real = torch.cat([layout.rule_mask, layout.cell_mask, torch.ones_like(layout.moving[:, -1:], dtype=torch.bool)], 1)
    # Padding goes to a column of its own, which is cut off again.
    index = torch.where(real, torch.cat([layout.rules, layout.moving], 1), S)
    parts = torch.cat([rules, moving], 1)
    return parts.new_zeros(B, S + 1, D).scatter(1, index[..., None].expand(-1, -1, D), parts)[:, :S]


def _attention_of(layer: nn.Module) -> Any:
    if not isinstance(layer, FUSED_LAYERS):
        raise ValueError(  # noqa: TRY004  (the user's choice of model, not a caller's mistake)
            f"recurrence: FixedRules knows the layers of Qwen2, Qwen3, Llama and Mistral, not {type(layer).__name__}"
        )
    return cast("Any", layer).self_attn


def _heads(projected: Tensor, attention: Any, norm: str) -> Tensor:
    """Split heads and apply Qwen3's norm of them: [..., N, H * E] -> [..., H, N, E]."""
    split = projected.unflatten(-1, (-1, attention.head_dim))
    if hasattr(attention, norm):
        split = getattr(attention, norm)(split)
    return split.transpose(-2, -3)


def _keys_and_values(attention: Any, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """[..., N, D] -> [..., J, N, E] each, the keys without rotary positions."""
    values = attention.v_proj(hidden).unflatten(-1, (-1, attention.head_dim)).transpose(-2, -3)
    return _heads(attention.k_proj(hidden), attention, "k_norm").to(values.dtype), values


def _merge_heads(attention: Any, mixed: Tensor) -> Tensor:
    """[..., H, N, E] -> [..., N, D]."""
    return cast("Tensor", attention.o_proj(mixed.transpose(-2, -3).flatten(-2)))


def _group_queries(query: Tensor, keys: Tensor) -> Tensor:
    """Put the query heads of a key head beside each other: [..., H, Q, E] -> [..., J, H / J, Q, E]."""
    return query.unflatten(-3, (keys.shape[-3], -1))


def _window_attention(attention: Any, query: Tensor, keys: Tensor, values: Tensor, memory: CellMemory) -> Tensor:
    """Cells attend to their neighbours: query [B, G, H, C, E], keys and values [B, G, J, C, E] -> [B, G, H, C, E]."""
    B, G, H, C, E = query.shape
    w = memory.window
    rotated = apply_rotary_pos_emb(query.flatten(0, 1), keys.flatten(0, 1), *memory.rotary)
    query, keys = rotated[0].view_as(query).to(values.dtype), rotated[1].view_as(keys).to(values.dtype)
    # Place o of a cell's window is the cell o - w to its right. Shifted products cost C * W, and no window is copied.
    near_keys, near_values = pad(keys, (0, 0, w, w)), pad(values, (0, 0, w, w))
    places = [slice(o, o + C) for o in range(2 * w + 1)]
    visible = pad(memory.layout.cell_mask, (w, w))
    # A padded cell sees itself, so that its softmax, which nobody reads, is defined.
    seen = torch.stack([visible[:, place] | (o == w) for o, place in enumerate(places)], -1)  # [B, C, W]
    bias = torch.zeros(seen.shape, device=query.device).masked_fill(~seen, -torch.inf)[:, None, None, None]
    grouped = _group_queries(query * attention.scaling, keys)  # [B, G, J, H / J, C, E]
    products = [(grouped * near_keys[:, :, :, None, place]).sum(-1) for place in places]
    weights = (torch.stack(products, -1).float() + bias).softmax(-1).to(values.dtype)
    mixed = torch.zeros_like(grouped)
    for o, place in enumerate(places):
        mixed = torch.addcmul(mixed, weights[..., o, None], near_values[:, :, :, None, place])
    return mixed.reshape(B, G, H, C, E)


def _rules_attention(attention: Any, query: Tensor, memory: CellMemory) -> Tensor:
    """Cells attend to the rules: [B, G, H, C, E] -> [B, G, H, C, E].

    Where a prompt has no rules, nothing is seen and zero comes out.
    """
    some = memory.layout.rule_mask.any(-1)[:, None, None, None, None]
    scores = _rule_scores(attention, query, memory).masked_fill(~some, 0.0)
    return _mix_rules(attention, scores.softmax(-1) * some, memory).reshape(query.shape)


def _full_attention(attention: Any, query: Tensor, keys: Tensor, values: Tensor, memory: CellMemory) -> Tensor:
    """Attend to rules, cells and answer: query [B, G, H, Q, E], keys and values [B, G, J, N, E] -> [B, G, H, Q, E]."""
    from_rules = _rule_scores(attention, query, memory)
    rows = _query_rows(attention, query, memory)
    from_moving = (rows @ keys.transpose(-1, -2)).float()
    hidden_cells = pad(~memory.layout.cell_mask, (0, 1))  # the answer is always there
    from_moving = from_moving.masked_fill(hidden_cells[:, None, None, None], -torch.inf)
    M = from_rules.shape[-1]
    weights = torch.cat([from_rules, from_moving], -1).softmax(-1).to(values.dtype)
    of_rules = _mix_rules(attention, weights[..., :M], memory)
    return (of_rules + weights[..., M:] @ values).reshape(query.shape)


def _query_rows(attention: Any, query: Tensor, memory: CellMemory) -> Tensor:
    """All query heads of a key head as rows of one product: [B, G, H, Q, E] -> [B, G, J, R, E], R = H / J * Q."""
    B, G, H, Q, E = query.shape
    values = memory.values[attention.layer_idx]
    J = values.shape[1]
    return (query * attention.scaling).reshape(B, G, J, H // J * Q, E).to(values.dtype)


def _rule_scores(attention: Any, query: Tensor, memory: CellMemory) -> Tensor:
    """Scores of the rules, which all groups share, without positions: [B, G, H, Q, E] -> [B, G, J, R, M] float32."""
    rows = _query_rows(attention, query, memory)
    B, G, J, R, E = rows.shape
    shared = rows.transpose(1, 2).reshape(B, J, G * R, E)
    scores = (shared @ memory.keys[attention.layer_idx].transpose(-1, -2)).float()
    scores = scores.masked_fill(~memory.layout.rule_mask[:, None, None], -torch.inf)
    return scores.view(B, J, G, R, -1).transpose(1, 2)


def _mix_rules(attention: Any, weights: Tensor, memory: CellMemory) -> Tensor:
    """Values of the rules by their weights: [B, G, J, R, M] -> [B, G, J, R, E]."""
    B, G, J, R, M = weights.shape
    values = memory.values[attention.layer_idx]
    rows = weights.transpose(1, 2).reshape(B, J, G * R, M).to(values.dtype)
    return (rows @ values).view(B, J, G, R, -1).transpose(1, 2)
