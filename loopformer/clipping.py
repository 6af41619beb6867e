"""Gradient clipping by groups of parameters, each with a bound of its own."""

from __future__ import annotations

from abc import abstractmethod

import lightning as L
import torch
from torch import nn
from torch.distributed.tensor import DTensor


class ClippedModule(L.LightningModule):
    """Clips each of its groups by that group's norm, in place of the trainer's single bound."""

    @abstractmethod
    def clipped_groups(self) -> list[tuple[list[nn.Parameter], float]]:
        """Return groups of parameters with their norm bounds. The first group's norm is logged as train/grad_norm."""

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip (Lightning's hook; its arguments carry the trainer's bound, which the command line refuses)."""
        del optimizer, gradient_clip_val, gradient_clip_algorithm
        norms = [nn.utils.clip_grad_norm_(parameters, bound) for parameters, bound in self.clipped_groups()]
        self.log("train/grad_norm", norms[0].full_tensor() if isinstance(norms[0], DTensor) else norms[0])
