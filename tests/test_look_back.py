"""Heads that look back from the start: where they look, and which models they leave alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import make_network
from torch import nn
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from loopformer.backbone import PretrainedBackbone, ScratchBackbone, Split
from loopformer.fixed_rules import FixedRules
from loopformer.language_model import LanguageModel
from loopformer.looped import LoopedTransformer
from loopformer.recurrence import FixedPrompt

CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}


def weights(layer: Any, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Attention weights [H, S, S] of a layer on hidden [1, S, D]."""
    attention, S = layer.self_attn, hidden.shape[1]
    query, key = (m(hidden).view(1, S, -1, 16).transpose(1, 2) for m in (attention.q_proj, attention.k_proj))
    query, key = apply_rotary_pos_emb(query, key.repeat_interleave(query.shape[1] // key.shape[1], 1), *rotary)
    scores = (query @ key.transpose(2, 3))[0] * attention.scaling
    return scores.masked_fill(~torch.ones(S, S, dtype=torch.bool).tril(), -torch.inf).softmax(-1)


@pytest.mark.parametrize("heads", [{}, {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 16}])
def test_head_h_looks_h_plus_one_tokens_back(heads: dict[str, int]) -> None:
    torch.manual_seed(0)
    network = LoopedTransformer(ScratchBackbone(CONFIG | heads), FixedPrompt(), look_back=True)
    backbone = network.backbone
    hidden = torch.randn(1, 120, 64)
    rotary = backbone.lm.model.rotary_emb(hidden, torch.arange(120)[None])
    with torch.no_grad():
        found = weights(backbone.prelude[0], hidden, rotary)
        other = weights(backbone.recurrent[0], hidden, rotary)
    for head, matrix in enumerate(found):
        at = [matrix.diagonal(-back)[20:].mean() for back in range(120 - 21)]
        assert int(torch.stack(at).argmax()) == head + 1
        assert at[head + 1] > 0.3
    assert other[:, 20:].max() < 0.5, "R and C start as they always do"


def test_pretrained_weights_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = ScratchBackbone(CONFIG)
    before = backbone.prelude[0].self_attn.q_proj.bias.clone()  # type: ignore[union-attr, operator]
    monkeypatch.setattr(ScratchBackbone, "reference", PretrainedBackbone.reference)
    monkeypatch.setattr(backbone, "_reference", {"model": "base"}, raising=False)
    LoopedTransformer(backbone, FixedPrompt(), look_back=True)
    assert torch.equal(backbone.prelude[0].self_attn.q_proj.bias, before)  # type: ignore[union-attr, arg-type]


def test_an_ordinary_model_can_start_as_a_looped_one() -> None:
    def biases(network: nn.Module) -> list[torch.Tensor]:
        attention = network.backbone.prelude[0].self_attn  # type: ignore[union-attr, index]
        return [attention.q_proj.bias, attention.k_proj.bias]  # type: ignore[union-attr, list-item]

    ordinary, looped = (
        LanguageModel(ScratchBackbone(CONFIG), look_back=True),
        LoopedTransformer(ScratchBackbone(CONFIG), FixedPrompt(), look_back=True),
    )
    assert all(torch.equal(*pair) for pair in zip(biases(ordinary), biases(looped), strict=True))
    assert all(bias.abs().max() > 1 for bias in biases(ordinary))
    assert all(bias.abs().max() == 0 for bias in biases(LanguageModel(ScratchBackbone(CONFIG))))


def test_layers_without_biases_are_refused() -> None:
    with pytest.raises(ValueError, match="look_back: needs biases"):
        make_network(FixedPrompt(), model_type="qwen3", split=Split(1, 1, 1), look_back=True)


@pytest.mark.parametrize("key_heads", [2, 4])
def test_a_look_up_finds_its_kind_among_keys_and_what_stands_before(key_heads: int) -> None:
    """Layer 1 looks back, layer 2 for tokens like its own: without any training, cells find their rules."""
    torch.manual_seed(0)
    config = CONFIG | {"num_hidden_layers": 4, "num_key_value_heads": key_heads}
    backbone = ScratchBackbone(config, split=Split(2, 1, 1))
    network = LoopedTransformer(backbone, FixedRules(prelude="rules"), look_up=True)
    first, second = (layer.self_attn for layer in backbone.prelude)
    assert first.k_proj.bias.abs().max() > 1
    assert second.k_proj.bias.abs().max() == 0
    heads = second.k_proj.weight.unflatten(0, (key_heads, 16)).repeat_interleave(4 // key_heads, 0)
    assert torch.equal(second.q_proj.weight, heads.flatten(0, 1))
    words = torch.arange(40, 66)  # 26 different tokens as rules, each of them once as a cell
    ids = torch.cat([words, words.flip(0), torch.tensor([3])])[None]
    hidden = backbone.embed(ids)
    geometry = backbone.geometry(hidden, None, torch.tensor([52]))
    geometry.cells = torch.arange(26, 52)[None]
    with torch.no_grad():
        states = backbone.prelude[1].input_layernorm(hidden)
        query, key = second.q_proj(states), second.k_proj(states).unflatten(-1, (key_heads, 16))
        query, key = query.unflatten(-1, (4, 16)), key.repeat_interleave(4 // key_heads, 2)
        scores = torch.einsum("bqhe,bkhe->bhqk", query[:, 26:52], key[:, :26])[0] * second.scaling
    found = scores.argmax(-1)
    assert (found == torch.arange(25, -1, -1)).float().mean() > 0.9
    assert torch.isfinite(network.recurrence.prelude(backbone, hidden, geometry, torch.tensor([53]))).all()
