"""Pointer graphs as arrays: rule tables, states after any number of loops, orbits, digests.

A graph has one outgoing edge per listed node. Following the edges from the start gives the states x_1, x_2, ...; one
loop of the model is meant to perform one step. Nodes are label indices everywhere: 0..25 for A-Z.

Shape legend: G graphs, n listed rules, V node names (26, or 676 with two letters), T loops.
"""

from __future__ import annotations

import csv
import hashlib
import io
from dataclasses import dataclass, fields, replace
from functools import cache
from string import ascii_uppercase
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.integer]

KINDS = ("random_function", "permutation", "full_cycle", "path")
"""Graph kinds; `Graphs.kind` holds the position in this tuple."""

CYCLIC_KINDS = KINDS[:3]
"""The kinds a `mixture` draws from, in the order of the draw."""


@cache
def node_names(letters: int) -> tuple[str, ...]:
    """Return all node names of `letters` capitals: A..Z (26) or AA..ZZ (676).

    Raises:
        ValueError: letters is neither 1 nor 2.
    """
    if letters == 1:
        return tuple(ascii_uppercase)
    if letters == 2:
        return tuple(a + b for a in ascii_uppercase for b in ascii_uppercase)
    raise ValueError(f"letters: got {letters}; node names have 1 or 2 letters")


@dataclass(frozen=True)
class Orbits:
    """What the run from the start looks like, [G] each.

    Attributes:
        tail: steps before the run enters its cycle.
        period: length of that cycle.
    """

    tail: IntArray
    period: IntArray

    @property
    def reachable(self) -> IntArray:
        """[G] number of different states on the run, the start included."""
        return self.tail + self.period


@dataclass(frozen=True)
class Graphs:
    """A set of graphs, all with the same number of listed rules.

    Attributes:
        sources: [G, n] int16, source of each rule in displayed order.
        targets: [G, n] int16, destination of each rule.
        start: [G] int16, start node.
        depth: [G] int64, requested number of steps.
        kind: [G] int64, position in `KINDS`.
        seed: [G] int64, master seed of the generator.
        index: [G] int64, index of the graph within its seed, kind and split (the same for the examples of one graph).
        letters: number of letters of a node name.
    """

    sources: IntArray
    targets: IntArray
    start: IntArray
    depth: IntArray
    kind: IntArray
    seed: IntArray
    index: IntArray
    letters: int = 1

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, rows: IntArray | NDArray[np.bool_] | slice) -> Graphs:
        """Select rows by slice, index array or mask."""
        return replace(self, **{f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "letters"})

    @property
    def names(self) -> tuple[str, ...]:
        """The V node names, in label order."""
        return node_names(self.letters)

    def successors(self) -> IntArray:
        """[G, V] next node of every node; a node without a rule (never reached) points to itself."""
        table = np.tile(np.arange(len(self.names), dtype=np.int16), (len(self), 1))
        np.put_along_axis(table, self.sources.astype(np.int64), self.targets, axis=1)
        return table

    def states(self, loops: int) -> IntArray:
        """[G, T] int16 reference state after loop 1..T; one gather per loop over all graphs at once."""
        table = self.successors()
        offset = np.arange(len(self), dtype=np.int64) * table.shape[1]
        flat = table.reshape(-1)
        out = np.empty((loops, len(self)), dtype=np.int16)
        state = self.start
        for t in range(loops):
            state = np.take(flat, offset + state, out=out[t])
        return out.T

    def orbits(self) -> Orbits:
        """Find tail and period of every run.

        After n steps every run is on its cycle, so the period is the first return to x_n, and the tail is the first t
        with x_t = x_(t + period).
        """
        n = self.sources.shape[1]
        run = np.concatenate([self.start[:, None], self.states(2 * n)], axis=1)
        period = np.argmax(run[:, n + 1 :] == run[:, n, None], axis=1) + 1
        ahead = np.take_along_axis(run, np.arange(n + 1)[None, :] + period[:, None], axis=1)
        return Orbits(tail=np.argmax(run[:, : n + 1] == ahead, axis=1), period=period)

    def facts(self) -> dict[str, IntArray]:
        """[G] int64 each: kind, seed, graph (index), tail, period, reachable."""
        orbits = self.orbits()
        return {
            "kind": self.kind,
            "seed": self.seed,
            "graph": self.index,
            "tail": orbits.tail,
            "period": orbits.period,
            "reachable": orbits.reachable,
        }

    def tables(self) -> set[bytes]:
        """The rule tables, whatever their displayed order and start, as bytes: equal bytes are equal tables."""
        order = np.argsort(self.sources, axis=1)
        pairs = [np.take_along_axis(side, order, axis=1) for side in (self.sources, self.targets)]
        return {row.tobytes() for row in np.stack(pairs, axis=1).astype(np.int16)}

    def spell(self, nodes: IntArray) -> str:
        """Write a row of nodes as one word ("KQB")."""
        return "".join(self.names[node] for node in nodes)

    def digest(self) -> str:
        """SHA-256 of the lines `depth,start,sources,targets` (the published digests of the training data)."""
        sha = hashlib.sha256()
        for depth, start, sources, targets in zip(self.depth, self.start, self.sources, self.targets, strict=True):
            line = f"{depth},{self.names[start]},{self.spell(sources)},{self.spell(targets)}\n"
            sha.update(line.encode())
        return sha.hexdigest()

    def csv(self) -> str:
        """One line per graph: seed, kind, index, start, sources, targets, tail, period (the benchmark's file)."""
        orbits = self.orbits()
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["seed", "kind", "index", "start", "sources", "targets", "tail", "period"])
        for i in range(len(self)):
            rules = [self.spell(self.sources[i]), self.spell(self.targets[i])]
            head = [self.seed[i], KINDS[self.kind[i]], self.index[i], self.names[self.start[i]]]
            writer.writerow([*head, *rules, orbits.tail[i], orbits.period[i]])
        return out.getvalue()

    @staticmethod
    def concatenate(parts: list[Graphs]) -> Graphs:
        """Join sets of graphs with the same number of rules and the same node names."""
        names = [f.name for f in fields(Graphs) if f.name != "letters"]
        arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return replace(parts[0], **arrays)
