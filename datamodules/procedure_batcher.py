"""Makes batches of any `Procedure`: its prompts tokenised, its labels, fields and cells as tensors.

Tasks with millions of like prompts (graphs) have a batcher of their own; everything else needs only this one.

Shape legend: B batch, S tokens, T loops, K labels, C cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from datamodules.batch import IGNORE, NO_CELL, NO_DIGIT, Batch, PromptView
from datamodules.tasks.procedure import LabelSet, Procedure

InstanceT = TypeVar("InstanceT")


class ProcedureBatcher(Generic[InstanceT]):
    """Batches of one task for one tokenizer.

    Args:
        procedure: the task.
        tokenizer: any fast Hugging Face tokenizer (it tells which characters a token covers).

    Attributes:
        label_ids: [K] token id of each label.

    Raises:
        ValueError: the tokenizer is not a fast one, or a label is not one token of its own.
    """

    def __init__(self, procedure: Procedure[InstanceT], tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.is_fast:
            raise ValueError("tokenizer: a slow tokenizer cannot tell where its tokens begin; use the fast one")
        self.procedure = procedure
        self.tokenizer = tokenizer
        self.label_ids = self._find_label_ids()

    @property
    def labels(self) -> LabelSet:
        """Names and texts of the labels."""
        return self.procedure.labels

    def batch(self, instances: Sequence[InstanceT], *, ids: Iterable[int] | None = None) -> Batch:
        """Build a batch.

        Args:
            instances: B instances.
            ids: instance ids, unique within a split; default 0..B-1.

        Returns:
            A batch with every view of the task, on the CPU; T is the largest number of steps among the instances.

        Raises:
            ValueError: the task contradicts itself: labels, fields or cells of the wrong number (names which).
        """
        task = self.procedure
        steps = [task.steps(instance) for instance in instances]
        states = [task.states(instance) for instance in instances]
        for count, labels in zip(steps, states, strict=True):
            if count < 1 or len(labels) != count:
                raise ValueError(f"states: got {len(labels)} labels for {count} steps; a run has as many, 1 or more")
        start = [task.initial(instance) for instance in instances]
        rows = [task.field_states(instance) for instance in instances]
        facts = [task.facts(instance) for instance in instances]
        return Batch(
            views={view: self._view(view, instances) for view in task.views},
            labels=_padded(states, IGNORE),
            steps=torch.tensor(steps),
            initial=torch.tensor([IGNORE if label is None else label for label in start]),
            # The number of steps is no part of these prompts: the model has to learn when a run is over.
            digits=torch.full((len(steps), 1), NO_DIGIT),
            instance=torch.tensor(list(range(len(steps)) if ids is None else ids)),
            facts={name: torch.tensor([row[name] for row in facts]) for name in (facts[0] if facts else ())},
            fields=self._fields(rows, steps),
        )

    def _view(self, view: str, instances: Sequence[InstanceT]) -> PromptView:
        texts = [self.procedure.prompt(instance, view) for instance in instances]
        encoded = self.tokenizer(texts, add_special_tokens=False)
        lengths = torch.tensor([len(row) for row in encoded["input_ids"]])
        cells = None
        offsets = [self.procedure.cells(instance, view) for instance in instances]
        if any(offsets):
            cells = _padded(
                [self._tokens_at(encoded, row, characters) for row, characters in enumerate(offsets)], NO_CELL
            )
        return PromptView(_padded(encoded["input_ids"], 0), lengths, cells)

    @staticmethod
    def _tokens_at(encoded: object, row: int, characters: Sequence[int]) -> list[int]:
        """Return the token that holds each character.

        Raises:
            ValueError: a character lies outside the prompt, or two cells share a token.
        """
        tokens = [encoded.char_to_token(row, at) for at in characters]  # type: ignore[attr-defined]
        if None in tokens or len(set(tokens)) < len(tokens):
            where = "outside the prompt" if None in tokens else "in one token with another cell"
            raise ValueError(f"cells: one lies {where}; set cells apart by spaces, or use another tokenizer")
        return tokens

    def _fields(self, rows: Sequence[Mapping[str, Sequence[int]]], steps: Sequence[int]) -> dict[str, Tensor]:
        names = tuple(rows[0]) if rows else ()
        for row, count in zip(rows, steps, strict=True):
            wrong = [name for name in names if len(row[name]) != count + 1]
            if wrong:
                raise ValueError(
                    f"field {wrong[0]!r}: got {len(row[wrong[0]])} values for {count} steps; give one for each of the "
                    "steps 0 to N (IGNORE where undefined)"
                )
        return {name: _padded([row[name] for row in rows], IGNORE) for name in names}

    def _find_label_ids(self) -> Tensor:
        texts = list(self.labels.texts)
        ids = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        for text, tokens in zip(texts, ids, strict=True):
            if len(tokens) != 1 or tokens[0] == self.tokenizer.unk_token_id:
                raise ValueError(f"labels: {text!r} is {len(tokens)} token(s) {tokens} here; a label must be one token")
        return torch.tensor([tokens[0] for tokens in ids])


def _padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """[B, longest] rows, padded on the right."""
    width = max((len(row) for row in rows), default=0)
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], dtype=torch.long).view(-1, width)
