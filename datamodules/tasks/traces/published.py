"""Published collections of functions: CRUXEval and MBPP, from a file or from the Hub.

    python -m datamodules.tasks.traces.published --collection cruxeval --source cruxeval.jsonl --level instruction

traces every function and reports those that cannot be traced, by name and reason.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any

from datamodules.tasks.traces.client import Tracer
from datamodules.tasks.traces.outcome import LEVELS, Level
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
        ValueError: no such file and no Hub id, a file that cannot be read or is not made of objects, or a Hub that does
            not answer or has no file of the split.
    """
    path = Path(source)
    if not path.exists():
        if path.suffix in SUFFIXES or source.count("/") != 1:
            raise ValueError(f"source: {source} does not exist; give the path of a file or a Hub id like {HUB['mbpp']}")
        path = _download(source, split)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"source: {path} cannot be read ({error}); give a file of text in UTF-8") from error
    if path.suffix == ".json":
        rows = _parsed(text, str(path))
        if not isinstance(rows, list):
            raise ValueError(f"source: {path} holds a {type(rows).__name__}; give a list of objects, or .jsonl")
        return [_row(row, f"{path} row {number}") for number, row in enumerate(rows, 1)]
    # Not splitlines(): JSON strings may hold the other characters that it takes for ends of lines.
    lines = [(f"{path} line {number}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    return [_row(_parsed(line, place), place) for place, line in lines]


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"source: {place} is no JSON ({error}); give a file with one JSON object per line") from error


def _row(row: Any, place: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ValueError(f"source: {place} is a {type(row).__name__}; every row is a JSON object")  # noqa: TRY004
    return row


def _download(repository: str, split: str) -> Path:
    """Download the file of a split from the Hub."""
    # Only the Hub needs it, and it is slow to import.
    from huggingface_hub import HfApi, hf_hub_download  # noqa: PLC0415

    try:
        names = sorted(HfApi().list_repo_files(repository, repo_type="dataset"))
        for suffix in SUFFIXES:
            for name in names:
                if name.endswith(suffix) and split in Path(name).name:
                    return Path(hf_hub_download(repository, name, repo_type="dataset"))
    except Exception as error:  # those of the client's transport too, whose library differs by version
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"source: {repository} cannot be read from the Hub ({reason}); check id and network, or give a file"
        ) from error
    raise ValueError(f"source: {repository} has no file of the split {split!r}; its files: {', '.join(names)}")


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import parquet  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415
    except ImportError:
        raise ValueError(f"source: {path} needs pyarrow: pip install pyarrow, or give a .jsonl file") from None
    return list(parquet.read_table(path).to_pylist())


def _fields(row: Mapping[str, Any], place: str, **kinds: type | UnionType) -> list[Any]:
    """Return fields of a row, each of its kind."""
    for name, kind in kinds.items():
        if name not in row:
            raise ValueError(f"{place}: it lacks the field {name!r}; it has {', '.join(row) or 'none'}")
        if not isinstance(row[name], kind):
            wanted = getattr(kind, "__name__", str(kind))
            raise ValueError(f"{place}: {name} is a {type(row[name]).__name__}; it should be a {wanted}")  # noqa: TRY004
    return [row[name] for name in kinds]


def cruxeval(rows: Iterable[Mapping[str, Any]]) -> Iterator[Program | Refused]:
    """Yield the functions of CRUXEval, each with its input and recorded output.

    Raises:
        ValueError: a row lacks a field, or has one of another kind.
    """
    for number, row in enumerate(rows, 1):
        code, arguments, output, name = _fields(row, f"CRUXEval row {number}", code=str, input=str, output=str, id=str)
        yield Program(name, code, f"f({arguments})", output)


def mbpp(rows: Iterable[Mapping[str, Any]]) -> Iterator[Program | Refused]:
    """Yield one program per test `assert f(...) == output` of MBPP; other tests are refused by name.

    Raises:
        ValueError: a row lacks a field, or has one of another kind.
    """
    for at, row in enumerate(rows, 1):
        place = f"MBPP row {at}"
        code, number, tests = _fields(row, place, code=str, task_id=int | str, test_list=list)
        if odd := [test for test in tests if not isinstance(test, str)]:
            raise ValueError(f"{place}: test_list holds a {type(odd[0]).__name__}; it should hold assertions as text")
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
    """Trace a collection and print a report; a mistake is one line and exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--collection", choices=sorted(READERS), default="cruxeval")
    parser.add_argument("--source", help="file or Hub id; default the collection's Hub id")
    parser.add_argument("--split", default="test")
    parser.add_argument("--level", choices=LEVELS, default="line")
    parser.add_argument("--states", choices=("true", "false"), default="true", help="whether states are needed too")
    options = parser.parse_args()
    try:
        found = read(options.collection, options.source, options.split)
    except ValueError as error:
        parser.exit(2, f"error: {' '.join(str(error).split())}\n")
    report(found, options.level, options.states == "true")


def report(found: Sequence[Program | Refused], level: Level, states: bool) -> None:
    """Trace programs and print what was refused and how many were traced."""
    refused = [one for one in found if isinstance(one, Refused)]
    programs = [one for one in found if isinstance(one, Program)]
    events = traced = 0
    with Tracer() as tracer:
        for one in trace_each(programs, tracer, level, states):
            if isinstance(one, Refused):
                refused.append(one)
            else:
                traced, events = traced + 1, events + len(one.trace.events)
    for one in refused:
        print(f"{one.name}: {one.reason}")
    print(f"{traced} of {len(found)} traced at {level} level, {events} events, {len(refused)} refused")


if __name__ == "__main__":
    main()
