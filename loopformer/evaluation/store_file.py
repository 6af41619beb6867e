"""What the stores of all evaluations share: one safetensors file with metadata as JSON, checks that name the fix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from loopformer.files import atomic_path

FACT = "fact."
"""Prefix of the tensors that hold facts of the instances."""

Schema = Mapping[str, tuple[torch.dtype, str]]
"""Type of every tensor, and a letter for each of its dimensions; equal letters are equal sizes."""

MetadataT = TypeVar("MetadataT")


@dataclass(frozen=True)
class StoreFile:
    """One kind of store.

    Attributes:
        key: metadata key that marks the kind.
        formats: format versions that can be read; the last is written.
        noun: how errors call the kind ("an outcome store").
    """

    key: str
    formats: tuple[int, ...]
    noun: str

    def save(self, path: Path | str, tensors: Mapping[str, Tensor], metadata: Any, overwrite: bool) -> None:
        """Write tensors and a metadata dataclass to one file, atomically.

        Raises:
            FileExistsError: if the file exists and `overwrite` is false.
        """
        text = json.dumps({"format": self.formats[-1], **asdict(metadata)})
        with atomic_path(path, overwrite) as temporary:
            contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(contiguous, temporary, metadata={self.key: text})

    def load(self, path: Path, kind: type[MetadataT]) -> tuple[dict[str, Tensor], MetadataT]:
        """Read tensors and metadata.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: in one line that names the field and the fix, if the file is not a sound store of this kind.
        """
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist: give the path of {self.noun}.")
        try:
            with safe_open(path, framework="pt") as file:
                text = (file.metadata() or {}).get(self.key)
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
        except (SafetensorError, OSError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{path} is truncated or not safetensors ({reason}): write it again.") from error
        return tensors, self._parse(text, path, kind)

    def _parse(self, text: str | None, path: Path, kind: type[MetadataT]) -> MetadataT:
        if text is None:
            raise ValueError(f"{path} has no {self.key} metadata: it is not {self.noun}.")
        try:
            values: dict[str, Any] = json.loads(text)
            version = values.pop("format", None)
        except (json.JSONDecodeError, AttributeError) as error:
            raise ValueError(f"{path} has {self.key} metadata that is not a JSON object: write it again.") from error
        if version not in self.formats:
            known_formats = " and ".join(str(n) for n in self.formats)
            raise ValueError(
                f"{path} has format {version!r}, this code reads {known_formats}: evaluate again or use its version."
            )
        known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
        if set(values) != known:
            name = min(set(values) ^ known)
            raise ValueError(f"{path} has metadata whose field {name} is missing or unknown: write it again.")
        values["labels"] = tuple(values["labels"])
        values["trained_steps"] = tuple(values["trained_steps"])
        values["fact_values"] = {name: tuple(names) for name, names in values["fact_values"].items()}
        return kind(**values)


def take_facts(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the facts from the tensors of a file and return them by name."""
    return {name.removeprefix(FACT): tensors.pop(name) for name in sorted(tensors) if name.startswith(FACT)}


def check_shapes(tensors: Mapping[str, Tensor], schema: Schema, sizes: dict[str, int]) -> None:
    """Compare tensors with a schema; `sizes` holds the sizes known beforehand and receives the others.

    Facts are int32 of one entry per instance (I), whatever their names.

    Raises:
        ValueError: naming the tensor, what it has and what it should have.
    """
    for name, tensor in tensors.items():
        dtype, dims = (torch.int32, "I") if name.startswith(FACT) else schema[name]
        if tensor.dtype != dtype:
            raise ValueError(f"{name} is {tensor.dtype}, expected {dtype}: convert it before storing.")
        if tensor.dim() != len(dims):
            raise ValueError(f"{name} has shape {list(tensor.shape)}, expected [{', '.join(dims)}].")
        for dim, size in zip(dims, tensor.shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise ValueError(f"{name} has {dim} = {size}, the store has {dim} = {sizes[dim]}: make them agree.")
