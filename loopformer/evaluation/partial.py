"""Finished parts of an evaluation on disk, so that a killed run loses at most the part it was at.

Each part is one file, written atomically, that carries the digest of everything the numbers depend on: tensors of a
looped model's parts as safetensors (`PartialResults`), what a language model wrote as JSON (`PartialRows`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from loopformer.evaluation.trace import Part
from loopformer.files import atomic_path

LOGITS = "logits."

PartT = TypeVar("PartT")


class Parts(ABC, Generic[PartT]):
    """Parts of one evaluation in a folder, or in memory alone.

    Attributes:
        suffix: of the files.

    Args:
        folder: where the parts are kept, or None to keep nothing.
        identity: all that the numbers depend on, as plain JSON types: model, graphs, options.
    """

    suffix: ClassVar[str]

    def __init__(self, folder: Path | None, identity: dict[str, Any]) -> None:
        self.folder = folder
        self.digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def get(self, number: int, compute: Callable[[], PartT]) -> tuple[PartT, float]:
        """Return a part and the seconds it took: from its file, or computed now and then kept.

        Raises:
            ValueError: the folder holds a part of another evaluation, or a file that is none.
        """
        path = None if self.folder is None else self.folder / f"part_{number:05d}.{self.suffix}"
        if path is not None and path.is_file():
            return self._load(path)
        begin = time.perf_counter()
        part = compute()
        seconds = time.perf_counter() - begin
        if path is not None:
            self._save(path, part, seconds)
        return part, seconds

    @abstractmethod
    def _save(self, path: Path, part: PartT, seconds: float) -> None:
        """Write a part."""

    @abstractmethod
    def _load(self, path: Path) -> tuple[PartT, float]:
        """Read a part and the seconds it took."""

    def _check(self, path: Path, digest: object) -> None:
        if digest != self.digest:
            raise ValueError(
                f"{path.parent} holds parts of an evaluation with another model, graphs or options: delete the folder "
                "or choose another output."
            )


class PartialResults(Parts[Part]):
    """Parts of an evaluation of a looped model."""

    suffix = "safetensors"

    def _save(self, path: Path, part: Part, seconds: float) -> None:
        tensors = {"letters": part.letters, "stops": part.stops, "converged": part.converged}
        if part.direct is not None:
            tensors["direct"] = part.direct
        tensors |= {f"{LOGITS}{graph}.{column}": rows for (graph, column), rows in part.logits.items()}
        metadata = {"digest": self.digest, "seconds": repr(seconds)}
        with atomic_path(path) as temporary:
            save_file({name: t.contiguous().clone() for name, t in tensors.items()}, temporary, metadata=metadata)

    def _load(self, path: Path) -> tuple[Part, float]:
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is not a part of an evaluation ({error}): delete it.") from error
        self._check(path, metadata.get("digest"))
        logits = {}
        for name in [name for name in tensors if name.startswith(LOGITS)]:
            graph, column = name.removeprefix(LOGITS).split(".")
            logits[int(graph), int(column)] = tensors.pop(name)
        converged = tensors["converged"]
        part = Part(tensors["letters"], tensors.get("direct"), tensors["stops"], logits, converged)
        return part, float(metadata["seconds"])


class PartialRows(Parts[list[dict[str, Any]]]):
    """Parts of an evaluation of a language model: rows of plain JSON data."""

    suffix = "json"

    def _save(self, path: Path, part: list[dict[str, Any]], seconds: float) -> None:
        text = json.dumps({"digest": self.digest, "seconds": seconds, "rows": part})
        with atomic_path(path) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def _load(self, path: Path) -> tuple[list[dict[str, Any]], float]:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            digest, seconds, rows = found["digest"], float(found["seconds"]), list(found["rows"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a part of an evaluation ({error!r}): delete it.") from error
        self._check(path, digest)
        return rows, seconds


def discard(folder: Path) -> None:
    """Remove the parts of a finished evaluation."""
    shutil.rmtree(folder, ignore_errors=True)
