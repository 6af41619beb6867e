"""Seeded graph generators, reproducible bit for bit.

Every graph has its own seed: the first 8 bytes, big-endian, of the SHA-256 of
`pointer-v1:{master}:{split}:{index}:{attempt}`, which seeds Python's `random.Random`. The order of the draws is part of
the recipe (published specification of the pointer task). The defaults of `GraphRecipe` are the published task; its
other options draw more, or fewer, numbers and so make other graphs.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise

import numpy as np

from datamodules.tasks.graph import CYCLIC_KINDS, KINDS, Graphs, node_names

MAX_ATTEMPTS = 1_000
"""Draws of one graph before giving up on finding a table not yet used (only small node sets come near)."""


@dataclass(frozen=True)
class GraphRecipe:
    """How to draw the graphs of one split.

    Attributes:
        kind: "path", "mixture", or one of "random_function", "permutation", "full_cycle".
        seed: master seed.
        split: name of the split, part of every graph's seed.
        depths: requested steps; example i gets depths[i mod len(depths)].
        paired: every graph meets every depth: the graph of example i is i div len(depths). Not for "path".
        nodes: number of listed nodes. Fewer than there are names: a random subset, drawn first.
        letters: letters of a node name: 1 (A-Z) or 2 (AA-ZZ).
        absorbing: the last node of a path points to itself, so that the state stays once it is reached. Only "path".
        extra_steps: steps requested beyond the end of an absorbing path (further loops may then repair an error).

    Raises:
        ValueError: an option is out of range or does not go with the others.
    """

    kind: str
    seed: int
    split: str
    depths: tuple[int, ...]
    paired: bool = False
    nodes: int = 26
    letters: int = 1
    absorbing: bool = False
    extra_steps: int = 0

    def __post_init__(self) -> None:
        names = len(node_names(self.letters))
        if self.kind != "mixture" and self.kind not in KINDS:
            raise ValueError(f"kind: got {self.kind!r}; use 'mixture' or one of {', '.join(KINDS)}")
        if not 1 <= self.nodes <= names:
            raise ValueError(f"nodes: got {self.nodes}; use 1 to {names}, or letters=2 for up to 676")
        if not self.depths or min(self.depths) < 1:
            raise ValueError(f"depths: got {self.depths}; give at least one depth, each 1 or more")
        if self.kind == "path" and max(self.depths) >= self.nodes:
            raise ValueError(f"depths: a path over {self.nodes} nodes has at most {self.nodes - 1} steps; lower them")
        if self.kind == "path" and self.paired:
            raise ValueError("paired: a path is drawn for its depth; use paired=False or another kind")
        if self.absorbing and self.kind != "path":
            raise ValueError(f"absorbing: only a path ends, kind is {self.kind!r}; use kind='path'")
        if self.extra_steps < 0 or (self.extra_steps and not self.absorbing):
            raise ValueError(f"extra_steps: got {self.extra_steps}; use 0, or more together with absorbing=True")


def example_seed(master: int, split: str, index: int, attempt: int) -> int:
    """Return the 64-bit seed of one graph."""
    text = f"pointer-v1:{master}:{split}:{index}:{attempt}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


Draw = tuple[int, int, dict[int, int]]
"""Kind (position in KINDS), start node, next node of every listed node."""


def _draw_path(rng: random.Random, nodes: Sequence[int], depth: int, *, absorbing: bool) -> Draw:
    path = rng.sample(nodes, depth + 1)
    table = dict(pairwise(path))
    if absorbing:
        table[path[-1]] = path[-1]
    for node in nodes:
        if node not in table:
            table[node] = rng.choice(nodes)
    return KINDS.index("path"), path[0], table


def _draw_cyclic(rng: random.Random, nodes: Sequence[int], _depth: int, *, kinds: Sequence[str]) -> Draw:
    kind = rng.choice(kinds) if len(kinds) > 1 else kinds[0]  # a kind given by name costs no draw
    if kind == "random_function":
        table = {node: rng.choice(nodes) for node in nodes}
    else:
        drawn = rng.sample(nodes, len(nodes))
        heads = nodes if kind == "permutation" else drawn
        tails = drawn if kind == "permutation" else drawn[1:] + drawn[:1]
        table = dict(zip(heads, tails, strict=True))
    return KINDS.index(kind), rng.choice(nodes), table


def _drawer(recipe: GraphRecipe) -> Callable[[random.Random, Sequence[int], int], Draw]:
    if recipe.kind == "path":
        return partial(_draw_path, absorbing=recipe.absorbing)
    return partial(_draw_cyclic, kinds=CYCLIC_KINDS if recipe.kind == "mixture" else (recipe.kind,))


def _table_bytes(table: dict[int, int]) -> bytes:
    """The same bytes as `Graphs.tables`: sorted sources, then their destinations."""
    sources = sorted(table)
    return np.array([sources, [table[node] for node in sources]], dtype=np.int16).tobytes()


def generate(recipe: GraphRecipe, size: int, *, avoid: Collection[bytes] = ()) -> Graphs:
    """Draw `size` graphs of a recipe; no rule table occurs twice.

    Args:
        recipe: what to draw.
        size: number of graphs; a paired recipe gives size * len(depths) examples.
        avoid: rule tables that must not occur (`Graphs.tables` of other splits); an occurrence raises the attempt.

    Raises:
        ValueError: so few nodes that no unused table is found.
    """
    draw = _drawer(recipe)
    names = range(len(node_names(recipe.letters)))
    everything = list(names)
    seen = set(avoid)
    kinds, starts, sources, targets = [], [], [], []
    for index in range(size):
        depth = recipe.depths[index % len(recipe.depths)]
        for attempt in count():
            if attempt == MAX_ATTEMPTS:
                raise ValueError(
                    f"nodes: no unused rule table among {recipe.nodes} nodes after {index} graphs of split "
                    f"{recipe.split!r}; raise nodes or ask for fewer graphs"
                )
            rng = random.Random(example_seed(recipe.seed, recipe.split, index, attempt))
            nodes = everything if recipe.nodes == len(names) else sorted(rng.sample(names, recipe.nodes))
            kind, start, table = draw(rng, nodes, depth)
            key = _table_bytes(table)
            if key not in seen:
                break
        seen.add(key)
        order = list(nodes)
        rng.shuffle(order)
        kinds.append(kind)
        starts.append(start)
        sources.append(order)
        targets.append([table[node] for node in order])
    graphs = Graphs(
        sources=np.array(sources, dtype=np.int16),
        targets=np.array(targets, dtype=np.int16),
        start=np.array(starts, dtype=np.int16),
        depth=np.resize(np.array(recipe.depths, dtype=np.int64), size) + recipe.extra_steps,
        kind=np.array(kinds, dtype=np.int64),
        seed=np.full(size, recipe.seed, dtype=np.int64),
        index=np.arange(size, dtype=np.int64),
        letters=recipe.letters,
    )
    return _pair(graphs, recipe.depths) if recipe.paired else graphs


def _pair(graphs: Graphs, depths: Sequence[int]) -> Graphs:
    """Repeat every graph for every depth: [G * len(depths)] examples, the depths of one graph side by side."""
    repeated = graphs[np.repeat(np.arange(len(graphs)), len(depths))]
    repeated.depth[:] = np.tile(np.array(depths, dtype=np.int64), len(graphs))
    return repeated
