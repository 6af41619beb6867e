"""EMA: the average is exact, and it is what is validated, checkpointed and exported; resuming changes nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from conftest import make_network
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import load_file
from test_checkpoint import NETWORK

from callbacks.ema import EMA
from callbacks.export import ExportModel
from datamodules.graph import GraphDataModule
from datamodules.graph_evaluation import EvaluationSplit
from loopformer.adaptation import RecurrentBlock
from loopformer.bridge import ReentryBridge
from loopformer.executor import ExecutorModule
from loopformer.optim import Optimizer
from loopformer.recurrence import FixedPrompt
from loopformer.sharding import FullySharded

DECAY = 0.75
Weights = dict[str, torch.Tensor]


class Watch(L.Callback):
    """Records the trained weights after every optimiser step and during every validation."""

    def __init__(self) -> None:
        self.steps: list[Weights] = []
        self.validated: list[tuple[int, Weights]] = []

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        self.steps.append(trained(pl_module))

    def on_validation_batch_start(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        self.validated.append((trainer.global_step, trained(pl_module)))


def trained(module: Any) -> Weights:
    return {name: p.detach().clone() for name, p in module.network.named_parameters() if p.requires_grad}


def module_on_a_base() -> ExecutorModule:
    """Only R and the bridge are trained, and the rest could be loaded from a base again."""
    network = make_network(FixedPrompt(), bridge=ReentryBridge(), adaptation=RecurrentBlock())
    reference = property(lambda _: {"model": "some/base", "revision": "abc"})
    network.backbone.__class__ = type("FromHub", (type(network.backbone),), {"reference": reference})
    return ExecutorModule(network, Optimizer(lr=3e-3, warmup=1, schedule="constant"))


def fit(
    folder: Path, steps: int, resume: Path | None = None, export: bool = False, monitor: str | None = None
) -> tuple[Watch, ExecutorModule]:
    module, watch = module_on_a_base(), Watch()
    data = GraphDataModule(
        module.network.backbone.tokenizer, validation=EvaluationSplit(per_depth=1, depths=[2, 3], batch_size=2)
    )
    callbacks: list[L.Callback] = [EMA(decay=DECAY), watch]
    if export:
        callbacks.append(ExportModel(str(folder / "model"), NETWORK, {}))
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, max_steps=steps,
        num_sanity_val_steps=0, val_check_interval=4, default_root_dir=folder,
        callbacks=[
            *callbacks,
            ModelCheckpoint(folder, monitor=monitor, save_last=True, every_n_train_steps=None if monitor else 3),
        ],
    )  # fmt: skip
    trainer.fit(module, datamodule=data, ckpt_path=resume and str(resume), weights_only=True)
    return watch, module


def average(steps: list[Weights]) -> Weights:
    """The definition, step by step in float64."""
    mean = {name: value.double() for name, value in steps[0].items()}
    for step in steps[1:]:
        mean = {name: DECAY * mean[name] + (1 - DECAY) * step[name].double() for name in mean}
    return mean


def assert_close(found: Weights, expected: Weights) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-5, atol=1e-7)


def test_average_is_validated_checkpointed_and_exported(tmp_path: Path) -> None:
    watch, module = fit(tmp_path, 9, export=True)
    assert [step for step, _ in watch.validated] == [4, 4, 8, 8]
    for step, weights in watch.validated:
        assert_close(weights, average(watch.steps[:step]))
    assert_close(trained(module), average(watch.steps))
    distance = max(float((watch.steps[8][n] - average(watch.steps)[n]).abs().max()) for n in watch.steps[8])
    assert distance > 1e-3, "average and weights must differ for this test to say anything"

    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    own = {f"network.{name}" for name in module.network.own_tensor_names()}
    assert saved["global_step"] == 9
    assert set(saved["state_dict"]) == set(saved["current_model_state"]) == own, "the base stays out of checkpoints"
    assert_close({n.removeprefix("network."): v for n, v in saved["state_dict"].items()}, average(watch.steps))
    for name, value in watch.steps[8].items():
        assert torch.equal(saved["current_model_state"][f"network.{name}"], value)
    assert_close(load_file(tmp_path / "model" / "model.safetensors"), average(watch.steps))

    fresh = module_on_a_base()
    for (name, base), (_, used) in zip(
        fresh.network.named_parameters(), module.network.named_parameters(), strict=True
    ):
        assert used.requires_grad or torch.equal(base, used), f"{name} is not trained and must not drift"
    assert torch.equal(fresh.network.label_ids, module.network.label_ids), "token ids are copied, not averaged"


def test_selected_checkpoint_is_exported_as_an_average(tmp_path: Path) -> None:
    watch, _ = fit(tmp_path, 9, export=True, monitor="val/letter_loss")
    config = yaml.safe_load((tmp_path / "model" / "config.yaml").read_text())
    step = config["provenance"]["selected"]["step"]
    assert step in (4, 8)
    assert_close(load_file(tmp_path / "model" / "model.safetensors"), average(watch.steps[:step]))


def test_resuming_changes_nothing(tmp_path: Path) -> None:
    whole, module = fit(tmp_path / "whole", 9)
    fit(tmp_path / "cut", 6)
    resumed, again = fit(tmp_path / "again", 9, resume=tmp_path / "cut" / "last.ckpt")
    assert len(resumed.steps) == 3
    for expected, found in zip(whole.steps[6:], resumed.steps, strict=True):
        assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert all(torch.equal(value, trained(again)[name]) for name, value in trained(module).items())


def test_later_start_and_mistakes() -> None:
    ema = EMA(start=3)
    assert [ema.should_update(step) for step in range(5)] == [False, False, False, True, True]
    assert not ema.should_update(epoch_idx=7)
    with pytest.raises(ValueError, match=r"EMA\.decay"):
        EMA(decay=1.0)
    with pytest.raises(ValueError, match=r"EMA\.start"):
        EMA(start=-1)
    sharded = SimpleNamespace(strategy=FullySharded())
    with pytest.raises(ValueError, match=r"trainer\.strategy: EMA averages whole weights"):
        ema.setup(sharded, None, "fit")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="written without EMA"):
        ema.on_load_checkpoint(None, None, {"state_dict": {}})  # type: ignore[arg-type]
