"""Composition: trainable parameters, gradients, halting interface, losses."""

from __future__ import annotations

import pytest
import torch
from conftest import make_network

from datamodules.batch import IGNORE, Batch
from loopformer.adaptation import Adaptation, Everything, Frozen, RecurrentBlock
from loopformer.backbone import ScratchBackbone, Split
from loopformer.bridge import ReentryBridge
from loopformer.halting import AffineTimer, GRUController, Halting, StopHead
from loopformer.looped import DirectHead, LoopedTransformer
from loopformer.losses import initial_loss, letter_loss, remaining_loss, stop_loss
from loopformer.recurrence import FixedPrompt, FullSequence

QWEN_05B = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


def real_size(halting: Halting | None, adaptation: Adaptation | None = None) -> LoopedTransformer:
    """Architecture 4 at the size of Qwen2.5-0.5B, on the meta device: shapes without memory."""
    with torch.device("meta"):
        backbone = ScratchBackbone(QWEN_05B, split=Split(6, 12, 6))
        return LoopedTransformer(
            backbone,
            FixedPrompt(),
            bridge=ReentryBridge(),
            direct_head=DirectHead(),
            halting=halting,
            adaptation=adaptation or RecurrentBlock(),
        )


def trainable(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def test_published_parameter_counts() -> None:
    executor = real_size(GRUController())
    assert sum(p.numel() for p in executor.backbone.parameters()) == 494_032_768
    assert trainable(executor) == 180_108_059
    assert trainable(executor.backbone) == 178_948_608
    assert executor.bridge is not None
    assert trainable(executor.bridge) == 803_712
    assert executor.direct_head is not None
    assert trainable(executor.direct_head) == 23_322
    assert executor.halting is not None
    assert trainable(executor.halting) == 332_417
    with_readout = GRUController(predict_remaining=True)
    with_readout.build(896)
    assert trainable(with_readout) == 332_417 + 129
    head, timer = StopHead(), AffineTimer()
    head.build(896)
    timer.build(896)
    assert trainable(head) == 116_737
    assert trainable(timer.reader) == 898
    assert trainable(timer) == 898 + 4


def test_trainable_names_of_architecture_4() -> None:
    network = make_network(
        FixedPrompt(), bridge=ReentryBridge(), direct_head=DirectHead(), halting=GRUController(),
        adaptation=RecurrentBlock(),
    )  # fmt: skip
    names = sorted(n for n, p in network.named_parameters() if p.requires_grad)
    layers = [n for n in names if n.startswith("backbone")]
    assert all(n.startswith(("backbone.lm.model.layers.1.", "backbone.lm.model.layers.2.")) for n in layers)
    assert len(layers) == 2 * 12
    assert [n for n in names if not n.startswith("backbone")] == [
        "bridge.gain",
        "bridge.weight",
        "direct_head.linear.bias",
        "direct_head.linear.weight",
        "halting.cell.bias_hh",
        "halting.cell.bias_ih",
        "halting.cell.weight_hh",
        "halting.cell.weight_ih",
        "halting.read_prompt.0.bias",
        "halting.read_prompt.0.weight",
        "halting.read_prompt.1.bias",
        "halting.read_prompt.1.weight",
        "halting.read_state.0.bias",
        "halting.read_state.0.weight",
        "halting.read_state.1.bias",
        "halting.read_state.1.weight",
        "halting.stop.bias",
        "halting.stop.weight",
    ]


@pytest.mark.parametrize("halting", [GRUController(), StopHead()], ids=["gru", "stop_head"])
@pytest.mark.parametrize("adaptation", [RecurrentBlock(), Everything()], ids=["recurrent", "everything"])
def test_every_trainable_part_gets_a_gradient(halting: Halting, adaptation: Adaptation, graph_batch: Batch) -> None:
    network = make_network(
        FixedPrompt(),
        bridge=ReentryBridge(),
        direct_head=DirectHead(),
        halting=halting,
        adaptation=adaptation,
        std=0.08,
    )
    rollout = network.rollout(graph_batch, 3)
    assert rollout.direct_logits is not None
    assert rollout.stop_logits is not None
    assert rollout.initial_logits is not None
    loss = letter_loss(rollout.letter_logits, graph_batch.labels) + letter_loss(
        rollout.direct_logits, graph_batch.labels
    )
    loss = loss + stop_loss(rollout.stop_logits, graph_batch.steps)
    (loss + initial_loss(rollout.initial_logits, graph_batch.initial)).backward()
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            # k_proj's bias shifts all scores of a query alike and softmax ignores it: its gradient is rounding.
            assert parameter.grad.abs().sum() > 0, name
        else:
            assert parameter.grad is None, name


def test_controller_loss_never_reaches_the_executor(graph_batch: Batch) -> None:
    network = make_network(FixedPrompt(), bridge=ReentryBridge(), halting=GRUController())
    stop = network.rollout(graph_batch, 3).stop_logits
    assert stop is not None
    stop_loss(stop, graph_batch.steps).backward()
    touched = {name.split(".")[0] for name, p in network.named_parameters() if p.grad is not None}
    assert touched == {"halting"}


def test_stop_head_loss_reaches_the_recurrent_block(graph_batch: Batch) -> None:
    network = make_network(FixedPrompt(view="full"), halting=StopHead())
    stop = network.rollout(graph_batch, 3).stop_logits
    assert stop is not None
    stop_loss(stop, graph_batch.steps).backward()
    assert all(p.grad is not None for p in network.backbone.recurrent[0].parameters())


def test_frozen_parts_stay_in_eval_mode_and_bfloat16() -> None:
    network = make_network(FixedPrompt(), adaptation=Frozen())
    network.backbone.to(torch.bfloat16)
    RecurrentBlock().apply(network.backbone)
    network.adaptation = RecurrentBlock()
    network.train()
    assert not network.backbone.prelude[0].training
    assert network.backbone.recurrent[0].training
    assert next(network.backbone.prelude[0].parameters()).dtype == torch.bfloat16
    assert {p.dtype for layer in network.backbone.recurrent for p in layer.parameters()} == {torch.float32}


def test_autocast_keeps_gradients_after_a_pass_without_grad(graph_batch: Batch) -> None:
    """Autocast caches casts of weights; a cache filled under no_grad must not cut the shared block's gradient."""
    network = make_network(FixedPrompt(), bridge=ReentryBridge(), std=0.08)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            network.rollout(graph_batch, 3)
        letter_loss(network.rollout(graph_batch, 3).letter_logits, graph_batch.labels).backward()
    for layer in network.backbone.recurrent:
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())


def test_rollout_reads_the_view_of_its_recurrence(graph_batch: Batch) -> None:
    changed = Batch(**{**vars(graph_batch), "views": dict(graph_batch.views)})
    view = changed.views["full"]
    changed.views["full"] = type(view)(view.input_ids.flip(1), view.lengths)
    blind, seeing = make_network(FixedPrompt()), make_network(FullSequence())
    assert torch.equal(blind.rollout(graph_batch, 2).letter_logits, blind.rollout(changed, 2).letter_logits)
    assert not torch.equal(seeing.rollout(graph_batch, 2).letter_logits, seeing.rollout(changed, 2).letter_logits)


def test_labels_must_be_single_tokens() -> None:
    with pytest.raises(ValueError, match="a label must be one token"):
        make_network(FixedPrompt(), labels=[" A", " AB"])
    with pytest.raises(ValueError, match="share a token"):
        make_network(FixedPrompt(), labels=[" A", " A"])


def test_loops_must_be_positive(graph_batch: Batch) -> None:
    with pytest.raises(ValueError, match="loops"):
        make_network(FixedPrompt()).rollout(graph_batch, 0)


def test_letter_loss_weighs_examples_not_loops() -> None:
    logits = torch.zeros(2, 3, 4)
    logits[0, 0, 1] = 2.0
    labels = torch.tensor([[1, IGNORE, IGNORE], [0, 1, 2]])
    sure = torch.logsumexp(torch.tensor([0.0, 2.0, 0.0, 0.0]), 0) - 2.0
    expected = (sure + torch.log(torch.tensor(4.0))) / 2
    torch.testing.assert_close(letter_loss(logits, labels), expected)


def test_stop_loss_by_hand() -> None:
    logits = torch.tensor([[1.0, -2.0, 3.0], [0.5, 9.0, 9.0], [1.0, 2.0, 3.0]])
    steps = torch.tensor([3, 1, 7])  # stop at the end, at once, beyond the rollout
    softplus = torch.nn.functional.softplus
    first = (softplus(torch.tensor([1.0, -2.0])).mean() + softplus(torch.tensor(-3.0))) / 2
    second = softplus(torch.tensor(-0.5))
    third = softplus(torch.tensor([1.0, 2.0, 3.0])).mean()
    torch.testing.assert_close(stop_loss(logits, steps), (first + second + third) / 3)


def test_remaining_loss_by_hand() -> None:
    estimates = torch.tensor([[3.0, 2.0, 2.0], [1.0, 0.0, 5.0]])
    steps = torch.tensor([2, 1])
    squared = torch.tensor([[1.0, 1.0, 4.0], [0.0, 0.0, 0.0]]) / 144
    means = (squared[0].mean() + squared[1, :2].mean()) / 2
    torch.testing.assert_close(remaining_loss(estimates, steps, 12.0), means + 12 * squared[:, 0].mean())
