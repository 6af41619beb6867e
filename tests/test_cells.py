"""The driver of cells: what it runs, and what it does with finished, killed, failing and interrupted runs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from loopformer.cells.matrix import Cell, Job, load_matrix
from loopformer.cells.table import markdown_table, table_rows

ROOT = Path(__file__).resolve().parents[1]
EXECUTOR, TINY, TIMER = "configs/arch4_executor.yaml", "configs/backbone/tiny.yaml", "configs/arch5_timer.yaml"
NO_BRIDGE = "configs/ablations/no_bridge.yaml"
SMALL = {
    "trainer.max_steps": 2,
    "trainer.accumulate_grad_batches": 1,
    "data.init_args.validation.init_args.per_depth": 1,
    "checkpoint.monitor": None,
}


def write(path: Path, document: Any) -> Path:
    path.write_text(yaml.safe_dump(document))
    return path


def driver(*words: str, wait: bool = True) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "loopformer.cells", *words],
        cwd=ROOT,
        env={**os.environ, "WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A test run started in the background ignores Ctrl-C, and what it starts would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    if wait:
        process.output = process.communicate(timeout=280)[0]  # type: ignore[attr-defined]
    return process


def test_commands_of_a_cell(tmp_path: Path) -> None:
    matrix = write(
        tmp_path / "matrix.yaml",
        {
            "common": [TINY],
            "cells": {
                "plain": [EXECUTOR],
                "changed": {"configs": [EXECUTOR, NO_BRIDGE], "overrides": {"a.b": 0.5, "c": None, "d": [1, True]}},
                "timer": {"configs": [TIMER], "executor": "changed"},
                "tuned": {"configs": [EXECUTOR], "initial": "plain", "overrides": {"a.b": 1}},
            },
        },
    )
    curriculum = "configs/recipe/curriculum.yaml"
    cells = load_matrix(matrix, ROOT, [curriculum])
    assert cells["plain"].configs == (EXECUTOR, TINY, curriculum)
    changed, timer = (Job(cells[name], 3, Path("out")) for name in ("changed", "timer"))
    assert shlex.join(changed.train_command(["--trainer.max_steps", "7"])) == (
        f"train.py --config {EXECUTOR} --config {TINY} --config {curriculum} --config {NO_BRIDGE} "
        "--a.b=0.5 --c=null '--d=[1, true]' --trainer.max_steps 7 "
        "--seed_everything 3 --data.init_args.seed 3 --output out/changed/seed3"
    )
    assert shlex.join(timer.train_command()) == (
        f"train.py --config {TIMER} --model.init_args.executor out/changed/seed3/model "
        "--seed_everything 3 --data.init_args.seed 3 --output out/timer/seed3"
    )
    assert shlex.join(Job(cells["tuned"], 3, Path("out")).train_command()) == (
        f"train.py --config {EXECUTOR} --config {TINY} --config {curriculum} --model.init_args.initial ExportedWeights "
        "--model.init_args.initial.init_args.source out/plain/seed3/model --a.b=1 "
        "--seed_everything 3 --data.init_args.seed 3 --output out/tuned/seed3"
    )
    assert shlex.join(timer.evaluate_command(["--graph.counts=1-4"])) == (
        "evaluate.py --checkpoint out/timer/seed3/model --output out/timer/seed3/evaluation --name timer/seed3 "
        "--graph.counts=1-4"
    )


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "has no mapping 'cells'"),
        ({"cells": {"a": [EXECUTOR]}, "extra": 1}, r"unknown fields \['extra'\]"),
        ({"cells": {"a": []}}, "cell a: configs is"),
        ({"cells": {"a": "arch1"}}, "cell a: got arch1"),
        ({"cells": {"a": {"configs": [EXECUTOR], "override": {}}}}, "cell a: got"),
        ({"cells": {"a": {"configs": [EXECUTOR], "overrides": ["x"]}}}, "cell a: overrides"),
        ({"cells": {"a/b": [EXECUTOR]}}, "leave out '/'"),
        ({"cells": {"a": ["configs/none.yaml"]}}, r"cell a: configs/none\.yaml does not exist"),
        ({"cells": {"a": {"configs": [TIMER], "executor": "b"}, "b": [EXECUTOR]}}, "executor 'b' is no cell above"),
        ({"cells": {"a": {"configs": [EXECUTOR], "initial": "a"}}}, "initial 'a' is no cell above"),
        ({"cells": {"a": {"configs": [EXECUTOR], "initial": ["a"]}}}, "initial .* is no cell above"),
        ({"cells": {"a": [EXECUTOR]}, "common": TINY}, "common is configs/backbone/tiny.yaml; list files"),
    ],
)
def test_mistakes_in_a_matrix(tmp_path: Path, document: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_matrix(write(tmp_path / "matrix.yaml", document), ROOT)
    (tmp_path / "broken.yaml").write_text("cells: [")
    with pytest.raises(ValueError, match="cannot be read"):
        load_matrix(tmp_path / "broken.yaml", ROOT)


def test_list_and_print_run_nothing(tmp_path: Path) -> None:
    output = tmp_path / "runs"
    words = ("--cells", "arch5", "arch4", "--output", str(output))
    listed = driver(*words, "--list")
    assert [line.split(":")[0] for line in listed.output.splitlines()] == ["arch4", "arch5 over arch4"]  # type: ignore[attr-defined]
    printed = driver(*words, "--seeds", "0", "1", "--print", "--evaluate", "--evaluation", "graph.counts=1-4")
    lines = printed.output.splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 4
    assert lines[2].startswith(f"python train.py --config {EXECUTOR} --seed_everything 1")
    assert " && python evaluate.py --checkpoint " in lines[2]
    assert lines[2].endswith("--name arch4/seed1 --graph.counts=1-4")
    assert f"--model.init_args.executor {output}/arch4/seed1/model" in lines[3]
    unknown = driver("--cells", "arch4", "arch9")
    assert unknown.returncode == 2
    assert unknown.output.startswith("error: --cells: arch9 unknown; use some of arch1, ")  # type: ignore[attr-defined]
    assert not output.exists()


def test_table_of_cells_by_seeds(tmp_path: Path) -> None:
    jobs = [Job(Cell(name, ("x",)), seed, tmp_path) for seed in (0, 1, 4) for name in ("a", "b")]
    shares = {("a", 0): 0.5, ("a", 1): 0.25, ("a", 4): 1.0, ("b", 1): 0.125}
    for job in jobs:
        if (job.cell.name, job.seed) in shares:
            job.summary.parent.mkdir(parents=True)
            stop = 0.75 if job.cell.name == "a" else None
            job.summary.write_text(json.dumps({"complete": shares[job.cell.name, job.seed], "exact_stop": stop}))
    header, rows = table_rows(jobs, ("complete", "exact_stop"))
    assert header == ["cell", "percent", "seed 0", "seed 1", "seed 4", "mean", "min", "max"]
    assert rows == [
        ["a", "complete", "50.00", "25.00", "100.00", "58.33", "25.00", "100.00"],
        ["a", "exact stop", "75.00", "75.00", "75.00", "75.00", "75.00", "75.00"],
        ["b", "complete", "-", "12.50", "-", "12.50", "12.50", "12.50"],
        ["b", "exact stop", "-", "-", "-", "-", "-", "-"],
    ]
    assert "| a | complete | 50.00 | 25.00 |" in markdown_table(jobs, ["complete"])


@pytest.mark.slow
def test_failing_cells_are_reported_and_finished_ones_skipped(tmp_path: Path) -> None:
    matrix = write(
        tmp_path / "matrix.yaml",
        {
            "common": [TINY],
            "cells": {
                "bad": {"configs": [EXECUTOR], "overrides": {**SMALL, "model.init_args.optimizer.lr": -1}},
                "over_bad": {"configs": [TIMER], "executor": "bad"},
                "good": {"configs": [EXECUTOR, NO_BRIDGE], "overrides": SMALL},
            },
        },
    )
    output = tmp_path / "runs"
    words = ("--matrix", str(matrix), "--output", str(output))
    checks = ("--evaluate", "--evaluation", "graph.counts=1-3", "graph.graphs=1", "graph.native_sample=0")
    first = driver(*words, *checks)
    text: str = first.output  # type: ignore[attr-defined]
    assert first.returncode == 1
    assert "error: bad/seed0: train.py ended with exit status 2" in text
    assert "error: over_bad/seed0: needs" in text
    assert "1 of 3 runs well" in text
    summary = json.loads((output / "good" / "seed0" / "evaluation" / "summary.json").read_text())
    assert summary["queries"] == 27
    share = f"{100 * summary['complete']:.2f}"
    assert f"| good | complete | {share} | {share} | {share} | {share} |" in (output / "cells.md").read_text()
    config = yaml.safe_load((output / "good" / "seed0" / "config.yaml").read_text())
    assert config["model"]["init_args"]["network"]["init_args"]["bridge"] is None

    weights = output / "good" / "seed0" / "model" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    second = driver(*words, *checks, "--cells", "good")
    assert second.returncode == 0
    assert "good/seed0: trained already" in second.output  # type: ignore[attr-defined]
    assert "good/seed0: evaluated already" in second.output  # type: ignore[attr-defined]
    assert weights.stat().st_mtime_ns == before
    other = driver(*words, "--cells", "good", "--", "--trainer.max_steps", "3")
    assert other.returncode == 1
    assert "holds results of another command" in other.output  # type: ignore[attr-defined]
    assert weights.stat().st_mtime_ns == before


def started(process: subprocess.Popen[str], file: Path) -> None:
    """Wait until a running cell has written a file."""
    deadline = time.monotonic() + 120
    while not file.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"{file} does not appear"
        time.sleep(0.02)


@pytest.mark.slow
def test_interrupted_and_killed_cells_go_on(tmp_path: Path) -> None:
    long = {**SMALL, "trainer.max_steps": 80, "checkpoint.every_n_train_steps": 2, "trainer.val_check_interval": 1000}
    matrix = write(
        tmp_path / "matrix.yaml", {"common": [TINY], "cells": {"a": {"configs": [EXECUTOR], "overrides": long}}}
    )
    output = tmp_path / "runs"
    words = ("--matrix", str(matrix), "--output", str(output))
    run = output / "a" / "seed0"
    last = run / "checkpoints" / "last.ckpt"

    early = driver(*words, wait=False)
    started(early, run / "config.yaml")
    early.send_signal(signal.SIGINT)
    text = early.communicate(timeout=100)[0]
    assert early.returncode == 130, text
    assert "interrupted; the same command goes on from here" in text
    aside = not last.exists()  # as a rule: it takes longer to the first checkpoint

    middle = driver(*words, wait=False)
    started(middle, last)
    child = subprocess.run(["pgrep", "-P", str(middle.pid)], capture_output=True, text=True, check=True).stdout
    os.kill(int(child), signal.SIGKILL)
    text = middle.communicate(timeout=100)[0]
    assert middle.returncode == 1
    assert "error: a/seed0: train.py ended with signal SIGKILL" in text

    later = driver(*words, wait=False)
    time.sleep(4)  # it resumes; wherever it is by then, a batch system's signal ends it in order
    later.send_signal(signal.SIGTERM)
    assert "interrupted" in later.communicate(timeout=100)[0]
    assert later.returncode == 130
    stopped_at = torch.load(last, weights_only=True)["global_step"]
    assert 0 < stopped_at < 80, "the run was not interrupted: make it longer"
    assert not (run / "model").exists()

    final = driver(*words)
    assert final.returncode == 0, final.output  # type: ignore[attr-defined]
    assert "--resume=true" in final.output  # type: ignore[attr-defined]
    made = yaml.safe_load((run / "model" / "config.yaml").read_text())["provenance"]
    assert made["optimizer_steps"] == 80
    assert (output / "a" / "seed0-stopped1" / "config.yaml").exists() == aside
