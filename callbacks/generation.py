"""Attaches the metrics of generated traces to a fit of an ordinary language model."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torchmetrics import MetricCollection

from datamodules.text import TextBatch
from loopformer.metrics import generated_metrics
from loopformer.metrics.functional import generated_outcome, pack_paths, parse_letter, parse_path


class GenerationMetrics(L.Callback):
    """Logs `val/trace/strict`, `val/trace/malformed/held_out`, ... of the responses generated in validation.

    It needs a datamodule whose text names states: `labels`, `style` and `cohorts`, as `GraphTextDataModule` has them.
    """

    def __init__(self) -> None:
        self._metrics: MetricCollection | None = None

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Build the metrics on first use and empty them."""
        if self._metrics is None:
            cohorts: dict[str, list[int]] = trainer.datamodule.cohorts  # type: ignore[attr-defined]
            horizon = max(n for counts in cohorts.values() for n in counts)
            self._metrics = generated_metrics(horizon, groups=cohorts, prefix="val/trace/").to(pl_module.device)
        self._metrics.reset()

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: TextBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Parse the responses strictly and count them."""
        del batch, batch_idx, dataloader_idx
        if "texts" not in outputs:
            return
        assert self._metrics is not None
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        asked: TextBatch = outputs["generated"]
        final_only = data.style == "direct"
        parse = parse_letter if final_only else parse_path
        letters, written = pack_paths([parse(text, data.labels.names) for text in outputs["texts"]])
        ended = torch.tensor(outputs["ended"], device=pl_module.device)
        reference = asked.labels.gather(1, asked.steps[:, None] - 1) if final_only else asked.labels
        self._metrics.update(
            generated_outcome(
                letters.to(pl_module.device),
                written.to(pl_module.device),
                ended,
                reference,
                asked.steps,
                torch.ones_like(asked.steps) if final_only else None,
            )
        )

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log every defined number."""
        del trainer
        assert self._metrics is not None
        defined = {name: value.float() for name, value in self._metrics.compute().items() if not torch.isnan(value)}
        pl_module.log_dict(defined, rank_zero_only=False)
