"""Accuracy of a named state field over all loops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from loopformer.metrics.functional import field_counts


class FieldAccuracy(Metric):
    """Share of the loops 0..N, over all queries, at which the field's value is right; nan where there is none.

    Exact in any number of processes: it keeps two counts.

    Args:
        kwargs: options of `torchmetrics.Metric`.
    """

    is_differentiable: bool = False
    higher_is_better: bool | None = True
    full_state_update: bool = False

    counts: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("counts", torch.zeros(2, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, values: Tensor) -> None:
        """Add the predictions [B, T + 1] of a batch; values [B, T + 1] may be IGNORE."""
        self.counts += field_counts(predictions, values)

    def compute(self) -> Tensor:
        """[] the share."""
        return self.counts[1].double() / self.counts[0]
