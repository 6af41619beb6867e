"""A W&B workspace that compares architectures, made from code.

    python -m loopformer.dashboard --entity TEAM --project loopformer
    python -m loopformer.dashboard --project loopformer --dry-run > workspace.json

Needs the optional package (`pip install "loopformer[dashboard]"`) and `wandb login`; a dry run needs no login. Runs are
grouped by experiment (architecture, overlays and task), so that the lines of several seeds become one with a band.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

from jsonargparse import ArgumentParser

from loopformer.errors import one_line_errors

STEP = "trainer/global_step"

EVALUATION = ("eval/strict", "eval/end_to_end", "eval/complete", "eval/exact_stop", "eval/forced_final")
LEARNING = (
    "val/strict", "val/complete", "val/complete/held_out", "val/complete/beyond", "val/exact_stop", "val/letter_loss",
)  # fmt: skip
HEALTH = ("train/loss", "train/letter_loss", "train/direct_loss", "train/stop_loss", "train/grad_norm", "train/stage")
CHARTS: dict[str, tuple[str, str, str]] = {
    "eval/strict_by_count": ("N", "strict", "Benchmark: strict success by requested count"),
    "eval/complete_by_count": ("N", "complete", "Benchmark: complete trajectories by requested count"),
    "eval/survival": ("loop", "survival", "Benchmark: survival at the largest panel"),
    "eval/hazard": ("loop", "hazard", "Benchmark: first-error hazard"),
    "curves/survival": ("loop", "survival", "Validation: survival"),
    "curves/hazard": ("loop", "hazard", "Validation: first-error hazard"),
    "curves/loop_accuracy": ("loop", "loop_accuracy", "Validation: accuracy by loop"),
}
"""Logged tables: columns of both axes and the title of their chart."""

BARS = {
    "eval/stop_error": "Benchmark: stop loop minus N",
    "curves/stop_error": "Validation: stop loop minus N",
}


def workspace(entity: str, project: str, name: str) -> Any:
    """Build the workspace, without a network.

    Args:
        entity: user or team; may be empty for a dry run.
        project: project of the runs.
        name: title of the workspace.

    Raises:
        ValueError: the package wandb-workspaces is missing.
    """
    try:
        ws, wr, expr = (import_module(f"wandb_workspaces.{name}") for name in ("workspaces", "reports.v2", "expr"))
    except ImportError as error:
        raise ValueError(
            'dashboard: needs the package wandb-workspaces; pip install "loopformer[dashboard]"'
        ) from error

    def lines(metrics: tuple[str, ...]) -> list[Any]:
        group = {"groupby": "Group", "groupby_aggfunc": "mean", "groupby_rangefunc": "minmax"}
        return [wr.LinePlot(title=metric, x=STEP, y=[metric], **group) for metric in metrics]

    def charts(prefix: str) -> list[Any]:
        made = [
            wr.CustomChart(
                query={"summaryTable": {"tableKey": f"{key}_table"}},
                chart_name="wandb/line/v0",
                chart_fields={"x": x, "y": y},
                chart_strings={"title": title},
            )
            for key, (x, y, title) in CHARTS.items()
            if key.startswith(prefix)
        ]
        return made + [
            wr.CustomChart(
                query={"summaryTable": {"tableKey": f"{key}_table"}},
                chart_name="wandb/bar/v0",
                chart_fields={"label": "stop minus N", "value": "queries"},
                chart_strings={"title": title},
            )
            for key, title in BARS.items()
            if key.startswith(prefix)
        ]

    bars = [
        wr.BarPlot(title=m, metrics=[m], groupby="Group", groupby_aggfunc="mean", groupby_rangefunc="minmax")
        for m in EVALUATION
    ]
    sections = [
        ws.Section(name="Benchmark", panels=[*bars, *charts("eval/")], is_open=True),
        ws.Section(name="Where it fails (validation)", panels=charts("curves/"), is_open=True),
        ws.Section(name="Learning", panels=lines(LEARNING), is_open=True),
        ws.Section(name="Instances", panels=[wr.WeavePanelSummaryTable(table_name="val/instances")], is_open=False),
        ws.Section(name="Training", panels=lines(HEALTH), is_open=False),
    ]
    runs = ws.RunsetSettings(
        groupby=[expr.Metric("Group"), expr.Metric("JobType")],
        pinned_columns=["run:displayName", *(f"summary:{metric}" for metric in EVALUATION)],
    )
    return ws.Workspace(
        entity=entity, project=project, name=name, sections=sections, runset_settings=runs,
        settings=ws.WorkspaceSettings(x_axis=STEP, max_runs=20),
    )  # fmt: skip


def create(project: str = "loopformer", entity: str = "", name: str = "Architectures", dry_run: bool = False) -> None:
    """Create a W&B workspace that compares the runs of a project.

    Args:
        project: project of the runs.
        entity: user or team that owns the project; needed unless it is a dry run.
        name: title of the workspace.
        dry_run: print the workspace as JSON instead of creating it; needs no login.
    """
    made = workspace(entity, project, name)
    if dry_run:
        print(json.dumps(made._to_model().model_dump(mode="json", by_alias=True, exclude_none=True), indent=2))  # noqa: SLF001 (the library has no public export)
        return
    if not entity:
        raise ValueError("entity: name the user or team that owns the project, as in --entity my-team")
    import wandb  # noqa: PLC0415 (slow to import)

    if not wandb.login(prompt=False):
        raise ValueError("dashboard: not logged in to W&B; run `wandb login`, or set WANDB_API_KEY")
    try:
        made.save()
    except Exception as error:
        raise RuntimeError(f"dashboard: W&B refused the workspace of {entity}/{project}: {error}") from error


def main() -> None:
    """Run the command line."""
    parser = ArgumentParser(description=__doc__, exit_on_error=False, allow_abbrev=False)
    parser.add_function_arguments(create, as_positional=False, skip={"dry_run"})
    parser.add_argument("--dry-run", action="store_true", help="print the workspace as JSON; needs no login")
    with one_line_errors():
        create(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
