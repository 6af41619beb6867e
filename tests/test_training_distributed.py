"""Training on two processes equals training on one with the doubled batch, by Lightning's own strategies."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from test_training import TINY, train, weights

# Depths 1 to 3 with few examples each: batches of depth 1, which never enter the bridge, come early.
TRAIN = (
    '{"class_path": "GeneratedSplit", "init_args": {"size": 60, "recipe": '
    '{"kind": "mixture", "seed": 1, "split": "train", "depths": [1, 2, 3]}}}'
)
SMALL = (
    f"--data.init_args.train={TRAIN}", "--data.init_args.validation.init_args.per_depth=1",
    "--data.init_args.validation.init_args.batch_size=3", "--trainer.accumulate_grad_batches=2",
    "--trainer.val_check_interval=6", "--trainer.log_every_n_steps=1", "--checkpoint.monitor=null",
    "--checkpoint.every_n_train_steps=3", "--model.init_args.optimizer.schedule=constant",
)  # fmt: skip


def run(output: Path, *arguments: str) -> list[dict[str, str]]:
    process = train(*TINY, *SMALL, "--output", str(output), *arguments)
    assert process.returncode == 0, process.output  # type: ignore[attr-defined]
    return list(csv.DictReader((output / "metrics.csv").open()))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, str]]]:
    folder = tmp_path_factory.mktemp("single") / "run"
    return folder, run(folder, "--data.init_args.train.init_args.batch_size=8", "--trainer.max_steps=6")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fully_sharded"])
def test_two_processes_equal_one(tmp_path: Path, single: tuple[Path, list[dict[str, str]]], strategy: str) -> None:
    """Also across a resume, and in the validation, where one process lacks some depths: each instance counts once."""
    folder, expected = single
    two = ("--data.init_args.train.init_args.batch_size=4", "--trainer.devices=2", f"--trainer.strategy={strategy}")
    run(tmp_path / "run", *two, "--trainer.max_steps=3")
    (tmp_path / "run" / "model").rename(tmp_path / "early")
    rows = run(tmp_path / "run", *two, "--trainer.max_steps=6", "--resume=true")
    assert len(rows) == len(expected)
    assert any(row["train/loss"] for row in rows)
    assert any(row["val/letter_loss"] for row in rows)
    for row, wanted in zip(rows, expected, strict=True):
        assert row.keys() == wanted.keys()
        for name, value in wanted.items():
            assert float(row[name] or 0) == pytest.approx(float(value or 0), rel=2e-4, abs=2e-6), name
    reference, found = weights(folder), weights(tmp_path / "run")
    assert reference.keys() == found.keys()
    for name, value in reference.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-5, msg=name)
