"""Finished parts of an evaluation of a looped model on disk, so that a killed run loses at most the part it was at.

Each part is one safetensors file, written atomically, that carries the digest of everything the numbers depend on.
What ordinary models write is kept by `loopformer.evaluation.writer`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from loopformer.evaluation.trace import Part
from loopformer.files import atomic_path

PARTIAL = "partial"
"""Folder of the parts within the folder of results."""

LOGITS = "logits."

PartT = TypeVar("PartT")


class Parts(ABC, Generic[PartT]):
    """Parts of one evaluation in a folder, or in memory alone.

    Args:
        folder: where the parts are kept, or None to keep nothing.
        identity: all that the numbers depend on, as plain JSON types: model, questions, options.
    """

    def __init__(self, folder: Path | None, identity: dict[str, Any]) -> None:
        self.folder = folder
        self.digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def get(self, number: int, compute: Callable[[], PartT]) -> tuple[PartT, float]:
        """Return a part and the seconds it took: from its file, or computed now and then kept.

        Raises:
            ValueError: the folder holds a part of another evaluation, or a file that is none.
        """
        path = None if self.folder is None else self.folder / f"part_{number:05d}.safetensors"
        if path is not None and path.is_file():
            return self._load(path)
        begin = time.perf_counter()
        part = compute()
        seconds = time.perf_counter() - begin
        if path is not None:
            metadata = {"digest": self.digest, "seconds": repr(seconds)}
            tensors = {name: t.contiguous().clone() for name, t in self.to_tensors(part).items()}
            with atomic_path(path) as temporary:
                save_file(tensors, temporary, metadata=metadata)
        return part, seconds

    @abstractmethod
    def to_tensors(self, part: PartT) -> dict[str, Tensor]:
        """Reduce a part to named tensors."""

    @abstractmethod
    def from_tensors(self, tensors: dict[str, Tensor]) -> PartT:
        """Build a part from its tensors."""

    def _load(self, path: Path) -> tuple[PartT, float]:
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is not a part of an evaluation ({error}): delete it.") from error
        if metadata.get("digest") != self.digest:
            raise ValueError(
                f"{path.parent} holds parts of an evaluation with another model, questions or options: delete the "
                "folder or choose another output."
            )
        return self.from_tensors(tensors), float(metadata["seconds"])


class PartialResults(Parts[Part]):
    """Parts of an evaluation on graphs."""

    def to_tensors(self, part: Part) -> dict[str, Tensor]:
        """See `Parts`."""
        tensors = {"letters": part.letters, "stops": part.stops, "converged": part.converged}
        if part.direct is not None:
            tensors["direct"] = part.direct
        return tensors | {f"{LOGITS}{graph}.{column}": rows for (graph, column), rows in part.logits.items()}

    def from_tensors(self, tensors: dict[str, Tensor]) -> Part:
        """See `Parts`."""
        logits = {}
        for name in [name for name in tensors if name.startswith(LOGITS)]:
            graph, column = name.removeprefix(LOGITS).split(".")
            logits[int(graph), int(column)] = tensors.pop(name)
        return Part(tensors["letters"], tensors.get("direct"), tensors["stops"], logits, tensors["converged"])


class PartialTensors(Parts[dict[str, Tensor]]):
    """Parts of any evaluation, as named tensors."""

    def to_tensors(self, part: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `Parts`."""
        return part

    def from_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `Parts`."""
        return tensors


def number_types(device: str) -> dict[str, str]:
    """Device and number type of a looped model's numbers, for the identity of parts."""
    autocast = str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else "float32"
    return {"device": device, "precision": autocast}


def discard(folder: Path) -> None:
    """Remove the parts of a finished evaluation."""
    shutil.rmtree(folder, ignore_errors=True)
