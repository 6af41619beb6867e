"""Scores written outputs of any model on the office programs, from a file.

    python -m loopformer.evaluation.office_outputs score --outputs outputs.jsonl --output results/office
    python -m loopformer.evaluation.office_outputs items --arm stack      # every item with its prompt

One JSON object a line:

    {"item": "composition-date-05", "arm": "stack", "seed": 0, "output": "PUSH_DATE ...", "new_tokens": 17}

`item` names an item of a fixed split, `output` is what the model wrote and may be anything, `second` what it wrote in
its second call (arm executed_answer alone), `new_tokens` may be left out.
Files of several arms, models or seeds may be put behind each other: `cat runs/*/outputs.jsonl > outputs.jsonl`.
An output's shape is never an error; a file that is not made of such lines, or lacks items, is.

Writes summary.json, scores.jsonl (one line per output) and table.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonargparse import auto_cli

from datamodules.tasks.office.arms import find_arm, prompt
from datamodules.tasks.office.items import OfficeItem
from datamodules.tasks.office.sandbox import PythonSandbox
from datamodules.tasks.office.scoring import score
from datamodules.tasks.office.splits import SPLITS, digest, evaluation
from loopformer.errors import one_line_errors
from loopformer.evaluation.json_lines import read_object
from loopformer.evaluation.office_summary import ScoredOutput, markdown, summarize
from loopformer.evaluation.summary import write_summary
from loopformer.files import SCORES, SUMMARY, TABLE, refuse_finished, write_json_lines, write_text


@dataclass(frozen=True)
class OfficeOutput:
    """What a model wrote for one item.

    Attributes:
        item: name of the item.
        arm: name of the arm.
        seed: training seed of the model.
        output: what it wrote, of any type.
        second: what it wrote in its second call.
        new_tokens: tokens it wrote, over all calls.
    """

    item: str
    arm: str
    seed: int
    output: object
    second: object = None
    new_tokens: int | None = None


def items_by_name() -> dict[str, tuple[str, OfficeItem]]:
    """Return split and item of every name of the fixed splits."""
    return {item.name: (split, item) for split in SPLITS for item in evaluation(split)}


def read_outputs(path: Path) -> Iterator[OfficeOutput]:
    """Read a file of outputs.

    Raises:
        ValueError: a line is no JSON object of the described form (names line, field and fix).
    """
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _parsed(line, f"{path} line {number}")


def _parsed(line: str, place: str) -> OfficeOutput:
    found = read_object(line, place)
    missing = [name for name in ("item", "arm", "seed", "output") if name not in found]
    if missing:
        raise ValueError(f"{place}: {missing[0]} is missing; every line needs item, arm, seed and output")
    unknown = set(found) - set(OfficeOutput.__dataclass_fields__)
    if unknown:
        raise ValueError(f"{place}: unknown field {min(unknown)}; use item, arm, seed, output, second and new_tokens")
    for name in ("item", "arm"):
        if not isinstance(found[name], str):
            raise ValueError(f"{place}: {name}={found[name]!r}; use a name")  # noqa: TRY004
    tokens, seed = found.get("new_tokens"), found["seed"]
    if type(seed) is not int or not (tokens is None or (type(tokens) is int and tokens >= 0)):
        raise ValueError(f"{place}: seed={seed!r}, new_tokens={tokens!r}; use integers, new_tokens not negative")
    return OfficeOutput(**found)


def score_outputs(outputs: Iterable[OfficeOutput], sandbox: PythonSandbox) -> list[ScoredOutput]:
    """Score outputs.

    Raises:
        ValueError: an unknown item or arm, or two outputs for the same item, arm and seed.
    """
    known = items_by_name()
    seen: set[tuple[str, str, int]] = set()
    scored = []
    for one in outputs:
        if one.item not in known:
            raise ValueError(f"item: got {one.item!r}; use a name such as {next(iter(known))}")
        key = (one.item, one.arm, one.seed)
        if key in seen:
            raise ValueError(f"item: {one.item} has two outputs in arm {one.arm}, seed {one.seed}; leave one of them")
        seen.add(key)
        split, item = known[one.item]
        found = score(item, find_arm(one.arm), one.output, sandbox, one.second)
        scored.append(ScoredOutput(item, split, one.arm, one.seed, found, one.new_tokens))
    return scored


def check_complete(scored: Sequence[ScoredOutput]) -> None:
    """Check that every split that occurs in an arm and seed is there as a whole.

    Raises:
        ValueError: nothing is there, or items are missing.
    """
    if not scored:
        raise ValueError("outputs: there are none; write one JSON object a line")
    counts: dict[tuple[str, int, str], int] = {}
    for row in scored:
        key = (row.arm, row.seed, row.split)
        counts[key] = counts.get(key, 0) + 1
    for (arm, seed, split), count in counts.items():
        if count < len(evaluation(split)):
            raise ValueError(
                f"outputs: arm {arm}, seed {seed} has {count} of the {len(evaluation(split))} items "
                f"of {split}; add the others, or pass --partial true"
            )


def write_results(
    output: Path, scored: Sequence[ScoredOutput], more: dict[str, Any], overwrite: bool = False
) -> dict[str, Any]:
    """Write scores.jsonl, table.md and, last, summary.json; return the summary.

    Raises:
        FileExistsError: there are results already and `overwrite` is False.
    """
    summary = {**more, **summarize(scored), "digests": {split: digest(evaluation(split)) for split in SPLITS}}
    write_json_lines(output / SCORES, (row.record() for row in scored), overwrite)
    write_text(output / TABLE, markdown(summary), overwrite)
    write_summary(output / SUMMARY, summary, overwrite)
    return summary


def items(arm: str = "stack", split: str | None = None, listing: bool = True) -> None:
    """Print the items of the fixed splits with their prompts, one JSON object a line.

    Args:
        arm: arm whose prompts to print.
        split: one split; None for all of them.
        listing: list the instructions in the prompts.
    """
    for name in SPLITS if split is None else (split,):
        for item in evaluation(name):
            text = prompt(item, find_arm(arm), listing)
            print(json.dumps({"item": item.name, "arm": arm, "prompt": text}))


def run(outputs: Path, output: Path, partial: bool = False, overwrite: bool = False) -> None:
    """Score a file of outputs.

    Args:
        outputs: the file, one JSON object a line.
        output: folder for the results.
        partial: score what is there, although items are missing.
        overwrite: replace results that the output folder holds already.
    """
    refuse_finished(output, overwrite)
    with PythonSandbox() as sandbox:
        scored = score_outputs(read_outputs(outputs), sandbox)
    if not partial:
        check_complete(scored)
    summary = write_results(output, scored, {"benchmark": "program", "part": "office"}, overwrite)
    print(markdown(summary))


def main() -> None:
    """Run the command line."""
    with one_line_errors():
        auto_cli({"score": run, "items": items}, as_positional=False, exit_on_error=False)


if __name__ == "__main__":
    main()
