"""Makes batches of machines: arrays of word numbers in, tensors of token ids, labels and fields out.

A prompt's fixed text is tokenised once per shape; the words are filled in by indexing, since each is one token.

Shape legend: B batch, S tokens, P places, T loops, M digits, W words.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from datamodules.batch import IGNORE, NO_DIGIT, Batch, PromptView
from datamodules.tasks.machines.family import FIELDS
from datamodules.tasks.machines.machine import IntArray, Machines, Prompt
from datamodules.tasks.machines.words import NAMES, STATES, TEXTS, WORDS, label_set, lookup
from datamodules.tasks.procedure import LabelSet

DIGITS = "0123456789"
FILLERS = (WORDS.index(STATES[0]), WORDS.index(NAMES[0]))
"""Two words whose prompts differ exactly in the places."""


@dataclass(frozen=True)
class _Layout:
    """Token ids [S] of a prompt's fixed text, and the columns of its places [P] and of the count's digits [M]."""

    ids: NDArray[np.int64]
    places: IntArray
    digits: IntArray


class MachineBatcher:
    """Batches of machines of any kind for one tokenizer.

    Args:
        tokenizer: a tokenizer that knows every word of the machines as one token.

    Attributes:
        labels: the visible states, A-Z.
        label_ids: [K] token id of each of them.

    Raises:
        ValueError: a word or a digit is not a token of its own (names it and the fix).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.labels: LabelSet = label_set(STATES)
        self._word_ids = self._single_tokens(TEXTS)
        self._digit_ids = self._single_tokens(tuple(DIGITS))
        self._layouts: dict[tuple[tuple[str, ...], int], _Layout] = {}
        self.label_ids = torch.from_numpy(self._word_ids[: len(STATES)])

    def batch(
        self,
        machines: Machines,
        counts: int | IntArray | None = None,
        *,
        ids: Iterable[int] | None = None,
        runs: int = 1,
    ) -> Batch:
        """Build a batch.

        Args:
            machines: B machines.
            counts: requested loops, one for all or [B]; default `machines.depth`.
            ids: [B] instance ids; default 0..B-1.
            runs: so many rows side by side have one table; a model may read it once for all of them.

        Returns:
            A batch with the views "full" and "executor", on the CPU; T is the largest count.

        Raises:
            ValueError: a count below 1.
        """
        steps = np.array(np.broadcast_to(machines.depth if counts is None else counts, len(machines)), dtype=np.int64)
        if steps.size and steps.min() < 1:
            raise ValueError(f"counts: got {steps.min()}; ask for 1 step or more")
        loops = int(steps.max(initial=1))
        run, prompt = machines.run(loops), machines.prompt()
        over = np.arange(loops + 1) > steps[:, None]
        fields = {name: np.where(over, IGNORE, lookup(FIELDS[name])[words]) for name, words in run.state.items()}
        return Batch(
            views={"full": self._view(prompt, steps, runs), "executor": self._view(prompt, None, runs)},
            labels=_long(np.where(over[:, 1:], IGNORE, run.visible)),
            steps=torch.from_numpy(steps),
            initial=_long(machines.initial()),
            digits=self._digit_tokens(steps),
            instance=torch.tensor(list(range(len(steps)) if ids is None else ids), dtype=torch.long),
            facts={name: _long(values) for name, values in machines.facts().items()},
            fields={name: _long(values) for name, values in fields.items()},
        )

    def check(self, machines: Machines) -> None:
        """Compare the batch's ids with the tokenizer's own on whole prompts.

        Raises:
            ValueError: an id differs.
        """
        batch, prompt = self.batch(machines), machines.prompt()
        for name, view in batch.views.items():
            counts = machines.depth.tolist() if name == "full" else [None] * len(machines)
            texts = [prompt.text(row, count) for row, count in enumerate(counts)]
            for row, ids in enumerate(self._tokenize(texts)):
                if ids != view.input_ids[row, : view.lengths[row]].tolist():
                    raise ValueError(f"tokenizer: it splits a whole {name} prompt otherwise: {texts[row]!r}; {_FIX}")

    def _view(self, prompt: Prompt, steps: NDArray[np.int64] | None, runs: int = 1) -> PromptView:
        """Fill in one view; `steps` [B] where it shows the count. Padding on the right has id 0."""
        size = len(prompt.words)
        width = np.zeros(size, dtype=np.int64) if steps is None else np.array([len(str(n)) for n in steps.tolist()])
        widths = np.unique(width).tolist() or [0 if steps is None else 1]
        layouts = {m: self._layout(prompt.pieces, m) for m in widths}
        ids = np.zeros((size, max(len(layout.ids) for layout in layouts.values())), dtype=np.int64)
        lengths = np.zeros(size, dtype=np.int64)
        for m, layout in layouts.items():
            rows = np.flatnonzero(width == m)
            block = np.tile(layout.ids, (len(rows), 1))
            block[:, layout.places] = self._word_ids[prompt.words[rows]]
            if steps is not None:
                powers = 10 ** np.arange(m - 1, -1, -1)
                block[:, layout.digits] = self._digit_ids[steps[rows, None] // powers % 10]
            ids[rows, : len(layout.ids)] = block
            lengths[rows] = len(layout.ids)
        shared = None
        if runs > 1:
            # Everything before the start's first word is the table's, the fixed text included.
            columns = np.array([layouts[m].places[prompt.start] for m in width.tolist()], dtype=np.int64)
            shared = torch.from_numpy(np.stack([np.arange(size) // runs, columns], axis=1))
        return PromptView(torch.from_numpy(ids), torch.from_numpy(lengths), shared=shared)

    def _layout(self, pieces: tuple[str, ...], digits: int) -> _Layout:
        """Tokenise prompts that differ in every place, or in every digit; kept for the next batch."""
        if (pieces, digits) not in self._layouts:
            places = len(pieces) - 1
            words = np.repeat(np.array([[FILLERS[0]], [FILLERS[1]], [FILLERS[0]]]), places, axis=1)
            prompt = Prompt(pieces, words, 0)
            counts = [None] * 3 if not digits else [int(d * digits) for d in "112"]
            ids = self._tokenize([prompt.text(row, count) for row, count in enumerate(counts)])
            if len({len(row) for row in ids}) > 1:
                raise ValueError(f"tokenizer: prompts of one shape differ in length; {_FIX}")
            first, other, counted = np.array(ids, dtype=np.int64)
            layout = _Layout(first, np.flatnonzero(first != other), np.flatnonzero(first != counted))
            if len(layout.places) != places or len(layout.digits) != digits:
                raise ValueError(f"tokenizer: a word or digit of the prompt is not a token of its own; {_FIX}")
            self._layouts[pieces, digits] = layout
        return self._layouts[pieces, digits]

    def _digit_tokens(self, steps: NDArray[np.int64]) -> Tensor:
        """[B, M] token ids of the counts' digits."""
        texts = [str(count) for count in steps.tolist()]
        width = max((len(text) for text in texts), default=1)
        rows = [[*(int(self._digit_ids[int(d)]) for d in text), *[NO_DIGIT] * (width - len(text))] for text in texts]
        return torch.tensor(rows, dtype=torch.long).view(-1, width)

    def _single_tokens(self, texts: tuple[str, ...]) -> NDArray[np.int64]:
        ids = self._tokenize(list(texts))
        for text, tokens in zip(texts, ids, strict=True):
            if len(tokens) != 1 or tokens[0] == self.tokenizer.unk_token_id:
                raise ValueError(f"tokenizer: {text!r} is {len(tokens)} token(s); {_FIX}")
        return np.array(ids, dtype=np.int64)[:, 0]

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids


_FIX = "set backbone.init_args.words to [machines], or use a tokenizer with one token for it"


def _long(values: IntArray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
