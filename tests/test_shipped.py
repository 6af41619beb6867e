"""The checkpoints that ship: they load from their folders alone and do what their cards say."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch

from datamodules.graph_batcher import GraphBatcher
from loopformer import checkpoint
from loopformer.evaluation.controller import sweep_timer
from loopformer.evaluation.grammar_benchmark import evaluate_grammar
from loopformer.evaluation.grammar_questions import GrammarOptions
from loopformer.evaluation.grammar_summary import summarize_grammar
from loopformer.evaluation.graph_benchmark import GraphOptions, evaluate_graphs
from loopformer.evaluation.summary import summarize

SHIPPED = Path(__file__).resolve().parents[1] / "checkpoints" / "tiny-executor-timer"


@pytest.fixture(scope="module")
def shipped() -> checkpoint.Checkpoint:
    return checkpoint.load(SHIPPED)


def test_it_is_small(shipped: checkpoint.Checkpoint) -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 5e6
    assert shipped.config["provenance"]["trained_counts"] == [1, 2, 3, 4, 5, 6, 8, 10, 12]


def test_a_sample_of_the_benchmark_is_strictly_right(shipped: checkpoint.Checkpoint) -> None:
    options = GraphOptions(counts="1-256", graphs=4, native_sample=0)
    store, timing = evaluate_graphs(shipped, options, lambda _: None, lambda _: None)
    summary = summarize(store)
    assert timing.native_checks == 54
    assert summary["queries"] == 36 * 256
    assert summary["strict"] == summary["exact_stop"] == 1.0


def test_the_timer_stops_exactly_at_every_count(shipped: checkpoint.Checkpoint) -> None:
    swept = sweep_timer(shipped.network, GraphBatcher(shipped.network.backbone.tokenizer))
    assert swept is not None
    assert swept["exact_stop"] == 1.0
    assert swept["reading_error"] < 0.01


def test_states_stay_on_scale_over_a_thousand_loops_in_bfloat16(shipped: checkpoint.Checkpoint) -> None:
    from datamodules.tasks.graph_splits import benchmark

    network = shipped.network
    batch = GraphBatcher(network.backbone.tokenizer).batch(benchmark()[:4], 1)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        norms = [float(state.float().norm()) for state in islice(network.states(network.start(batch)), 1024)]
    assert torch.isfinite(torch.tensor(norms)).all()
    assert max(norms) < 10 * min(norms)


def test_the_bracket_machine_reads_five_times_deeper_than_it_was_trained() -> None:
    folder = SHIPPED.parent / "tiny-brackets"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 5e6
    found = checkpoint.load(folder)
    assert found.config["provenance"]["trained_counts"] == list(range(1, 15))
    options = GrammarOptions(depths="6,32", per_depth=16, suite=False)
    summary = summarize_grammar(evaluate_grammar(found, options))
    for depth in ("6", "32"):
        for answer in ("yes", "no"):
            assert summary["by_depth"][depth][answer]["n"] == 16
            assert summary["by_depth"][depth][answer]["strict"] == 1.0
