"""Logs to W&B what scalars cannot show: curves over the loops, the distribution of stops, single instances."""

from __future__ import annotations

from collections import Counter
from typing import Any

import lightning as L
import torch
from torch import Tensor

from callbacks.metrics import ExecutionMetrics
from datamodules.batch import IGNORE, Batch
from loopformer.metrics.functional import query_outcome, stop_loop
from loopformer.wandb_logger import RunLogger

CURVES = ("survival", "hazard", "loop_accuracy")
COLUMNS: list[str | int] = [
    "instance", "N", "prompt", "reference", "letters", "direct", "first error", "stop",
]  # fmt: skip


class ValidationTables(L.Callback):
    """Logs charts and a table of instances after every validation, if the run has a W&B logger.

    The charts are W&B custom charts over tables, so that the curves of several runs overlay in a workspace: survival,
    hazard and accuracy by loop, and the distribution of stop loop minus N. The table holds prompt, reference, letters
    of both readouts, first error (blank where there is none) and stop (blank where it is missing).

    Args:
        metrics: the callback that computes the curves; it must stand before this one.
        per_count: instances shown of each requested count.
    """

    def __init__(self, metrics: ExecutionMetrics, per_count: int = 2) -> None:
        self.metrics = metrics
        self.per_count = per_count
        self._rows: list[list[Any]] = []
        self._shown: Counter[int] = Counter()
        self._stops: Counter[int] = Counter()

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget the last epoch."""
        del trainer, pl_module
        self._rows, self._shown, self._stops = [], Counter(), Counter()

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep a few instances of each count."""
        del batch_idx, dataloader_idx
        if _logger(trainer) is None:
            return
        steps = batch.steps.tolist()
        chosen = []
        for row, count in enumerate(steps):
            if self._shown[count] < self.per_count:
                self._shown[count] += 1
                chosen.append(row)
        stops = None if outputs["rollout"].stop_logits is None else stop_loop(outputs["rollout"].stop_logits)
        if stops is not None:
            self._stops.update(s - n for s, n in zip(stops.tolist(), steps, strict=True) if s)
        if chosen:
            rows = torch.tensor(chosen, device=batch.steps.device)
            self._rows += _describe(pl_module, outputs["rollout"].select(rows), batch.select(rows))

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the charts and the table."""
        del pl_module
        logger = _logger(trainer)
        if logger is None or not trainer.is_global_zero or trainer.sanity_checking:
            return
        import wandb  # noqa: PLC0415 (slow to import, and only runs that log to it need it)

        charts: dict[str, Any] = {}
        for name in CURVES:
            curve = self.metrics.curves.get(name)
            if curve is not None:
                points = [[t, v] for t, v in enumerate(curve.reshape(-1).tolist(), 1) if v == v]
                table = wandb.Table(columns=["loop", name], data=points)
                charts[f"curves/{name}"] = wandb.plot.line(table, "loop", name, title=name.replace("_", " "))
        if self._stops:
            data = [[str(error), self._stops[error]] for error in sorted(self._stops)]
            table = wandb.Table(columns=["stop minus N", "queries"], data=data)
            charts["curves/stop_error"] = wandb.plot.bar(table, "stop minus N", "queries", title="stop loop minus N")
        rows = sorted(self._rows, key=lambda row: (int(row[1]), int(row[0])))
        charts["val/instances"] = wandb.Table(columns=COLUMNS, data=rows)
        # The step under which Lightning logs this validation's scalars: that of the last optimiser step, from 0.
        logger.log_metrics(charts, max(trainer.global_step - 1, 0))


def _describe(module: Any, rollout: Any, batch: Batch) -> list[list[Any]]:
    """One row of `COLUMNS` for each example."""
    network = module.network
    names = [label.strip() for label in network.labels]
    view = batch.views["full" if "full" in batch.views else network.recurrence.view]
    stops = torch.zeros_like(batch.steps) if rollout.stop_logits is None else stop_loop(rollout.stop_logits)
    outcome = query_outcome(rollout.letter_logits.argmax(-1), batch.labels, batch.steps, stops)
    letters = rollout.letter_logits.argmax(-1)
    direct = None if rollout.direct_logits is None else rollout.direct_logits.argmax(-1)
    rows = []
    for i, count in enumerate(batch.steps.tolist()):
        error, stop = int(outcome.first_error[i]), int(stops[i])
        rows.append(
            [
                int(batch.instance[i]),
                count,
                network.backbone.tokenizer.decode(view.input_ids[i, : int(view.lengths[i])].tolist()),
                _text(batch.labels[i, :count], names),
                _text(letters[i, :count], names),
                "" if direct is None else _text(direct[i, :count], names),
                error if error <= count else None,
                stop or None,
            ]
        )
    return rows


def _text(labels: Tensor, names: list[str]) -> str:
    return " ".join("?" if label == IGNORE else names[label] for label in labels.tolist())


def _logger(trainer: L.Trainer) -> RunLogger | None:
    return next((logger for logger in trainer.loggers if isinstance(logger, RunLogger)), None)
