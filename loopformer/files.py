"""Writing files so that nobody ever sees half of one, whatever kills the process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OUTPUTS, SCORES, TABLE = "outputs.jsonl", "scores.jsonl", "table.md"
"""What an ordinary model wrote, its scores item by item, and the table."""

SUMMARY = "summary.json"
"""Written last: it marks a folder of results as complete."""


@contextmanager
def atomic_path(path: Path | str, overwrite: bool = False) -> Iterator[Path]:
    """Give a temporary path beside `path` that takes its place when the block ends without an error.

    Raises:
        FileExistsError: if the file exists and `overwrite` is false.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists: choose another path or pass overwrite=True.")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path | str, text: str, overwrite: bool = False) -> None:
    """Write a text file in UTF-8, atomically.

    Raises:
        FileExistsError: if the file exists and `overwrite` is false.
    """
    with atomic_path(path, overwrite) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json_lines(path: Path | str, rows: Iterable[Any], overwrite: bool = False) -> None:
    """Write one JSON value a line, atomically.

    Raises:
        FileExistsError: if the file exists and `overwrite` is false.
    """
    write_text(path, "".join(f"{json.dumps(row)}\n" for row in rows), overwrite)


def refuse_finished(folder: Path, overwrite: bool, *marks: str) -> None:
    """Refuse a folder with finished results. What a killed evaluation has left there is written anew.

    Args:
        folder: folder of the results.
        overwrite: do not refuse.
        marks: files that are written last; by default an evaluation's summary.json.

    Raises:
        FileExistsError: one of the files is there and `overwrite` is False.
    """
    if not overwrite and any((folder / mark).exists() for mark in marks or (SUMMARY,)):
        raise FileExistsError(f"output: {folder} holds results already; choose another folder or --overwrite true")
