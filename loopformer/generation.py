"""Greedy generation in batches, with the library's key-value cache.

Prompts are padded on the left, so that every row's last prompt token is the last column and the masked padding never
moves a position: a row's result is what it would be alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Response:
    """What a model wrote after one prompt.

    Attributes:
        ids: token ids, without the end token and whatever follows it.
        ended: whether the end token came within the budget.
        tokens: tokens written, the end token included.
    """

    ids: list[int]
    ended: bool
    tokens: int


def end_token_ids(lm: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every token that ends a response: the tokenizer's own and those of the model's generation settings.

    Raises:
        ValueError: neither has one.
    """
    configured = lm.generation_config.eos_token_id if lm.generation_config is not None else None
    more = configured if isinstance(configured, list) else [configured]
    found = {int(token) for token in (tokenizer.eos_token_id, *more) if token is not None}
    if not found:
        raise ValueError("tokenizer: neither it nor the model has an end token (eos_token); no response could end")
    return sorted(found)


@torch.no_grad()
def generate_greedy(
    lm: PreTrainedModel, prompts: Sequence[Sequence[int]], max_new_tokens: int, end_ids: Sequence[int]
) -> list[Response]:
    """Continue prompts by the most likely token until an end token or the budget.

    The model's own generation settings (temperature, repetition penalty, ...) are put aside: greedy means greedy.

    Args:
        lm: the model.
        prompts: token ids, at least one each.
        max_new_tokens: budget of each response.
        end_ids: tokens that end a response.

    Raises:
        ValueError: an empty prompt, or a budget below 1.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: got {max_new_tokens}; let it write at least 1 token")
    if not all(prompts):
        raise ValueError("prompts: one is empty; there is nothing to continue")
    if not prompts:
        return []
    longest = max(map(len, prompts))
    padding = end_ids[0]  # masked on the left, cut off on the right: any token will do
    ids = torch.full((len(prompts), longest), padding, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    greedy = GenerationConfig(
        max_new_tokens=max_new_tokens, do_sample=False, use_cache=True, eos_token_id=list(end_ids), pad_token_id=padding
    )
    generator: Any = lm
    own, lm.generation_config = lm.generation_config, GenerationConfig()
    try:
        written = generator.generate(ids.to(lm.device), attention_mask=mask.to(lm.device), generation_config=greedy)
    finally:
        lm.generation_config = own
    new = written[:, longest:].cpu()
    return [_response(row, set(end_ids)) for row in new.tolist()]


def read_response(tokenizer: PreTrainedTokenizerBase, response: Response) -> str:
    """Return a response as text, every character as it was written."""
    return str(tokenizer.decode(response.ids, clean_up_tokenization_spaces=False))


def _response(row: list[int], end_ids: set[int]) -> Response:
    for position, token in enumerate(row):
        if token in end_ids:
            return Response(row[:position], True, position + 1)
    return Response(row, False, len(row))
