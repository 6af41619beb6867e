"""Logs an evaluation to W&B: a run of its own (job type eval) in the group of the training run.

A training run stays what it was when it ended; evaluations on several benchmarks, or with several options, stand beside
it. Group, tags and the training run's id come from the checkpoint's provenance.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wandb

from loopformer.evaluation.figures import Run
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.evaluation.stop_rules import stop_distribution
from loopformer.tracking import Wandb

STAGING = "WANDB_DATA_DIR"
"""The only way to tell W&B where artifacts wait for their upload."""

SHARES = ("forced_final", "complete", "exact_stop", "end_to_end", "strict", "correct_prefix")

CHARTS = {
    "eval/strict_by_count": ("N", "strict"),
    "eval/complete_by_count": ("N", "complete"),
    "eval/survival": ("loop", "survival"),
    "eval/hazard": ("loop", "hazard"),
    "eval/stop_error": ("stop minus N", "queries"),
}
"""Charts of an evaluation and the columns of their tables."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation of any benchmark leaves behind.

    Attributes:
        name: how the model is called.
        summary: contents of summary.json.
        provenance: the checkpoint's own; `experiment` and `wandb` in it place the run.
        files: what was written, logged as one artifact.
        folder: W&B's files go to its folder `wandb`.
    """

    name: str
    summary: dict[str, Any]
    provenance: dict[str, Any]
    files: Sequence[Path]
    folder: Path


def log_evaluation(options: Wandb, done: Evaluation, store: OutcomeStore | None = None) -> str | None:
    """Log one evaluation: every number of its summary, or for a store of graphs the headlines and charts.

    Args:
        options: where to.
        done: the evaluation.
        store: what was said, on the graph benchmark.

    Returns:
        the run's id, or None if logging is disabled.
    """
    mode = os.environ.get("WANDB_MODE", options.mode)
    if mode == "disabled":
        return None
    os.environ.setdefault("WANDB_SILENT", "true")
    done.folder.mkdir(parents=True, exist_ok=True)
    name, summary = done.name, done.summary
    experiment, training = done.provenance.get("experiment", {}), done.provenance.get("wandb", {})
    tags = [experiment.get("architecture"), *experiment.get("overlays", []), experiment.get("task")]
    tags += [f"seed-{experiment['seed']}"] if experiment else []
    config = {
        "benchmark": summary["benchmark"],
        "digests": summary.get("digests", {}),
        "experiment": experiment,
        "training_run": training.get("run"),
    }
    with _staged_in(done.folder):
        logged = wandb.init(
            project=options.project, entity=options.entity, group=options.group or experiment.get("group") or name,
            name=f"{name}/{summary['benchmark']}", job_type="eval", tags=[tag for tag in (*tags, *options.tags) if tag],
            config=config, dir=done.folder, mode="offline" if mode in ("offline", "dryrun") else "online",
        )  # fmt: skip
        if options.artifacts:
            _log_files(logged, training, done.files, mode)
        logged.log({**scalars(summary), **charts(Run(name, store, summary))} if store else numbers(summary))
        logged.finish()
    return str(logged.id)


@contextmanager
def _staged_in(folder: Path) -> Iterator[None]:
    """Stage artifacts beside this evaluation's files, unless the user says where; the next one has its own folder."""
    named = os.environ.get(STAGING)
    os.environ[STAGING] = named or str((folder / "wandb-staging").resolve())
    try:
        yield
    finally:
        if named is None:
            del os.environ[STAGING]


def scalars(summary: dict[str, Any]) -> dict[str, float]:
    """Shares over all queries with their interval ends, and shares by range of requested counts."""
    found: dict[str, Any] = {"eval/queries": summary["queries"]}
    for share in SHARES:
        low, high = summary["intervals"][share]
        found |= {f"eval/{share}": summary[share], f"eval/{share}/low": low, f"eval/{share}/high": high}
        for span, cell in summary["by_range"].items():
            found[f"eval/{share}/N_{span}"] = cell[share]
    return {name: value for name, value in found.items() if value is not None}


def numbers(summary: Mapping[str, Any], prefix: str = "eval") -> dict[str, float]:
    """Every number of a summary under the path of its keys, such as eval/yes/complete; lists are left to the file."""
    found: dict[str, float] = {}
    for key, value in summary.items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}/{key}")
        elif isinstance(value, float | int) and not isinstance(value, bool):
            found[f"{prefix}/{key}"] = value
    return found


def charts(run: Run) -> dict[str, Any]:
    """W&B custom charts over tables: several runs overlay in a workspace."""
    summary, by_steps = run.summary, run.summary["by_steps"]
    panel = summary["survival"].get(max(summary["survival"], key=int, default=""), {"survival": []})
    points: dict[str, list[list[Any]]] = {
        "eval/strict_by_count": _pairs(by_steps["steps"], by_steps["strict"]),
        "eval/complete_by_count": _pairs(by_steps["steps"], by_steps["complete"]),
        "eval/survival": _pairs(range(1, len(panel["survival"]) + 1), panel["survival"]),
        "eval/hazard": _pairs(
            range(1, len(summary["hazard"]["pooled"]["hazard"]) + 1), summary["hazard"]["pooled"]["hazard"]
        ),
        "eval/stop_error": [[str(error), n] for error, n in stop_distribution(run.store)],
    }
    made = {}
    for name, rows in points.items():
        if rows:
            x, y = CHARTS[name]
            draw = wandb.plot.bar if name == "eval/stop_error" else wandb.plot.line
            made[name] = draw(wandb.Table(columns=[x, y], data=rows), x, y, title=name)
    return made


def _pairs(x: Sequence[int], y: Sequence[float | None]) -> list[list[Any]]:
    return [[a, b] for a, b in zip(x, y, strict=True) if b is not None]


def _log_files(run: Any, training: dict[str, Any], files: Sequence[Path], mode: str) -> None:
    if mode == "online" and training.get("run") and training.get("project") == run.project:
        run.use_artifact(f"model-{training['run']}:latest")  # draws the line from the training run; needs the server
    artifact = wandb.Artifact(f"outcomes-{run.id}", type="outcomes", metadata={"training_run": training.get("run")})
    for file in files:
        artifact.add_file(str(file), policy="immutable")
    run.log_artifact(artifact)
