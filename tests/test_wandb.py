"""W&B logging, read back from the offline files with W&B's own `wandb leet inspect`; no network, no account."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from outcome_cases import synthetic_store
from test_training import SMALL, TINY, train

import evaluate
from loopformer.evaluation.figures import Run
from loopformer.evaluation.summary import summarize, write_summary
from loopformer.evaluation.wandb_run import CHARTS, Evaluation, log_evaluation
from loopformer.tracking import Experiment, Wandb
from loopformer.wandb_logger import GLOBAL_STEP, Logged, definition, read_back, records

ROOT = Path(__file__).resolve().parents[1]

OFFLINE = {"WANDB_API_KEY": "", "WANDB_MODE": "offline"}


def offline_files(output: Path) -> list[Path]:
    return sorted(output.glob("wandb/offline-run-*/*.wandb"))


def history(path: Path) -> list[dict[str, Any]]:
    return [record["history"] for record in records(path) if record["type"] == "history"]


def of_type(path: Path, kind: str) -> list[dict[str, Any]]:
    return [record[kind] for record in records(path) if record["type"] == kind]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs") / "experiment" / "seed0"
    options = ("--trainer.max_steps=4", "--trainer.val_check_interval=8", "--wandb.tags=[ablation]")
    process = train(*TINY, *SMALL, *options, "--output", str(output), **OFFLINE, HOME=str(output.parent))
    assert process.returncode == 0, process.output  # type: ignore[attr-defined]
    return output


@pytest.mark.slow
def test_the_run_is_named_grouped_and_tagged(run: Path) -> None:
    (path,) = offline_files(run)
    (record,) = of_type(path, "run")[:1]
    assert record["display_name"] == "experiment/seed0"
    assert record["run_group"] == "arch4_executor+tiny-graph"
    assert record["job_type"] == "train"
    assert set(record["tags"]) == {"arch4_executor", "tiny", "graph", "seed-0", "ablation"}
    assert record["run_id"] == (run / "wandb_id").read_text()
    config = {}
    for update in [record.get("config", {}), *of_type(path, "config")]:
        config |= update.get("update", {})
    assert config["experiment"]["architecture"] == "arch4_executor"
    assert config["model"]["class_path"].endswith("ExecutorModule")


@pytest.mark.slow
def test_metrics_are_defined_with_summaries(run: Path) -> None:
    (path,) = offline_files(run)
    defined = {m["name"]: m for m in of_type(path, "metric") if "name" in m}
    assert defined["val/complete"]["summary"] == {"last": True, "max": True}
    assert defined["val/letter_loss"]["summary"] == {"last": True, "min": True}
    assert defined["val/early_stop"]["summary"] == {"last": True, "min": True}
    assert defined["val/loop_03/survival"]["options"]["hidden"]
    assert all(m["step_metric"] == GLOBAL_STEP for name, m in defined.items() if name.startswith("val/"))
    rows = history(path)
    assert all(a["step"]["num"] < b["step"]["num"] for a, b in itertools.pairwise(rows))
    steps = [row["item"][GLOBAL_STEP] for row in rows]
    assert steps == sorted(steps)
    logged = {name for row in rows for name in row["item"]}
    assert {"train/loss", "val/strict", "val/complete/held_out", "val/loop_12/loop_accuracy"} <= logged
    summary = [update["update"] for update in of_type(path, "summary") if "val/complete" in update["update"]][-1]
    assert set(summary["val/complete"]) == {"last", "max"}


@pytest.mark.slow
def test_curves_instances_and_model_are_there(run: Path) -> None:
    (path,) = offline_files(run)
    media = path.parent / "files" / "media" / "table"
    for name in ("survival", "hazard", "loop_accuracy", "stop_error"):
        assert list((media / "curves").glob(f"{name}_table_*.json")), name
    charts = {key for update in of_type(path, "config") for key in update["update"] if "visualize" in key}
    assert {"_wandb.visualize.curves/survival", "_wandb.visualize.curves/stop_error"} <= charts
    (file,) = (media / "val").glob("instances_*.json")
    table = json.loads(file.read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert Counter(row["N"] for row in rows) == dict.fromkeys(range(1, 13), 2)
    for row in rows:
        reference, letters = row["reference"].split(), row["letters"].split()
        assert len(reference) == len(letters) == row["N"]
        wrong = [t for t, (a, b) in enumerate(zip(letters, reference, strict=True), 1) if a != b]
        assert row["first error"] == (wrong[0] if wrong else None)
        assert row["prompt"].endswith("Answer:")
        assert f"Steps: {row['N']}\n" in row["prompt"]
        rules = dict(pair.split(",") for pair in row["prompt"].replace(" ", "").split("(")[1:] for pair in [pair[:3]])
        state = row["prompt"].split("Start:")[1].split()[0]
        for letter in reference:
            state = rules[state]
            assert letter == state
    artifacts = {a["name"]: a for a in of_type(path, "artifact")}
    model = artifacts[f"model-{(run / 'wandb_id').read_text()}"]
    assert model["type"] == "model"
    files = {entry["path"]: Path(entry["local_path"]) for entry in model["manifest"]["contents"]}
    assert {"model.safetensors", "config.yaml", "README.md"} <= set(files)
    assert all(file.is_file() for file in files.values())
    staged = [
        Path(entry["local_path"])
        for artifact in artifacts.values() if artifact["type"] != "model"
        for entry in artifact["manifest"]["contents"]
    ]  # fmt: skip
    assert staged
    assert all(run in file.parents for file in staged), "what a sync uploads lies in the run's folder"


@pytest.mark.slow
def test_a_killed_and_resumed_run_is_one_run_with_growing_steps(tmp_path: Path) -> None:
    output = tmp_path / "experiment" / "seed0"
    options = (*TINY, *SMALL, "--trainer.max_steps=60", "--checkpoint.every_n_train_steps=8")
    cut = train(*options, "--output", str(output), wait=False, **OFFLINE)
    last, deadline = output / "checkpoints" / "last.ckpt", time.monotonic() + 120
    while not last.exists() and time.monotonic() < deadline and cut.poll() is None:
        time.sleep(0.05)
    time.sleep(1.5)  # past the checkpoint: rows that the resumed run comes by again
    os.kill(cut.pid, signal.SIGKILL)
    cut.communicate()
    checkpoint = torch.load(last, weights_only=True)["global_step"]
    before = read_back(output / "wandb")
    assert before.step >= 0
    assert checkpoint < 60, "the run was not interrupted: make it longer"

    resumed = train(*options, "--output", str(output), "--resume=true", **OFFLINE)
    assert resumed.returncode == 0, resumed.output  # type: ignore[attr-defined]
    files = offline_files(output)
    assert len(files) == 2
    assert {of_type(path, "run")[0]["run_id"] for path in files} == {(output / "wandb_id").read_text()}
    rows = [row for path in files for row in history(path)]
    steps = [row["step"]["num"] for row in rows]
    assert steps == sorted(set(steps)), "W&B's step grows over both files"
    seen = defaultdict(list)
    for row in rows:
        for name, value in row["item"].items():
            if not name.startswith("_") and name != GLOBAL_STEP and isinstance(value, float | int):
                seen[name].append((row["item"][GLOBAL_STEP], value))
    for name, points in seen.items():
        at = [step for step, _ in points]
        assert at == sorted(set(at)), f"{name}: no step twice, none out of order"
    assert [step for step, _ in seen["train/loss"]] == list(range(60))
    summary: dict[str, Any] = {}
    for update in of_type(files[-1], "summary"):
        summary |= update["update"]
    lowest = min(value for _, value in seen["train/loss"])
    assert summary["train/loss"]["min"] == pytest.approx(lowest)
    best = max(value for _, value in seen["val/exact_stop"])
    assert summary["val/exact_stop"]["max"] == pytest.approx(best)


def test_an_evaluation_is_a_run_in_the_group_of_its_training_run(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    store = synthetic_store(counts=range(1, 13), loops=28)
    run = Run("tiny", store, summarize(store))
    write_summary(tmp_path / "summary.json", run.summary)
    store.save(tmp_path / "outcomes.safetensors")
    provenance = {
        "experiment": {"architecture": "arch5", "overlays": [], "task": "graph", "seed": 2, "group": "arch5-graph"},
        "wandb": {"run": "abcd1234", "project": "loopformer"},
    }
    files = [tmp_path / "summary.json", tmp_path / "outcomes.safetensors"]
    run_id = log_evaluation(Wandb(), Evaluation(run.name, run.summary, provenance, files, tmp_path), store)
    (path,) = offline_files(tmp_path)
    record = of_type(path, "run")[0]
    assert (record["run_id"], record["run_group"], record["job_type"]) == (run_id, "arch5-graph", "eval")
    assert set(record["tags"]) == {"arch5", "graph", "seed-2"}
    (row,) = history(path)
    assert row["item"]["eval/strict"] == run.summary["strict"]
    assert row["item"]["eval/strict/low"] == run.summary["intervals"]["strict"][0]
    assert row["item"]["eval/complete/N_7-12"] == run.summary["by_range"]["7-12"]["complete"]
    tables = {file.name.split("_table_")[0] for file in path.parent.glob("files/media/table/eval/*.json")}
    assert tables == {name.removeprefix("eval/") for name in CHARTS}
    (artifact,) = [a for a in of_type(path, "artifact") if a["type"] == "outcomes"]
    assert {entry["path"] for entry in artifact["manifest"]["contents"]} == {file.name for file in files}
    assert all(tmp_path in Path(entry["local_path"]).parents for entry in artifact["manifest"]["contents"])
    assert "WANDB_DATA_DIR" not in os.environ, "the next evaluation stages in its own folder"
    config = {
        k: v for update in [record.get("config", {}), *of_type(path, "config")] for k, v in update["update"].items()
    }
    assert config["training_run"] == "abcd1234"


def test_evaluations_of_other_benchmarks_are_logged_from_their_files(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    asked = "--benchmark grammar --grammar.depths 2 --grammar.per_depth 2 --grammar.suite false"
    model = str(ROOT / "checkpoints/tiny-brackets")
    evaluate.main(["--checkpoint", model, "--output", str(tmp_path / "out"), *asked.split()])
    (path,) = offline_files(tmp_path / "out")
    (record,) = of_type(path, "run")
    assert (record["job_type"], record["display_name"]) == ("eval", "tiny-brackets/grammar")
    (row,) = history(path)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert row["item"]["eval/yes/complete"] == summary["yes"]["complete"] == 1.0
    assert row["item"]["eval/by_depth/2/no/n"] == 2
    (artifact,) = [a for a in of_type(path, "artifact") if a["type"] == "outcomes"]
    assert {entry["path"] for entry in artifact["manifest"]["contents"]} == {
        "outcomes.safetensors", "summary.json", "table.md",
    }  # fmt: skip


def test_a_disabled_evaluation_logs_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("WANDB_MODE")
    store = synthetic_store()
    done = Evaluation("x", summarize(store), {}, [], tmp_path)
    assert log_evaluation(Wandb(mode="disabled"), done, store) is None
    assert list(tmp_path.iterdir()) == []


def test_summaries_follow_the_metrics_own_direction() -> None:
    assert definition("val/strict/held_out") == {"summary": "max,last"}
    assert definition("val/missing_stop") == {"summary": "min,last"}
    assert definition("val/stop_error_median") == {"summary": "last"}
    assert definition("val/letter_loss/beyond") == {"summary": "min,last"}
    assert definition("val/loop_07/hazard")["hidden"]
    assert definition("train/grad_norm") == {"summary": "last"}


def test_an_unreadable_file_is_passed_over_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "offline-run-1" / "run-1.wandb"
    path.parent.mkdir()
    path.write_bytes(b"nonsense")
    with pytest.warns(UserWarning, match=r"run-1\.wandb cannot be read back"):
        assert read_back(tmp_path) == Logged()


def test_extremes_and_steps_are_kept() -> None:
    logged = Logged()
    for step, value in ((3, 0.5), (7, 0.2), (5, 0.9)):
        logged.add({"a": value, "text": "x"}, step)
    assert logged.reached == {"a": 7, "text": 7}
    assert logged.extremes == {"a": (0.2, 0.9)}
    assert not any(math.isnan(v) for ends in logged.extremes.values() for v in ends)


def test_experiments_are_named_after_their_files_or_parts() -> None:
    network = {
        "init_args": {
            "recurrence": {"class_path": "a.FixedPrompt"},
            "bridge": None,
            "halting": {"class_path": "GRUController"},
        }
    }
    config = {
        "model": {"class_path": "loopformer.executor.ExecutorModule", "init_args": {"network": network}},
        "data": {"class_path": "datamodules.graph.GraphPanelDataModule"},
        "seed_everything": 3,
    }
    named = Experiment.of(config, ["configs/arch2.yaml", "configs/backbone/tiny.yaml"])
    assert (named.group, named.tags) == ("arch2+tiny-graph", ["arch2", "tiny", "graph", "seed-3"])
    assert Experiment.of(config).architecture == "FixedPrompt-GRUController"
    timer = {**config, "model": {"class_path": "loopformer.timer.TimerModule", "init_args": {"executor": "x"}}}
    assert Experiment.of(timer).group == "TimerModule-graph"
