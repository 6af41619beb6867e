"""evaluate.py and what stands behind it: shared work equals native calls, and the numbers follow from the store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_checkpoint import NETWORK

import evaluate
from datamodules.graph_batcher import GraphBatcher
from datamodules.panel import PUBLISHED_COUNTS
from datamodules.tasks.graph import Graphs
from datamodules.tasks.graph_splits import benchmark
from loopformer import checkpoint
from loopformer.evaluation.graph_benchmark import GraphOptions, choose_graphs, evaluate_graphs, parse_counts
from loopformer.evaluation.native import check_native, native_call
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.evaluation.summary import summarize
from loopformer.halting import AffineTimer
from loopformer.looped import LoopedTransformer
from loopformer.timer_fit import fit_reader

ROOT = Path(__file__).resolve().parents[1]


def network_config(halting: str | None, view: str = "executor") -> dict:
    """A small composition: `view` "full" makes the executor see the count."""
    parts = {
        **NETWORK["init_args"],
        "recurrence": {"class_path": "FixedPrompt", "init_args": {"view": view}},
        "halting": halting and {"class_path": halting},
    }
    return {"class_path": "LoopedTransformer", "init_args": parts}


def build(halting: str | None, view: str = "executor") -> LoopedTransformer:
    torch.manual_seed(5)
    network = checkpoint.build_network(network_config(halting, view)).eval()
    if isinstance(network.halting, AffineTimer):
        digits = GraphBatcher(network.backbone.tokenizer).count_digits(np.array(PUBLISHED_COUNTS))
        embeddings = network.backbone.lm.model.embed_tokens(digits.clamp(min=0)).detach()
        fit_reader(network.halting, digits, embeddings, PUBLISHED_COUNTS)
        with torch.no_grad():
            network.halting.decrement.fill_(-1.0)
            network.halting.stop_weight.fill_(-4.0)
            network.halting.stop_bias.fill_(2.0)
    return network


def saved(folder: Path, halting: str | None, view: str = "executor") -> Path:
    checkpoint.save(folder, build(halting, view), network_config(halting, view), {"trained_counts": [1, 2, 3]})
    return folder


def ignore(_: int) -> None:
    """A progress bar that nobody watches."""


@pytest.mark.parametrize("halting", ["AffineTimer", "GRUController", None])
@pytest.mark.parametrize("view", ["executor", "full"])
def test_shared_work_equals_native_calls(tmp_path: Path, halting: str | None, view: str) -> None:
    if halting == "AffineTimer" and view == "full":
        pytest.skip("the timer belongs to count-free executors")
    model = checkpoint.load(saved(tmp_path / "model", halting, view))
    options = GraphOptions(counts="1,3,6,12", graphs=1, batch_size=4, native_sample=0)
    store, timing = evaluate_graphs(model, options, ignore, ignore)
    assert timing.native_checks == 27
    graphs = choose_graphs(options)
    batcher = GraphBatcher(model.network.backbone.tokenizer)
    for query in (0, 7, 18, 35):
        graph, count = int(store.instance[query]), int(store.steps[query])
        native = native_call(model.network, batcher, graphs[slice(graph, graph + 1)], count, 272)
        assert native.logits[:count].argmax(-1).tolist() == store.letters[int(store.row[query]), :count].tolist()
        assert native.stop == int(store.stops[query])


def test_native_check_refuses_a_wrong_trace(tmp_path: Path) -> None:
    network = checkpoint.load(saved(tmp_path / "model", "AffineTimer")).network
    batcher, graphs = GraphBatcher(network.backbone.tokenizer), benchmark()[:1]
    right = native_call(network, batcher, graphs, 6, 272)
    stops = torch.tensor([[right.stop]])
    arguments = (network, batcher, graphs)
    assert check_native(*arguments, {(0, 0): right.logits}, stops, [6], 272) == 1
    off = right.logits.clone()
    off[2, 3] += 0.01
    with pytest.raises(RuntimeError, match=r"logits differ by up to 0\.01"):
        check_native(*arguments, {(0, 0): off}, stops, [6], 272)
    with pytest.raises(RuntimeError, match="stop 6 against 7"):
        check_native(*arguments, {(0, 0): right.logits}, stops + 1, [6], 272)


def run_evaluate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "evaluate.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_command_line(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", "AffineTimer")
    output = tmp_path / "results"
    small = ("--graph.graphs=2", "--graph.counts=1-20", "--graph.native_sample=2")
    run = run_evaluate("--checkpoint", str(model), "--benchmark", "graph", "--output", str(output), *small)
    assert run.returncode == 0, run.stderr
    assert sorted(p.name for p in output.iterdir()) == [
        "outcomes.safetensors", "report.html", "summary.json", "table.md",
    ]  # fmt: skip
    summary = json.loads((output / "summary.json").read_text())
    assert summary["queries"] == 9 * 2 * 20
    assert summary["exact_stop"] == 1.0
    for share in ("forced_final", "complete", "exact_stop", "end_to_end", "strict"):
        low, high = summary["intervals"][share]
        assert low <= summary[share] <= high
    assert summary["by_kind"].keys() == {"random_function", "permutation", "full_cycle"}
    assert summary["controller"]["exact_stop"] == 1.0
    assert summary["controller"]["first_failure"] is None
    assert summary["controller"]["reading_error"] < 0.01
    assert list(summary["by_range"])[:2] == ["1-6", "7-12"]
    again = summarize(OutcomeStore.load(output / "outcomes.safetensors"))
    assert again == {
        name: value for name, value in summary.items() if name not in ("timing", "controller", "stop_rules")
    }
    assert "times longer" in " ".join(run.stdout.split())

    second = run_evaluate("--checkpoint", str(model), "--output", str(output), *small)
    assert second.returncode == 2
    assert "holds results already" in second.stderr


def test_several_checkpoints_are_compared_and_looked_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timer, gru = saved(tmp_path / "timer" / "model", "AffineTimer"), saved(tmp_path / "gru" / "model", "GRUController")
    small = ("--graph.graphs=1", "--graph.counts=1-8", "--graph.native_sample=0")
    evaluate.main(["--checkpoint", str(timer), str(gru), "--output", str(tmp_path / "both"), *small])
    assert {p.name for p in (tmp_path / "both").iterdir()} == {
        "timer", "gru", "report.html", "table.md", "comparison.csv", "comparison.json",
    }  # fmt: skip
    summary = json.loads((tmp_path / "both" / "timer" / "summary.json").read_text())
    assert {"forced", "learned", "oracle", "repeat", "converged"} == set(summary["stop_rules"])
    assert summary["stop_rules"]["learned"]["strict"] == summary["strict"]
    assert summary["stop_rules"]["forced"]["returned"] == summary["forced_final"]

    folders = [str(tmp_path / "both" / name) for name in ("timer", "gru")]
    evaluate.main(["compare", "--runs", *folders, "--reference", "gru", "--output", str(tmp_path / "again")])
    differences = [
        json.loads((tmp_path / where / "comparison.json").read_text())["differences"] for where in ("both", "again")
    ]
    both, other = differences[0]["gru"]["all"]["exact_stop"], differences[1]["timer"]["all"]["exact_stop"]
    assert both["difference"] == -other["difference"] < 0, "the untrained GRU stops wrongly, which is no missing number"
    assert (both["low"], both["high"]) == (-other["high"], -other["low"])

    panel = [
        "mechanism",
        "--checkpoint",
        str(timer),
        "--graph",
        "3",
        "--loops",
        "4",
        "--output",
        str(tmp_path / "look"),
    ]
    evaluate.main(panel)
    data = json.loads((tmp_path / "look" / "mechanism.json").read_text())
    assert (data["instance"]["index"], data["instance"]["count"], len(data["letters"])) == (3, 4, 4)
    capsys.readouterr()
    for arguments, message in (
        (panel, "exists"),
        (["compare", "--runs", *folders, "--output", str(tmp_path / "both")], "holds results already"),
        (["compare", "--runs", folders[0], "--output", str(tmp_path / "x")], "at least two"),
        (["compere", "--runs", folders[0]], "'compere' is no command; use one of run, compare, curves, mechanism"),
    ):
        with pytest.raises(SystemExit) as exit_:
            evaluate.main(arguments)
        assert exit_.value.code == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.strip().splitlines()) == 1


def test_mistakes_are_one_line_errors(tmp_path: Path) -> None:
    model = str(saved(tmp_path / "model", None))
    for arguments, message in (
        (("--checkpoint", str(tmp_path / "none")), "is not a folder"),
        (
            ("--checkpoint", model, "--benchmark", "mathematics"),
            "'mathematics' is unknown; use one of graph",
        ),
        (("--checkpoint", model, "--graph.counts", "0-3"), "counts: '0-3' holds no count, or one below 1"),
        (("--checkpoint", model, "--graph.grafs", "3"), "grafs"),
        (("--checkpoint", model, "--device", "gpu"), "device: 'gpu' is unknown"),
        (
            ("--checkpoint", model, "--program.office.per_family", "3"),
            "program: got options of benchmark program, but graph",
        ),
    ):
        run = run_evaluate(*arguments, "--output", str(tmp_path / "out"))
        assert run.returncode != 0
        errors = run.stderr.strip().splitlines()
        assert len(errors) == 1, run.stderr
        assert message in errors[0]
    assert not (tmp_path / "out").exists()


def test_counts_and_graphs_are_chosen() -> None:
    assert parse_counts("1-256") == list(range(1, 257))
    assert parse_counts("8,1-3,2") == [1, 2, 3, 8]
    for wrong in ("", "a", "3-1", "0", "1--2"):
        with pytest.raises(ValueError, match="counts"):
            parse_counts(wrong)
    assert len(choose_graphs(GraphOptions())) == 1350
    three = choose_graphs(GraphOptions(graphs=3))
    assert len(three) == 27
    assert three.index.max() == 2
    fresh: Graphs = choose_graphs(GraphOptions(fresh=True, graphs=50))
    assert len(fresh) == 450
    assert not fresh.tables() & benchmark().tables()
    with pytest.raises(ValueError, match="1 to 150"):
        choose_graphs(GraphOptions(graphs=151))
