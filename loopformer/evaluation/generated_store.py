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

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from loopformer.evaluation.outcomes import FACT
from loopformer.files import atomic_path
from loopformer.metrics.functional import (
    GeneratedOutcome,
    generated_outcome,
    pack_paths,
    parse_letter,
    parse_path,
)

FORMAT = 1
KEY = "loopformer_generated"

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
        text = json.dumps({"format": FORMAT, **asdict(self.metadata)})
        with atomic_path(path, overwrite) as temporary:
            save_file({name: t.contiguous() for name, t in self.tensors().items()}, temporary, metadata={KEY: text})

    @classmethod
    def load(cls, path: Path | str) -> GeneratedStore:
        """Read and validate a store.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: in one line that names the field and the fix, if the file is not a sound store of this version.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist: give the path of a store of generated traces.")
        try:
            with safe_open(path, framework="pt") as file:
                text = (file.metadata() or {}).get(KEY)
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
        except (SafetensorError, OSError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{path} is truncated or not safetensors ({reason}): write it again.") from error
        metadata = _parse_metadata(text, path)
        facts = {name.removeprefix(FACT): tensors.pop(name) for name in sorted(tensors) if name.startswith(FACT)}
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


def _parse_metadata(text: str | None, path: Path) -> GeneratedMetadata:
    if text is None:
        raise ValueError(f"{path} has no {KEY} metadata: it is not a store of generated traces.")
    try:
        values: dict[str, Any] = json.loads(text)
        version = values.pop("format", None)
    except (json.JSONDecodeError, AttributeError) as error:
        raise ValueError(f"{path} has {KEY} metadata that is not a JSON object: write it again.") from error
    if version != FORMAT:
        raise ValueError(f"{path} has format {version!r}, this code reads {FORMAT}: evaluate again or use its version.")
    known = {f.name for f in fields(GeneratedMetadata)}
    if set(values) != known:
        name = min(set(values) ^ known)
        raise ValueError(f"{path} has metadata whose field {name} is missing or unknown: write it again.")
    values["labels"] = tuple(values["labels"])
    values["trained_steps"] = tuple(values["trained_steps"])
    values["fact_values"] = {name: tuple(names) for name, names in values["fact_values"].items()}
    return GeneratedMetadata(**values)


def _check_shapes(store: GeneratedStore) -> None:
    sizes: dict[str, int] = {}
    schema = SCHEMA | {FACT + name: (torch.int32, "I") for name in store.facts}
    for name, tensor in store.tensors().items():
        dtype, dims = schema[name]
        if tensor.dtype != dtype:
            raise ValueError(f"{name} is {tensor.dtype}, expected {dtype}: convert it before storing.")
        if tensor.dim() != len(dims):
            raise ValueError(f"{name} has shape {list(tensor.shape)}, expected [{', '.join(dims)}].")
        for dim, size in zip(dims, tensor.shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise ValueError(f"{name} has {dim} = {size}, the store has {dim} = {sizes[dim]}: make them agree.")
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
