"""A killed evaluation goes on where it was, and ends with the very bytes of one that was left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from test_evaluate import ROOT, ignore, saved

from loopformer import checkpoint
from loopformer.evaluation.graph_benchmark import GraphOptions, evaluate_graphs
from loopformer.evaluation.partial import PartialResults
from loopformer.evaluation.trace import Part

OPTIONS = ("--graph.graphs=4", "--graph.counts=1-24", "--graph.batch_size=64", "--graph.native_sample=0")


def command(model: Path, output: Path) -> list[str]:
    return [sys.executable, "evaluate.py", "--checkpoint", str(model), "--output", str(output), *OPTIONS]


@pytest.mark.slow
def test_a_killed_evaluation_ends_with_the_same_bytes(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", "StopHead", "full")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    outputs = [tmp_path / "killed", tmp_path / "whole"]
    process = subprocess.Popen(
        command(model, outputs[0]), cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    parts = outputs[0] / "partial"
    deadline = time.monotonic() + 120
    while len(list(parts.glob("part_*"))) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {path.name: path.stat().st_mtime_ns for path in parts.glob("part_*")}
    assert 3 <= len(done) < 9  # 36 graphs in parts of 4
    assert not (outputs[0] / "summary.json").exists()

    began = time.time_ns()
    for output in outputs:
        run = subprocess.run(
            command(model, output), cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240
        )
        assert run.returncode == 0, run.stderr
        assert not (output / "partial").exists()
    assert all(stamp < began for stamp in done.values())
    killed, whole = ((output / "outcomes.safetensors").read_bytes() for output in outputs)
    assert killed == whole
    summaries = [json.loads((output / "summary.json").read_text()) for output in outputs]
    for summary in summaries:
        summary.pop("timing")
    assert summaries[0] == summaries[1]


def test_finished_parts_are_not_run_again_and_never_mixed(tmp_path: Path) -> None:
    model = checkpoint.load(saved(tmp_path / "model", None, "full"))
    options = GraphOptions(counts="1-3", graphs=1, batch_size=16, native_sample=0)  # 9 parts of one graph
    folder = tmp_path / "partial"
    first, _ = evaluate_graphs(model, options, ignore, ignore, folder)
    stamps = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert len(stamps) == 9
    (folder / "part_00004.safetensors").unlink()
    second, _ = evaluate_graphs(model, options, ignore, ignore, folder)
    again = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {name for name in stamps if again[name] != stamps[name]} == {"part_00004.safetensors"}
    assert all(torch.equal(tensor, second.tensors()[name]) for name, tensor in first.tensors().items())
    with pytest.raises(ValueError, match="another model, graphs or options"):
        evaluate_graphs(model, GraphOptions(counts="1-4", graphs=1, batch_size=16), ignore, ignore, folder)
    other = checkpoint.load(saved(tmp_path / "other", "StopHead", "full"))
    with pytest.raises(ValueError, match="another model, graphs or options"):
        evaluate_graphs(other, options, ignore, ignore, folder)


def test_a_part_survives_its_file(tmp_path: Path) -> None:
    settled = torch.ones(4, 2, dtype=torch.int16)
    letters, stops = torch.ones(4, 3, dtype=torch.int16), torch.zeros(2, 2, dtype=torch.int32)
    part = Part(letters, None, stops, {(1, 0): torch.rand(3, 5)}, settled)
    kept = PartialResults(tmp_path, {"model": "a"})
    made, seconds = kept.get(0, lambda: part)
    found, same = kept.get(0, lambda: pytest.fail("it was there"))
    assert made is part
    assert seconds == same
    assert torch.equal(found.letters, part.letters)
    assert torch.equal(found.converged, part.converged)
    assert found.direct is None
    assert found.logits.keys() == part.logits.keys()
    assert torch.equal(found.logits[1, 0], part.logits[1, 0])
    (tmp_path / "part_00001.safetensors").write_bytes(b"half")
    with pytest.raises(ValueError, match="delete it"):
        kept.get(1, lambda: part)
    assert PartialResults(None, {}).get(0, lambda: part)[0] is part
