"""FixedRules against a slow dense reference, one prompt at a time, in values and gradients; locality; identities."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from conftest import make_network
from torch import Tensor
from transformers.models.llama.modeling_llama import rotate_half

from datamodules.batch import NO_CELL
from loopformer.backbone import Split, run_layers
from loopformer.bridge import Bridge, ReentryBridge, ReinjectionBridge
from loopformer.fixed_rules import FixedRules
from loopformer.looped import LoopedTransformer

MODEL_TYPES = ["qwen2", "qwen3", "llama", "mistral"]
SPLIT = Split(2, 2, 2)
LENGTHS = torch.tensor([16, 12, 14, 9])
CELLS = torch.tensor(
    [
        [2, 3, 4, 6, 7, 8, 10, 11],  # rules before, between and behind the cells
        [4, 5, 6, 7, NO_CELL, NO_CELL, NO_CELL, NO_CELL],
        [12, 11, 3, 2, 1, NO_CELL, NO_CELL, NO_CELL],  # in an order of their own
        [0, 1, 2, 3, 4, 5, 6, 7],  # no rules at all
    ]
)
REACHES: list[dict[str, Any]] = [
    {},
    {"window": 1},
    {"recurrent": ["window", "full"]},
    {"prelude": "rules", "recurrent": ["rules", "window"], "coda": "rules"},
    {"prelude": "full", "recurrent": "full", "coda": "full"},
    {"prelude": "causal", "recurrent": ["full", "window"]},
]


def prompts() -> Tensor:
    return torch.randint(3, 150, (4, 18), generator=torch.Generator().manual_seed(1))


class Dense:
    """The definition at full price: one prompt, no padding, every score of every pair, masked."""

    def __init__(self, network: LoopedTransformer, ids: Tensor, cells: Tensor, length: int) -> None:
        self.network, self.backbone, self.recurrence = network, network.backbone, network.recurrence
        self.cells = cells[cells >= 0].tolist()
        self.rules = [at for at in range(length - 1) if at not in self.cells]
        embedded = self.backbone.embed(ids[:length])
        reach = self.recurrence.reach_of_prelude
        if reach == "causal":
            geometry = self.backbone.geometry(embedded[None], None, torch.tensor([length - 1]))
            hidden = run_layers(self.backbone.prelude, embedded[None], geometry)[0]
        else:
            hidden = embedded
        self.rule_states, self.moving = hidden[self.rules], hidden[[*self.cells, length - 1]]
        self.memory: dict[int, Tensor] = {}
        if reach != "causal":
            for layer in self.backbone.prelude:
                self.remember(layer)
                self.moving = self.layer(layer, self.moving, reach)
        for layer in [*self.backbone.recurrent, *self.backbone.coda]:
            self.remember(layer)

    def remember(self, layer: Any) -> None:
        """Keep the rules' states before the layer, then pass them through the library's own layer."""
        self.memory[layer.self_attn.layer_idx] = self.rule_states
        if self.rules:
            rules = self.rule_states[None]
            self.rule_states = run_layers([layer], rules, self.backbone.geometry(rules, None, torch.tensor([0])))[0]

    def layer(self, layer: Any, states: Tensor, reach: str) -> Tensor:
        attention, C = layer.self_attn, len(self.cells)
        seen = layer.input_layernorm(torch.cat([self.memory[attention.layer_idx], states]))
        query, key, value = (self.heads(attention, seen, name) for name in ("q", "k", "v"))
        M, N = len(self.rules), len(seen)
        every = query @ key.transpose(1, 2)
        visible = torch.ones(N, N, dtype=torch.bool)
        if reach != "full":
            places = torch.arange(C)
            position = self.backbone.lm.model.rotary_emb(seen, places[None])
            turned = [part[:, M : M + C] for part in (query, key)]
            turned = [part * position[0] + rotate_half(part) * position[1] for part in turned]
            every[:, M : M + C, M : M + C] = turned[0] @ turned[1].transpose(1, 2)
            visible[M : M + C] = False
            visible[M : M + C, :M] = reach == "rules"
            near = (places[:, None] - places).abs() <= self.recurrence.window
            visible[M : M + C, M : M + C] = near & (reach == "window")
        something = visible.any(1, keepdim=True)
        weights = (every * attention.scaling).masked_fill(~visible & something, -torch.inf).softmax(-1) * something
        mixed = (weights @ value).transpose(0, 1).reshape(N, -1)[M:]
        states = states + attention.o_proj(mixed)
        return states + layer.mlp(layer.post_attention_layernorm(states))

    @staticmethod
    def heads(attention: Any, seen: Tensor, name: str) -> Tensor:
        """[N, D] -> [H, N, E], key heads repeated for their queries."""
        split = getattr(attention, f"{name}_proj")(seen).view(len(seen), -1, attention.head_dim)
        if hasattr(attention, f"{name}_norm"):
            split = getattr(attention, f"{name}_norm")(split)
        split = split.transpose(0, 1)
        return split if name == "q" else split.repeat_interleave(attention.num_key_value_groups, 0)

    def entering(self, state: Tensor) -> Tensor:
        """Between two loops: [N, D] -> [N, D]."""
        return state if self.network.bridge is None else self.network.bridge(state[None], self.moving[None])[0]

    def rollout(self, loops: int) -> Tensor:
        """Label logits [T, K]."""
        reach, recurrence = self.recurrence.recurrent, self.recurrence
        kinds = reach if isinstance(reach, list) else [reach] * len(self.backbone.recurrent)
        state, logits = self.moving, []
        for loop in range(loops):
            if loop:
                state = self.entering(state)
            for layer, kind in zip(self.backbone.recurrent, kinds, strict=True):
                state = self.layer(layer, state, kind)
            read = state
            for layer in self.backbone.coda:
                read = self.layer(layer, read, recurrence.coda)
            logits.append(self.backbone.label_logits(read[-1], self.network.label_ids))
        return torch.stack(logits)


def build(reach: dict[str, Any], model_type: str = "qwen2", bridge: Bridge | None = None) -> LoopedTransformer:
    network = make_network(FixedRules(**reach), model_type, split=SPLIT, std=0.15, bridge=bridge)
    with torch.no_grad():  # away from the identity
        for parameter in [] if bridge is None else bridge.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return network


def rollout(network: LoopedTransformer, rows: slice = slice(None), loops: int = 4, width: int | None = None) -> Tensor:
    start = network.start_from(prompts()[rows, :width], LENGTHS[rows], cells=CELLS[rows])
    return network.read(list(islice(network.states(start), loops)), start)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("reach", REACHES, ids=["window", "window1", "mixed", "rules", "full", "causal"])
def test_equals_the_dense_reference_in_values_and_gradients(model_type: str, reach: dict[str, Any]) -> None:
    network = build(reach, model_type, ReinjectionBridge())
    weight = torch.randn(4, 4, len(network.labels))

    def run(logits: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        network.zero_grad()
        (logits * weight).sum().backward()
        return logits.detach(), {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}

    ours, gradients = run(rollout(network))
    reference = [Dense(network, *row).rollout(4) for row in zip(prompts(), CELLS, LENGTHS.tolist(), strict=True)]
    dense, dense_gradients = run(torch.stack(reference))
    torch.testing.assert_close(ours, dense, atol=1e-5, rtol=1e-5)
    # What the last layers make of rules, and of cells in C, is read by nobody: the dense reference computes it anyway.
    assert set(gradients) <= set(dense_gradients)
    for name, gradient in dense_gradients.items():
        scale = max(1.0, float(gradient.abs().max()))
        found = gradients.get(name, torch.zeros_like(gradient))
        torch.testing.assert_close(found, gradient, atol=1e-5 * scale, rtol=1e-4, msg=name)


@pytest.mark.parametrize("reach", REACHES, ids=["window", "window1", "mixed", "rules", "full", "causal"])
def test_padding_does_not_change_a_rollout(reach: dict[str, Any]) -> None:
    network = build(reach, bridge=ReentryBridge())
    together = rollout(network)
    for row, (length, cells) in enumerate(zip(LENGTHS.tolist(), CELLS, strict=True)):
        alone = network.start_from(
            prompts()[row : row + 1, :length], LENGTHS[row : row + 1], cells=cells[cells >= 0][None]
        )
        single = network.read(list(islice(network.states(alone), 4)), alone)
        torch.testing.assert_close(together[row], single[0], atol=1e-5, rtol=1e-5)


def test_left_padding_equals_right_padding() -> None:
    network = build({"recurrent": ["window", "full"]}, bridge=ReentryBridge())
    shift = 18 - LENGTHS
    ids = torch.stack([row.roll(int(s)) for row, s in zip(prompts(), shift, strict=True)])
    mask = (torch.arange(18) >= shift[:, None]).long()
    cells = torch.where(CELLS >= 0, CELLS + shift[:, None], NO_CELL)
    start = network.start_from(ids, LENGTHS, mask, cells=cells)
    moved = network.read(list(islice(network.states(start), 4)), start)
    torch.testing.assert_close(moved, rollout(network), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 2])
def test_a_cell_hears_of_a_change_no_faster_than_its_window(window: int) -> None:
    """Two P layers, then two R layers a loop: a change reaches exactly `window` cells further with every layer."""
    network = build({"window": window}, bridge=ReinjectionBridge())
    C = 40
    ids = torch.randint(3, 150, (2, C + 4), generator=torch.Generator().manual_seed(3))
    ids[1] = ids[0]
    ids[1, 2] = (ids[0, 2] + 1) % 100 + 3  # the first cell
    ids[1, 1] = (ids[0, 1] + 1) % 100 + 3  # and a rule, which no window shows
    cells = torch.arange(2, C + 2).expand(2, -1)
    start = network.start_from(ids, torch.tensor([C + 4] * 2), cells=cells)
    for loop, state in enumerate(islice(network.states(start), 3), 1):
        changed = (state[0, :C] != state[1, :C]).any(-1)
        reached = window * (SPLIT.prelude + SPLIT.recurrent * loop)
        assert changed[: reached + 1].all(), loop
        assert not changed[reached + 1 :].any(), loop


def test_windowed_cells_do_not_depend_on_their_place() -> None:
    """The same neighbourhood further along the string ends in the same state: nothing knows how long the string is."""
    network = build({}, bridge=ReinjectionBridge())
    ids = torch.randint(3, 150, (1, 64), generator=torch.Generator().manual_seed(5))
    ids[:, 1:61] = ids[:, 1:31].repeat(1, 2)
    start = network.start_from(ids, torch.tensor([64]), cells=torch.arange(1, 61)[None])
    state = next(islice(network.states(start), 1, None))  # after two loops: 2 * (2 + 4) cells away from the ends
    torch.testing.assert_close(state[:, 12:18], state[:, 42:48], atol=2e-5, rtol=1e-5)
    short = network.start_from(ids[:, [*range(31), 63]], torch.tensor([32]), cells=torch.arange(1, 31)[None])
    nearer = next(islice(network.states(short), 1, None))
    torch.testing.assert_close(state[:, 12:18], nearer[:, 12:18], atol=2e-5, rtol=1e-5)


def test_the_answer_does_not_read_positions() -> None:
    """It attends without rotary positions: in a full model the order of the cells is only what P's windows saw."""
    network = build({"prelude": "full", "recurrent": "full", "coda": "full"})
    order = torch.tensor([3, 0, 2, 1, 7, 5, 4, 6])
    start = network.start_from(prompts()[:1], LENGTHS[:1], cells=CELLS[:1])
    other = network.start_from(prompts()[:1], LENGTHS[:1], cells=CELLS[:1, order])
    a = network.read(list(islice(network.states(start), 3)), start)
    b = network.read(list(islice(network.states(other), 3)), other)
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_rules_are_the_stock_models() -> None:
    """What P makes of the rules is what the stock model makes of them alone, wherever cells lie between."""
    network = build({})
    backbone = network.backbone
    lengths, cells = LENGTHS[:1], CELLS[:1]
    embedded = backbone.embed(prompts()[:1])
    geometry = backbone.geometry(embedded, None, lengths - 1)
    geometry.cells = cells
    hidden = network.recurrence.prelude(backbone, embedded, geometry, lengths)
    rules = torch.tensor([0, 1, 5, 9, 12, 13, 14])
    alone = embedded[:, rules]
    stock = run_layers(backbone.prelude, alone, backbone.geometry(alone, None, torch.tensor([6])))
    torch.testing.assert_close(hidden[:, rules], stock, atol=1e-6, rtol=1e-6)
    assert (hidden[:, 16:] == 0).all(), "padding stays empty"


def test_a_window_as_wide_as_the_string_sees_every_cell() -> None:
    wide, wider = build({"window": 8}), build({"window": 40})
    torch.testing.assert_close(rollout(wide), rollout(wider), atol=1e-6, rtol=1e-6)


def test_one_loop_needs_no_bridge() -> None:
    torch.testing.assert_close(
        rollout(build({}), loops=1), rollout(build({}, bridge=ReinjectionBridge()), loops=1), atol=0, rtol=0
    )


def test_reinjection_starts_as_the_reentry_bridge_plus_the_prelude() -> None:
    ours, plain = ReinjectionBridge(), ReentryBridge()
    ours.build(8), plain.build(8)
    state, anchor = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    torch.testing.assert_close(ours(state, anchor), plain(state, anchor) + anchor)
    with torch.no_grad():
        ours.again.mul_(0)
    torch.testing.assert_close(ours(state, anchor), plain(state, anchor))


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"recurrence\.window"):
        FixedRules(window=0)
    with pytest.raises(ValueError, match="names 3 layers, R has 2"):
        rollout(build({"recurrent": ["full"] * 3}))
    with pytest.raises(ValueError, match="needs prompts with cells"):
        build({}).start_from(prompts(), LENGTHS)


@pytest.mark.parametrize("reach", REACHES[:4], ids=["window", "window1", "mixed", "rules"])
def test_autocast_stays_close_and_keeps_gradients(reach: dict[str, Any]) -> None:
    network = build(reach, bridge=ReinjectionBridge())
    exact = rollout(network).detach()
    with torch.autocast("cpu", torch.bfloat16):
        rough = rollout(network)
        rough.sum().backward()
    assert float((rough.detach() - exact).abs().mean()) < 0.05 * float(exact.abs().mean())
    for layer in network.backbone.recurrent:
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in layer.parameters())


def test_512_loops_stay_finite() -> None:
    network = build({}, bridge=ReinjectionBridge())
    with torch.no_grad():
        start = network.start_from(prompts(), LENGTHS, cells=CELLS)
        norms = [float(state.norm()) for state in islice(network.states(start), 512)]
    assert torch.isfinite(torch.tensor(norms)).all()
    assert norms[-1] < 100 * norms[1]
