"""Finished parts of an evaluation of a looped model on disk, so that a killed run loses at most the part it was at.

Each part is one safetensors file, written atomically. Its name holds the digest of everything the numbers depend on, so
that parts of different evaluations never mix. What ordinary models write is kept by `loopformer.evaluation.writer`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from loopformer.evaluation.trace import Part
from loopformer.files import atomic_path

FORMAT = 1
"""Of the parts; another one makes parts of older code unknown."""

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
        self.digest = hashlib.sha256(json.dumps([FORMAT, identity], sort_keys=True).encode()).hexdigest()[:16]

    def get(self, number: int, compute: Callable[[], PartT]) -> tuple[PartT, float]:
        """Return a part and the seconds it took: from its file, or computed now and then kept.

        A file that cannot be read counts as missing.
        """
        path = None if self.folder is None else self.folder / f"part_{self.digest}_{number:05d}.safetensors"
        if path is not None and path.is_file():
            with suppress(SafetensorError, OSError, KeyError, ValueError):
                return self._load(path)
        begin = time.perf_counter()
        part = compute()
        seconds = time.perf_counter() - begin
        if path is not None:
            tensors = {name: t.contiguous().clone() for name, t in self.to_tensors(part).items()}
            with atomic_path(path, overwrite=True) as temporary:
                save_file(tensors, temporary, metadata={"seconds": repr(seconds)})
        return part, seconds

    @abstractmethod
    def to_tensors(self, part: PartT) -> dict[str, Tensor]:
        """Reduce a part to named tensors."""

    @abstractmethod
    def from_tensors(self, tensors: dict[str, Tensor]) -> PartT:
        """Build a part from its tensors."""

    def _load(self, path: Path) -> tuple[PartT, float]:
        with safe_open(path, framework="pt") as file:
            seconds = float((file.metadata() or {})["seconds"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
        return self.from_tensors(tensors), seconds


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
    """Kind of device and number type of a looped model's numbers, for the identity of parts."""
    kind = torch.device(device).type
    autocast = str(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else "float32"
    return {"device": kind, "precision": autocast}


def discard(folder: Path) -> None:
    """Remove the parts of a finished evaluation."""
    shutil.rmtree(folder, ignore_errors=True)
