"""Loss terms of a rollout. All run in float32 and are means over examples of means over an example's loops.

Shape legend: B batch, T loops, K labels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from datamodules.batch import IGNORE


def letter_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy at every loop t <= N, mean over an example's loops, then over examples.

    Args:
        logits: [B, T, K].
        labels: [B, T], IGNORE after an example's last step.
    """
    per_loop = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="none")
    return _example_means(per_loop.view_as(labels), labels != IGNORE).mean()


def field_loss(logits: Tensor, values: Tensor) -> Tensor:
    """Cross-entropy of a state field at loops 0..N, mean over an example's loops, then over examples.

    Args:
        logits: [B, T + 1, V].
        values: [B, T + 1], IGNORE where the field is undefined.

    Raises:
        ValueError: a value lies outside the head's V values.
    """
    if values.device.type == "cpu" and values.numel() and int(values.max()) >= logits.shape[-1]:
        raise ValueError(
            f"fields: a label is {int(values.max())}, but its head has {logits.shape[-1]} values; "
            "set state_heads.values to the size of the field's label set"
        )
    return letter_loss(logits, values)


def initial_loss(logits: Tensor, initial: Tensor) -> Tensor:
    """Cross-entropy of the loop-0 readout [B, K] against the state before the first loop [B]."""
    return F.cross_entropy(logits.float(), initial, ignore_index=IGNORE)


def stop_loss(stop_logits: Tensor, steps: Tensor) -> Tensor:
    """Balanced binary cross-entropy: continue at loops before N, stop at N, loops after N not counted.

    The mean over the continues and the one stop weigh equally (N = 1 has only the stop). An example whose N lies
    beyond the loops rolled out has continues only.

    Args:
        stop_logits: [B, T].
        steps: [B] requested counts N.
    """
    loop = torch.arange(1, stop_logits.shape[1] + 1, device=stop_logits.device)
    before, at = loop < steps[:, None], loop == steps[:, None]
    per_loop = F.binary_cross_entropy_with_logits(stop_logits.float(), at.float(), reduction="none")
    halves = torch.stack([_example_means(per_loop, before), _example_means(per_loop, at)])
    present = torch.stack([before.any(1), at.any(1)])
    return (halves.sum(0) / present.sum(0)).mean()


def remaining_loss(remaining: Tensor, steps: Tensor, scale: float) -> Tensor:
    """Mean squared error of the estimated remaining steps, in units of `scale`.

    The mean runs over loops 0..min(N, T); the error before the first loop counts `scale` times more on top.
    Source: architecture spec, controller stage ("12 x the initial squared error / 144").

    Args:
        remaining: [B, T + 1] estimates at loops 0..T, in steps.
        steps: [B] requested counts N.
        scale: steps per unit (12 in the published run).
    """
    loop = torch.arange(remaining.shape[1], device=remaining.device)
    squared = ((remaining.float() - (steps[:, None] - loop)) / scale).square()
    counted = loop <= steps[:, None]
    return _example_means(squared, counted).mean() + scale * squared[:, 0].mean()


def _example_means(values: Tensor, counted: Tensor) -> Tensor:
    """Mean of the counted entries of each row, 0 for a row without any: [B, T] -> [B]."""
    return (values * counted).sum(1) / counted.sum(1).clamp(min=1)
