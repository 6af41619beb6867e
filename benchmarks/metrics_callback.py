"""What share of a tiny validation epoch do the metrics take?

    python -m benchmarks.metrics_callback

Architecture 4 on the tiny backbone validates as in training: 64 graphs at each of 12 counts, batches of 16. The time of
the callback's hooks is set against the whole epoch, both in processor time.
"""

from __future__ import annotations

import logging
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch

from benchmarks.evaluation import tiny_network
from callbacks.metrics import ExecutionMetrics
from datamodules.graph import GraphDataModule
from datamodules.graph_evaluation import EvaluationSplit
from datamodules.graph_sources import PublishedSplit
from loopformer.executor import ExecutorModule

EPOCHS = 3


class TimedMetrics(ExecutionMetrics):
    """The callback, with the time of its hooks added up."""

    seconds = 0.0

    def _timed(self, hook: str, *arguments: Any) -> None:
        begin = time.process_time()
        getattr(super(), hook)(*arguments)
        self.seconds += time.process_time() - begin

    def on_validation_start(self, *arguments: Any) -> None:
        """See `ExecutionMetrics`."""
        self._timed("on_validation_start", *arguments)

    def on_validation_batch_end(self, *arguments: Any) -> None:
        """See `ExecutionMetrics`."""
        self._timed("on_validation_batch_end", *arguments)

    def on_validation_epoch_end(self, *arguments: Any) -> None:
        """See `ExecutionMetrics`."""
        self._timed("on_validation_epoch_end", *arguments)


def main() -> None:
    """Validate a few times and print the share of each."""
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    network = tiny_network("arch4_executor.yaml")
    data = GraphDataModule(
        network.backbone.tokenizer,
        train=PublishedSplit("cyclic", batch_size=4),
        validation=EvaluationSplit("cyclic", "validation", per_depth=64, batch_size=16),
    )
    module, metrics = ExecutorModule(network), TimedMetrics()
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, callbacks=[metrics],
        enable_model_summary=False, default_root_dir=Path.cwd(),
    )  # fmt: skip
    data.cohorts  # noqa: B018 (draws the training graphs, which a fit has done before it validates)
    trainer.validate(module, data, verbose=False)  # imports and first allocations
    for epoch in range(EPOCHS):
        metrics.seconds, begin = 0.0, time.process_time()
        trainer.validate(module, data, verbose=False)
        total = time.process_time() - begin
        print(
            f"epoch {epoch}: {total:.2f} s, metrics {metrics.seconds * 1e3:.0f} ms, {metrics.seconds / total:.2%} of it"
        )


if __name__ == "__main__":
    main()
