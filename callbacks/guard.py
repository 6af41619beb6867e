"""Stops a run whose loss or gradient is no longer a number, before the optimiser step that would spread it."""

from __future__ import annotations

import lightning as L
import torch


class NonFiniteGuard(L.Callback):
    """Raises FloatingPointError on a non-finite gradient, with the weights of the last good step untouched.

    A non-finite loss makes its gradients non-finite, so one check covers both.
    """

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Check the total gradient norm."""
        del optimizer
        norm = torch.nn.utils.get_total_norm([p.grad for p in pl_module.parameters() if p.grad is not None])
        if not torch.isfinite(norm):
            loss = trainer.callback_metrics.get("train/loss")
            raise FloatingPointError(
                f"step {trainer.global_step}: gradient norm is {norm.item()} (train/loss {loss}); no step was "
                "taken. Lower model.init_args.optimizer.lr or resume from the last checkpoint with other settings"
            )
