"""Advances a data stream's curriculum when the model has learned its current stage."""

from __future__ import annotations

import logging
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_warn

from datamodules.batch import IGNORE, Batch
from loopformer.rollout import Rollout

log = logging.getLogger(__name__)


class Curriculum(L.Callback):
    """Moves `datamodule.stage` on when an average of the training batches' success passes a gate.

    Success is what the training step reports as `success`, otherwise the share of a batch's rollouts with every letter
    right, by the worse of the two readouts: a lookup that settles in C alone would pass by C's.

    After the last stage a "triggered" schedule starts its decay, and the run ends when that is done.

    Args:
        gate: exponential average of the success at which the next stage begins.
        momentum: weight of the past in that average.
        first_stage_lr: factor on the learning rate while the first stage lasts. The plateau before the lookup forms is
            shorter at a rate at which deep rollouts would later diverge.
        fields: the named state fields count too: success is that of the worst of them and the readouts.
        latest: update from which the last stage need not be passed for the decay to begin, so that a run ends decayed
            even on a task that is hard to master; None: it must be.
    """

    def __init__(
        self,
        gate: float = 0.9,
        momentum: float = 0.8,
        first_stage_lr: float = 1.0,
        fields: bool = False,
        latest: int | None = None,
    ) -> None:
        if not 0 < gate < 1:
            raise ValueError(f"Curriculum.gate: needs a value between 0 and 1, got {gate}")
        if latest is not None and latest < 1:
            raise ValueError(f"Curriculum.latest: needs an update from 1, got {latest}")
        self.gate = gate
        self.momentum = momentum
        self.first_stage_lr = first_stage_lr
        self.fields = fields
        self.latest = latest
        self.stage = 0
        self.average = 0.0
        self.complete = False

    def state_dict(self) -> dict[str, Any]:
        """Stage, average and whether the last stage was passed."""
        return {"stage": self.stage, "average": self.average, "complete": self.complete}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a resumed run."""
        self.stage, self.average = state_dict["stage"], state_dict["average"]
        self.complete = state_dict["complete"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Put the data and the learning rate at the curriculum's stage."""
        if not getattr(trainer.datamodule, "stages", None):  # type: ignore[attr-defined]
            raise ValueError("Curriculum: data.init_args.train has no stages; use a stream with stages")
        self._enter_stage(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Update the average, move on, or end the run."""
        del batch_idx
        share = outputs["success"] if "success" in outputs else success_of(outputs["rollout"], batch, self.fields)
        success = float(trainer.strategy.reduce(share, reduce_op="mean"))  # all ranks move on at the same step
        self.average = self.momentum * self.average + (1 - self.momentum) * success
        pl_module.log("train/stage", float(self.stage), prog_bar=True)
        pl_module.log("train/success", self.average, prog_bar=True)
        stages = trainer.datamodule.stages  # type: ignore[attr-defined]
        schedule = pl_module.schedule
        last = self.stage + 1 == len(stages)
        if self.average > self.gate and not last:
            self.stage, self.average = self.stage + 1, 0.0
            self._enter_stage(trainer, pl_module)
            log.info("step %d: curriculum stage %d/%d", trainer.global_step, self.stage + 1, len(stages))
        elif last and not self.complete and (self.average > self.gate or self._is_late(trainer.global_step)):
            self.complete = True
            schedule.start_decay(trainer.global_step)  # type: ignore[union-attr,operator]
            how = "complete" if self.average > self.gate else f"in its last stage, success {self.average:.2f}"
            log.info("step %d: curriculum %s, learning rate decays", trainer.global_step, how)
        if schedule.finished(trainer.global_step):  # type: ignore[union-attr,operator]
            trainer.should_stop = True

    def _is_late(self, step: int) -> bool:
        return self.latest is not None and step >= self.latest

    def _enter_stage(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.datamodule.set_stage(self.stage)  # type: ignore[attr-defined]
        pl_module.schedule.scale = self.first_stage_lr if self.stage == 0 else 1.0  # type: ignore[union-attr]

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Say so when the run ended inside the curriculum."""
        del pl_module
        stages = trainer.datamodule.stages  # type: ignore[attr-defined]
        if not self.complete:
            rank_zero_warn(
                f"the run ended in curriculum stage {self.stage + 1} of {len(stages)} ({stages[self.stage]}): "
                "the model has not learned the task. Raise trainer.max_steps or trainer.max_time, or try another seed"
            )


def success_of(rollout: Rollout, batch: Batch, fields: bool) -> torch.Tensor:
    """Share of a batch's rollouts that are right at every loop, by the worst of the readouts (and of the fields)."""
    readouts = [rollout.letter_logits, rollout.direct_logits]
    right = [_complete(logits, batch.labels) for logits in readouts if logits is not None]
    if fields:
        right += [_complete(logits, batch.fields[name]) for name, logits in rollout.field_logits.items()]
    return torch.stack(right).min()


def _complete(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Share of rows [B, T] whose predictions are all right, wherever there is a label."""
    return ((logits.argmax(-1) == labels) | (labels == IGNORE)).all(1).double().mean()
