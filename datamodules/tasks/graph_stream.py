"""Unlimited training graphs, drawn on the fly and vectorised, for a curriculum of stages: cyclic kinds, or paths.

A batch is a pure function of (seed, step, stage, number of processes), so a stream resumes from its step alone. The
draws are NumPy's: these graphs are of the same distributions as the published mixture and the published paths, not the
same graphs.

Shape legend: B graphs, n listed rules, V node names.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datamodules.tasks.graph import CYCLIC_KINDS, KINDS, Graphs, node_names


@dataclass(frozen=True)
class Stage:
    """One stage of a curriculum.

    Attributes:
        nodes: number of listed nodes, a random subset of the names.
        depths: requested steps; each batch draws one of them, so its examples all have the same.
        batch_size: graphs of a batch on one rank.

    Raises:
        ValueError: a value is below 1, or there is no depth.
    """

    nodes: int
    depths: list[int]
    batch_size: int = 64

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ValueError(f"stages.nodes: got {self.nodes}; list at least 1 node")
        if not self.depths or min(self.depths) < 1:
            raise ValueError(f"stages.depths: got {self.depths}; give at least one depth, each 1 or more")
        if self.batch_size < 1:
            raise ValueError(f"stages.batch_size: got {self.batch_size}; it must be 1 or more")


def growing_graphs() -> list[Stage]:
    """Return the curriculum that makes a tiny model learn the lookup within a minute.

    First more and more nodes at depth 1 (4 to 26; without it nothing forms in 90 seconds), then runs up to depth 12.
    At least 64 graphs a batch, more while they are small (feasibility study of the embedded backbone).
    """
    sizes = [Stage(nodes, [1], batch) for nodes, batch in ((4, 256), (6, 256), (8, 192), (12, 128), (18, 96), (26, 64))]
    trained = [1, 2, 3, 4, 5, 6, 8, 10, 12]
    return sizes + [Stage(26, trained[:count], 64) for count in range(2, len(trained) + 1)]


def draw_graphs(rng: np.random.Generator, size: int, nodes: int, letters: int = 1) -> Graphs:
    """Draw `size` graphs of the mixture (each kind with probability 1/3), depth 0 until someone sets it.

    Args:
        rng: source of randomness.
        size: number of graphs B.
        nodes: number of listed nodes n.
        letters: letters of a node name.

    Raises:
        ValueError: more nodes than there are names.
    """
    rows = np.arange(size)[:, None]
    # Positions 0..n-1 stand for a random ordered choice of n nodes, so "the next position" is already a random cycle.
    members = _members(rng, size, nodes, letters)
    kind = rng.integers(len(CYCLIC_KINDS), size=size)
    following = np.empty((size, nodes), dtype=np.int64)
    following[:] = np.roll(np.arange(nodes), -1)
    is_function, is_permutation = kind == 0, kind == 1
    following[is_function] = rng.integers(nodes, size=(int(is_function.sum()), nodes))
    following[is_permutation] = _orders(rng, int(is_permutation.sum()), nodes)
    shown = _orders(rng, size, nodes)
    return Graphs(
        sources=members[rows, shown],
        targets=members[rows, following[rows, shown]],
        start=members[rows[:, 0], rng.integers(nodes, size=size)],
        depth=np.zeros(size, dtype=np.int64),
        kind=kind,
        seed=np.zeros(size, dtype=np.int64),
        index=np.arange(size),
        letters=letters,
    )


def draw_paths(rng: np.random.Generator, size: int, nodes: int, depth: int, letters: int = 1) -> Graphs:
    """Draw `size` graphs whose first `depth` steps lead to different nodes; every other edge is random.

    Args:
        rng: source of randomness.
        size: number of graphs B.
        nodes: number of listed nodes n, more than `depth`.
        depth: steps of the path.
        letters: letters of a node name.

    Raises:
        ValueError: more nodes than there are names, or a path that is too long.
    """
    if depth >= nodes:
        raise ValueError(f"depth: a path over {nodes} nodes has at most {nodes - 1} steps, got {depth}")
    rows = np.arange(size)[:, None]
    members = _members(rng, size, nodes, letters)  # in random order: positions 0..depth are the path
    following = rng.integers(nodes, size=(size, nodes))
    following[:, :depth] = np.arange(1, depth + 1)
    shown = _orders(rng, size, nodes)
    return Graphs(
        sources=members[rows, shown],
        targets=members[rows, following[rows, shown]],
        start=members[:, 0],
        depth=np.full(size, depth, dtype=np.int64),
        kind=np.full(size, KINDS.index("path"), dtype=np.int64),
        seed=np.zeros(size, dtype=np.int64),
        index=np.arange(size),
        letters=letters,
    )


def draw_batch(stage: Stage, key: tuple[int, ...], letters: int = 1, world: int = 1, paths: bool = False) -> Graphs:
    """Draw one depth-grouped batch of a stage.

    Args:
        stage: sizes and depths.
        key: non-negative integers that decide everything: (seed, step, stage number, 0).
        letters: letters of a node name.
        world: how many times the stage's batch size is drawn, for that many processes to share out.
        paths: draw paths instead of the cyclic kinds.
    """
    rng = np.random.default_rng(key)
    size = stage.batch_size * world
    if paths:
        return draw_paths(rng, size, stage.nodes, int(rng.choice(stage.depths)), letters)
    graphs = draw_graphs(rng, size, stage.nodes, letters)
    graphs.depth[:] = rng.choice(stage.depths)
    return graphs


def _members(rng: np.random.Generator, size: int, nodes: int, letters: int) -> NDArray[np.int16]:
    """[size, nodes] random ordered choices of `nodes` names."""
    names = len(node_names(letters))
    if nodes > names:
        raise ValueError(f"nodes: got {nodes}, there are {names} names; lower it or use letters=2")
    return np.argsort(rng.random((size, names)), axis=1).astype(np.int16)[:, :nodes]


def _orders(rng: np.random.Generator, size: int, nodes: int) -> NDArray[np.int64]:
    """[size, nodes] independent random permutations."""
    return np.argsort(rng.random((size, nodes)), axis=1)
