"""The mechanism panel: exact attention, the same run as always, and a page that says what the data say."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_network
from test_report import BROWSER, browse

from datamodules.graph_batcher import GraphBatcher
from loopformer import checkpoint
from loopformer.backbone import Split
from loopformer.bridge import ReentryBridge
from loopformer.evaluation.attention import recorded_attention
from loopformer.evaluation.mechanism import choose_graph, rule_spans, trace_mechanism, write_mechanism
from loopformer.halting import AffineTimer, GRUController, StopHead
from loopformer.looped import DirectHead, LoopedTransformer
from loopformer.recurrence import FixedPrompt, FullSequence

SHIPPED = Path(__file__).resolve().parents[1] / "checkpoints" / "tiny-executor-timer"
CASES = {
    "full sequence": lambda: make_network(FullSequence(), "llama", halting=StopHead()),
    "fixed prompt": lambda: make_network(
        FixedPrompt(), "qwen3", bridge=ReentryBridge(), direct_head=DirectHead(), halting=GRUController()
    ),
    "fixed prompt, full view, three slots": lambda: make_network(FixedPrompt(slots=3, view="full"), "mistral"),
    "no prelude, no coda": lambda: make_network(FixedPrompt(), split=Split(0, 2, 0), halting=AffineTimer()),
}


def batcher(network: LoopedTransformer) -> GraphBatcher:
    return GraphBatcher(network.backbone.tokenizer)


@pytest.fixture(params=CASES)
def network(request: pytest.FixtureRequest) -> LoopedTransformer:
    return CASES[request.param]().eval()


def eager_first_loop(network: LoopedTransformer, input_ids: torch.Tensor) -> list[torch.Tensor]:
    """Hugging Face's own eager attention of a plain forward pass, which is loop 1: [H, S] of the last token."""
    lm = network.backbone.lm
    lm.set_attn_implementation("eager")
    attentions = lm(input_ids, output_attentions=True).attentions
    lm.set_attn_implementation("sdpa")
    return [layer[0, :, -1].float() for layer in attentions]


def test_attention_is_exact(network: LoopedTransformer) -> None:
    graph = choose_graph(7)
    panel, raw = trace_mechanism(network, batcher(network), graph, 12, 4)
    split, view = network.backbone.split, network.recurrence.view
    assert raw.shape[:3] == (4, split.recurrent + split.coda, 4)
    torch.testing.assert_close(raw.sum(-1), torch.ones(raw.shape[:3]), atol=1e-5, rtol=0)
    batch = batcher(network).batch(graph, 12)
    expected = eager_first_loop(network, batch.views[view].input_ids)[split.prelude :]
    for layer, weights in enumerate(expected):
        torch.testing.assert_close(raw[0, layer], weights, atol=1e-5, rtol=1e-4)
    assert (raw[1] - raw[0]).abs().max() > 1e-3, "later loops look elsewhere"
    sums = np.asarray(panel.rule_attention).sum(-1) + np.asarray(panel.elsewhere)
    np.testing.assert_allclose(sums, 1, atol=1e-4)


def test_later_loops_equal_eager_attention_on_the_recurred_sequence() -> None:
    """Full sequence: R called by the library, eagerly, on the state of the loop before."""
    network = CASES["full sequence"]().eval()
    graph, make = choose_graph(3), batcher(network)
    _, raw = trace_mechanism(network, make, graph, 12, 3)
    split, lm = network.backbone.split, network.backbone.lm
    with torch.inference_mode():
        start = network.start(make.batch(graph, 12))
        states = network.states(start)
        first, second = next(states), next(states)
        lm.set_attn_implementation("eager")
        causal = torch.full((first.shape[1], first.shape[1]), -torch.inf).triu(1)[None, None]
        for loop, state in ((1, first), (2, second)):
            hidden = state
            for offset, layer in enumerate(network.backbone.recurrent):
                inner: Any = layer
                _, weights = inner.self_attn(
                    inner.input_layernorm(hidden), position_embeddings=start.memory.rotary, attention_mask=causal
                )
                torch.testing.assert_close(raw[loop, offset], weights[0, :, -1], atol=1e-5, rtol=1e-4)
                hidden = layer(hidden, position_embeddings=start.memory.rotary, attention_mask=causal)
        assert offset + 1 == split.recurrent


def test_looking_changes_nothing(network: LoopedTransformer) -> None:
    make, graph = batcher(network), choose_graph(0)
    with torch.inference_mode():
        before = network.rollout(make.batch(graph, 5), 6)
        recurrence, kind = network.recurrence, network.backbone.config._attn_implementation
        panel, _ = trace_mechanism(network, make, graph, 5, 6)
        after = network.rollout(make.batch(graph, 5), 6)
    assert network.recurrence is recurrence
    assert network.backbone.config._attn_implementation == kind == "sdpa"
    torch.testing.assert_close(before.letter_logits, after.letter_logits)
    names, probabilities = make.labels.names, before.letter_logits[0].softmax(-1)
    assert [row[0][0] for row in panel.letters] == [names[i] for i in probabilities.argmax(-1)]
    np.testing.assert_allclose([row[0][1] for row in panel.letters], probabilities.amax(-1), atol=1e-4)
    states = before.answer_states[0]
    np.testing.assert_allclose(panel.state_norm[1:], states.norm(dim=-1), rtol=1e-4)
    cosine = torch.nn.functional.cosine_similarity(states[1:], states[:-1], dim=-1)
    np.testing.assert_allclose(panel.cosine[1:], cosine, atol=1e-4)
    change = (states[1:] - states[:-1]).norm(dim=-1) / states[1:].norm(dim=-1)
    np.testing.assert_allclose(panel.change[1:], change, rtol=1e-3)
    assert (panel.direct is None) == (network.direct_head is None)
    if before.stop_logits is None:
        assert panel.stop_probability is None
    else:
        assert panel.stop_probability is not None
        np.testing.assert_allclose(panel.stop_probability, before.stop_logits[0].sigmoid(), atol=1e-4)


def test_an_error_inside_puts_everything_back(network: LoopedTransformer) -> None:
    recurrence = network.recurrence
    with pytest.raises(KeyError), recorded_attention(network):
        raise KeyError
    assert network.recurrence is recurrence
    assert network.backbone.config._attn_implementation == "sdpa"


def test_rule_spans_cover_the_rules() -> None:
    network = make_network(FixedPrompt())
    make, graph = batcher(network), choose_graph(5)
    ids = make.batch(graph, 12).views["full"].input_ids[0]
    spans = rule_spans(make.layout("full", 26, 12), len(ids))
    assert len(spans) == 26
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    for (begin, end), source, target in zip(spans, graph.sources[0], graph.targets[0], strict=True):
        inside = ids[begin:end].tolist()
        assert inside[0] == make.label_ids[source]
        assert int(make.label_ids[target]) in inside[1:]


def test_the_shipped_model_looks_rules_up(tmp_path: Path) -> None:
    network = checkpoint.load(SHIPPED).network
    panel, raw = trace_mechanism(network, batcher(network), choose_graph(0), 12, 14)
    weights = np.asarray(panel.rule_attention)
    assert panel.reference == [row[0][0] for row in panel.letters]
    read = [weights[t, 0, :, rule].mean() for t, rule in enumerate(panel.rule_to_read) if rule is not None]
    assert np.mean(read) > 0.4, "chance would be 1 of 26 rules"
    write_mechanism(tmp_path, "tiny <model>", panel, raw)
    data = json.loads((tmp_path / "mechanism.json").read_text())
    assert {name: data[name] for name in ("letters", "rule_attention")} == {
        name: asdict(panel)[name] for name in ("letters", "rule_attention")
    }
    page = (tmp_path / "mechanism.html").read_text()
    assert "tiny &lt;model&gt;" in page
    assert "http://" not in page.split("<body>")[1]
    with pytest.raises(FileExistsError):
        write_mechanism(tmp_path, "again", panel, raw)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine")
def test_a_browser_draws_the_panel(tmp_path: Path) -> None:
    network = CASES["fixed prompt"]().eval()
    write_mechanism(tmp_path, "random", *trace_mechanism(network, batcher(network), choose_graph(0), 9, 5))
    title = browse((tmp_path / "mechanism.html").read_text(), tmp_path, 0, 500)
    assert title.startswith("plots 2 drawn 2 hovered 2 ")
    assert title.endswith("text #e5e7eb wide false remote 0")


def test_mistakes() -> None:
    network = make_network(FixedPrompt())
    with pytest.raises(ValueError, match="graphs 0 to 1349, got 1350"):
        choose_graph(1350)
    with pytest.raises(ValueError, match="at least one loop"):
        trace_mechanism(network, batcher(network), choose_graph(0), 1, 0)
