"""Named state fields: the heads, their losses and metrics, and that a model without them is what it was."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import make_network
from counter_task import WalkSet, WalkStream, WalkTask
from lightning.pytorch import Trainer

from callbacks.metrics import ExecutionMetrics
from datamodules.batch import IGNORE, Batch
from datamodules.procedure import ProcedureDataModule
from datamodules.procedure_batcher import ProcedureBatcher
from loopformer import checkpoint
from loopformer.bridge import ReentryBridge
from loopformer.executor import ExecutorModule, LossWeights
from loopformer.looped import DirectHead, LoopedTransformer
from loopformer.losses import field_loss
from loopformer.metrics import FieldAccuracy
from loopformer.noise import StateNoise
from loopformer.optim import Optimizer
from loopformer.recurrence import FixedPrompt, FullSequence, Recurrence
from loopformer.state_heads import (
    CELLS,
    ClassHead,
    FieldInputs,
    MarkedClassHead,
    MarkerHead,
    PointerHead,
    StateHeads,
)
from loopformer.tokenizer import tiny_tokenizer

TASK = WalkTask()
BATCHER = ProcedureBatcher(TASK, tiny_tokenizer())
LABELS = list(TASK.labels.texts)


def walk_batch() -> Batch:
    return BATCHER.batch([(0, 1, 2), (2, 1), (1, 1, 0)])


def walker(recurrence: Recurrence | None = None, **parts: object) -> LoopedTransformer:
    heads = StateHeads({"at": PointerHead(), "last": ClassHead(3)})
    return make_network(
        recurrence or FixedPrompt(), std=0.08, labels=LABELS, **{"state_heads": heads, **parts}
    )  # fmt: skip


def test_logits_cover_loop_zero_and_mask_padding() -> None:
    rollout = walker().rollout(walk_batch(), 3)
    assert {name: tuple(logits.shape) for name, logits in rollout.field_logits.items()} == {
        "at": (3, 4, 3), "last": (3, 4, 3),
    }  # fmt: skip
    at = rollout.field_logits["at"]
    assert torch.isneginf(at[1, :, 2]).all()
    assert torch.isfinite(at[:, :, :2]).all()


def test_heads_by_hand() -> None:
    torch.manual_seed(0)
    answers, cells = torch.randn(2, 3, 8), torch.randn(2, 3, 4, 8)
    anchors, mask = torch.randn(2, 4, 8), torch.tensor([[True] * 4, [True, True, True, False]])
    inputs = FieldInputs(answers, coda=answers + 1, cells=cells, anchors=anchors, mask=mask)
    pointer, marker, of_coda = PointerHead(), MarkerHead(), ClassHead(5, "coda")
    for head in (pointer, marker, of_coda):
        head.build(8)
    for b, t, c in ((0, 2, 3), (1, 0, 2)):
        score = (pointer.query.weight @ answers[b, t]) @ (pointer.key.weight @ anchors[b, c]) / math.sqrt(8)
        torch.testing.assert_close(pointer(inputs)[b, t, c], score)
        mark = marker.linear.weight[0] @ cells[b, t, c] + marker.linear.bias[0]
        torch.testing.assert_close(marker(inputs)[b, t, c], mark)
    torch.testing.assert_close(of_coda(inputs), of_coda.linear(answers + 1))
    late = ClassHead(5, delay=1)
    late.build(8)
    torch.testing.assert_close(late(inputs)[:, :2], late.linear(answers[:, 1:]))
    assert late(inputs).shape == (2, 3, 5)
    assert torch.isneginf(marker(inputs)[1, :, 3]).all()
    assert (pointer.size, marker.size, of_coda.size) == (CELLS, CELLS, 5)


def test_a_class_is_read_at_the_mark_of_another_field() -> None:
    torch.manual_seed(0)
    cells, anchors = torch.randn(2, 3, 4, 8), torch.randn(2, 4, 8, requires_grad=True)
    mask = torch.tensor([[True] * 4, [True, True, True, False]])
    heads = StateHeads({"kind": MarkedClassHead(5, at="place"), "place": MarkerHead()})
    heads.build(8)
    assert sorted(heads.state_dict()) == [
        "heads.kind.linear.bias",
        "heads.kind.linear.weight",
        "heads.place.linear.bias",
        "heads.place.linear.weight",
    ]
    logits = heads(FieldInputs(torch.randn(2, 3, 8), cells=cells, anchors=anchors, mask=mask))
    assert list(logits) == ["kind", "place"]
    for b, t, real in ((0, 2, 4), (1, 0, 3)):
        shares = torch.stack([heads.heads["place"].linear(cells[b, t, c])[0] for c in range(real)]).softmax(0)
        scaled = [anchors[b, c] / anchors[b, c].square().mean().sqrt() for c in range(real)]
        pooled = sum(share * heads.heads["kind"].linear(cell) for share, cell in zip(shares, scaled, strict=True))
        torch.testing.assert_close(logits["kind"][b, t], pooled)
    logits["kind"].square().sum().backward()
    assert anchors.grad is not None
    assert heads.heads["kind"].linear.weight.grad is not None
    assert heads.heads["place"].linear.weight.grad is None, "a mark is learnt by its own labels"


@pytest.mark.parametrize("at", ["nowhere", "class"])
def test_a_class_needs_a_mark_to_be_read_at(at: str) -> None:
    with pytest.raises(ValueError, match=r"state_heads\.kind\.at: got .*; name a field with a MarkerHead \(place\)"):
        StateHeads({"kind": MarkedClassHead(5, at=at), "class": ClassHead(3), "place": MarkerHead()})


def test_loop_zero_is_the_preludes_state_and_coda_source_is_read_behind_c() -> None:
    heads = StateHeads({"last": ClassHead(3), "seen": ClassHead(3, "coda")})
    network, batch = walker(state_heads=heads, bridge=ReentryBridge()), walk_batch()
    logits = network.rollout(batch, 2).field_logits
    start = network.start(batch)
    last = heads.heads["last"]
    torch.testing.assert_close(logits["last"][:, 0], last.linear(start.anchor[:, -1]))
    torch.testing.assert_close(logits["last"][:, 1], last.linear(start.state[:, -1]))
    behind = network.recurrence.read(network.backbone, [start.anchor, start.state], start.memory)
    torch.testing.assert_close(logits["seen"][:, :2], heads.heads["seen"].linear(behind))


def test_cells_of_a_full_sequence_recur() -> None:
    network, batch = walker(FullSequence(view="executor"), state_heads=StateHeads({"at": MarkerHead()})), walk_batch()
    logits = network.rollout(batch, 2).field_logits["at"]
    start = network.start(batch)
    cells = batch.views["executor"].cells
    assert cells is not None
    assert network.state_heads is not None
    expected = network.state_heads.heads["at"].linear(start.state[0, cells[0]])[:, 0]
    torch.testing.assert_close(logits[0, 1], expected)


def test_every_head_trains_itself_and_the_executor() -> None:
    network, batch = walker(), walk_batch()
    module = ExecutorModule(network, losses=LossWeights(letter=0.0, fields={"at": 0.3, "last": 0.7}))
    terms = module.loss_terms(network.rollout(batch, 3), batch)
    assert set(terms) == {"letter", "field_at", "field_last"}
    torch.testing.assert_close(module.total(terms), 0.3 * terms["field_at"] + 0.7 * terms["field_last"])
    module.total(terms).backward()
    assert network.state_heads is not None
    trained = [*network.state_heads.parameters(), *network.backbone.recurrent[0].parameters()]
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in trained)


def test_field_loss_by_hand() -> None:
    logits = torch.zeros(2, 3, 4)
    logits[0, 0, 1] = 2.0
    logits[1, :, 3] = -torch.inf  # a padded cell
    values = torch.tensor([[1, IGNORE, IGNORE], [0, 1, IGNORE]])
    sure = math.log(3 + math.exp(2.0)) - 2.0
    torch.testing.assert_close(field_loss(logits, values), torch.tensor((sure + math.log(3)) / 2))
    with pytest.raises(ValueError, match="a label is 4, but its head has 4 values"):
        field_loss(logits, torch.full((2, 3), 4))


def test_smoothing_spreads_a_share_of_each_label() -> None:
    logits, values = torch.randn(2, 3, 4), torch.tensor([[1, IGNORE, IGNORE], [0, 1, 3]])
    sure = logits.log_softmax(-1)
    spread = -0.9 * sure.gather(-1, values.clamp(min=0)[..., None])[..., 0] - 0.1 * sure.mean(-1)
    expected = (spread[0, 0] + spread[1].mean()) / 2
    torch.testing.assert_close(field_loss(logits, values, smoothing=0.1), expected)
    module = ExecutorModule(
        walker(state_heads=StateHeads({"last": ClassHead(3)})), losses=LossWeights(fields=2.0, smoothing=0.1)
    )
    batch = walk_batch()
    rollout = module.network.rollout(batch, 3)
    plain, smooth = (module.loss_terms(rollout, batch, smoothing=share) for share in (0.0, 0.1))
    assert all(not torch.equal(plain[name], smooth[name]) for name in plain)


def test_smoothing_is_refused_where_it_has_no_meaning() -> None:
    with pytest.raises(ValueError, match=r"losses\.smoothing: got 1"):
        LossWeights(smoothing=1.0)
    with pytest.raises(ValueError, match=r"losses\.smoothing: .at. is a cell"):
        ExecutorModule(walker(state_heads=StateHeads({"at": PointerHead()})), losses=LossWeights(smoothing=0.1))


def test_a_model_without_heads_is_unchanged() -> None:
    """Drawing no head consumes no random numbers and adds no tensor: old seeds and checkpoints stay what they were."""
    plain, batch = make_network(FixedPrompt(), labels=LABELS), walk_batch()
    headed = make_network(FixedPrompt(), labels=LABELS, state_heads=StateHeads({"last": ClassHead(3)}))
    assert plain.rollout(batch, 2).field_logits == {}
    torch.testing.assert_close(plain.rollout(batch, 2).letter_logits, headed.rollout(batch, 2).letter_logits)
    added = {name for name in headed.state_dict() if name not in plain.state_dict()}
    assert added == {"state_heads.heads.last.linear.weight", "state_heads.heads.last.linear.bias"}


def test_mistakes_are_named() -> None:
    network, batch = walker(), walk_batch()
    with pytest.raises(ValueError, match="name at least one field"):
        StateHeads({})
    with pytest.raises(ValueError, match="at least 2 labels"):
        ClassHead(1)
    with pytest.raises(ValueError, match=r"state_heads\.delay"):
        ClassHead(2, delay=-1)
    with pytest.raises(ValueError, match="'at' has a weight or a head"):
        ExecutorModule(network, losses=LossWeights(fields={"last": 1.0}))
    with pytest.raises(ValueError, match="have no field 'at'"):
        ExecutorModule(network).loss_terms(network.rollout(batch, 3), replace(batch, fields={}))
    with pytest.raises(ValueError, match="MarkerHead needs a recurrence whose cells recur"):
        walker(state_heads=StateHeads({"at": MarkerHead()})).rollout(batch, 2)
    with pytest.raises(ValueError, match="at least 2 labels, got 1"):
        MarkedClassHead(1, at="place")
    with pytest.raises(ValueError, match=r"noise\.scale"):
        StateNoise(0.0)


def test_noise_is_for_training_only_and_has_the_stated_size() -> None:
    network, batch = walker(noise=StateNoise(0.5), state_heads=None), walk_batch()
    quiet = walker(state_heads=None)
    network.eval(), quiet.eval()
    torch.testing.assert_close(network.rollout(batch, 3).letter_logits, quiet.rollout(batch, 3).letter_logits)
    network.train()
    assert not torch.allclose(network.rollout(batch, 3).letter_logits, quiet.rollout(batch, 3).letter_logits)
    torch.manual_seed(0)
    anchor = 3 * torch.ones(20_000, 1, 4)
    added = StateNoise(0.5)(torch.zeros_like(anchor), anchor)
    assert abs(float(added.std()) - 1.5) < 0.02


def test_accuracy_counts_every_defined_loop_once() -> None:
    metric = FieldAccuracy()
    metric.update(torch.tensor([[1, 2, 0]]), torch.tensor([[1, 0, IGNORE]]))
    metric.update(torch.tensor([[1, 1], [0, 0]]), torch.tensor([[1, 1], [IGNORE, IGNORE]]))
    assert float(metric.compute()) == 3 / 4


def test_fit_logs_losses_and_accuracies_and_checks_labels(tmp_path: Path) -> None:
    data = ProcedureDataModule(tiny_tokenizer(), WalkStream(), WalkSet())
    options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    module = ExecutorModule(walker(direct_head=DirectHead()), Optimizer(lr=1e-3, warmup=1))
    trainer = Trainer(
        max_epochs=1, callbacks=[ExecutionMetrics()], default_root_dir=tmp_path, num_sanity_val_steps=0, **options
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    numbers = trainer.callback_metrics
    assert {"train/field_at_loss", "val/field_last_loss", "val/field_at", "val/field_last"} <= set(numbers)
    assert 0 <= float(numbers["val/field_at"]) <= 1
    other = ExecutorModule(make_network(FixedPrompt()), Optimizer(lr=1e-3, warmup=1))
    with pytest.raises(ValueError, match=r"network\.labels"):
        Trainer(max_epochs=1, default_root_dir=tmp_path, **options).fit(other, datamodule=data)


def test_checkpoint_round_trip(tmp_path: Path) -> None:
    backbone = {"class_path": "ScratchBackbone", "init_args": {"config": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2}}}  # fmt: skip
    heads = {"at": {"class_path": "PointerHead"}, "last": {"class_path": "ClassHead", "init_args": {"values": 3}}}
    config = {
        "class_path": "LoopedTransformer",
        "init_args": {
            "backbone": backbone,
            "recurrence": {"class_path": "FixedPrompt"},
            "labels": LABELS,
            "state_heads": {"class_path": "StateHeads", "init_args": {"heads": heads}},
            "noise": {"class_path": "StateNoise"},
        },
    }
    network = checkpoint.build_network(config)
    checkpoint.save(tmp_path / "model", network, config)
    loaded = checkpoint.load(tmp_path / "model").network
    network.eval()
    a, b = network.rollout(walk_batch(), 3).field_logits, loaded.rollout(walk_batch(), 3).field_logits
    assert all(torch.equal(a[name], b[name]) for name in a)
