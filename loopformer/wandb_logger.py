"""The W&B logger of a run: defined metrics, and steps that go on where a killed run was cut.

An offline run that is resumed writes a further file under the same run id; `wandb sync` uploads them in order. For them
to be one run, W&B's step must go on and no row may come twice or be missing, although training restarts at a checkpoint
that is older than the last row, and a killed process loses what W&B had not written yet. So the earlier files are read
back (with W&B's own `wandb leet inspect`), and what they lack is logged again from the run's metrics.csv.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import wandb
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from loopformer.metrics import CountMetric, execution_metrics

GLOBAL_STEP = "trainer/global_step"

FLUSH_SECONDS = 1.0
"""How often W&B writes its file; its default of 15 leaves `wandb leet` behind a short run."""


@dataclass
class Logged:
    """What earlier files of a run hold.

    Attributes:
        step: largest W&B step, -1 for none.
        reached: largest trainer step by metric.
        extremes: by metric, smallest and largest value.
    """

    step: int = -1
    reached: dict[str, int] = field(default_factory=dict)
    extremes: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, row: Mapping[str, Any], step: int) -> None:
        """Count a row of trainer step `step`."""
        for name, value in row.items():
            self.reached[name] = max(step, self.reached.get(name, step))
            if isinstance(value, int | float) and not isinstance(value, bool):
                low, high = self.extremes.get(name, (value, value))
                self.extremes[name] = (min(low, value), max(high, value))


class RunLogger(WandbLogger):
    """A WandbLogger whose rows all come with an explicit, growing step.

    Args:
        save_dir: folder of the run; its `wandb` folder may hold files of the same run.
        resumed: whether to look for such files.
        kwargs: options of `WandbLogger`.
    """

    def __init__(self, save_dir: Path, resumed: bool = False, **kwargs: Any) -> None:
        # Tables are artifacts, which W&B stages: beside the run, so that an offline run is complete in its folder.
        os.environ.setdefault("WANDB_DATA_DIR", str((save_dir / "wandb-staging").resolve()))
        settings = wandb.Settings(x_transaction_log_flush_interval=FLUSH_SECONDS)
        super().__init__(save_dir=save_dir, settings=settings, **kwargs)
        self._wandb_init.pop("anonymous", None)  # W&B warns of the option, which Lightning always passes
        self.resumed = resumed
        self.logged = read_back(save_dir / "wandb") if resumed and getattr(rank_zero_only, "rank", 0) == 0 else Logged()
        self._defined: set[str] = set()

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log what an earlier file of this run does not hold already."""
        at = self.logged.reached.get(GLOBAL_STEP, 0) if step is None else step
        row = {k: v for k, v in metrics.items() if step is None or step > self.logged.reached.get(k, -1)}
        if not row:
            return
        for name in row.keys() - self._defined:
            self.experiment.define_metric(name, step_metric=GLOBAL_STEP, **definition(name))
        self._defined |= row.keys()
        self.logged.step = max(self.logged.step + 1, int(self.experiment.step))
        self.experiment.log({**row, GLOBAL_STEP: at}, step=self.logged.step, commit=True)
        self.logged.add({**row, GLOBAL_STEP: at}, at)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Put the extremes of the whole run into the summary: W&B knew those of this file alone."""
        if self.resumed and self._experiment is not None:
            for name in self._defined & self.logged.extremes.keys():
                kinds = definition(name).get("summary", "last").split(",")
                ends = dict(zip(("min", "max"), self.logged.extremes[name], strict=True))
                wanted = {kind: ends[kind] for kind in kinds if kind in ends}
                if wanted:
                    last = self.experiment.summary.get(name)
                    self.experiment.summary[name] = {**(dict(last) if isinstance(last, Mapping) else {}), **wanted}
        super().finalize(status)


def definition(name: str) -> dict[str, Any]:
    """Options of `define_metric`: what the summary of a metric keeps besides its last value, and whether it is plotted.

    Losses keep their minimum, metrics the better end as `loopformer.metrics` says; curves loop by loop have tables of
    their own and are hidden.
    """
    stem = name.removeprefix("val/").removeprefix("train/").split("/")[0]
    if name.startswith("val/loop_"):
        return {"hidden": True, "summary": "last"}
    if "loss" in stem:
        return {"summary": "min,last"}
    if stem in _BETTER:
        return {"summary": {True: "max,last", False: "min,last", None: "last"}[_BETTER[stem]]}
    return {"summary": {"success": "max,last", "stage": "max", "selection": "max,last"}.get(stem, "last")}


_BETTER = {
    name: metric.higher_is_better for name, metric in execution_metrics(1, 1).items() if isinstance(metric, CountMetric)
}


def read_back(folder: Path) -> Logged:
    """Read all files of a run's `wandb` folder.

    A file that cannot be read is passed over with a warning: its rows may then be logged twice.
    """
    logged = Logged()
    for path in sorted(folder.glob("*run-*/*.wandb")):
        for record in records(path):
            if record.get("type") == "history":
                item = record["history"]["item"]
                row = {_logged_as(k): v for k, v in item.items() if not k.startswith("_")}
                logged.step = max(logged.step, int(record["history"]["step"]["num"]))
                logged.add(row, int(row.pop(GLOBAL_STEP, 0)))
    return logged


def _logged_as(name: str) -> str:
    """Undo what W&B makes of a table's name: `curves/hazard` is kept as `curves/hazard_table.ncols` and the like."""
    return name.partition(".")[0].removesuffix("_table")


def records(path: Path) -> list[dict[str, Any]]:
    """Every record of a .wandb file, as `wandb leet inspect --json` prints them."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (our own arguments)
    found = []
    for line in result.stdout.splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    if not found:
        reason = " ".join(result.stderr.split())[-200:]
        warnings.warn(f"{path} cannot be read back ({reason}): some rows may be logged twice", stacklevel=2)
    return found
