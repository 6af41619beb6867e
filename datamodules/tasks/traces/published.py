"""Published collections of functions: CRUXEval and MBPP, from a file or from the Hub.

    python -m datamodules.tasks.traces.published --collection cruxeval --source cruxeval.jsonl --level instruction

traces every function and reports those that cannot be traced, by name and reason.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from datamodules.tasks.traces.client import Tracer
from datamodules.tasks.traces.outcome import LEVELS
from datamodules.tasks.traces.programs import Program, Refused, trace_each

HUB = {"cruxeval": "cruxeval-org/cruxeval", "mbpp": "google-research-datasets/mbpp"}
"""Hub ids of the collections."""

SUFFIXES = (".jsonl", ".json", ".parquet")


def read_rows(source: str, split: str = "test") -> list[dict[str, Any]]:
    """Read the rows of a collection.

    Args:
        source: path of a .jsonl, .json or .parquet file, or a Hub id ("cruxeval-org/cruxeval").
        split: split of a Hub collection.

    Raises:
        ValueError: no such file and no Hub id, an unreadable file, or a Hub collection without a file of the split.
    """
    path = Path(source)
    if not path.exists():
        if path.suffix in SUFFIXES or source.count("/") != 1:
            raise ValueError(f"source: {source} does not exist; give the path of a file or a Hub id like {HUB['mbpp']}")
        path = _download(source, split)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    text = path.read_text(encoding="utf-8")
    try:
        if path.suffix == ".json":
            return list(json.loads(text))
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except json.JSONDecodeError as error:
        raise ValueError(
            f"source: {path} is not {path.suffix}: {error}; give a file with one JSON object per line"
        ) from error


def _download(repository: str, split: str) -> Path:
    """Download the file of a split from the Hub."""
    # Only the Hub needs it, and it is slow to import.
    from huggingface_hub import HfApi, hf_hub_download  # noqa: PLC0415

    names = sorted(HfApi().list_repo_files(repository, repo_type="dataset"))
    for suffix in SUFFIXES:
        for name in names:
            if name.endswith(suffix) and split in Path(name).name:
                return Path(hf_hub_download(repository, name, repo_type="dataset"))
    raise ValueError(f"source: {repository} has no file of the split {split!r}; its files: {', '.join(names)}")


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import parquet  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415
    except ImportError:
        raise ValueError(f"source: {path} needs pyarrow: pip install pyarrow, or give a .jsonl file") from None
    return list(parquet.read_table(path).to_pylist())


def _field(row: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in row:
        raise ValueError(f"{what}: a row lacks the field {name!r}; it has {', '.join(row)}")
    return row[name]


def cruxeval(rows: Iterable[Mapping[str, Any]]) -> Iterator[Program | Refused]:
    """Yield the functions of CRUXEval, each with its input and recorded output.

    Raises:
        ValueError: a row lacks a field.
    """
    for row in rows:
        code, arguments, output, name = [_field(row, key, "CRUXEval") for key in ("code", "input", "output", "id")]
        yield Program(name, code, f"f({arguments})", output)


def mbpp(rows: Iterable[Mapping[str, Any]]) -> Iterator[Program | Refused]:
    """Yield one program per test `assert f(...) == output` of MBPP; other tests are refused by name.

    Raises:
        ValueError: a row lacks a field.
    """
    for row in rows:
        code, number, tests = [_field(row, key, "MBPP") for key in ("code", "task_id", "test_list")]
        for position, test in enumerate(tests):
            name = f"mbpp_{number}_{position}"
            found = split_assertion(test)
            if found is None:
                yield Refused(name, f"its test is not of the form assert NAME(...) == VALUE: {test[:80]}")
            else:
                yield Program(name, code.replace("\r\n", "\n"), *found)


def split_assertion(test: str) -> tuple[str, str] | None:
    """Take `assert f(1) == 2` apart into call and output; None for any other test."""
    try:
        body = ast.parse(test).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    match body:
        case [
            ast.Assert(test=ast.Compare(left=ast.Call(func=ast.Name()) as call, ops=[ast.Eq()], comparators=[value]))
        ]:
            return ast.unparse(call), ast.unparse(value)
    return None


READERS: dict[str, Callable[[Iterable[Mapping[str, Any]]], Iterator[Program | Refused]]] = {
    "cruxeval": cruxeval,
    "mbpp": mbpp,
}


def read(collection: str, source: str | None = None, split: str = "test") -> list[Program | Refused]:
    """Read a collection.

    Args:
        collection: "cruxeval" or "mbpp".
        source: path or Hub id; default the collection's own Hub id.
        split: split of a Hub collection.

    Raises:
        ValueError: unknown collection or unreadable source.
    """
    if collection not in READERS:
        raise ValueError(f"collection: got {collection!r}; use one of {', '.join(READERS)}")
    return list(READERS[collection](read_rows(HUB[collection] if source is None else source, split)))


def main() -> None:
    """Trace a collection and print a report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--collection", choices=sorted(READERS), default="cruxeval")
    parser.add_argument("--source", help="file or Hub id; default the collection's Hub id")
    parser.add_argument("--split", default="test")
    parser.add_argument("--level", choices=LEVELS, default="line")
    parser.add_argument("--states", type=lambda text: text == "true", default=True, help="true or false")
    options = parser.parse_args()
    found = read(options.collection, options.source, options.split)
    refused = [one for one in found if isinstance(one, Refused)]
    programs = [one for one in found if isinstance(one, Program)]
    events = traced = 0
    with Tracer() as tracer:
        for one in trace_each(programs, tracer, options.level, options.states):
            if isinstance(one, Refused):
                refused.append(one)
            else:
                traced, events = traced + 1, events + len(one.trace.events)
    for one in refused:
        print(f"{one.name}: {one.reason}")
    print(f"{traced} of {len(found)} traced at {options.level} level, {events} events, {len(refused)} refused")


if __name__ == "__main__":
    main()
