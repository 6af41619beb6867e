"""The published splits of the graph task, the benchmark, and fresh evaluation graphs.

No rule table occurs in two published splits or in the benchmark: none of their graphs needed a second attempt, and a
test holds it so. Each split can therefore be made on its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from datamodules.tasks.graph import CYCLIC_KINDS, Graphs
from datamodules.tasks.graph_generators import GraphRecipe, generate

TRAINED_SHORT = tuple(range(1, 7))
TRAINED_LONG = (*range(1, 7), 8, 10, 12)
BENCHMARK_SEEDS = (307, 311, 313)
BENCHMARK_GRAPHS = 150
BENCHMARK_STEPS = 256


@dataclass(frozen=True)
class Split:
    """A recipe and how many graphs to draw from it."""

    recipe: GraphRecipe
    graphs: int


def _up_to(depth: int) -> tuple[int, ...]:
    return tuple(range(1, depth + 1))


SPLITS: dict[str, dict[str, Split]] = {
    "path-6": {
        "train": Split(GraphRecipe("path", 37, "train", TRAINED_SHORT), 30_000),
        "validation": Split(GraphRecipe("path", 17, "validation", _up_to(8)), 1_000),
    },
    "path-12": {
        "train": Split(GraphRecipe("path", 47, "train", TRAINED_LONG), 30_000),
        "validation": Split(GraphRecipe("path", 47, "validation", _up_to(12)), 1_000),
    },
    "cyclic": {
        "train": Split(GraphRecipe("mixture", 61, "train", TRAINED_LONG), 36_000),
        "validation": Split(GraphRecipe("mixture", 61, "validation", _up_to(12), paired=True), 128),
        "test": Split(GraphRecipe("mixture", 61, "test", _up_to(12), paired=True), 128),
        "deep": Split(GraphRecipe("mixture", 61, "deep", tuple(range(13, 65)), paired=True), 32),
    },
}
"""Published data by name and split (specification of the graph task, table of generators)."""


def published(data: str, split: str) -> Graphs:
    """Make a published split (about a second for a training split, then cached).

    Args:
        data: "path-6", "path-12" or "cyclic".
        split: "train", "validation"; "cyclic" also has "test" and "deep".

    Raises:
        ValueError: no such data or split.
    """
    if data not in SPLITS:
        raise ValueError(f"data: got {data!r}; use one of {', '.join(SPLITS)}")
    if split not in SPLITS[data]:
        raise ValueError(f"split: {data!r} has no {split!r}; use one of {', '.join(SPLITS[data])}")
    part = SPLITS[data][split]
    return generated(part.recipe, part.graphs)


@cache
def generated(recipe: GraphRecipe, graphs: int) -> Graphs:
    """Draw the graphs of any recipe, cached in this process; see `generate` for the errors."""
    return generate(recipe, graphs)


@cache
def benchmark() -> Graphs:
    """Make the 1,350 benchmark graphs: 150 of each kind from each of three seeds; each is asked N = 1..256."""
    return fresh(BENCHMARK_GRAPHS, seeds=BENCHMARK_SEEDS, split="benchmark", steps=BENCHMARK_STEPS)


def fresh(
    per_stratum: int,
    *,
    seeds: Sequence[int],
    kinds: Sequence[str] = CYCLIC_KINDS,
    split: str = "fresh",
    steps: int = BENCHMARK_STEPS,
    avoid: Collection[bytes] = (),
) -> Graphs:
    """Make evaluation graphs like the benchmark's, in strata of seed and kind.

    Args:
        per_stratum: graphs of each kind from each seed.
        seeds: master seeds.
        kinds: graph kinds; the split name of a kind is `{split}-{kind}`.
        split: stem of the split name, part of every graph's seed.
        steps: requested steps written to `Graphs.depth`; ask for other counts through the batcher.
        avoid: rule tables that must not occur (`Graphs.tables` of the training data, say).

    Raises:
        ValueError: unknown kind, no seed, or no graphs asked for.
    """
    if per_stratum < 1 or not seeds or not kinds:
        raise ValueError(f"per_stratum={per_stratum}, seeds={seeds}, kinds={kinds}: give at least one of each")
    seen = set(avoid)
    parts = []
    for seed in seeds:
        for kind in kinds:
            part = generate(GraphRecipe(kind, seed, f"{split}-{kind}", (steps,)), per_stratum, avoid=seen)
            seen |= part.tables()
            parts.append(part)
    return Graphs.concatenate(parts)


def first_per_depth(graphs: Graphs, per_depth: int, depths: Sequence[int] | None = None) -> Graphs:
    """Keep the first `per_depth` examples of every depth, sorted by depth ("64 at each of 1-12").

    Raises:
        ValueError: a depth has fewer examples than asked for.
    """
    available = np.unique(graphs.depth).tolist()
    rows = []
    for depth in available if depths is None else depths:
        found = np.flatnonzero(graphs.depth == depth)[:per_depth]
        if len(found) < per_depth:
            raise ValueError(
                f"per_depth: asked for {per_depth} examples at depth {depth}, the split has {len(found)}; "
                f"lower per_depth or choose depths among {available}"
            )
        rows.append(found)
    return graphs[np.concatenate(rows)]
