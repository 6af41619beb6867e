"""Every YAML under configs/ builds; what it prints parses back to itself; the real configs have the published sizes."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from test_checkpoint import NETWORK
from test_looped import QWEN_05B, trainable

from loopformer import checkpoint
from loopformer.cli import LoopformerCLI

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.yaml"))
EXPERIMENTS = [path for path in CONFIGS if path.count("/") == 1]
OVERLAYS = [path for path in CONFIGS if path.count("/") > 1]
BASE, TINY = "configs/arch4_executor.yaml", "configs/backbone/tiny.yaml"
UNDER = {
    "configs/recipe/half_instructions.yaml": ["configs/program_jumps.yaml"],
}
"""The files that an overlay goes on top of; the Architecture 4 executor unless named here."""


def chain(path: str) -> list[str]:
    """The files of a run that uses this one and builds on this machine."""
    if path in EXPERIMENTS:
        stage = "executor" in yaml.safe_load((ROOT / path).read_text())["model"]["init_args"]
        return [path] if stage else [path, TINY]
    experiment, *overlays = UNDER.get(path, [BASE])
    return [experiment, TINY, *overlays, *([] if path == TINY else [path])]


@pytest.fixture
def executor(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    checkpoint.save(tmp_path / "executor", checkpoint.build_network(NETWORK), NETWORK)
    return tmp_path / "executor"


def arguments(path: str, executor: Path, output: Path) -> list[str]:
    files = chain(path)
    given = [word for file in files for word in ("--config", str(ROOT / file))]
    if "controller" in path or "timer" in path:
        given += ["--model.init_args.executor", str(executor)]
    return [*given, "--output", str(output)]


@pytest.mark.parametrize("path", CONFIGS)
def test_config_builds(path: str, executor: Path, tmp_path: Path) -> None:
    cli = LoopformerCLI(arguments(path, executor, tmp_path / "run"))
    assert cli.model.network.labels[0] == " A"
    assert len(cli.datamodule.train_dataloader()) > 0
    assert not (tmp_path / "run" / "config.yaml").exists(), "building a run writes no run"


@pytest.mark.parametrize("path", CONFIGS)
def test_printed_config_parses_back_to_itself(path: str, executor: Path, tmp_path: Path) -> None:
    def printed(given: list[str]) -> str:
        text = io.StringIO()
        with redirect_stdout(text), pytest.raises(SystemExit):
            LoopformerCLI([*given, "--print_config"])
        return text.getvalue()

    first = printed(arguments(path, executor, tmp_path / "run"))
    again = tmp_path / "printed.yaml"
    again.write_text(first)
    assert printed(["--config", str(again)]) == first


def real_network(path: str) -> Any:
    """The network of a config at its real size, from the Qwen2 configuration alone: no weights are fetched."""
    config = yaml.safe_load((ROOT / path).read_text())["model"]["init_args"]["network"]
    backbone = config["init_args"]["backbone"]
    assert backbone["init_args"]["model"] == "Qwen/Qwen2.5-0.5B-Instruct"
    split = backbone["init_args"]["split"]
    config["init_args"]["backbone"] = {
        "class_path": "ScratchBackbone",
        "init_args": {"config": QWEN_05B, "split": split},
    }
    with torch.device("meta"):
        return checkpoint.build_network(config)


def test_real_architecture_4_has_the_published_size() -> None:
    network = real_network("configs/arch4_executor.yaml")
    assert trainable(network) == 180_108_059
    assert trainable(network.halting) == 332_417


def test_overlays_state_only_differences() -> None:
    """A field that an overlay repeats with the value below it would rot silently."""
    base = yaml.safe_load((ROOT / BASE).read_text())

    def repeated(over: Any, under: Any, where: str) -> list[str]:
        if isinstance(over, dict) and isinstance(under, dict):
            if "class_path" in over and over.get("class_path") != under.get("class_path"):
                return []
            return [r for k in over if k in under for r in repeated(over[k], under[k], f"{where}.{k}")]
        return [where] if over == under and not where.endswith("class_path") else []

    for path in OVERLAYS:
        assert repeated(yaml.safe_load((ROOT / path).read_text()), base, "") == [], path
