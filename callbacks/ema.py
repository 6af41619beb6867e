"""Exponential moving average of the weights: what is validated, selected and exported is the average."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class EMA(WeightAveraging):
    """Lightning's weight averaging with an exponential average, for modules whose checkpoints leave out the base.

    After every optimiser step average <- decay * average + (1 - decay) * weights; the first update copies the weights.
    Validation runs on the average. A training checkpoint holds the average as its `state_dict` (so the selected one,
    and with it the export, is averaged) and the weights that training goes on from beside it. Buffers are copied, not
    averaged: token ids are no quantities.

    Args:
        decay: weight of the past. 0.999 averages over the last thousand steps or so.
        start: optimiser step of the first update; before it, the average is the initial weights.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, decay: float = 0.999, start: int = 0) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"EMA.decay: needs a value between 0 and 1, got {decay}")
        if start < 0:
            raise ValueError(f"EMA.start: needs 0 or more, got {start}")
        super().__init__()
        self.decay = decay
        self.start = start

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Whether to update after this optimiser step (from 0)."""
        del epoch_idx
        return step_idx is not None and step_idx >= self.start

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Make the average where the model will live; Lightning moves the model there only later.

        Raises:
            ValueError: the strategy shards the model, so that no process has whole weights to average.
        """
        if stage == "fit" and isinstance(trainer.strategy, ModelParallelStrategy | FSDPStrategy):
            raise ValueError(
                "trainer.strategy: EMA averages whole weights, a sharding strategy has none; use ddp or one process"
            )
        if stage == "fit":
            device = trainer.strategy.root_device
            # The foreach form interpolates, so weights that are not trained stay exactly what they are.
            self._average_model = AveragedModel(
                pl_module, device, use_buffers=False, multi_avg_fn=get_ema_multi_avg_fn(self.decay)
            )

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Save the weights in training beside the average, both without what the base holds."""
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        if "current_model_state" in checkpoint:
            current = {"state_dict": checkpoint["current_model_state"]}
            pl_module.on_save_checkpoint(current)
            checkpoint["current_model_state"] = current["state_dict"]

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore both, taking from the module what the checkpoint leaves out.

        Raises:
            ValueError: the checkpoint holds no average.
        """
        if "current_model_state" not in checkpoint:
            raise ValueError("checkpoint: it was written without EMA; resume with the config the run was started with")
        base: dict[str, torch.Tensor] = pl_module.state_dict()
        states = {name: {**base, **checkpoint[name]} for name in ("state_dict", "current_model_state")}
        super().on_load_checkpoint(trainer, pl_module, {**checkpoint, **states})
