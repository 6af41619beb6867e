"""Optimiser groups and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn


@dataclass
class Optimizer:
    """AdamW with warmup and schedule.

    Attributes:
        lr: peak learning rate.
        betas: AdamW betas.
        weight_decay: applied to the groups that `decay` names.
        decay: "matrices" spares norms, biases and the re-entry bridge; "all" is the published single group.
        warmup: optimiser steps of linear warmup.
        schedule: after warmup, constant or cosine. "triggered" is constant until the curriculum ends, then cosine.
        decay_steps: length of the cosine in optimiser steps; None means until the end of training.
        floor: final learning rate as a fraction of the peak (cosine).
        clip: gradient norm bound of the executor.
        controller_clip: gradient norm bound of the halting part, clipped apart so that neither scales the other.
    """

    lr: float = 2e-5
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01
    decay: Literal["matrices", "all"] = "matrices"
    warmup: int = 100
    schedule: Literal["constant", "cosine", "triggered"] = "cosine"
    decay_steps: int | None = None
    floor: float = 0.1
    clip: float = 1.0
    controller_clip: float = 1.0

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise ValueError(f"optimizer.lr: needs a positive value, got {self.lr}")
        if self.schedule == "triggered" and self.decay_steps is None:
            raise ValueError("optimizer.decay_steps: schedule 'triggered' needs the length of its decay in steps")
        if self.schedule == "constant" and self.decay_steps is not None:
            rank_zero_warn(f"optimizer.decay_steps: {self.decay_steps} is ignored, a constant schedule has no decay")


class Schedule:
    """Learning-rate factor by optimiser step.

    An object rather than a function, so that `LambdaLR` saves and restores `decay_from` with the training state.

    Attributes:
        decay_from: step at which a triggered decay began, None before.
        scale: factor on top, set by a curriculum.
    """

    def __init__(self, config: Optimizer, total_steps: int) -> None:
        self.kind = config.schedule
        self.warmup = config.warmup
        self.floor = config.floor
        self.decay_from = config.warmup if config.schedule == "cosine" else None
        self.decay_steps = config.decay_steps or max(1, total_steps - config.warmup)
        self.scale = 1.0

    def start_decay(self, step: int) -> None:
        """Begin the triggered decay at this optimiser step."""
        if self.kind == "triggered" and self.decay_from is None:
            self.decay_from = step

    def finished(self, step: int) -> bool:
        """Whether a triggered decay has run to its end."""
        return self.kind == "triggered" and self.decay_from is not None and step >= self.decay_from + self.decay_steps

    def __call__(self, step: int) -> float:
        """Return the factor on the peak learning rate at an optimiser step (from 0)."""
        if step < self.warmup:
            return self.scale * (step + 1) / self.warmup
        if self.decay_from is None:
            return self.scale
        progress = min(1.0, (step - self.decay_from) / self.decay_steps)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress))


def parameter_groups(module: nn.Module, undecayed: Iterable[nn.Module | None], config: Optimizer) -> list[dict]:
    """Split trainable parameters into decayed matrices and the rest (vectors and all of `undecayed`)."""
    spared = {id(p) for part in undecayed if part is not None for p in part.parameters()}
    trained = [p for p in module.parameters() if p.requires_grad]
    if config.decay == "all":
        return [{"params": trained, "weight_decay": config.weight_decay}]
    matrices = [p for p in trained if p.dim() >= 2 and id(p) not in spared]
    rest = [p for p in trained if p.dim() < 2 or id(p) in spared]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def build_optimizer(groups: list[dict], config: Optimizer, schedule: Schedule) -> dict:
    """Return Lightning's optimiser-and-scheduler dictionary, stepped once per optimiser step."""
    optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
