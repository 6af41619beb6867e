"""Records where the answer position looks, in the model's own forward pass.

The library calls attention through a registry (`transformers.AttentionInterface`). Under `recorded_attention` an entry
of ours stands there: it computes the softmax of the last query in float32, keeps it, and leaves the output to the
library's own kernel, so that the model computes what it always computes.

Shape legend: S prompt tokens, L slots, H heads, K keys.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from loopformer.looped import LoopedTransformer
from loopformer.recurrence import FixedPrompt

NAME = "loopformer_recorded"


class AttentionLog:
    """Attention weights of the last query, by call.

    Attributes:
        calls: layer number and weights [H, K] of each attention call since the last `take`.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[int, Tensor]] = []

    def take(self, layers: range, tokens: int) -> Tensor:
        """Return the last calls of some layers and forget all.

        Args:
            layers: layer numbers.
            tokens: S; the entries of L slots, which follow the S of the prompt memory, are moved to their positions.

        Returns:
            [len(layers), H, S] weights by prompt position.
        """
        last = dict(self.calls)  # a later call of the same layer replaces an earlier one
        self.calls.clear()
        return torch.stack([_by_position(last[layer], tokens) for layer in layers]) if layers else torch.empty(0)

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Stand in for an attention function of the library: query [1, H, Q, E], key and value [1, J, K, E]."""
        keys = repeat_kv(key, query.shape[1] // key.shape[1]).float()
        scores = (query[:, :, -1:].float() @ keys.transpose(2, 3))[0, :, 0] * (scaling or query.shape[-1] ** -0.5)
        if attention_mask is not None:  # the last query of a causal pass sees everything there is
            row = attention_mask[0, :, -1, : scores.shape[-1]]
            scores = scores.masked_fill(~row, -torch.inf) if row.dtype == torch.bool else scores + row
        self.calls.append((int(module.layer_idx), scores.softmax(-1).cpu()))  # type: ignore[arg-type]
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        return output, None


@contextmanager
def recorded_attention(network: LoopedTransformer) -> Iterator[AttentionLog]:
    """Record the attention of every layer call inside the block; for single, unpadded prompts.

    A fixed-prompt recurrence is kept to the library's layer calls meanwhile; its faster path is equal but not recorded.
    """
    log, config, recurrence = AttentionLog(), network.backbone.config, network.recurrence
    AttentionInterface.register(NAME, log.attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    previous = config._attn_implementation  # noqa: SLF001 (the library's own name of the switch)
    config._attn_implementation = NAME  # noqa: SLF001
    if isinstance(recurrence, FixedPrompt):
        network.recurrence = copy.copy(recurrence)
        network.recurrence.fused = False
    try:
        yield log
    finally:
        config._attn_implementation = previous  # noqa: SLF001
        network.recurrence = recurrence


def _by_position(weights: Tensor, tokens: int) -> Tensor:
    slots = weights.shape[-1] - tokens
    folded = weights[:, :tokens].clone()
    if slots:
        folded[:, tokens - slots :] += weights[:, tokens:]
    return folded
