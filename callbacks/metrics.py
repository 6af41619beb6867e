"""Attaches the execution metrics to a fit: the same classes that evaluation uses, on the model's device."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch.nn.functional import pad
from torchmetrics import MetricCollection

from datamodules.batch import IGNORE, Batch
from loopformer.metrics import FieldAccuracy, execution_metrics, query_outcome, stop_loop

TOGETHER = 2_048
"""Queries that are counted in one go."""


class ExecutionMetrics(L.Callback):
    """Logs survival, hazard, trajectories and stops of every validation epoch.

    Scalars are logged as `val/complete` (and `val/complete/held_out` by cohort of counts), curves loop by loop as
    `val/loop_03/survival`, the accuracy of every named state field as `val/field_NAME`. A rollout lasts as long as the
    batch asks, so a late stop counts as a missing one here.

    Attributes:
        curves: by name, the curves [T] of the last validation.
    """

    def __init__(self) -> None:
        self.curves: dict[str, torch.Tensor] = {}
        self._metrics: MetricCollection | None = None
        self._pending: list[tuple[torch.Tensor, ...]] = []
        self._fields: MetricCollection | None = None

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Build the metrics on first use and empty them."""
        if self._metrics is None:
            module: Any = pl_module
            cohorts: dict[str, list[int]] = trainer.datamodule.cohorts  # type: ignore[attr-defined]
            horizon = max(n for counts in cohorts.values() for n in counts)
            cap = None if module.network.halting is None else horizon
            self._metrics = execution_metrics(horizon, cap, (), cohorts, "val/").to(pl_module.device)
            heads = module.network.state_heads
            if heads is not None:
                # Named groups: every field keeps counts of its own, whatever the first batch looks like.
                fields: dict[str, Any] = {name: FieldAccuracy() for name in heads.sizes}
                self._fields = MetricCollection(fields, prefix="val/field_", compute_groups=False).to(pl_module.device)
        self._metrics.reset()
        self._pending = []
        if self._fields is not None:
            self._fields.reset()

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count the batch."""
        del trainer, pl_module, batch_idx, dataloader_idx
        assert self._metrics is not None
        rollout = outputs["rollout"]
        logits = rollout.stop_logits
        stop = torch.zeros_like(batch.steps) if logits is None else stop_loop(logits)
        predictions = rollout.letter_logits.argmax(-1)
        self._pending.append((predictions, batch.labels, batch.steps, stop))
        if sum(len(part[2]) for part in self._pending) >= TOGETHER:
            self._count()
        for name, values in rollout.field_logits.items():
            assert self._fields is not None
            self._fields[name].update(values.argmax(-1), batch.fields[name])

    def _count(self) -> None:
        """Count the pending batches as one: with small batches, calls cost more than counting."""
        if not self._pending:
            return
        assert self._metrics is not None
        loops = max(predictions.shape[1] for predictions, *_ in self._pending)
        letters, labels, steps, stops = zip(*self._pending, strict=True)
        self._pending = []
        # A shorter rollout goes on with its last letter, which is what a query that never stopped returns.
        predictions = torch.cat([torch.cat([p, p[:, -1:].expand(-1, loops - p.shape[1])], 1) for p in letters])
        reference = torch.cat([pad(part, (0, loops - part.shape[1]), value=IGNORE) for part in labels])
        self._metrics.update(query_outcome(predictions, reference, torch.cat(steps), torch.cat(stops)))

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log every defined number."""
        del trainer
        assert self._metrics is not None
        self._count()
        numbers: dict[str, torch.Tensor] = {}
        self.curves = {}
        fields = {} if self._fields is None else self._fields.compute()
        for name, value in {**self._metrics.compute(), **fields}.items():
            stem = name.removeprefix("val/")
            if value.dim() == 0:
                numbers[name] = value
            else:
                self.curves[stem] = value
                numbers |= {f"val/loop_{t:02d}/{stem}": v for t, v in enumerate(value.reshape(-1), 1)}
        known = torch.stack([value.float() for value in numbers.values()]).cpu()  # one transfer, whatever the device
        defined = {name: value for name, value in zip(numbers, known, strict=True) if not torch.isnan(value)}
        pl_module.log_dict(defined, rank_zero_only=False)
