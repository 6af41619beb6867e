"""A start for attention heads that have never been trained: head h looks h + 1 tokens back, whatever the tokens.

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
    device = frequencies.device
    fast = (torch.arange(len(frequencies), device=device) < len(frequencies) // 2).float() * STRENGTH
    for layer in layers:
        attention = cast("Any", layer).self_attn
        if attention.q_proj.bias is None or attention.k_proj.bias is None:
            raise ValueError("look_back: needs biases of queries and keys; use model_type qwen2 or leave it out")
        query, key = (linear.bias.view(-1, 2, len(frequencies)) for linear in (attention.q_proj, attention.k_proj))
        angle = torch.arange(1, len(query) + 1, device=device)[:, None] * frequencies
        with torch.no_grad():
            query.copy_(torch.stack([fast * angle.cos(), -fast * angle.sin()], 1))
            key.copy_(torch.stack([fast, torch.zeros_like(fast)]).expand_as(key))
