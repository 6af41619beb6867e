"""What the README says can be typed works: its Python runs, its commands parse, its files exist."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from loopformer.cells.__main__ import choose
from loopformer.cells.__main__ import parse as parse_cells
from loopformer.cells.matrix import load_matrix
from loopformer.cli import LoopformerCLI

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.DOTALL)
SHELL = "\n".join(body for language, body in BLOCKS if not language).replace("\\\n", " ")
TRAIN = [line.split("#")[0] for line in SHELL.splitlines() if line.startswith("python train.py")]


@pytest.mark.parametrize("command", TRAIN)
def test_training_commands_parse(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit) as exit_:
        LoopformerCLI([*shlex.split(command)[2:], "--print_config"])
    assert not exit_.value.code
    assert "class_path" in printed.getvalue()


def test_there_are_training_commands() -> None:
    assert len(TRAIN) >= 6


def test_python_runs() -> None:
    (code,) = [body for language, body in BLOCKS if language == "python"]
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("tensor([1., 1., 1.")


def test_evaluation_options_exist() -> None:
    others = ("train.py", "python -m ")
    lines = [line for line in SHELL.splitlines() if not any(other in line for other in others)]
    used: dict[str, set[str]] = {"compare": set(), "mechanism": set(), "": set()}
    for line in lines:
        command = next(name for name in used if f"evaluate.py {name} " in line or not name)
        used[command] |= set(re.findall(r"(--[a-z_.]+)", line))
    assert {"--checkpoint", "--graph.fresh", "--graph.counts", "--precision"} <= used[""]
    assert "--reference" in used["compare"]
    assert "--loops" in used["mechanism"]
    for command, options in used.items():
        usage = subprocess.run(
            [sys.executable, "evaluate.py", *filter(None, [command]), "--help"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert [option for option in options if option not in usage.stdout] == []


def test_dashboard_command_runs_dry() -> None:
    (line,) = [line for line in SHELL.splitlines() if "loopformer.dashboard" in line]
    command = [sys.executable, *shlex.split(line.split("#")[0])[1:], "--dry-run"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_commands_of_the_cells_parse() -> None:
    lines = [line.split("#")[0] for line in SHELL.splitlines() if "loopformer.cells" in line]
    assert len(lines) >= 4
    for line in lines:
        options, _ = parse_cells(shlex.split(line)[3:])
        assert choose(load_matrix(ROOT / options.matrix, ROOT, options.config), options.cells)


def test_named_files_exist() -> None:
    names = set(re.findall(r"(?:configs|checkpoints|tests|benchmarks)/[\w./-]*\w", TEXT))
    assert [name for name in names if not (ROOT / name).exists()] == []
