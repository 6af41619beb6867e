"""Counts behind the accuracy of a named state field."""

from __future__ import annotations

import torch
from torch import Tensor

from loopformer.metrics.functional.outcomes import IGNORE


def field_counts(predictions: Tensor, values: Tensor) -> Tensor:
    """[2] int64 counted loops and right values.

    Args:
        predictions: [B, T + 1] value read at loops 0..T.
        values: [B, T + 1] reference value, IGNORE where there is none.
    """
    counted = values != IGNORE
    return torch.stack([counted.sum(), (counted & (predictions == values)).sum()])
