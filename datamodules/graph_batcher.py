"""Makes batches of the graph task: arrays of graphs and counts in, tensors of token ids and labels out.

Shape legend: B batch, S tokens, T loops, V labels, M digits, n rules.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from datamodules.batch import IGNORE, NO_DIGIT, Batch, PromptView
from datamodules.tasks.graph import Graphs, IntArray
from datamodules.tasks.graph_task import graph_labels
from datamodules.tasks.prompt import VIEWS, Layout, PromptCompiler, View, find_template

CHECKED_COUNTS = 128
"""Counts 1..128 are compared with the tokenizer by `GraphBatcher.check` (and one of every longer number of digits)."""


class GraphBatcher:
    """Batches for one tokenizer and one template.

    Args:
        tokenizer: any Hugging Face tokenizer that keeps symbols and digits single tokens.
        template: name of the wording (`datamodules.tasks.prompt.TEMPLATES`).
        letters: letters of a node name, 1 or 2.

    Attributes:
        label_ids: [V] token id of each label, in context: the rows of the LM head to read.
        digit_ids: [10] token id of each digit in the count.

    Raises:
        ValueError: the tokenizer merges a symbol or digit with its surroundings.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str = "published", letters: int = 1) -> None:
        self.labels = graph_labels(letters)
        self.letters = letters
        self._compiler = PromptCompiler(tokenizer, find_template(template), self.labels.texts)
        self.label_ids = torch.from_numpy(self._compiler.symbol_ids)
        self.digit_ids = torch.from_numpy(self._compiler.digit_ids)

    def batch(
        self,
        graphs: Graphs,
        counts: int | IntArray | None = None,
        *,
        instance: IntArray | None = None,
        facts: dict[str, IntArray] | None = None,
        loops: int | None = None,
    ) -> Batch:
        """Build a batch.

        Args:
            graphs: B graphs.
            counts: requested steps, one for all or [B]; default `graphs.depth`.
            instance: [B] instance ids; default 0..B-1.
            facts: [B] integers by name; default `graphs.facts()` (a caller with many small batches computes them once).
            loops: label exactly this many loops of every example, before and after its last step alike.

        Returns:
            A batch with the views "full" and "executor", on the CPU, T = the largest count, or `loops`.

        Raises:
            ValueError: a count below 1, or graphs with other node names than this batcher's.
        """
        if graphs.letters != self.letters:
            raise ValueError(f"letters: graphs have {graphs.letters}, the batcher has {self.letters}; make them equal")
        steps = np.array(np.broadcast_to(graphs.depth if counts is None else counts, len(graphs)), dtype=np.int64)
        if steps.size and steps.min() < 1:
            raise ValueError(f"counts: got {steps.min()}; ask for 1 step or more")
        T = int(steps.max(initial=1)) if loops is None else loops
        labels = graphs.states(T).astype(np.int64)
        if loops is None:
            labels[np.arange(T) >= steps[:, None]] = IGNORE
        digits, width = _decimal_digits(steps)
        return Batch(
            views={view: self._view(view, graphs, digits, width) for view in VIEWS},
            labels=torch.from_numpy(labels),
            steps=torch.from_numpy(steps),
            initial=_long(graphs.start),
            digits=self._digit_tokens(digits),
            instance=_long(np.arange(len(graphs)) if instance is None else instance),
            facts={name: _long(values) for name, values in (graphs.facts() if facts is None else facts).items()},
        )

    def _view(self, view: View, graphs: Graphs, digits: NDArray[np.int64], width: NDArray[np.int64]) -> PromptView:
        """Fill the layout of each number of digits present; shorter prompts are padded on the right with id 0."""
        compiler = self._compiler
        if view == "executor":
            width = np.zeros_like(width)
        rules = graphs.sources.shape[1]
        widths = np.unique(width).tolist()
        layouts = [compiler.layout(view, rules, m) for m in widths]
        ids = np.zeros((len(graphs), max((len(layout.ids) for layout in layouts), default=0)), dtype=np.int64)
        lengths = np.zeros(len(graphs), dtype=np.int64)
        sources = compiler.symbol_ids[graphs.sources]
        targets = compiler.symbol_ids[graphs.targets]
        start = compiler.symbol_ids[graphs.start]
        for m, layout in zip(widths, layouts, strict=True):
            rows = slice(None) if len(widths) == 1 else np.flatnonzero(width == m)
            block = np.tile(layout.ids, (len(start[rows]), 1))
            block[:, layout.sources] = sources[rows]
            block[:, layout.targets] = targets[rows]
            block[:, layout.start] = start[rows]
            block[:, layout.digits] = compiler.digit_ids[digits[rows, : len(layout.digits)]]
            ids[rows, : len(layout.ids)] = block
            lengths[rows] = len(layout.ids)
        return PromptView(torch.from_numpy(ids), torch.from_numpy(lengths))

    def layout(self, view: View, rules: int, count: int) -> Layout:
        """Return where the rules, the start and the count stand in a prompt of a number of rules."""
        return self._compiler.layout(view, rules, len(str(count)))

    def count_digits(self, counts: IntArray) -> Tensor:
        """Return the `digits` of a batch for requested counts alone: [C] -> [C, M] token ids, NO_DIGIT padded."""
        return self._digit_tokens(_decimal_digits(np.asarray(counts, dtype=np.int64))[0])

    def _digit_tokens(self, digits: NDArray[np.int64]) -> Tensor:
        known = digits >= 0
        return torch.from_numpy(np.where(known, self._compiler.digit_ids[np.where(known, digits, 0)], NO_DIGIT))

    def check(self, graphs: Graphs) -> None:
        """Compare compiled ids with the tokenizer's own on whole prompts, for many counts.

        Args:
            graphs: a few graphs of the size to be used; they are cycled through.

        Raises:
            ValueError: an id differs (names template, view and count).
        """
        counts = np.array([*range(1, CHECKED_COUNTS + 1), 256, 1_024, 8_192, 10_000])
        queries = graphs[np.resize(np.arange(len(graphs)), len(counts))]
        batch = self.batch(queries, counts)
        template, text = self._compiler.template, self.labels.texts
        for view in VIEWS:
            prompts = [
                template.render(view, [text[v] for v in a], [text[v] for v in b], text[start], str(n))
                for a, b, start, n in zip(queries.sources, queries.targets, queries.start, counts, strict=True)
            ]
            made = batch.views[view]
            for i, ids in enumerate(self._compiler.tokenize(prompts)):
                if ids != made.input_ids[i, : made.lengths[i]].tolist():
                    raise ValueError(
                        f"template {template.name!r}: the {view} prompt with count {counts[i]} tokenises differently "
                        "as a whole; use a tokenizer with one token per digit and per symbol, or another template"
                    )


def _decimal_digits(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return [B, M] decimal digits left to right, -1 after the last, and [B] how many there are."""
    most = len(str(counts.max(initial=1)))
    powers = 10 ** np.arange(most)
    width = (counts[:, None] >= powers).sum(axis=1)
    exponent = width[:, None] - 1 - np.arange(most)
    digits = counts[:, None] // 10 ** np.maximum(exponent, 0) % 10
    return np.where(exponent >= 0, digits, -1), width


def _long(values: IntArray) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))
