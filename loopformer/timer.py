"""Stage of architecture 5: fits the affine timer and digit reader over a frozen executor.

Only the digits of the request matter, so a batch is a handful of numbers and the whole stage takes seconds.
"""

from __future__ import annotations

from typing import Any

import torch

from datamodules.batch import Batch
from loopformer.halting import AffineTimer, HaltingInputs
from loopformer.halting.gru import REMAINING_SCALE
from loopformer.losses import remaining_loss, stop_loss
from loopformer.metrics.functional import stop_loop
from loopformer.optim import Optimizer
from loopformer.stage import HaltingStage
from loopformer.timer_fit import fit_reader, refit_countdown


class TimerModule(HaltingStage):
    """Reader by least squares, timer and stop readout by AdamW, then a and b refitted by L-BFGS.

    Args:
        executor: folder of an exported executor.
        optimizer: of the AdamW part.
        decay_lr: learning rate of a; every step's error in a is multiplied by the count.
        loops: loops of a training rollout; longer requests get continue labels only.
    """

    def __init__(
        self,
        executor: str,
        optimizer: Optimizer = Optimizer(lr=0.01, weight_decay=0.0),  # noqa: B008
        decay_lr: float = 1e-4,
        loops: int = 12,
    ) -> None:
        super().__init__(executor, AffineTimer(), optimizer)
        self.decay_lr = decay_lr
        self.loops = loops
        self.timer.reader.requires_grad_(False)
        self.report: dict[str, float] = {}

    @property
    def timer(self) -> AffineTimer:
        """The timer being fitted."""
        assert isinstance(self.network.halting, AffineTimer)
        return self.network.halting

    def exported_halting(self) -> dict[str, Any]:
        """See `HaltingStage.exported_halting`."""
        return {"class_path": "AffineTimer"}

    def optimizer_groups(self) -> list[dict]:
        """The decay a has a learning rate of its own."""
        timer = self.timer
        return [
            {"params": [timer.decay], "lr": self.decay_lr},
            {"params": [timer.decrement, timer.stop_weight, timer.stop_bias]},
        ]

    def on_fit_start(self) -> None:
        """Fit the reader on the training counts, once: a resumed run finds it in its checkpoint."""
        if self.trainer.ckpt_path is not None:
            return
        panel = self.trainer.datamodule.count_batch()  # type: ignore[attr-defined]
        inputs = self._inputs(panel.to(self.device))
        counts = panel.steps.tolist()
        self.report["reader_error"] = fit_reader(self.timer, inputs.digit_ids, inputs.digit_embeddings, counts)

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """Balanced stop loss (memory detached) plus remaining-work loss."""
        del batch_idx
        stop, remaining = self.network.halt(self._inputs(batch), [None] * self.loops)
        assert remaining is not None
        loss = stop_loss(stop, batch.steps) + remaining_loss(remaining, batch.steps, REMAINING_SCALE)
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(batch))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Share of exact first stops."""
        del batch_idx
        stop, _ = self.network.halt(self._inputs(batch), [None] * int(batch.steps.max()))
        exact = (stop_loop(stop) == batch.steps).float().mean()
        self.log("val/exact_stop", exact, batch_size=len(batch), sync_dist=True, prog_bar=True)

    def on_train_end(self) -> None:
        """Refit the countdown in float64: AdamW's values drift over long requests."""
        counts = self.trainer.datamodule.count_batch().steps.tolist()  # type: ignore[attr-defined]
        a, b = refit_countdown(self.timer, counts, self.loops, REMAINING_SCALE)
        self.report |= {"a": a, "b": b, "w": self.timer.stop_weight.item(), "c": self.timer.stop_bias.item()}

    def _inputs(self, batch: Batch) -> HaltingInputs:
        return self.network.halting_inputs(batch)
