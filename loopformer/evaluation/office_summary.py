"""Rates of the office programs: by arm, split, seed and family, with Wilson intervals; seeds are never pooled.

Over seeds only means are given, with Student's interval of the mean (two seeds or more): items are the same for every
seed, so the seeds, not the items, are the sample there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from datamodules.tasks.office.items import FAMILIES, OfficeItem
from datamodules.tasks.office.scoring import Score
from loopformer.evaluation.bootstrap import LEVEL, wilson

COLUMNS = {
    "primary": "primary",
    "executed": "executed",
    "valid": "valid",
    "no_final": "no FINAL",
    "smuggled": "smuggled",
    "provenance": "known literals",
    "perturbed": "perturbed",
}
"""Shares of a group and their heads in a table; each counts only the outputs for which the question arises."""


@dataclass(frozen=True)
class ScoredOutput:
    """One scored output.

    Attributes:
        item: the item.
        split: its split.
        arm: name of the arm.
        seed: training seed of the model.
        score: what the output scored.
        new_tokens: tokens the model wrote, over all its calls; None where nobody counted.
    """

    item: OfficeItem
    split: str
    arm: str
    seed: int
    score: Score
    new_tokens: int | None = None

    def record(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        plain = {"item": self.item.name, "split": self.split, "arm": self.arm, "seed": self.seed}
        return {**plain, **asdict(self.score), "new_tokens": self.new_tokens}


BREAKDOWNS: dict[str, Callable[[OfficeItem], str]] = {
    "family": lambda item: item.family,
    "wording": lambda item: item.wording,
    "operations": lambda item: str(len(item.steps)),
    "procedure": lambda item: f"{item.family}: {' '.join(item.procedure)}",
}
"""What results are broken down by within one arm, split and seed."""


def summarize(outputs: Sequence[ScoredOutput]) -> dict[str, Any]:
    """Summarize scored outputs.

    Returns:
        {"arms": {arm: {split: {"seeds": {seed: group}, "over_seeds": {...}}}}}; a group holds its rates, counts of
        reasons, new tokens, and (on the first level) its breakdowns.
    """
    arms: dict[str, Any] = {}
    for (arm, split), rows in _grouped(outputs, lambda row: (row.arm, row.split)).items():
        seeds = {str(seed): _seed_group(part) for seed, part in sorted(_grouped(rows, lambda row: row.seed).items())}
        arms.setdefault(arm, {})[split] = {"seeds": seeds, "over_seeds": _over_seeds(list(seeds.values()))}
    return {"level": LEVEL, "outputs": len(outputs), "arms": arms}


def rate(flags: Iterable[bool | None]) -> dict[str, Any]:
    """Return share, Wilson interval and counts of the flags that are not None."""
    known = [flag for flag in flags if flag is not None]
    low, high = (float(end) for end in wilson(sum(known), len(known)))
    share = sum(known) / len(known) if known else None
    return {
        "share": share,
        "low": _defined(low),
        "high": _defined(high),
        "successes": sum(known),
        "outputs": len(known),
    }


def _seed_group(rows: Sequence[ScoredOutput]) -> dict[str, Any]:
    breakdowns: dict[str, Any] = {}
    for name, label_of in BREAKDOWNS.items():
        parts: dict[str, list[ScoredOutput]] = {}
        for row in rows:
            parts.setdefault(label_of(row.item), []).append(row)
        breakdowns[name] = {label: _group(part) for label, part in sorted(parts.items())}
    return {**_group(rows), "by": breakdowns}


def _group(rows: Sequence[ScoredOutput]) -> dict[str, Any]:
    scores = [row.score for row in rows]
    found: dict[str, Any] = {"outputs": len(rows)}
    for name in COLUMNS:
        flags = [getattr(score, name) for score in scores]
        if any(flag is not None for flag in flags):
            found[name] = rate(flags)
    stated = [score.values for score in scores if score.values is not None]
    if stated:
        found["values"] = {"all_right": rate(value == 1.0 for value in stated), "mean": sum(stated) / len(stated)}
    reasons = Counter(score.reason.value for score in scores if score.reason is not None)
    found["reasons"] = dict(reasons.most_common())
    tokens = [row.new_tokens for row in rows if row.new_tokens is not None]
    if tokens:
        found["new_tokens"] = {"mean": sum(tokens) / len(tokens), "largest": max(tokens), "outputs": len(tokens)}
    return found


def _over_seeds(groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"seeds": len(groups)}
    for name in COLUMNS:
        if all(group.get(name, {}).get("share") is not None for group in groups):
            found[name] = mean_over_seeds([group[name]["share"] for group in groups])
    families = [family for family in FAMILIES if all(family in group["by"]["family"] for group in groups)]
    found["family"] = {
        family: mean_over_seeds([group["by"]["family"][family]["primary"]["share"] for group in groups])
        for family in families
    }
    return found


def mean_over_seeds(shares: Sequence[float]) -> dict[str, Any]:
    """Return the mean of a share over seeds, Student's interval of the mean cut to 0..1, and every seed's share."""
    mean = float(np.mean(shares))
    low = high = None
    if len(shares) > 1:
        error = float(np.std(shares, ddof=1)) / math.sqrt(len(shares))
        reach = float(stdtrit(len(shares) - 1, (1 + LEVEL) / 2)) * error
        low, high = max(0.0, mean - reach), min(1.0, mean + reach)
    return {"mean": mean, "low": low, "high": high, "shares": list(shares)}


def markdown(summary: dict[str, Any]) -> str:
    """Write the headline table: one row per arm, split and seed."""
    heads = ["arm", "split", "seed", "outputs", *COLUMNS.values()]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for arm, splits in summary["arms"].items():
        for split, result in splits.items():
            for seed, group in result["seeds"].items():
                cells = [_cell(group.get(name)) for name in COLUMNS]
                lines.append(f"| {arm} | {split} | {seed} | {group['outputs']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(found: dict[str, Any] | None) -> str:
    if found is None or found["share"] is None:
        return "-"
    return f"{100 * found['share']:.1f} [{100 * found['low']:.1f}, {100 * found['high']:.1f}]"


def _grouped(rows: Sequence[ScoredOutput], key: Callable[[ScoredOutput], Any]) -> dict[Any, list[ScoredOutput]]:
    found: dict[Any, list[ScoredOutput]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _defined(number: float) -> float | None:
    return None if math.isnan(number) else number
