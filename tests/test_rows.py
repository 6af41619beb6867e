"""Every row of the ladder: trained, exported, and evaluated from its directory alone in a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_checkpoint import NETWORK

from loopformer import checkpoint, language_checkpoint
from loopformer.backbone import ScratchBackbone
from loopformer.cli import LoopformerCLI
from loopformer.evaluation.graph_benchmark import GraphOptions, evaluate_graphs
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.language_model import LanguageModel

ROOT = Path(__file__).resolve().parents[1]
COUNTS, GRAPHS = "1-4,16", 2


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny language model for the rows that adapt one."""
    folder = tmp_path_factory.mktemp("base") / "model"
    torch.manual_seed(0)
    backbone = ScratchBackbone(NETWORK["init_args"]["backbone"]["init_args"]["config"])
    language_checkpoint.save(folder, LanguageModel(backbone), {})
    return folder


def fit(output: Path, config: str, *arguments: str) -> LoopformerCLI:
    cli = LoopformerCLI(
        [
            "--config", str(ROOT / config), *arguments, "--output", str(output), "--trainer.limit_val_batches=0",
            "--checkpoint.monitor=null", "--wandb.mode=disabled", "--trainer.accelerator=cpu",
        ]
    )  # fmt: skip
    cli.fit()
    return cli


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executor over which the stages of Architectures 4 and 5 are trained."""
    output = tmp_path_factory.mktemp("executor") / "run"
    fit(
        output,
        "configs/arch4_executor.yaml",
        "--config",
        str(ROOT / "configs/backbone/tiny.yaml"),
        "--trainer.max_steps=3",
    )
    return output / "model"


ADAPTED = ("arch1", "arch2", "arch3a", "arch3b")
STAGES = {"arch4_controller": 20, "arch5_timer": 2000}  # updates; fewer do not fit the countdown


@pytest.mark.slow
@pytest.mark.parametrize("row", [*ADAPTED, "arch4_executor", *STAGES])
def test_evaluates_in_a_fresh_process_to_the_very_same_numbers(
    row: str, base: Path, executor: Path, tmp_path: Path
) -> None:
    if row in STAGES:
        given = [f"--model.init_args.executor={executor}", f"--trainer.max_steps={STAGES[row]}"]
        given += ["--data.init_args.graphs=4", "--data.init_args.validation_graphs=2"]
    elif row in ADAPTED:
        given = ["--config", str(ROOT / "configs/backbone/tiny_pretrained.yaml"), "--trainer.max_steps=3"]
        given += [f"--model.init_args.network.init_args.backbone.init_args.model={base}"]
    else:
        given = ["--config", str(ROOT / "configs/backbone/tiny.yaml"), "--trainer.max_steps=3"]
    output = tmp_path / "run"
    cli = fit(output, f"configs/{row}.yaml", *given)
    exported = checkpoint.load(output / "model")
    trained = checkpoint.Checkpoint(cli.model.network.eval(), exported.config, exported.directory)
    with torch.inference_mode():
        expected, _ = evaluate_graphs(
            trained, GraphOptions(counts=COUNTS, graphs=GRAPHS, native_sample=0), lambda _: None, lambda _: None
        )
    command = [
        sys.executable, "evaluate.py", "--checkpoint", str(output / "model"), "--graph.counts", COUNTS,
        "--graph.graphs", str(GRAPHS), "--graph.native_sample", "0", "--output", str(tmp_path / "evaluation"),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = OutcomeStore.load(tmp_path / "evaluation" / "outcomes.safetensors")
    assert torch.equal(torch.as_tensor(found.letters), torch.as_tensor(expected.letters))
    assert torch.equal(torch.as_tensor(found.stops), torch.as_tensor(expected.stops))
    assert found.metadata.digests["graphs"] == expected.metadata.digests["graphs"]
