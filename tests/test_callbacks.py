"""Callbacks: the curriculum, the guard and the random state."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from conftest import make_network

from callbacks.curriculum import Curriculum
from callbacks.guard import NonFiniteGuard
from callbacks.metrics import ExecutionMetrics
from callbacks.random_state import RandomState
from datamodules.graph import GraphDataModule
from datamodules.graph_evaluation import EvaluationSplit
from datamodules.graph_sources import GraphStream
from datamodules.tasks.graph_stream import Stage
from loopformer.bridge import ReentryBridge
from loopformer.executor import ExecutorModule
from loopformer.halting import GRUController
from loopformer.looped import DirectHead
from loopformer.loss_weights import LossWeights
from loopformer.optim import Optimizer
from loopformer.recurrence import FixedPrompt

STAGES = [Stage(4, (1,), 8), Stage(6, (1, 2), 8), Stage(8, (3,), 8)]


def parts(**weights: float) -> tuple[ExecutorModule, GraphDataModule]:
    network = make_network(FixedPrompt(), bridge=ReentryBridge(), direct_head=DirectHead(), halting=GRUController())
    optimizer = Optimizer(lr=1e-3, schedule="triggered", decay_steps=3, warmup=1)
    data = GraphDataModule(
        network.backbone.tokenizer,
        train=GraphStream(STAGES, batches_per_epoch=50),
        validation=EvaluationSplit(per_depth=2, batch_size=2),
    )
    return ExecutorModule(network, optimizer, LossWeights(**weights)), data


def trainer(*callbacks: L.Callback, **options: Any) -> L.Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return L.Trainer(accelerator="cpu", callbacks=list(callbacks), num_sanity_val_steps=0, **quiet, **options)


class Watch(L.Callback):
    """Records the stage and the shape of every training batch."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        rules = (batch.views["executor"].input_ids.shape[1] - 3) // 4
        self.seen.append((trainer.datamodule.stage, rules, batch.labels.shape[1]))  # type: ignore[attr-defined]


def test_curriculum_advances_decays_and_ends() -> None:
    module, data = parts()
    watch, curriculum = Watch(), Curriculum(gate=1e-9, momentum=0.5, first_stage_lr=3.0)  # any success passes
    run = trainer(curriculum, watch, max_steps=2000, limit_val_batches=0)
    run.fit(module, datamodule=data)
    stages = [stage for stage, *_ in watch.seen]
    assert stages == sorted(stages)
    assert set(stages) == {0, 1, 2}
    assert all(rules == STAGES[stage].nodes for stage, rules, _ in watch.seen)
    assert all(depth in STAGES[stage].depths for stage, _, depth in watch.seen)
    assert curriculum.complete
    assert module.schedule.decay_from is not None
    assert run.global_step == module.schedule.decay_from + 3, "the run ends with the decay"


def test_curriculum_that_does_not_finish_says_so() -> None:
    module, data = parts()
    with pytest.warns(UserWarning, match="ended in curriculum stage 1 of 3"):
        trainer(Curriculum(gate=0.999), max_steps=2, limit_val_batches=0).fit(module, datamodule=data)


def test_a_run_may_decay_in_a_last_stage_that_is_never_passed() -> None:
    module, data = parts()
    data.train_source.stages = data.train_source.stages[-1:]
    run = trainer(Curriculum(gate=0.999, latest=4), max_steps=2000, limit_val_batches=0)
    run.fit(module, datamodule=data)
    assert module.schedule.decay_from == 4
    assert run.global_step == 7
    module, data = parts()
    with pytest.warns(UserWarning, match="ended in curriculum stage 1 of 3"):
        trainer(Curriculum(gate=0.999, latest=2), max_steps=4, limit_val_batches=0).fit(module, datamodule=data)
    assert module.schedule.decay_from is None, "the last stage alone need not be passed"
    with pytest.raises(ValueError, match=r"Curriculum\.latest: needs an update from 1, got 0"):
        Curriculum(latest=0)


def test_curriculum_needs_stages() -> None:
    module, _ = parts()
    data, run = GraphDataModule(module.network.backbone.tokenizer), trainer(Curriculum(), max_steps=1)
    with pytest.raises(ValueError, match="has no stages"):
        run.fit(module, datamodule=data)


def test_guard_stops_before_the_optimiser_step() -> None:
    module, data = parts()
    bridge = module.network.bridge
    assert isinstance(bridge, ReentryBridge)

    class Poison(L.Callback):
        def on_after_backward(self, trainer: L.Trainer, pl_module: Any) -> None:
            if trainer.global_step == 2:
                bridge.gain.grad = torch.full_like(bridge.gain, torch.nan)

        def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
            self.before = {name: p.detach().clone() for name, p in pl_module.named_parameters()}

    poison = Poison()
    data.set_stage(2)  # three loops, so that the bridge takes part
    with pytest.raises(FloatingPointError, match=r"step 2: gradient norm is nan.*optimizer\.lr"):
        trainer(poison, NonFiniteGuard(), max_steps=5, limit_val_batches=0).fit(module, datamodule=data)
    assert all(torch.equal(poison.before[name], p) for name, p in module.named_parameters())


def test_random_state_round_trip() -> None:
    callback = RandomState()
    random.seed(1)
    np.random.seed(2)  # noqa: NPY002
    torch.manual_seed(3)
    saved = callback.state_dict()

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002

    expected = draw()
    draw()
    fresh = RandomState()
    fresh.load_state_dict(saved)
    fresh.on_train_start(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    assert draw() == expected


def test_validation_metrics_equal_a_plain_recount() -> None:
    module, data = parts()
    run = trainer(ExecutionMetrics())
    logged = run.validate(module, datamodule=data, verbose=False)[0]
    complete, final, total, held_out = 0, 0, 0, []
    with torch.no_grad():
        for batch in data.val_dataloader():
            letters = module.network.rollout(batch, batch.labels.shape[1]).letter_logits.argmax(-1)
            for row in range(len(batch)):
                n = int(batch.steps[row])
                right = [bool(letters[row, t] == batch.labels[row, t]) for t in range(n)]
                complete, final, total = complete + all(right), final + right[-1], total + 1
                if n in (7, 9, 11):
                    held_out.append(right[-1])
    assert total == 24
    assert logged["val/complete"] == pytest.approx(complete / total)
    assert logged["val/forced_final"] == pytest.approx(final / total)
    assert data.cohorts == {"trained": [1, 2, 3], "beyond": list(range(4, 13))}
    assert "val/letter_loss/beyond" in logged
    assert "val/loop_03/loop_accuracy" in logged


def test_initial_loss_needs_a_direct_head() -> None:
    network = make_network(FixedPrompt())
    with pytest.raises(ValueError, match=r"losses\.initial"):
        ExecutorModule(network, losses=LossWeights(initial=1.0))


def test_schedules() -> None:
    from loopformer.optim import Schedule

    cosine = Schedule(Optimizer(warmup=10, floor=0.1), total_steps=110)
    assert cosine(0) == pytest.approx(0.1)
    assert cosine(10) == pytest.approx(1.0)
    assert cosine(60) == pytest.approx(0.55)
    assert cosine(110) == pytest.approx(0.1)
    assert cosine(500) == pytest.approx(0.1)
    constant = Schedule(Optimizer(warmup=2, schedule="constant"), total_steps=10)
    assert [constant(s) for s in (1, 5, 50)] == [1.0, 1.0, 1.0]
    triggered = Schedule(Optimizer(warmup=2, schedule="triggered", decay_steps=10, floor=0.0), total_steps=0)
    assert triggered(1000) == 1.0
    assert not triggered.finished(1000)
    triggered.start_decay(1000)
    assert triggered(1005) == pytest.approx(0.5)
    assert triggered.finished(1010)
    with pytest.raises(ValueError, match="decay_steps"):
        Optimizer(schedule="triggered")
