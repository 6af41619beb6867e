"""Starts for attention heads that have never been trained: some look back, others for a token like their own.

`look_back`: head h looks h + 1 tokens back, whatever the tokens.

A lookup in a prompt takes two layers. The first puts an entry's key and value together in one position, by heads that
look a fixed number of tokens back; the second finds the key. As long as no head looks back, the second layer has no
key to find, so its heads learn to average all the values, and the way out of that plateau is long. Heads that look back
from the start leave only the second layer's search to be learned. Nothing is fixed: the biases train on.

Shape legend: H heads, J key heads, E head width.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

STRENGTH = 4.0
"""Length of the bias in the plane of each frequency: with width 16 a neighbour of the wanted token weighs an eighth."""

LIKENESS = 1.25
"""Norm of a row: a head of width 16 then scores 6 for a token like its own, others 0 with a deviation of 1.6."""


def look_back(layers: list[nn.Module], frequencies: Tensor) -> None:
    """Set query and key biases so that head h of every layer prefers the token h + 1 places back.

    A rotary position embedding turns the plane of channels (i, i + E/2) by position times frequency i. A constant key
    and a constant query turned back by h + 1 positions then score highest at that distance. Only the faster half of the
    frequencies is used: the slower ones tell no neighbours apart, and are left to the tokens' content.

    Args:
        layers: decoder layers with rotary positions and with biases of queries and keys.
        frequencies: [E/2] radians per token, falling.

    Raises:
        ValueError: a layer's queries and keys have no biases.
    """
    places = torch.arange(len(frequencies), device=frequencies.device)
    fast = (places < len(frequencies) // 2).float() * STRENGTH
    for layer in layers:
        attention = cast("Any", layer).self_attn
        if attention.q_proj.bias is None or attention.k_proj.bias is None:
            raise ValueError("look_back: needs biases of queries and keys; use model_type qwen2 or leave it out")
        query, key = (linear.bias.view(-1, 2, len(frequencies)) for linear in (attention.q_proj, attention.k_proj))
        distance = torch.arange(1, len(query) + 1, device=frequencies.device)
        angle = distance[:, None] * frequencies
        with torch.no_grad():
            query.copy_(torch.stack([fast * angle.cos(), -fast * angle.sin()], 1))
            key.copy_(torch.stack([fast, torch.zeros_like(fast)]).expand_as(key))


def look_for_the_same(layers: list[nn.Module]) -> None:
    """Start the heads of layers as heads that attend to tokens like their own: queries and keys are one projection.

    It is the other half of a lookup: where a layer before has put keys and values together, a token finds its own kind
    among the keys. Positions disturb it, and a token that may see itself finds itself first: it is meant for layers in
    which cells attend to rules ("rules" in `loopformer.recurring_cells`).

    Args:
        layers: decoder layers; query heads of one key head start alike.
    """
    for layer in layers:
        attention = cast("Any", layer).self_attn
        query, key = attention.q_proj.weight, attention.k_proj.weight
        with torch.no_grad():
            key.mul_(LIKENESS / key.norm(dim=1, keepdim=True))
            heads = key.unflatten(0, (-1, attention.head_dim))  # [J, E, D]
            query.copy_(heads.repeat_interleave(attention.num_key_value_groups, 0).flatten(0, 1))
