"""Text for ordinary language models: the batch contract and the encoder that makes batches from text examples.

Shape legend: B batch, S sequence, T steps.

Nothing in here knows of a particular task. A document is one text example, or several that continue each other (further
questions about the same table, the next moves of a game); every completion is closed by the end token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from datamodules.tasks.graph import IntArray
from datamodules.tasks.procedure import TextExample

Objective = Literal["response", "all"]
"""Which tokens the loss counts: completions with their end tokens, or all but the first (language modelling)."""


@dataclass
class TextBatch:
    """A batch of token sequences.

    Attributes:
        input_ids: [B, S] token ids, right padded.
        lengths: [B] number of real tokens.
        loss_mask: [B, S] bool, tokens that the loss counts as targets (each is predicted from those before it).
        answer_mask: [B, S] bool, tokens of completions and their end tokens, whatever the objective.
        prompt_lengths: [B] tokens of the first prompt; generation starts from them.
        answer_lengths: [B] tokens of the first completion, its end token included.
        generated: [B] bool, examples that are also validated by generation.
        labels: [B, T] reference states after steps 1..N, -100 after the last; T = 0 for tasks without states.
        steps: [B] number N of steps, 0 where the task has none.
        instance: [B] id of the instance, unique within its split.
        facts: [B] integers by name, for breakdowns.
    """

    input_ids: Tensor
    lengths: Tensor
    loss_mask: Tensor
    answer_mask: Tensor
    prompt_lengths: Tensor
    answer_lengths: Tensor
    generated: Tensor
    labels: Tensor
    steps: Tensor
    instance: Tensor
    facts: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.lengths.shape[0]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> TextBatch:
        """Return the batch on `device`."""
        tensors = {f.name: getattr(self, f.name).to(device, non_blocking=non_blocking) for f in fields(self)[:-1]}
        facts = {name: value.to(device, non_blocking=non_blocking) for name, value in self.facts.items()}
        return replace(self, **tensors, facts=facts)

    def select(self, rows: Tensor) -> TextBatch:
        """Return some examples of the batch: rows [B] bool, or indices."""
        tensors = {f.name: getattr(self, f.name)[rows] for f in fields(self)[:-1]}
        return replace(self, **tensors, facts={name: value[rows] for name, value in self.facts.items()})

    def prompts(self) -> list[list[int]]:
        """Token ids of the first prompt of each example."""
        return [row[:n].tolist() for row, n in zip(self.input_ids, self.prompt_lengths, strict=True)]

    def answers(self) -> list[list[int]]:
        """Token ids of the first completion of each example, its end token included."""
        bounds = zip(self.input_ids, self.prompt_lengths.tolist(), self.answer_lengths.tolist(), strict=True)
        return [row[start : start + n].tolist() for row, start, n in bounds]


class TextEncoder:
    """Turns documents into token ids.

    Prompt and completion are tokenised apart, since that is what happens when a model generates from the prompt.

    Args:
        tokenizer: any Hugging Face tokenizer with an end token.
        thinking: whether a chat template that knows of it opens a thought before the reply; None leaves it to the
            template.

    Attributes:
        end_id: token that closes a completion.

    Raises:
        ValueError: the tokenizer has no end token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, thinking: bool | None = None) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError("tokenizer: it has no end token (eos_token); use one that has, completions end with it")
        self.tokenizer = tokenizer
        self.end_id = int(tokenizer.eos_token_id)
        self._options: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenise texts, adding no special tokens (those that a chat template wrote are recognised)."""
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids

    def chat(self, prompt: str) -> str:
        """Render a message with the tokenizer's chat template; without one, the message itself."""
        if self.tokenizer.chat_template is None:
            return prompt
        messages = [{"role": "user", "content": prompt}]
        return str(
            self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **self._options)
        )

    def message(self, example: TextExample) -> TextExample:
        """Render an example as a message and its reply: with a chat template, the reply starts without a space."""
        if self.tokenizer.chat_template is None:
            return example
        return TextExample(self.chat(example.prompt), example.completion.lstrip(" "))

    def batch(
        self,
        documents: Sequence[Sequence[TextExample]],
        objective: Objective = "response",
        *,
        generated: IntArray | None = None,
        labels: IntArray | None = None,
        steps: IntArray | None = None,
        instance: IntArray | None = None,
        facts: dict[str, IntArray] | None = None,
    ) -> TextBatch:
        """Build a batch, on the CPU.

        Args:
            documents: B documents of one or more examples that continue each other.
            objective: "response" or "all".
            generated: [B] whether to validate by generation too; default no.
            labels: [B, T] reference states; default none.
            steps: [B] number of steps; default 0.
            instance: [B] instance ids; default 0..B-1.
            facts: [B] integers by name.

        Raises:
            ValueError: an empty document or an empty prompt (nothing to generate from).
        """
        flat = [text for document in documents for example in document for text in (example.prompt, example.completion)]
        if not all(documents) or not all(document[0].prompt for document in documents):
            raise ValueError("documents: one is empty or starts with an empty prompt; every one needs a prompt")
        pieces = iter(self.encode(flat))
        rows: list[list[int]] = []
        masks: list[list[bool]] = []
        firsts: list[tuple[int, int]] = []
        for document in documents:
            ids: list[int] = []
            answer: list[bool] = []
            for _ in document:
                prompt, completion = next(pieces), [*next(pieces), self.end_id]
                ids += prompt + completion
                answer += [False] * len(prompt) + [True] * len(completion)
                if len(firsts) == len(rows):
                    firsts.append((len(prompt), len(completion)))
            rows.append(ids)
            masks.append(answer)
        size = len(rows)
        lengths = torch.tensor([len(row) for row in rows])
        answer_mask = _pad(masks, False).bool()
        real = torch.arange(answer_mask.shape[1]) < lengths[:, None]
        real[:, 0] = False  # nothing stands before the first token to predict it from
        return TextBatch(
            input_ids=_pad(rows, self.tokenizer.pad_token_id or 0),
            lengths=lengths,
            loss_mask=answer_mask if objective == "response" else real,
            answer_mask=answer_mask,
            prompt_lengths=torch.tensor([first for first, _ in firsts]),
            answer_lengths=torch.tensor([second for _, second in firsts]),
            generated=torch.zeros(size, dtype=torch.bool) if generated is None else torch.from_numpy(generated).bool(),
            labels=_long(np.empty((size, 0), dtype=np.int64) if labels is None else labels),
            steps=_long(np.zeros(size, dtype=np.int64) if steps is None else steps),
            instance=_long(np.arange(size) if instance is None else instance),
            facts={name: _long(values) for name, values in (facts or {}).items()},
        )


def _pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """[B, longest] int64, padded on the right."""
    out = torch.full((len(rows), max(map(len, rows))), value, dtype=torch.long)
    for index, row in enumerate(rows):
        out[index, : len(row)] = torch.tensor(row)
    return out


def _long(values: IntArray) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))
