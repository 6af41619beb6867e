"""What an experiment is called: architecture, task and seed, and where its run is logged.

Shared by training and evaluation, so that a run and its evaluations stand in one group under the same tags.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass
class Wandb:
    """Weights & Biases logging.

    Attributes:
        mode: "offline" writes files that `wandb sync` uploads later; "online" needs `wandb login`; "disabled" logs to
            CSV alone. The environment variable WANDB_MODE wins over it.
        project: project name.
        group: experiment; None takes architecture and task.
        tags: ablation names and the like, besides architecture, overlays, task and seed.
        entity: team or user, None for the default one.
        artifacts: log the exported model, and the outcome store of an evaluation, as artifacts.
    """

    mode: Literal["offline", "online", "disabled"] = "offline"
    project: str = "loopformer"
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    entity: str | None = None
    artifacts: bool = True


@dataclass(frozen=True)
class Experiment:
    """Names of an experiment.

    Attributes:
        architecture: file name of the experiment's YAML, or its parts where there is none.
        overlays: file names of the overlays, in order.
        task: what is learned, such as graph.
        seed: seed of the run.
    """

    architecture: str
    overlays: tuple[str, ...]
    task: str
    seed: int

    @property
    def group(self) -> str:
        """Architecture, overlays and task: the runs of one group differ in their seed."""
        return "+".join((self.architecture, *self.overlays)) + f"-{self.task}"

    @property
    def tags(self) -> list[str]:
        """Architecture, overlays, task and seed, one tag each."""
        return [self.architecture, *self.overlays, self.task, f"seed-{self.seed}"]

    def as_config(self) -> dict[str, Any]:
        """Plain types, for a run's config and a checkpoint's provenance."""
        return {
            "architecture": self.architecture,
            "overlays": list(self.overlays),
            "task": self.task,
            "seed": self.seed,
            "group": self.group,
        }

    @classmethod
    def of(cls, config: dict[str, Any], files: Sequence[str | Path] = ()) -> Experiment:
        """Name the experiment of a parsed config.

        Args:
            config: the run's parsed config (sections model, data and seed_everything).
            files: YAML files it was made of, the experiment first.
        """
        stems = [Path(str(file)).stem for file in files] or [_composition(config["model"])]
        data = config["data"]["class_path"].rpartition(".")[2]
        first_word = re.match(r"[A-Z][a-z]*", data)
        task = first_word.group().lower() if first_word else data
        return cls(stems[0], tuple(stems[1:]), task, int(config.get("seed_everything") or 0))


def _composition(model: dict[str, Any]) -> str:
    """Class names of the parts that make an architecture, or of the module where it has no network section."""
    network = model.get("init_args", {}).get("network") or {}
    parts = network.get("init_args", {})
    chosen = [parts.get(name) for name in ("recurrence", "bridge", "halting")]
    names = [part["class_path"].rpartition(".")[2] for part in chosen if part]
    return "-".join(names) or str(model["class_path"]).rpartition(".")[2]
