"""A killed evaluation goes on where it was, and ends with the very bytes of one that was left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_evaluate import ROOT, ignore, saved
from test_machine_benchmark import loaded as machine_model

import evaluate
from loopformer import checkpoint, language_checkpoint
from loopformer.backbone import ScratchBackbone
from loopformer.evaluation import grammar_benchmark, writer
from loopformer.evaluation.graph_benchmark import GraphOptions, evaluate_graphs
from loopformer.evaluation.machine_model import LoopedMachine
from loopformer.evaluation.partial import PartialResults
from loopformer.evaluation.trace import Part
from loopformer.language_model import LanguageModel

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
    lost, spoiled = sorted(stamps)[4], sorted(stamps)[6]
    (folder / lost).unlink()
    (folder / spoiled).write_bytes(b"half")
    second, _ = evaluate_graphs(model, options, ignore, ignore, folder)
    again = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {name for name in stamps if again[name] != stamps[name]} == {lost, spoiled}
    assert all(torch.equal(tensor, second.tensors()[name]) for name, tensor in first.tensors().items())
    other = checkpoint.load(saved(tmp_path / "other", "StopHead", "full"))
    for strange, counts in ((model, "1-4"), (other, "1-3")):
        asked = GraphOptions(counts=counts, graphs=1, batch_size=16, native_sample=0)
        store, _ = evaluate_graphs(strange, asked, ignore, ignore, folder)
        alone, _ = evaluate_graphs(strange, asked, ignore, ignore)
        assert all(torch.equal(tensor, store.tensors()[name]) for name, tensor in alone.tensors().items())
    assert {name: (folder / name).stat().st_mtime_ns for name in again} == again, "theirs have other names"


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
    next(tmp_path.iterdir()).write_bytes(b"half")
    assert kept.get(0, lambda: part)[0] is part, "a file that cannot be read counts as missing"
    assert PartialResults(None, {}).get(0, lambda: part)[0] is part


SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
WRITTEN = {
    "traces": ["--benchmark=traces", "--traces.style=trace", "--traces.counts=1,2,3", "--traces.graphs=1",
               "--traces.batch_size=9", "--traces.max_new_tokens=4"],
    "office": ["--benchmark=program", "--program.part=office", "--program.office.arm=few_shot_python",
               "--program.office.splits=composition", "--program.office.per_family=2",
               "--program.office.batch_size=3", "--program.office.max_new_tokens=4", "--program.office.listing=false"],
    "execution": ["--benchmark=program", "--program.part=traces", "--program.traces.programs=GeneratedPrograms",
                  "--program.traces.programs.count=2",
                  "--program.traces.rendering=DynamicScratchpad", "--program.traces.true_states=true",
                  "--program.traces.batch_size=4", "--program.traces.max_new_tokens=3"],
    "machine": ["--benchmark=program", "--program.part=machine", "--program.machine.task=registers",
                "--program.machine.rendering=MachineDynamicScratchpad", "--program.machine.splits=[trained,ending]",
                "--program.machine.machines=3", "--program.machine.longest=2", "--program.machine.batch_size=2",
                "--program.machine.max_new_tokens=3"],
    "lanes": ["--benchmark=grammar", "--grammar.lane=answer,gym", "--grammar.puzzles=brackets",
              "--grammar.max_new_tokens=2", "--grammar.listing=false", "--grammar.batch_size=32"],
}  # fmt: skip


def ordinary(folder: Path) -> Path:
    """An ordinary model that was not trained."""
    torch.manual_seed(0)
    words = ["machines", "machine_text", "moves"]
    language_checkpoint.save(folder / "m", LanguageModel(ScratchBackbone(dict(SIZES), words=words)), {}, {})
    return folder / "m"


class Killed(BaseException):
    """Stands for the end of the process: nothing between it and the test may handle it."""


def evaluated(model: Path, output: Path, options: list[str]) -> dict[str, bytes]:
    """Evaluate; return the files but for what tells seconds."""
    evaluate.main(["--checkpoint", str(model), "--output", str(output), "--name", "m", *options])
    assert not (output / "partial").exists()
    found = {path.name: path.read_bytes() for path in output.iterdir()}
    summary = json.loads(found["summary.json"])
    summary.pop("timing", None)
    return found | {"summary.json": json.dumps(summary).encode(), "report.html": b""}


def dies_after(function: Callable[..., Any], calls: int) -> Callable[..., Any]:
    left = [calls]

    def call(*given: Any, **named: Any) -> Any:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return function(*given, **named)

    return call


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_an_ordinary_model_wrote_is_not_written_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary(tmp_path)
    whole = evaluated(tmp_path / "m", tmp_path / "whole", WRITTEN[kind])
    generate = writer.generate_greedy
    monkeypatch.setattr(writer, "generate_greedy", dies_after(generate, 2))
    with pytest.raises(Killed):
        evaluated(tmp_path / "m", tmp_path / "killed", WRITTEN[kind])
    assert len(list((tmp_path / "killed" / "partial").glob("batch_*.json"))) == 2
    asked: list[Any] = []
    monkeypatch.setattr(
        writer, "generate_greedy", lambda lm, prompts, *more: asked.append(prompts) or generate(lm, prompts, *more)
    )
    assert evaluated(tmp_path / "m", tmp_path / "killed", WRITTEN[kind]) == whole
    resumed = len(asked)
    evaluated(tmp_path / "m", tmp_path / "again", WRITTEN[kind])
    assert len(asked) - resumed == resumed + 2, "two batches came from their files"


@pytest.mark.parametrize("kind", ["machine", "grammar"])
def test_finished_rollouts_of_machines_are_not_run_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "machine":
        model, owner = machine_model(tmp_path).directory, LoopedMachine
        part = "--program.machine"
        options = ["--benchmark=program", "--program.part=machine", f"{part}.task=fsm", f"{part}.machines=4"]
        options += [f"{part}.batch_size=2", f"{part}.longest=6"]
        changed = f"{part}.seed=5"
    else:
        model, owner = ROOT / "checkpoints" / "tiny-brackets", grammar_benchmark
        options = ["--benchmark=grammar", "--grammar.depths=1,2,3", "--grammar.per_depth=2", "--grammar.suite=false"]
        options += ["--grammar.batch_size=4"]
        changed = "--grammar.slack=3"
    run, calls_of = owner._run, [0]

    def counted(*given: Any) -> Any:
        calls_of[0] += 1
        return run(*given)

    monkeypatch.setattr(owner, "_run", counted)
    whole = evaluated(model, tmp_path / "whole", options)
    monkeypatch.setattr(owner, "_run", dies_after(run, 2))
    with pytest.raises(Killed):
        evaluated(model, tmp_path / "killed", options)
    kept = sorted((tmp_path / "killed" / "partial").iterdir())
    assert [path.name[-17:] for path in kept] == ["00000.safetensors", "00001.safetensors"]
    monkeypatch.setattr(owner, "_run", dies_after(run, 0))
    with pytest.raises(Killed):
        evaluated(model, tmp_path / "killed", [*options, changed])
    monkeypatch.setattr(owner, "_run", dies_after(run, calls_of[0] - 2))
    assert evaluated(model, tmp_path / "killed", options) == whole


GRAPH = ["--benchmark=graph", "--graph.graphs=1", "--graph.counts=1-3", "--graph.native_sample=0"]
BRACKETS = ["--benchmark=grammar", "--grammar.depths=1,2", "--grammar.per_depth=2", "--grammar.suite=false"]


@pytest.mark.parametrize("kind", [*WRITTEN, "graph", "brackets"])
def test_killed_while_it_wrote_its_results(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file but the last is there; the summary alone marks a folder as finished."""
    if kind in WRITTEN:
        model, options = ordinary(tmp_path), WRITTEN[kind]
    elif kind == "graph":
        model, options = saved(tmp_path / "m", "StopHead", "full"), GRAPH
    else:
        model, options = ROOT / "checkpoints" / "tiny-brackets", BRACKETS
    whole = evaluated(model, tmp_path / "whole", options)
    replace = Path.replace

    def dies_at_the_summary(path: Path, target: Path) -> Path:
        if Path(target).name == "summary.json":
            raise Killed
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", dies_at_the_summary)
    with pytest.raises(Killed):
        evaluated(model, tmp_path / "killed", options)
    assert (tmp_path / "killed" / "partial").is_dir()
    monkeypatch.setattr(Path, "replace", replace)
    assert evaluated(model, tmp_path / "killed", options) == whole
    with pytest.raises(SystemExit):
        evaluated(model, tmp_path / "killed", options)


def test_finished_ones_of_several_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = [saved(tmp_path / name / "model", "StopHead", "full") for name in ("a", "b")]
    command = ["--checkpoint", *map(str, models), "--output", str(tmp_path / "out"), *GRAPH]
    evaluate.main(command)
    page = (tmp_path / "out" / "comparison.json").read_bytes()
    (tmp_path / "out" / "comparison.json").unlink()
    (tmp_path / "out" / "b" / "summary.json").unlink()
    stamp = (tmp_path / "out" / "a" / "summary.json").stat().st_mtime_ns
    capsys.readouterr()
    evaluate.main(command)
    assert "a: evaluated already" in capsys.readouterr().out
    assert (tmp_path / "out" / "comparison.json").read_bytes() == page
    assert (tmp_path / "out" / "a" / "summary.json").stat().st_mtime_ns == stamp
    (tmp_path / "out" / "comparison.json").unlink()
    other = checkpoint.load(saved(tmp_path / "c" / "model", None, "full"))
    (models[0] / "config.yaml").write_bytes((other.directory / "config.yaml").read_bytes())
    (models[0] / "model.safetensors").write_bytes((other.directory / "model.safetensors").read_bytes())
    with pytest.raises(SystemExit):
        evaluate.main(command)
    assert "holds results of another model" in capsys.readouterr().err
