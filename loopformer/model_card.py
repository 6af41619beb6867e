"""The README of a checkpoint folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml


def model_card(
    name: str,
    what: str,
    front: Mapping[str, Any],
    config: Mapping[str, Any],
    metrics: Mapping[str, Any] | None,
    otherwise: str,
) -> str:
    """Return front matter, what the model is, how to evaluate it, its numbers and how it was made.

    Args:
        name: the folder's.
        what: one sentence.
        front: fields of the front matter beside licence and base.
        config: contents of config.yaml (base and provenance).
        metrics: numbers, if there are any.
        otherwise: the benchmark to name where the provenance does not tell; it may tell that there is none.
    """
    base, made = config["base"], config["provenance"]
    matter = {**front, "license": "apache-2.0", **({} if base is None else {"base_model": base["model"]})}
    asked = made.get("benchmarks", [otherwise])
    # A second benchmark of one model needs a folder of its own.
    outputs = [f"results/{name}" + (f"_{number}" if len(asked) > 1 else "") for number in range(1, len(asked) + 1)]
    lines = ["---", yaml.safe_dump(matter, sort_keys=False).strip(), "---", "", f"# {name}", "", what, ""]
    commands = [
        f"python evaluate.py --checkpoint {name} --benchmark {benchmark} --output {output}"
        for benchmark, output in zip(asked, outputs, strict=True)
    ]
    lines += ["```", *commands, "```", ""] if commands else ["No benchmark asks a model of this kind.", ""]
    if metrics:
        lines += ["| metric | value |", "|---|---|", *(f"| {k} | {v} |" for k, v in metrics.items()), ""]
    if made:
        lines += ["Made by:", "", "```yaml", yaml.safe_dump(dict(made), sort_keys=False).strip(), "```", ""]
    return "\n".join(lines)
