"""MarkedCarry: a dense reference, cell by cell, in values and gradients; what restarts is as in loop 1; mistakes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_network
from test_fixed_rules import CELLS, LENGTHS, SPLIT, Dense, prompts, rollout
from torch import Tensor

from loopformer import checkpoint
from loopformer.adaptation import Everything
from loopformer.bridge import Bridge, ReentryBridge, ReinjectionBridge
from loopformer.carry import MarkedCarry
from loopformer.fixed_rules import FixedRules
from loopformer.looped import LoopedTransformer
from loopformer.recurrence import FixedPrompt, FullSequence, Recurrence, Start
from loopformer.state_heads import ClassHead, MarkerHead, StateHeads


def heads() -> StateHeads:
    return StateHeads({"head": MarkerHead(), "top": MarkerHead(), "symbol": ClassHead(4)})


def build(carry: MarkedCarry | None, bridge: Bridge | None = None, recurrence: Recurrence | None = None, **kw: Any):
    network = make_network(
        recurrence or FixedRules(), split=SPLIT, std=0.15, bridge=bridge, carry=carry, state_heads=heads(), **kw
    )
    with torch.no_grad():  # away from the identity
        for parameter in [] if bridge is None else bridge.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return network


def marks(network: LoopedTransformer, state: Tensor, start: Start) -> Tensor:
    assert isinstance(network.carry, MarkedCarry)
    return network.carry.marked(network.field_inputs(state, start), network.state_heads)


class DenseCarry(Dense):
    """Cell by cell, in Python."""

    def entering(self, state: Tensor) -> Tensor:
        network = self.network
        carry, readers = network.carry, network.state_heads.heads
        kept = {max(range(len(self.cells)), key=lambda c: readers[n].linear(state[c]).item()) for n in carry.fields}
        kept |= {len(self.cells)} if carry.answer else set()
        bridged = super().entering(state)
        return torch.stack([(bridged if place in kept else self.moving)[place] for place in range(len(state))])


@pytest.mark.parametrize("bridge", [None, ReentryBridge(), ReinjectionBridge()], ids=["none", "reentry", "reinjection"])
@pytest.mark.parametrize("carry", [MarkedCarry(["head", "top"]), MarkedCarry(["top"], answer=True)])
def test_equals_the_dense_reference_in_values_and_gradients(carry: MarkedCarry, bridge: Bridge | None) -> None:
    network = build(carry, bridge)
    weight = torch.randn(4, 5, len(network.labels))

    def run(logits: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        network.zero_grad()
        (logits * weight).sum().backward()
        return logits.detach(), {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}

    ours, gradients = run(rollout(network, loops=5))
    rows = zip(prompts(), CELLS, LENGTHS.tolist(), strict=True)
    dense, dense_gradients = run(torch.stack([DenseCarry(network, *row).rollout(5) for row in rows]))
    torch.testing.assert_close(ours, dense, atol=1e-5, rtol=1e-5)
    assert set(gradients) <= set(dense_gradients)
    assert not any(name.startswith("state_heads") for name in gradients), "the choice itself passes no gradient"
    for name, gradient in dense_gradients.items():
        scale = max(1.0, float(gradient.abs().max()))
        found = gradients.get(name, torch.zeros_like(gradient))
        torch.testing.assert_close(found, gradient, atol=1e-5 * scale, rtol=1e-4, msg=name)
    everything = build(None, bridge)
    everything.load_state_dict(network.state_dict())
    assert not torch.allclose(rollout(everything, loops=5), ours, atol=1e-4), "what restarts makes a difference"
    assert torch.equal(rollout(everything, loops=1), rollout(network, loops=1))


def test_cells_far_from_the_marks_are_as_in_loop_1_at_every_loop() -> None:
    """So neither the number of loops nor the far end of a string can change them."""
    network = build(MarkedCarry(["head", "top"]), ReinjectionBridge()).eval()
    C = 60
    ids = torch.randint(3, 150, (2, C + 3), generator=torch.Generator().manual_seed(3))
    start = network.start_from(ids, torch.tensor([C + 3] * 2), cells=torch.arange(1, C + 1).expand(2, -1))
    reach = 2 * SPLIT.recurrent
    marked, compared = None, 0
    with torch.no_grad():
        for state in islice(network.states(start), 30):
            cells = state[:, :-1]
            if marked is not None:
                places = torch.arange(C)
                for row in range(2):
                    near = (places[:, None] - marked[row].nonzero()[:, 0]).abs().amin(1) <= reach
                    torch.testing.assert_close(cells[row, ~near], start.state[row, :-1][~near], atol=1e-6, rtol=1e-6)
                    compared += int((~near).sum())
                    changed = (cells[row] - start.state[row, :-1]).abs().amax(-1) > 1e-3
                    assert changed[marked[row]].any()
            marked = marks(network, state, start)
            assert marked.shape == (2, C)
            assert ((marked.sum(1) == 1) | (marked.sum(1) == 2)).all()
    assert compared > 1000


def test_padding_is_never_marked() -> None:
    network = build(MarkedCarry(["head", "top"]), ReentryBridge())
    start = network.start_from(prompts(), LENGTHS, cells=CELLS)
    for state in islice(network.states(start), 6):
        assert not (marks(network, state, start) & (CELLS < 0)).any()


def test_an_exported_model_keeps_its_carry(tmp_path: Path) -> None:
    config = {
        "class_path": "loopformer.looped.LoopedTransformer",
        "init_args": {
            "backbone": {
                "class_path": "loopformer.backbone.ScratchBackbone",
                "init_args": {
                    "config": {
                        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
                        "num_key_value_heads": 4, "max_position_embeddings": 512, "tie_word_embeddings": False,
                    },
                    "model_type": "qwen2",
                    "split": {"prelude": 1, "recurrent": 1, "coda": 1},
                },
            },
            "recurrence": {"class_path": "loopformer.fixed_rules.FixedRules"},
            "state_heads": {
                "class_path": "loopformer.state_heads.StateHeads",
                "init_args": {"heads": {"head": {"class_path": "loopformer.state_heads.MarkerHead"}}},
            },
            "carry": {"class_path": "loopformer.carry.MarkedCarry", "init_args": {"fields": ["head"], "answer": True}},
            "adaptation": {"class_path": "loopformer.adaptation.Everything"},
        },
    }  # fmt: skip
    network = checkpoint.build_network(config)
    checkpoint.save(tmp_path / "model", network, config, {})
    loaded = checkpoint.load(tmp_path / "model").network
    assert isinstance(loaded.carry, MarkedCarry)
    assert (loaded.carry.fields, loaded.carry.answer) == (["head"], True)
    assert isinstance(loaded.adaptation, Everything)
    torch.testing.assert_close(
        rollout(loaded, loops=4), rollout(network.eval(), loops=4).detach(), atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("fields", [[], ["head", "head"]])
def test_fields_are_named_once(fields: list[str]) -> None:
    with pytest.raises(ValueError, match=r"carry\.fields"):
        MarkedCarry(fields)


@pytest.mark.parametrize("name", ["symbol", "nothing"])
def test_a_field_without_a_mark_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=rf"carry\.fields: {name} has no MarkerHead .*head, top"):
        build(MarkedCarry(["head", name]))
    with pytest.raises(ValueError, match="there: none"):
        make_network(FixedRules(), carry=MarkedCarry([name]))


@pytest.mark.parametrize("recurrence", [FixedPrompt(), FullSequence()])
def test_cells_must_recur(recurrence: Recurrence) -> None:
    with pytest.raises(ValueError, match="use FixedRules, or FieldCarry"):
        build(MarkedCarry(["head"]), recurrence=recurrence)


def test_it_costs_no_parameters() -> None:
    def size(network: LoopedTransformer) -> int:
        return sum(p.numel() for p in network.parameters())

    assert size(build(MarkedCarry(["head"]))) == size(build(None))
