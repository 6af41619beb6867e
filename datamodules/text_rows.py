"""Batches of stored text examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datamodules.loader import BatchSource, EvaluationOrder, TrainingOrder
from datamodules.tasks.procedure import TextExample
from datamodules.text import TextBatch, TextEncoder


class TextRows(BatchSource[TextBatch]):
    """Batches of text examples, in a given order.

    Args:
        encoder: renders messages and makes batches.
        texts: the examples.
        order: rows of each batch.
        generated: [E] bool, examples that are also validated by generation; None for none.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        texts: Sequence[TextExample],
        order: TrainingOrder | EvaluationOrder,
        generated: np.ndarray | None = None,
    ) -> None:
        self._encoder, self._texts, self._order, self._generated = encoder, texts, order, generated

    def __len__(self) -> int:
        """Return the number of batches of an epoch on this rank."""
        return len(self._order)

    def batch(self, epoch: int, position: int) -> TextBatch:
        """Make a batch; a pure function of its place."""
        rows = self._order.rows(epoch, position)
        documents = [[self._encoder.message(self._texts[row])] for row in rows]
        marks = None if self._generated is None else self._generated[rows]
        return self._encoder.batch(documents, generated=marks, instance=rows)


def length_groups(texts: Sequence[TextExample]) -> np.ndarray:
    """Return the group of each example ([E] int64): its characters by powers of two.

    Padding to the longest example of a batch of one group at most doubles it.
    """
    sizes = [len(example.prompt) + len(example.completion) for example in texts]
    return np.ceil(np.log2(sizes)).astype(np.int64)
