"""FieldCarry: equal to a plain loop in values and gradients; only the values of fields are handed on; mistakes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_network
from torch import Tensor

from loopformer import checkpoint
from loopformer.bridge import ReentryBridge
from loopformer.carry import FieldCarry
from loopformer.looped import LoopedTransformer
from loopformer.recurrence import FixedPrompt, FullSequence, Recurrence
from loopformer.state_heads import ClassHead, FieldInputs, MarkedClassHead, MarkerHead, PointerHead, StateHeads

LENGTHS = torch.tensor([7, 9])


def heads() -> StateHeads:
    return StateHeads({"a": ClassHead(4), "b": ClassHead(3)})


def build(carry: FieldCarry | None, recurrence: Recurrence | None = None, **kw: Any) -> LoopedTransformer:
    torch.manual_seed(5)
    given = {"state_heads": heads(), **kw}
    return make_network(recurrence or FixedPrompt(), std=0.15, carry=carry, **given)


def prompts() -> Tensor:
    return torch.randint(3, 150, (2, 9), generator=torch.Generator().manual_seed(1))


def plain(network: LoopedTransformer, state: Tensor, anchor: Tensor) -> Tensor:
    """What enters the next loop, row by row and field by field."""
    rows = []
    for row in range(len(state)):
        told = torch.zeros_like(state[row, 0])
        for name, vectors in network.carry.values.items():
            linear = network.state_heads.heads[name].linear
            likely = torch.softmax(linear(state[row, 0]), -1)
            best = int(likely.argmax())
            told = told + vectors[best] + ((likely - likely.detach())[:, None] * vectors).sum(0)
        size, wanted = (x.square().mean() + network.carry.eps for x in (told, anchor[row, 0]))
        rows.append((told * (wanted / size).sqrt())[None])
    return torch.stack(rows)


@pytest.mark.parametrize("fields", [None, ["b"]])
def test_equals_a_plain_loop_in_values_and_gradients(fields: list[str] | None) -> None:
    network = build(FieldCarry(fields))
    assert set(network.carry.values) == set(fields or ["a", "b"])

    def run(carried: bool) -> tuple[Tensor, dict[str, Tensor]]:
        network.zero_grad()
        start = network.start_from(prompts(), LENGTHS)
        states = list(islice(network.states(start), 4)) if carried else [start.state]
        for _ in range(0 if carried else 3):
            states.append(
                network.recurrence.step(network.backbone, plain(network, states[-1], start.anchor), start.memory)
            )
        logits = network.read(states, start)
        (logits * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum().backward()
        return logits.detach(), {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}

    (ours, gradients), (dense, expected) = run(True), run(False)
    torch.testing.assert_close(ours, dense, atol=1e-5, rtol=1e-5)
    assert gradients.keys() == expected.keys()
    assert any(name.startswith("carry.values") for name in gradients)
    assert any(name.startswith("state_heads") for name in gradients), "gradients pass the choice"
    for name, gradient in expected.items():
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(gradients[name], gradient, atol=1e-5 * scale, rtol=1e-4, msg=name)


def test_nothing_but_the_most_likely_values_is_handed_on() -> None:
    network = build(FieldCarry())
    anchor = torch.randn(6, 1, 32)
    with torch.no_grad():
        states = torch.randn(6, 1, 32)
        other = states.clone()
        basis = torch.linalg.svd(torch.cat([head.linear.weight for head in network.state_heads.heads.values()]))[2]
        other += torch.randn(6, 1, 25) @ basis[7:]  # seven rows of readouts see nothing of the other directions
        carry, inputs = network.carry, FieldInputs(answers=states)
        handed = carry(states, anchor, inputs, network.state_heads)
        same = carry(other, anchor, FieldInputs(answers=other), network.state_heads)
        assert torch.equal(handed, same), "not a bit of it"
        louder = carry(5 * states, anchor, FieldInputs(answers=states), network.state_heads)
        assert torch.equal(handed, louder)
        values = {name: head(inputs).argmax(-1) for name, head in network.state_heads.heads.items()}
        groups = {tuple(int(values[name][row]) for name in values) for row in range(6)}
        scaled = handed / anchor.square().mean(-1, keepdim=True).sqrt()
    assert len({tuple(vector.mul(1e3).round().int().tolist()) for vector in scaled[:, 0]}) == len(groups)
    torch.testing.assert_close(handed.square().mean(-1), anchor.square().mean(-1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("everything", [False, True])
def test_half_precision(everything: bool) -> None:
    network = build(FieldCarry())
    state, anchor = torch.randn(2, 1, 32), torch.randn(2, 1, 32)
    exact = network.carry(state, anchor, FieldInputs(answers=state), network.state_heads)
    if everything:
        network.to(torch.bfloat16)
        state, anchor = state.bfloat16(), anchor.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=not everything):
        handed = network.carry(state, anchor, FieldInputs(answers=state), network.state_heads)
    if everything:
        assert handed.dtype == torch.bfloat16
        torch.testing.assert_close(handed.float(), exact, atol=0.05, rtol=0.05)
    else:
        assert torch.equal(handed, exact), "autocast makes no difference"


def test_an_exported_model_keeps_its_values(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    config: dict[str, Any] = {
        "class_path": "LoopedTransformer",
        "init_args": {
            "backbone": {"class_path": "ScratchBackbone", "init_args": {"config": {**sizes, "num_key_value_heads": 4}}},
            "recurrence": {"class_path": "FixedPrompt"},
            "state_heads": {
                "class_path": "StateHeads",
                "init_args": {"heads": {"a": {"class_path": "ClassHead", "init_args": {"values": 4}}}},
            },
            "carry": {"class_path": "FieldCarry"},
            "adaptation": {"class_path": "Everything"},
        },
    }
    network = checkpoint.build_network(config)
    checkpoint.save(tmp_path / "model", network, config, {})
    loaded = checkpoint.load(tmp_path / "model").network
    assert torch.equal(loaded.carry.values["a"], network.carry.values["a"])


def test_mistakes_are_named() -> None:
    for fields in ([], ["a", "a"]):
        with pytest.raises(ValueError, match=r"carry\.fields: got .*each once"):
            FieldCarry(fields)
    with pytest.raises(ValueError, match=r"carry\.fields: c has no ClassHead in state_heads \(there: a, b\)"):
        build(FieldCarry(["c"]))
    with pytest.raises(ValueError, match=r"carry\.fields: p has no ClassHead"):
        build(FieldCarry(), state_heads=StateHeads({"a": ClassHead(4), "p": PointerHead()}))
    with pytest.raises(ValueError, match="set state_heads"):
        build(FieldCarry(), state_heads=None)
    for head in (ClassHead(4, delay=1), ClassHead(4, source="coda"), MarkedClassHead(4, at="p")):
        with pytest.raises(ValueError, match=r"carry\.fields: late is not told"):
            build(FieldCarry(["late"]), state_heads=StateHeads({"late": head, "p": MarkerHead()}))
    with pytest.raises(ValueError, match="set bridge null"):
        build(FieldCarry(), bridge=ReentryBridge())
    for recurrence in (FixedPrompt(slots=2), FullSequence()):
        with pytest.raises(ValueError, match="slots 1"):
            build(FieldCarry(), recurrence=recurrence)
