"""The outcome store of generated traces: every response of an ordinary model, word for word, in one file.

Shares, intervals and tables are made from it alone. The file is safetensors with one JSON string
(`GeneratedMetadata`) under the metadata key `loopformer_generated` and these tensors:

    text       uint8 [C]     all responses in UTF-8, one after the other, without their end tokens
    text_end   int64 [Q]     where the response of each query ends in `text`
    ended      uint8 [Q]     1 where the end token came within the budget
    tokens     int32 [Q]     new tokens written, the end token included
    instance   int32 [Q]     instance (graph) of each query
    steps      int32 [Q]     requested count N
    reference  int16 [I, T]  states after steps 1..T of each instance
    stratum    int16 [I]     seed-and-kind stratum of each instance, from which the bootstrap resamples
    fact.NAME  int32 [I]     facts of each instance, for breakdowns

Q queries, I instances, T largest requested count, C characters as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from loopformer.evaluation.store_file import FACT, StoreFile, check_shapes, take_facts
from loopformer.metrics.functional import (
    GeneratedOutcome,
    generated_outcome,
    pack_paths,
    parse_letter,
    parse_path,
)

KEY = "loopformer_generated"
FILE = StoreFile(KEY, (1,), "a store of generated traces")

SCHEMA: dict[str, tuple[torch.dtype, str]] = {
    "text": (torch.uint8, "C"),
    "text_end": (torch.int64, "Q"),
    "ended": (torch.uint8, "Q"),
    "tokens": (torch.int32, "Q"),
    "instance": (torch.int32, "Q"),
    "steps": (torch.int32, "Q"),
    "reference": (torch.int16, "IT"),
    "stratum": (torch.int16, "I"),
}


@dataclass(frozen=True)
class GeneratedMetadata:
    """What was evaluated.

    Attributes:
        benchmark: name of the benchmark.
        style: how the model was asked; "direct" asks for the final letter alone.
        labels: names of the K letters, by index.
        max_new_tokens: budget of each response.
        digests: SHA-256 by name: model, graphs.
        trained_steps: requested counts seen in training; empty where that is unknown.
        fact_values: names of the codes of a fact, such as kind.
    """

    benchmark: str
    style: str
    labels: tuple[str, ...]
    max_new_tokens: int
    digests: dict[str, str] = field(default_factory=dict)
    trained_steps: tuple[int, ...] = ()
    fact_values: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class GeneratedStore:
    """The responses of one model on one benchmark; the module describes each tensor.

    Raises:
        ValueError: on construction, in one line that names the field and the fix, if shapes or values do not fit.
    """

    metadata: GeneratedMetadata
    text: Tensor
    text_end: Tensor
    ended: Tensor
    tokens: Tensor
    instance: Tensor
    steps: Tensor
    reference: Tensor
    stratum: Tensor
    facts: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_shapes(self)
        _check_values(self)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor under its name in the file."""
        named: dict[str, Tensor] = {name: getattr(self, name) for name in SCHEMA}
        return named | {FACT + name: column for name, column in self.facts.items()}

    def texts(self) -> list[str]:
        """The Q responses."""
        data = bytes(self.text.tolist())
        ends = self.text_end.tolist()
        return [data[start:end].decode() for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def outcome(self) -> GeneratedOutcome:
        """Parse every response strictly and compare it with the reference."""
        final_only = self.metadata.style == "direct"
        parse = parse_letter if final_only else parse_path
        letters, written = pack_paths([parse(text, self.metadata.labels) for text in self.texts()])
        reference, steps = self.reference[self.instance.long()].long(), self.steps.long()
        asked = None
        if final_only:
            reference, asked = reference.gather(1, steps[:, None] - 1), torch.ones_like(steps)
        return generated_outcome(letters, written, self.ended.bool(), reference, steps, asked)

    def save(self, path: Path | str, overwrite: bool = False) -> None:
        """Write the store to one file, atomically.

        Raises:
            FileExistsError: if the file exists and `overwrite` is false.
        """
        FILE.save(path, self.tensors(), self.metadata, overwrite)

    @classmethod
    def load(cls, path: Path | str) -> GeneratedStore:
        """Read and validate a store.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: in one line that names the field and the fix, if the file is not a sound store of this version.
        """
        path = Path(path)
        tensors, metadata = FILE.load(path, GeneratedMetadata)
        facts = take_facts(tensors)
        if odd := sorted(set(tensors) ^ set(SCHEMA)):
            raise ValueError(f"{path} lacks or does not know the tensor {odd[0]}: write it with GeneratedStore.save.")
        try:
            return cls(metadata=metadata, facts=facts, **tensors)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def pack_texts(texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Put responses into the tensors `text` and `text_end`."""
    encoded = [text.encode(errors="replace") for text in texts]
    data = bytearray(b"".join(encoded))
    joined = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return joined, torch.tensor([len(part) for part in encoded], dtype=torch.int64).cumsum(0)


def _check_shapes(store: GeneratedStore) -> None:
    sizes: dict[str, int] = {}
    check_shapes(store.tensors(), SCHEMA, sizes)
    if sizes["Q"] < 1:
        raise ValueError("Q = 0: the store needs at least one query.")


def _check_values(store: GeneratedStore) -> None:
    instances, horizon = store.reference.shape
    limits = {
        "ended": (0, 1),
        "tokens": (1, store.metadata.max_new_tokens),
        "instance": (0, instances - 1),
        "steps": (1, horizon),
        "reference": (0, len(store.metadata.labels) - 1),
        "text_end": (0, len(store.text)),
    }
    for name, (low, high) in limits.items():
        smallest, largest = (int(v) for v in getattr(store, name).aminmax())
        if smallest < low or largest > high:
            value = smallest if smallest < low else largest
            raise ValueError(f"{name} holds {value}, outside {low}..{high}: check how the responses were collected.")
    if bool((store.text_end.diff() < 0).any()) or int(store.text_end[-1]) != len(store.text):
        raise ValueError("text_end does not cut the text into responses: make it with pack_texts.")
