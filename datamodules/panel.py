"""Panels of graphs times counts, for stop rules that are trained over a frozen executor.

A batch of a panel holds (graph, count) pairs without prompts: what the prompts yield is cached by the module, once per
graph and once per pair. `instance` is the pair's number, graph * len(counts) + column.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from datamodules.batch import Batch
from datamodules.graph_batcher import GraphBatcher
from datamodules.loader import BatchLoader, BatchSource, EvaluationOrder, TrainingOrder
from datamodules.resumable import ResumableDataModule
from datamodules.tasks.graph import Graphs
from datamodules.tasks.graph_splits import first_per_depth, published

HELD_OUT = (9, 17, 29, 41, 53)
PUBLISHED_COUNTS = [n for n in range(1, 64) if n not in HELD_OUT]
"""The 58 training counts of the published controller stage."""


class Panel:
    """Every pair of G graphs and C counts.

    Args:
        batcher: makes prompts.
        graphs: the G graphs.
        counts: the C counts.
        chunk: rows of the batches that `graph_batches` and `pair_batches` yield.
    """

    def __init__(self, batcher: GraphBatcher, graphs: Graphs, counts: list[int], chunk: int = 64) -> None:
        self.batcher, self.graphs, self.counts, self.chunk = batcher, graphs, counts, chunk
        self._digits = batcher.count_digits(np.asarray(counts))

    def __len__(self) -> int:
        return len(self.graphs) * len(self.counts)

    def pairs(self, rows: np.ndarray) -> Batch:
        """Return a batch of pairs by their numbers, without prompts."""
        column = torch.from_numpy(rows % len(self.counts))
        none = torch.empty(len(rows), 0, dtype=torch.long)
        return Batch(
            views={},
            labels=none,
            steps=torch.tensor(self.counts)[column],
            initial=none,
            digits=self._digits[column],
            instance=torch.from_numpy(rows),
        )

    def graph_batches(self) -> Iterator[Batch]:
        """Yield the graphs' prompts in order (use the executor view)."""
        for begin in range(0, len(self.graphs), self.chunk):
            yield self.batcher.batch(self.graphs[slice(begin, begin + self.chunk)], 1, facts={})

    def pair_batches(self) -> Iterator[Batch]:
        """Yield the pairs' prompts in the order of their numbers (use the full view)."""
        for begin in range(0, len(self), self.chunk):
            rows = np.arange(begin, min(begin + self.chunk, len(self)))
            graphs, columns = np.divmod(rows, len(self.counts))
            yield self.batcher.batch(self.graphs[graphs], np.asarray(self.counts)[columns], facts={})


class _PanelRows(BatchSource):
    def __init__(self, panel: Panel, order: TrainingOrder | EvaluationOrder) -> None:
        self._panel, self._order = panel, order

    def __len__(self) -> int:
        return len(self._order)

    def batch(self, epoch: int, position: int) -> Batch:
        return self._panel.pairs(self._order.rows(epoch, position))


class GraphPanelDataModule(ResumableDataModule):
    """Training and validation panels of the cyclic data. Source: architecture spec, "4 controller".

    Args:
        tokenizer: the model's tokenizer (linked by the command line).
        graphs: training graphs, the first of the training split.
        counts: training counts; None for the published 58 (1-63 without five held out).
        validation_graphs: graphs of the validation split, at most 128.
        validation_counts: largest validation count; every one from 1 is asked.
        batch_size: pairs of a batch.
        seed: order of the training pairs.

    Raises:
        ValueError: a number is below 1, or there are not that many validation graphs.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        graphs: int = 256,
        counts: list[int] | None = None,
        validation_graphs: int = 128,
        validation_counts: int = 16,
        batch_size: int = 256,
        seed: int = 0,
    ) -> None:
        super().__init__()
        sizes = {"graphs": graphs, "validation_counts": validation_counts, "batch_size": batch_size}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name}: got {value}; it must be 1 or more")
        self.batch_size, self.seed = batch_size, seed
        batcher = GraphBatcher(tokenizer)
        held_in = PUBLISHED_COUNTS if counts is None else sorted(counts)
        validation = first_per_depth(published("cyclic", "validation"), validation_graphs, [1])
        self.panels = {
            "train": Panel(batcher, published("cyclic", "train")[slice(0, graphs)], held_in),
            "validation": Panel(batcher, validation, list(range(1, validation_counts + 1))),
        }

    def count_batch(self) -> Batch:
        """Return one pair for each training count, in order."""
        panel = self.panels["train"]
        return panel.pairs(np.arange(len(panel.counts)))

    def train_batches(self, rank: int, world: int) -> BatchSource:
        """Return a rank's training batches of pairs."""
        panel = self.panels["train"]
        return _PanelRows(panel, TrainingOrder(len(panel), self.batch_size, self.seed, rank=rank, world=world))

    def val_dataloader(self) -> BatchLoader:
        """Return this rank's validation batches of pairs."""
        panel, (rank, world) = self.panels["validation"], self.place()
        order = EvaluationOrder(np.zeros(len(panel), dtype=np.int64), 1024, rank=rank, world=world)
        return BatchLoader(_PanelRows(panel, order), resumes=False)
