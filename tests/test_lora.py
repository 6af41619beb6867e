"""LoRA through peft: sizes, names, identity at the start, and adapters that peft itself loads back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import make_network
from peft import PeftModel
from test_looped import real_size, trainable

from datamodules.batch import Batch
from loopformer.adaptation import LoRA
from loopformer.halting import StopHead
from loopformer.looped import LoopedTransformer
from loopformer.losses import letter_loss
from loopformer.recurrence import FixedPrompt, FullSequence


def perturbed() -> LoopedTransformer:
    """Architecture 3a whose adapter is not the identity any more."""
    network = make_network(FixedPrompt(view="full"), halting=StopHead(), adaptation=LoRA())
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return network.eval()


def test_adapter_at_initialisation_is_no_adapter(graph_batch: Batch) -> None:
    plain = make_network(FullSequence())
    adapted = make_network(FullSequence(), adaptation=LoRA())
    assert torch.equal(plain.rollout(graph_batch, 3).letter_logits, adapted.rollout(graph_batch, 3).letter_logits)


def test_only_adapters_of_the_recurrent_block_are_trained(graph_batch: Batch) -> None:
    network = make_network(FullSequence(), adaptation=LoRA())
    names = [n for n, p in network.named_parameters() if p.requires_grad]
    expected = [
        f"backbone.lm.model.layers.{layer}.self_attn.{target}.lora_{side}.default.weight"
        for layer in (1, 2)
        for target in ("q_proj", "v_proj")
        for side in "AB"
    ]
    assert sorted(names) == sorted(expected)
    letter_loss(network.rollout(graph_batch, 3).letter_logits, graph_batch.labels).backward()
    assert all(p.grad is not None for n, p in network.named_parameters() if "lora_B" in n)


def test_published_counts() -> None:
    assert trainable(real_size(StopHead(), LoRA()).backbone) == 270_336
    head = StopHead()
    head.build(896)
    assert 270_336 + trainable(head) == 387_073


def test_peft_loads_the_exported_adapter(tmp_path: Path, graph_batch: Batch) -> None:
    network = perturbed()
    expected = network.rollout(graph_batch, 1).letter_logits[:, 0]
    network.adaptation.export(network.backbone, tmp_path)
    base = make_network(FullSequence()).backbone.lm  # the same seed: the same base
    loaded = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    view = graph_batch.views["full"]
    logits = loaded(view.input_ids).logits[torch.arange(len(graph_batch)), view.answer_positions]
    torch.testing.assert_close(logits[:, network.label_ids], expected, atol=1e-5, rtol=1e-5)
    without = make_network(FullSequence()).rollout(graph_batch, 1).letter_logits[:, 0]
    assert (without - expected).abs().max() > 1e-3, "the adapter must matter for this test to say anything"


def test_merged_model_equals_the_adapted_one(graph_batch: Batch) -> None:
    network = perturbed()
    expected = network.rollout(graph_batch, 4).letter_logits
    assert isinstance(network.adaptation, LoRA)
    network.adaptation.merge(network.backbone)
    torch.testing.assert_close(network.rollout(graph_batch, 4).letter_logits, expected, atol=1e-5, rtol=1e-5)


def test_a_second_adapter_is_refused() -> None:
    network = make_network(FullSequence(), adaptation=LoRA())
    with pytest.raises(ValueError, match="LoRA adapter already"):
        LoRA().apply(network.backbone)
