"""train.py as a user runs it: real subprocesses, killed and resumed, and the errors a user meets."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[1]
TINY = ("--config", "configs/arch4_executor.yaml", "--config", "configs/backbone/tiny.yaml")
SMALL = (
    "--data.init_args.validation.init_args.per_depth=4",
    "--trainer.accumulate_grad_batches=2",
    "--trainer.val_check_interval=20",
    "--trainer.log_every_n_steps=1",
    "--checkpoint.every_n_train_steps=3",
    "--checkpoint.monitor=null",
    "--model.init_args.optimizer.warmup=4",
)


def train(*arguments: str, wait: bool = True, **environment: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "train.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if wait:
        process.output = process.communicate(timeout=240)[0]  # type: ignore[attr-defined]
    return process


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["published", "curriculum", "ema"])
def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path, recipe: str) -> None:
    """SIGKILL in the middle of an epoch, at whatever step it then is; the final weights are the same bit for bit."""
    overlays = {
        "published": (),
        # Two stages so short that the run passes from one to the next before and after the kill.
        "curriculum": ("configs/recipe/curriculum.yaml", "--trainer.callbacks.init_args.gate=0.05"),
        "ema": ("configs/ablations/ema.yaml", "--trainer.callbacks.init_args.decay=0.9"),
    }
    overlay, stages = overlays[recipe][:1], overlays[recipe][1:]
    overlay = ("--config", *overlay) if overlay else ()
    common = (*TINY, *overlay, *SMALL, *stages, "--trainer.max_steps=40")
    whole = train(*common, "--output", str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.output  # type: ignore[attr-defined]

    cut = train(*common, "--output", str(tmp_path / "cut"), wait=False)
    last = tmp_path / "cut" / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 120
    while not last.exists() and time.monotonic() < deadline and cut.poll() is None:
        time.sleep(0.05)
    time.sleep(0.3)
    cut.send_signal(signal.SIGKILL)
    cut.communicate()
    stopped_at = torch.load(last, weights_only=True)["global_step"]
    assert 0 < stopped_at < 40, "the run was not interrupted: make it longer"
    assert not (tmp_path / "cut" / "model").exists()

    resumed = train(*common, "--output", str(tmp_path / "cut"), "--resume=true")
    assert resumed.returncode == 0, resumed.output  # type: ignore[attr-defined]
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    logs = [list(csv.DictReader((tmp_path / run / "metrics.csv").open())) for run in ("whole", "cut")]
    assert [row["step"] for row in logs[0]] == [row["step"] for row in logs[1]]
    assert [row.get("train/loss") for row in logs[0]] == [row.get("train/loss") for row in logs[1]]


@pytest.mark.slow
def test_stages_of_architecture_4_and_5_run_and_export(tmp_path: Path) -> None:
    executor = train(*TINY, *SMALL, "--trainer.max_steps=2", "--output", str(tmp_path / "executor"))
    assert executor.returncode == 0, executor.output  # type: ignore[attr-defined]
    model = tmp_path / "executor" / "model"
    rows = list(csv.DictReader((tmp_path / "executor" / "metrics.csv").open()))
    assert any(row.get("train/loss") for row in rows)
    config = yaml.safe_load((tmp_path / "executor" / "config.yaml").read_text())
    assert config["model"]["init_args"]["network"]["init_args"]["backbone"]["class_path"].endswith("ScratchBackbone")

    source = ("--model.init_args.executor", str(model), "--trainer.val_check_interval=5")
    controller = train(
        "--config", "configs/arch4_controller.yaml", *source, "--trainer.max_steps=10", "--data.init_args.graphs=4",
        "--data.init_args.validation_graphs=2", "--data.init_args.batch_size=16", "--output", str(tmp_path / "gru"),
    )  # fmt: skip
    assert controller.returncode == 0, controller.output  # type: ignore[attr-defined]
    before, after = load_file(model / "model.safetensors"), weights(tmp_path / "gru")
    assert not any("remaining_readout" in name for name in after), "the training-only readout is dropped"
    for name, value in before.items():
        if not name.startswith("halting."):
            assert torch.equal(value, after[name]), f"{name} changed in the controller stage"
    assert any(not torch.equal(before[name], after[name]) for name in before if name.startswith("halting."))

    timer = train(
        "--config", "configs/arch5_timer.yaml", *source, "--trainer.max_steps=2000", "--output", str(tmp_path / "timer")
    )
    assert timer.returncode == 0, timer.output  # type: ignore[attr-defined]
    fitted = weights(tmp_path / "timer")
    assert abs(float(fitted["halting.decay"]) - 1) < 1e-6
    assert abs(float(fitted["halting.decrement"]) + 1) < 1e-6
    assert abs(float(fitted["halting.reader.gain"]) - 10) < 1e-6


@pytest.mark.slow
def test_wandb_logs_offline_without_an_account_or_a_prompt(tmp_path: Path) -> None:
    output = tmp_path / "experiment" / "seed0"
    home = {"HOME": str(tmp_path), "WANDB_API_KEY": "", "WANDB_MODE": "offline"}
    run = train(*TINY, *SMALL, "--trainer.max_steps=3", "--output", str(output), **home)
    assert run.returncode == 0, run.output  # type: ignore[attr-defined]
    files = list(output.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 1
    run_id = (output / "wandb_id").read_text()
    assert files[0].name == f"run-{run_id}.wandb"
    assert b"train/loss" in files[0].read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model.init_args.optimizer.lrr=1",), "lrr"),
        (("--model.init_args.network.init_args.recurrence.init_args.slotz=1",), "slotz"),
        (("--model.init_args.optimizer.lr=-1",), r"optimizer.lr: needs a positive value"),
        (("--data.init_args.train.init_args.data=nonsense",), "nonsense"),
        (("--trainer.gradient_clip_val=1",), "set model.init_args.optimizer.clip"),
        (("--resume=true",), "start the run without --resume"),
    ],
)
def test_mistakes_are_one_line_errors(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    run = train(*TINY, *SMALL, *arguments, "--output", str(tmp_path / "run"))
    output: str = run.output  # type: ignore[attr-defined]
    assert run.returncode != 0
    assert "Traceback" not in output
    errors = [line for line in output.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, output
    assert message in errors[0]
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mine")
    run = train(*TINY, *SMALL, "--output", str(tmp_path))
    assert run.returncode == 2
    assert "holds a run already; it has no checkpoint" in run.output  # type: ignore[attr-defined]
    assert (tmp_path / "config.yaml").read_text() == "mine"


def test_a_run_that_cannot_begin_leaves_its_folder_free(tmp_path: Path) -> None:
    wrong = train(*TINY, *SMALL, "--trainer.val_check_interval", "1000000", "--output", str(tmp_path))
    assert wrong.returncode == 2
    assert "val_check_interval" in wrong.output  # type: ignore[attr-defined]
    assert not (tmp_path / "config.yaml").exists()
    run = train(*TINY, *SMALL, "--trainer.max_steps", "2", "--output", str(tmp_path))
    assert run.returncode == 0, run.output  # type: ignore[attr-defined]
