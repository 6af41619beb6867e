"""Callbacks of a run on several tasks: a curriculum and metrics for each of them."""

from __future__ import annotations

import logging
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torchmetrics import MetricCollection

from callbacks.curriculum import success_of
from datamodules.batch import Batch
from datamodules.mixture import TASK
from loopformer.metrics import execution_metrics, query_outcome, stop_loop

log = logging.getLogger(__name__)


class MixtureCurriculum(L.Callback):
    """Moves every task's stage on by its own success; see `callbacks.curriculum.Curriculum`.

    The learning rate of a "triggered" schedule decays once all tasks have passed their last stage; a task without
    stages counts as passed.

    Args:
        gate: exponential average of a task's success at which its next stage begins.
        momentum: weight of the past in that average.
        fields: the named state fields count too.
    """

    def __init__(self, gate: float = 0.9, momentum: float = 0.8, fields: bool = False) -> None:
        if not 0 < gate < 1:
            raise ValueError(f"MixtureCurriculum.gate: needs a value between 0 and 1, got {gate}")
        self.gate, self.momentum, self.fields = gate, momentum, fields
        self.stages: dict[str, int] = {}
        self.averages: dict[str, float] = {}
        self.passed: dict[str, bool] = {}

    def state_dict(self) -> dict[str, Any]:
        """Stage, average and whether the last stage was passed, by task."""
        return {"stages": self.stages, "averages": self.averages, "passed": self.passed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a resumed run."""
        self.stages, self.averages = dict(state_dict["stages"]), dict(state_dict["averages"])
        self.passed = dict(state_dict["passed"])

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Put every task at its stage."""
        del pl_module
        tasks = getattr(trainer.datamodule, "tasks", None)  # type: ignore[attr-defined]
        if not tasks:
            raise ValueError(
                "MixtureCurriculum: data has no tasks; use a MixtureDataModule, or the callback Curriculum"
            )
        for name, task in tasks.items():
            self.stages.setdefault(name, 0)
            self.averages.setdefault(name, 0.0)
            self.passed.setdefault(name, not task.stages)
            if task.stages:
                task.set_stage(self.stages[name])

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Update the batch's task; end the run when the decay is over."""
        del batch_idx
        tasks = trainer.datamodule.tasks  # type: ignore[attr-defined]
        name = list(tasks)[int(batch.facts[TASK][0])]
        success = float(trainer.strategy.reduce(success_of(outputs["rollout"], batch, self.fields), reduce_op="mean"))
        self.averages[name] = self.momentum * self.averages[name] + (1 - self.momentum) * success
        pl_module.log(f"train/{name}/stage", float(self.stages[name]))
        pl_module.log(f"train/{name}/success", self.averages[name])
        if self.averages[name] > self.gate and not self.passed[name]:
            if self.stages[name] + 1 < len(tasks[name].stages):
                self.stages[name] += 1
                self.averages[name] = 0.0
                tasks[name].set_stage(self.stages[name])
            else:
                self.passed[name] = True
            log.info("step %d: %s, stage %d passed", trainer.global_step, name, self.stages[name] + 1)
        schedule: Any = pl_module.schedule
        if all(self.passed.values()):
            schedule.start_decay(trainer.global_step)
        if schedule.finished(trainer.global_step):
            trainer.should_stop = True

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Say which tasks were not learned."""
        del trainer, pl_module
        if left := [name for name, passed in self.passed.items() if not passed]:
            rank_zero_warn(f"the run ended inside the curriculum of {', '.join(left)}: raise trainer.max_steps")


class MixtureMetrics(L.Callback):
    """Logs the execution metrics of every task's validation: `val/TASK/complete` and so on, whole numbers of loops."""

    def __init__(self) -> None:
        self._metrics: dict[str, MetricCollection] = {}

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Build the metrics on first use and empty them."""
        module: Any = pl_module
        for name, task in trainer.datamodule.tasks.items():  # type: ignore[attr-defined]
            if name not in self._metrics:
                horizon = max(n for counts in task.cohorts.values() for n in counts)
                cap = None if module.network.halting is None else horizon
                made = execution_metrics(horizon, cap, groups=task.cohorts, prefix=f"val/{name}/")
                self._metrics[name] = made.to(pl_module.device)
            self._metrics[name].reset()

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count the batch for its task."""
        del pl_module, batch_idx, dataloader_idx
        rollout = outputs["rollout"]
        logits = rollout.stop_logits
        stop = torch.zeros_like(batch.steps) if logits is None else stop_loop(logits)
        name = list(trainer.datamodule.tasks)[int(batch.facts[TASK][0])]  # type: ignore[attr-defined]
        self._metrics[name].update(query_outcome(rollout.letter_logits.argmax(-1), batch.labels, batch.steps, stop))

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log every defined scalar."""
        del trainer
        numbers = {name: value for made in self._metrics.values() for name, value in made.compute().items()}
        scalars = {name: v.float() for name, v in numbers.items() if v.dim() == 0 and not torch.isnan(v)}
        pl_module.log_dict(scalars, rank_zero_only=False)
