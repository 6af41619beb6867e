"""The recurrences against the stock model and against slow dense references, in values and gradients."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from conftest import make_network
from torch import Tensor

from loopformer.backbone import ScratchBackbone, Split, run_layers, take_positions
from loopformer.bridge import ReentryBridge
from loopformer.halting import GRUController
from loopformer.looped import DirectHead, LoopedTransformer
from loopformer.recurrence import FixedPrompt, FullSequence

MODEL_TYPES = ["qwen2", "qwen3", "llama", "mistral"]
LENGTHS = torch.tensor([20, 17, 19, 15])


def prompts() -> Tensor:
    return torch.randint(3, 150, (4, 20), generator=torch.Generator().manual_seed(1))


def labels_of(logits: Tensor, network: LoopedTransformer) -> Tensor:
    return logits[:, network.label_ids]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("recurrence", [FullSequence(), FixedPrompt(), FixedPrompt(fused=False), FixedPrompt(slots=3)])
@pytest.mark.parametrize("padding", ["none", "right", "left"])
def test_one_loop_is_the_stock_model(model_type: str, recurrence: FixedPrompt, padding: str) -> None:
    network = make_network(recurrence, model_type)
    ids, lengths = prompts(), LENGTHS if padding != "none" else torch.full((4,), 20)
    mask = None
    if padding == "left":
        ids = torch.stack([row.roll(20 - int(n)) for row, n in zip(ids, lengths, strict=True)])
        mask = (torch.arange(20) >= 20 - lengths[:, None]).long()
    start = network.start_from(ids, lengths, mask)
    ours = network.read([start.state], start)[:, 0]
    for row in range(4):  # one prompt at a time, without padding
        begin = 20 - int(lengths[row]) if padding == "left" else 0
        alone = ids[row, begin : begin + int(lengths[row])][None]
        stock = network.backbone.lm(alone).logits[:, -1]
        torch.testing.assert_close(ours[row], labels_of(stock, network)[0], atol=2e-6, rtol=0)


def test_full_sequence_without_padding_is_bit_for_bit() -> None:
    network = make_network(FullSequence())
    start = network.start_from(prompts(), torch.full((4,), 20))
    ours = network.read([start.state], start)[:, 0]
    stock = labels_of(network.backbone.lm(prompts()).logits[:, -1], network)
    assert torch.equal(ours, stock)


def dense_fixed_prompt(network: LoopedTransformer, ids: Tensor, lengths: Tensor, loops: int, slots: int) -> Tensor:
    """Every loop recomputes all positions through the library's layers and puts back all but the slots.

    The prompt positions enter R from P at every loop (they passed R once when C reads them), the slots from their own
    newest state: the definition, at full price.
    """
    backbone, bridge = network.backbone, network.bridge
    hidden = backbone.embed(ids)
    geometry = backbone.geometry(hidden, None, lengths - 1)
    entering = run_layers(backbone.prelude, hidden, geometry)
    positions = (lengths - 1)[:, None] + torch.arange(1 - slots, 1)
    index = positions[..., None].expand(-1, -1, hidden.shape[-1])
    anchor = take_positions(entering, positions)
    once = run_layers(backbone.recurrent, entering, geometry)
    state, read = take_positions(once, positions), []
    for loop in range(loops):
        if loop:
            fed = state if bridge is None else bridge(state, anchor)
            state = take_positions(run_layers(backbone.recurrent, entering.scatter(1, index, fed), geometry), positions)
        coda = run_layers(backbone.coda, once.scatter(1, index, state), geometry)
        read.append(backbone.label_logits(take_positions(coda, lengths - 1), network.label_ids))
    return torch.stack(read, 1)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("with_bridge", [True, False])
def test_fixed_prompt_equals_dense_reference(model_type: str, slots: int, fused: bool, with_bridge: bool) -> None:
    bridge = ReentryBridge() if with_bridge else None
    network = make_network(FixedPrompt(slots, fused=fused), model_type, bridge=bridge, std=0.08)
    if bridge is not None:
        with torch.no_grad():  # away from the identity
            bridge.weight += 0.1 * torch.randn_like(bridge.weight)
    weight = torch.randn(4, 5, len(network.labels))

    def run(dense: bool) -> tuple[Tensor, dict[str, Tensor]]:
        network.zero_grad()
        if dense:
            logits = dense_fixed_prompt(network, prompts(), LENGTHS, 5, slots)
        else:
            start = network.start_from(prompts(), LENGTHS)
            logits = network.read(list(islice(network.states(start), 5)), start)
        (logits * weight).sum().backward()
        return logits.detach(), {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}

    (ours, our_gradients), (dense, dense_gradients) = run(False), run(True)
    torch.testing.assert_close(ours, dense, atol=1e-5, rtol=1e-5)
    assert our_gradients.keys() == dense_gradients.keys()
    for name, gradient in dense_gradients.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(our_gradients[name], gradient, atol=1e-5 * max(1.0, scale), rtol=1e-4, msg=name)


def test_full_sequence_equals_plain_loop_over_layers() -> None:
    network = make_network(FullSequence(), std=0.08)

    def plain() -> Tensor:
        hidden = network.backbone.embed(prompts())
        geometry = network.backbone.geometry(hidden, None, LENGTHS - 1)
        for layer in network.backbone.prelude:
            hidden = layer(hidden, position_embeddings=geometry.rotary)
        read = []
        for _ in range(4):
            for layer in network.backbone.recurrent:
                hidden = layer(hidden, position_embeddings=geometry.rotary)
            coda = hidden
            for layer in network.backbone.coda:
                coda = layer(coda, position_embeddings=geometry.rotary)
            normed = network.backbone.lm.model.norm(coda)[torch.arange(4), LENGTHS - 1]
            read.append(network.backbone.lm.lm_head(normed)[:, network.label_ids])
        return torch.stack(read, 1)

    start = network.start_from(prompts(), LENGTHS)
    ours = network.read(list(islice(network.states(start), 4)), start)
    torch.testing.assert_close(ours, plain(), atol=1e-5, rtol=1e-5)
    parameters = [p for p in network.parameters() if p.requires_grad]
    for a, b in zip(
        torch.autograd.grad(ours.square().sum(), parameters, allow_unused=True),
        torch.autograd.grad(plain().square().sum(), parameters, allow_unused=True),
        strict=True,
    ):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("recurrence", [FullSequence(), FixedPrompt()])
def test_padding_does_not_change_a_rollout(recurrence: FixedPrompt) -> None:
    network = make_network(recurrence, bridge=ReentryBridge())
    together = network.start_from(prompts(), LENGTHS)
    batched = network.read(list(islice(network.states(together), 4)), together)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = network.start_from(prompts()[row : row + 1, :length], LENGTHS[row : row + 1])
        single = network.read(list(islice(network.states(alone), 4)), alone)
        torch.testing.assert_close(batched[row], single[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("recurrence", [FullSequence(), FixedPrompt()])
def test_state_depends_on_the_prompt_at_every_loop(recurrence: FixedPrompt) -> None:
    network = make_network(recurrence, bridge=ReentryBridge(), std=0.08)
    hidden: list[Tensor] = []
    network.backbone.lm.model.embed_tokens.register_forward_hook(
        lambda _m, _a, out: hidden.append(out.detach().requires_grad_()) or hidden[-1]  # type: ignore[func-returns-value]
    )
    start = network.start_from(prompts(), LENGTHS)
    for loop, state in enumerate(islice(network.states(start), 8), 1):
        answer = network.recurrence.answer(state, start.memory)
        (gradient,) = torch.autograd.grad(answer.square().sum(), hidden[0], retain_graph=True)
        first_rule = gradient[:, 1].abs().sum()
        assert first_rule > 0, f"loop {loop} does not see the prompt"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_1024_loops_stay_finite(dtype: torch.dtype) -> None:
    network = make_network(FixedPrompt(), bridge=ReentryBridge(), direct_head=DirectHead(), halting=GRUController())
    network.to(dtype)
    with torch.no_grad():
        start = network.start_from(prompts(), LENGTHS)
        states = network.states(start)
        norms = [float(state.float().norm()) for state in islice(states, 1024)]
        logits = network.read([next(states)], start)
    assert torch.isfinite(torch.tensor(norms)).all()
    assert torch.isfinite(logits).all()
    assert norms[-1] < 100 * norms[1]


def test_memory_and_split_are_validated() -> None:
    with pytest.raises(ValueError, match=r"recurrence\.slots"):
        FixedPrompt(slots=0)
    with pytest.raises(ValueError, match=r"backbone\.split"):
        Split(1, 0, 1)
    with pytest.raises(ValueError, match="covers 4 layers, but the model has 3"):
        ScratchBackbone({"hidden_size": 32, "num_hidden_layers": 3}, split=Split(1, 2, 1))
