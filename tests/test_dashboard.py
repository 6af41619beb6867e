"""The W&B dashboard as code: its specification, without a network or an account."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loopformer import dashboard
from loopformer.evaluation.wandb_run import CHARTS as LOGGED_CHARTS

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loopformer.dashboard", *arguments],
        cwd=ROOT, env={**os.environ, "WANDB_API_KEY": "", **environment}, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip


def test_dry_run_prints_the_workspace(tmp_path: Path) -> None:
    pytest.importorskip("wandb_workspaces")
    result = run("--project", "loopformer", "--dry-run", HOME=str(tmp_path))
    assert result.returncode == 0, result.stderr
    spec = json.loads(result.stdout)
    sections = {s["name"]: s["panels"] for s in spec["spec"]["section"]["panelBankConfig"]["sections"]}
    assert {"Benchmark", "Learning", "Where it fails (validation)", "Instances", "Training"} <= set(sections)
    benchmark = {m for p in sections["Benchmark"] for m in p["config"].get("metrics", [])}
    assert benchmark == set(dashboard.EVALUATION)
    learning = {m for panel in sections["Learning"] for m in panel["config"]["metrics"]}
    assert learning == set(dashboard.LEARNING)
    assert all(panel["config"]["xAxis"] == dashboard.STEP for panel in sections["Learning"])
    assert "curves/survival_table" in json.dumps(sections["Where it fails (validation)"])
    assert '"Group"' in json.dumps(spec) or '"group"' in json.dumps(spec)


def test_every_chart_is_one_that_runs_log() -> None:
    from callbacks.tables import CURVES

    logged = {f"curves/{name}" for name in (*CURVES, "stop_error")} | set(LOGGED_CHARTS)
    assert set(dashboard.CHARTS) | set(dashboard.BARS) == logged


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "entity: name the user or team"), (("--entity", "team"), "run `wandb login`")],
)
def test_mistakes_are_one_line_errors(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    pytest.importorskip("wandb_workspaces")
    result = run(*arguments, HOME=str(tmp_path))
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb_workspaces", "wandb_workspaces.reports.v2", "wandb_workspaces.workspaces"):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it now fails
    with pytest.raises(ValueError, match=r'pip install "loopformer\[dashboard\]"'):
        dashboard.workspace("team", "project", "name")


def test_a_refusal_of_the_server_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb_workspaces")
    import wandb

    def refuse(_: Any) -> None:
        raise PermissionError("no access to team/project")

    made = dashboard.workspace("team", "project", "name")
    monkeypatch.setattr(type(made), "save", refuse)
    monkeypatch.setattr(wandb, "login", lambda **_: True)
    with pytest.raises(RuntimeError, match=r"refused the workspace of team/loopformer: no access"):
        dashboard.create(entity="team")
