"""Options behind the ablation overlays, each against exact numbers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_network
from test_callbacks import trainer

from datamodules.batch import IGNORE, Batch
from datamodules.graph import GraphDataModule
from datamodules.graph_evaluation import EvaluationSplit, GeneratedEvaluation
from datamodules.graph_sources import GeneratedSplit, GraphStream, PublishedSplit
from datamodules.random_loops import RandomLoops
from datamodules.tasks.graph import KINDS
from datamodules.tasks.graph_generators import GraphRecipe
from datamodules.tasks.graph_stream import Stage, draw_paths
from loopformer.bridge import ReentryBridge
from loopformer.executor import ExecutorModule
from loopformer.halting import GRUController, StopHead
from loopformer.looped import DirectHead
from loopformer.loss_weights import LossWeights
from loopformer.losses import equal_loop_weights, letter_loss
from loopformer.optim import Optimizer, parameter_groups
from loopformer.recurrence import FixedPrompt, FullSequence
from loopformer.tokenizer import tiny_tokenizer

TRAINED = (1, 2, 3, 4, 5, 6, 8, 10, 12)
SHARES = dict.fromkeys(TRAINED, 1 / 9)


def total_weight(loop: int, equal: bool) -> float:
    """Weight of a loop over data with one example of each trained count: what the loss gains per unit of its error."""
    losses = []
    for margin in (0.0, 3.0):  # two labels: an error of log 2, or of log(1 + e^3), at that loop
        batches = []
        for count in TRAINED:
            logits, labels = torch.zeros(1, count, 2), torch.zeros(1, count, dtype=torch.long)
            if loop <= count:
                logits[0, loop - 1, 1] = margin
            weights = equal_loop_weights(SHARES, count) if equal else None
            batches.append(letter_loss(logits, labels, weights))
        losses.append(torch.stack(batches).mean())
    return float(losses[1] - losses[0]) / (math.log(1 + math.e**3) - math.log(2))


def test_loops_weigh_as_the_docstring_says() -> None:
    assert total_weight(1, equal=False) / total_weight(12, equal=False) == pytest.approx(33.1, rel=1e-4)
    assert [total_weight(t, equal=True) for t in (1, 2, 7, 9, 12)] == pytest.approx([1 / 12] * 5, rel=1e-4)


def test_equal_weights_exactly() -> None:
    found = equal_loop_weights(SHARES, 12)
    reaching = [9, 8, 7, 6, 5, 4, 3, 3, 2, 2, 1, 1]  # of nine counts, those that reach loop 1, 2, ...
    torch.testing.assert_close(found, torch.tensor([9 / (12 * n) for n in reaching]))
    assert float((found * torch.tensor(reaching) / 9).sum()) == pytest.approx(1.0)
    assert equal_loop_weights({1: 0.5, 2: 0.5}, 1).tolist() == [0.5]
    with pytest.raises(ValueError, match="'equal' weighs loops 1 to 12"):
        equal_loop_weights(SHARES, 13)


def test_equal_weights_with_padding_and_mixed_depths() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[1, IGNORE, IGNORE], [0, 4, 2]])
    weights = torch.tensor([0.5, 1.0, 2.0])
    errors = -logits.log_softmax(-1)
    expected = 0.5 * errors[0, 0, 1] + 0.5 * errors[1, 0, 0] + errors[1, 1, 4] + 2 * errors[1, 2, 2]
    torch.testing.assert_close(letter_loss(logits, labels, weights), expected / 2)


def test_training_weighs_loops_and_validation_does_not(graph_batch: Batch) -> None:
    network = make_network(FixedPrompt(), direct_head=DirectHead(), bridge=ReentryBridge())
    data = GraphDataModule(network.backbone.tokenizer, validation=EvaluationSplit(per_depth=1, batch_size=1))
    assert list(data.count_shares) == list(TRAINED)
    assert list(data.count_shares.values()) == pytest.approx([1 / 9] * 9)
    module = ExecutorModule(network, losses=LossWeights(loops="equal"))
    module.trainer = trainer(max_steps=1)
    module.trainer.datamodule = data
    module.log = lambda *_, **__: None  # type: ignore[method-assign]
    rollout = network.rollout(graph_batch, 3)
    weights = equal_loop_weights(SHARES, 3)
    assert rollout.direct_logits is not None
    expected = letter_loss(rollout.letter_logits, graph_batch.labels, weights)
    expected = expected + 0.25 * letter_loss(rollout.direct_logits, graph_batch.labels, weights)
    torch.testing.assert_close(module.training_step(graph_batch, 0)["loss"], expected)
    equal, example = (
        trainer().validate(ExecutorModule(network, losses=LossWeights(loops=loops)), datamodule=data, verbose=False)[0]
        for loops in ("equal", "example")
    )
    assert equal["val/letter_loss"] == example["val/letter_loss"]


def test_shares_follow_the_curriculum() -> None:
    stream = GraphStream([Stage(4, [1]), Stage(6, [1, 2, 2, 4])])
    assert stream.shares() == {1: 1.0}
    stream.stage = 1
    assert stream.shares() == {1: 0.25, 2: 0.5, 4: 0.25}


def test_bridge_without_parameters_restores_the_scale() -> None:
    torch.manual_seed(1)
    bridge = ReentryBridge(gain=False, projection=False)
    bridge.build(16)
    assert list(bridge.parameters()) == []
    state, anchor = 7 * torch.randn(3, 2, 16), torch.randn(3, 2, 16)
    out = bridge(state, anchor)
    rms = out.square().mean(-1).sqrt()
    torch.testing.assert_close(rms, anchor.square().mean(-1).sqrt(), rtol=1e-4, atol=0)
    torch.testing.assert_close(torch.nn.functional.cosine_similarity(out, state, dim=-1), torch.ones(3, 2))
    full = ReentryBridge()
    full.build(16)
    torch.testing.assert_close(full(state, anchor), out)
    gain = ReentryBridge(projection=False)
    gain.build(16)
    assert [name for name, _ in gain.named_parameters()] == ["gain"]


def test_random_loops_have_the_count_as_mean_and_a_heavy_tail() -> None:
    loops = RandomLoops(sigma=0.5, most=10_000)
    drawn = np.array([loops.draw(12, (0, 0, i)) for i in range(4_000)])
    assert drawn.mean() == pytest.approx(12, abs=0.4)  # four standard errors
    # Of a log-normal Poisson number of mean 11: 11 + 11^2 (e^(1/4) - 1) = 45.4; a Poisson number would have 11.
    assert drawn.var() == pytest.approx(45.4, rel=0.25)
    assert drawn.min() >= 1
    assert RandomLoops(sigma=0.0, most=10_000).draw(1, (0,)) == 1
    plain = np.array([RandomLoops(0.0, 10_000).draw(12, (1, i)) for i in range(4_000)])
    assert plain.var() == pytest.approx(11, rel=0.15)
    assert {RandomLoops(0.5, 8).draw(12, (0, i)) for i in range(200)} <= set(range(1, 9))
    assert loops.draw(12, (3, 1, 4)) == loops.draw(12, (3, 1, 4))
    for wrong in ({"sigma": -0.1}, {"most": 0}):
        with pytest.raises(ValueError, match=r"train\.loops\."):
            RandomLoops(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["published", "generated", "stream"])
def test_random_loops_label_every_loop(source: str) -> None:
    loops = RandomLoops(sigma=0.5, most=20)
    recipe = GraphRecipe("mixture", 5, "train", (3, 6))
    data = GraphDataModule(
        tiny_tokenizer(),
        train={
            "published": PublishedSplit(loops=loops),
            "generated": GeneratedSplit(recipe, 60, group_by_depth=False, loops=loops),
            "stream": GraphStream([Stage(26, [12], 4)], loops=loops),
        }[source],
    )
    batches = list(zip(range(15), data.train_dataloader(), strict=False))
    ranks = [[data.train_batches(rank, 2).batch(0, i).labels.shape[1] for i in range(7)] for rank in (0, 1)]
    assert ranks[0] == ranks[1], "processes wait for each other: they must run the same number of loops"
    assert len({batch.labels.shape[1] for _, batch in batches}) > 3
    assert any((batch.steps != batch.labels.shape[1]).any() for _, batch in batches)
    for position, batch in batches:
        again = data.train_batches(0, 1).batch(0, position)
        assert torch.equal(again.labels, batch.labels), "the draw belongs to the position"
        assert (batch.labels != IGNORE).all()
        # Reading the rules back from the prompt: every label follows from the one before.
        state = batch.initial
        view = batch.views["executor"]
        letters = data.label_ids
        sources, targets = (view.input_ids[:, columns] for columns in rule_columns(view.input_ids, letters))
        for label in batch.labels.unbind(1):
            where = (sources == letters[state][:, None]).int().argmax(1)
            assert torch.equal(targets[torch.arange(len(batch)), where], letters[label])
            state = label


def rule_columns(ids: torch.Tensor, letters: torch.Tensor) -> Iterator[torch.Tensor]:
    """Columns of the rules' sources and targets: letters alternate, the last one is the start."""
    columns = torch.isin(ids[0], letters).nonzero()[:-1, 0]
    return iter((columns[::2], columns[1::2]))


def test_paths_of_the_stream_visit_different_nodes() -> None:
    graphs = draw_paths(np.random.default_rng(0), 200, nodes=13, depth=12)
    visited = np.concatenate([graphs.start[:, None], graphs.states(12)], axis=1)
    assert all(len(set(row)) == 13 for row in visited.tolist())
    assert {KINDS[kind] for kind in graphs.kind} == {"path"}
    assert all(sorted(row) == sorted(set(row)) for row in graphs.sources.tolist())
    assert len(np.unique(graphs.start)) > 20, "any letter may be the start"
    positions = (graphs.sources == graphs.start[:, None]).argmax(1)
    assert len(np.unique(positions)) == 13, "rules are shown in random order"
    beyond = draw_paths(np.random.default_rng(1), 500, nodes=26, depth=2).states(3)[:, 2]
    assert len(np.unique(beyond)) == 26, "after its last step a path goes anywhere"
    with pytest.raises(ValueError, match="at most 3 steps"):
        draw_paths(np.random.default_rng(0), 1, nodes=4, depth=4)
    with pytest.raises(ValueError, match=r"train\.paths"):
        GraphStream([Stage(4, [1, 4])], paths=True)
    batches = GraphDataModule(tiny_tokenizer(), train=GraphStream(paths=True)).train_batches(0, 1)
    assert set(batches.batch(0, 0).facts["kind"].tolist()) == {KINDS.index("path")}


def test_long_validation_is_a_cohort_of_its_own() -> None:
    network = make_network(FixedPrompt())
    long = EvaluationSplit(split="deep", per_depth=2, depths=[16, 32])
    data = GraphDataModule(
        network.backbone.tokenizer,
        train=PublishedSplit("path-6"),
        validation=EvaluationSplit("path-6", per_depth=1, batch_size=3),
        long_validation=long,
    )
    assert data.cohorts == {"trained": list(range(1, 7)), "beyond": [7, 8], "long": [16, 32]}
    from callbacks.metrics import ExecutionMetrics

    logged = trainer(ExecutionMetrics()).validate(ExecutorModule(network), datamodule=data, verbose=False)[0]
    graphs, prefixes = long.graphs(), []
    with torch.no_grad():
        for row in range(4):
            batch = data.batcher.batch(graphs[row : row + 1])
            letters = network.rollout(batch, int(batch.steps)).letter_logits.argmax(-1)
            right = (letters == batch.labels)[0].tolist()
            prefixes.append([*right, False].index(False))
    assert logged["val/correct_prefix/long"] == pytest.approx(sum(prefixes) / 4)
    assert "val/letter_loss/long" in logged
    with pytest.raises(ValueError, match=r"long_validation: counts \[3, 12\]"):
        GraphDataModule(
            tiny_tokenizer(),
            long_validation=GeneratedEvaluation(GraphRecipe("mixture", 9, "x", (3, 12, 20)), size=6),
        )


@pytest.mark.parametrize(
    ("parts", "weights", "message"),
    [
        ({}, {"direct": 0.25}, r"losses\.direct: 0\.25 is ignored"),
        ({}, {"stop": 0.1}, r"losses\.stop: 0\.1 is ignored"),
        ({"halting": GRUController()}, {"stop": 0.0}, r"leaves network\.halting untrained"),
        ({"halting": StopHead()}, {}, "cannot know when to stop"),
    ],
)
def test_ignored_losses_are_told(parts: dict[str, Any], weights: dict[str, float], message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        ExecutorModule(make_network(FixedPrompt(), **parts), losses=LossWeights(**weights))


def test_losses_follow_the_parts_silently() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bare = ExecutorModule(make_network(FixedPrompt()), losses=LossWeights(direct=0.0)).loss_weights
        parts = {"direct_head": DirectHead(), "halting": StopHead()}
        full = ExecutorModule(make_network(FixedPrompt(view="full"), **parts)).loss_weights
    assert (bare.direct, bare.stop) == (0.0, 0.0)
    assert (full.letter, full.direct, full.initial, full.stop) == (1.0, 0.25, 0.0, 0.1)
    with pytest.raises(ValueError, match=r"losses\.direct: 0 would leave the direct head untrained"):
        ExecutorModule(make_network(FixedPrompt(), direct_head=DirectHead()), losses=LossWeights(direct=0.0))


def test_decay_groups_spare_vectors_and_the_bridge_unless_asked_not_to() -> None:
    network = make_network(FixedPrompt(), bridge=ReentryBridge(), direct_head=DirectHead(), halting=GRUController())
    names = {id(p): name for name, p in network.named_parameters()}
    decayed, spared = parameter_groups(network, [network.bridge], Optimizer(weight_decay=0.01))
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.01, 0.0)
    assert {id(p) for p in decayed["params"] + spared["params"]} == set(names), "every parameter once"
    assert len(decayed["params"]) + len(spared["params"]) == len(names)
    for parameter in decayed["params"]:
        assert names[id(parameter)].split(".")[-1] in ("weight", "weight_ih", "weight_hh")
        assert "norm" not in names[id(parameter)]
    left_out = {names[id(p)] for p in spared["params"]}
    assert {"bridge.weight", "bridge.gain", "direct_head.linear.bias", "backbone.lm.model.norm.weight"} <= left_out
    (single,) = parameter_groups(network, [network.bridge], Optimizer(weight_decay=0.01, decay="all"))
    assert single["weight_decay"] == 0.01
    assert {id(p) for p in single["params"]} == set(names)


def test_constant_schedule_ignores_its_decay_and_says_so() -> None:
    with pytest.warns(UserWarning, match=r"optimizer\.decay_steps: 5 is ignored"):
        Optimizer(schedule="constant", decay_steps=5)


def test_a_run_cut_at_an_update_has_that_update_s_weights() -> None:
    """With a constant learning rate, ending at update 2,500 is the same as picking it from a longer run."""
    from lightning import Callback

    class Snapshot(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            if trainer.global_step == 3:
                self.weights = {name: p.detach().clone() for name, p in pl_module.named_parameters()}

    snapshots = []
    for steps in (3, 5):
        network = make_network(FullSequence())
        data = GraphDataModule(network.backbone.tokenizer, train=PublishedSplit("path-6", group_by_depth=False))
        module = ExecutorModule(network, Optimizer(lr=1e-3, schedule="constant", warmup=2))
        snapshot = Snapshot()
        trainer(snapshot, max_steps=steps, limit_val_batches=0).fit(module, datamodule=data)
        snapshots.append(snapshot.weights)
    assert all(torch.equal(value, snapshots[1][name]) for name, value in snapshots[0].items())
