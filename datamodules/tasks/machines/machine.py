"""What all machines share: sets of instances as arrays, runs of all instances at once, held-out tables, name pools.

A run is held as word numbers (`datamodules.tasks.machines.words`). The visible state is one of the 26 letters, whose
word numbers are their label numbers.

Shape legend: B machines, T loops, P places of a prompt, E entries (rules, cells or lines).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from datamodules.tasks.machines.words import TEXTS, TRAINED_NAMES, UNSEEN_NAMES, numbers

IntArray = NDArray[np.integer]
BoolArray = NDArray[np.bool_]

Tables = Literal["any", "training", "held_out"]
"""Which tables may be drawn: a fixed eighth of all tables is kept out of training."""

Links = Literal["cycle", "random"]
"""A table's entries in a ring, or each leading to any entry. In a small ring no entry leads to itself or back to its
predecessor, so that a learner may exclude names instead of looking one up."""

HELD_OUT_SHARE = 8
"""One table in so many is held out."""

MAX_ROUNDS = 200
"""Rounds of redrawing unsuitable instances before giving up (only tiny tables come near)."""


@dataclass(frozen=True)
class Run:
    """What a set of machines does in loops 1..T.

    Attributes:
        visible: [B, T] label of the visible state after each loop.
        state: [B, T + 1] word numbers by name of everything else the state carries, at loops 0..T.
        opcode: [B, T] word number of what each loop executed: an opcode, or the symbol that a tape machine read.
        taken: [B, T] whether the loop executed a jump and took it.
    """

    visible: IntArray
    state: dict[str, IntArray]
    opcode: IntArray
    taken: BoolArray


@dataclass(frozen=True)
class Prompt:
    """Prompts of a set of machines that differ in words only.

    Attributes:
        pieces: P + 1 fixed texts around the places, the last one empty: the prompt ends before the count or the answer.
        words: [B, P] word numbers.
        start: the first place of the start; what stands before it belongs to the table and is the same for all runs
            of one machine.
    """

    pieces: tuple[str, ...]
    words: IntArray
    start: int

    def text(self, row: int, count: int | None = None) -> str:
        """Write one prompt down to the answer position; with the requested count if there is one."""
        filled = [piece + TEXTS[word] for piece, word in zip(self.pieces, self.words[row], strict=False)]
        return "".join(filled) + self.pieces[-1] + ending(count)


def ending(count: int | str | None) -> str:
    """The last words of a prompt.

    Without a count it ends as an entry of the table does. The token whose state loops is then the very token that
    closes an entry, so what a layer learns to gather there from the start it gathers at every entry.
    """
    return ";" if count is None else f";\nSteps: {count}\nAnswer:"


SetT = TypeVar("SetT", bound="Machines")


@dataclass(frozen=True)
class Machines(ABC):
    """A set of machines with equal sizes; subclasses add the arrays of their kind, [B, ...] each.

    Attributes:
        depth: [B] int64 requested number of steps. Where the machine ends by itself, the number after which it does.
        ends: [B] bool, whether it ends by itself.
    """

    depth: IntArray
    ends: BoolArray

    def __len__(self) -> int:
        return len(self.depth)

    def __getitem__(self, rows: IntArray | BoolArray | slice) -> Self:
        """Select rows by slice, index array or mask."""
        return replace(self, **{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @abstractmethod
    def initial(self) -> IntArray:
        """[B] label of the visible state before the first loop."""

    @abstractmethod
    def run(self, loops: int) -> Run:
        """Execute loops 1..`loops` of all machines at once."""

    @abstractmethod
    def prompt(self) -> Prompt:
        """The prompts."""

    @abstractmethod
    def table(self) -> IntArray:
        """[B, X] what makes two machines the same task, whatever the names and the displayed order."""

    @abstractmethod
    def restart(self: SetT, rng: np.random.Generator) -> SetT:
        """The same tables with other starts, drawn independently."""

    @abstractmethod
    def facts(self) -> dict[str, IntArray]:
        """[B] integers by name, for breakdowns."""

    def repeat(self, rng: np.random.Generator, runs: int) -> Self:
        """Every machine `runs` times, side by side: the first time as it is, then with other starts."""
        if runs == 1:
            return self
        rows = np.arange(len(self) * runs)
        both = self.concatenate([self, self[rows // runs].restart(rng)])
        return both[np.where(rows % runs == 0, rows // runs, len(self) + rows)]

    def with_depth(self, depth: IntArray) -> Self:
        """The same machines asked for other numbers of steps."""
        return replace(self, depth=np.asarray(depth, dtype=np.int64))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Join sets of machines of equal sizes."""
        names = [f.name for f in fields(cls)]
        arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return replace(parts[0], **arrays)


def concatenate(parts: Sequence[Machines]) -> Machines:
    """Join sets of machines of one kind and equal sizes, whatever kind it is."""
    return type(parts[0]).concatenate(parts)


def held_out(table: IntArray) -> BoolArray:
    """[B] whether a table [B, X] belongs to the part kept out of training; a pure function of the table."""
    mixed = np.full(len(table), 14695981039346656037, dtype=np.uint64)
    for column in table.T:  # FNV-1a over the columns
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(1099511628211)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return (mixed >> np.uint64(40)) % np.uint64(HELD_OUT_SHARE) == 0


def draw_suitable(size: int, tables: Tables, draw: Callable[[int], SetT]) -> SetT:
    """Draw machines until `size` of them have tables of the wanted part.

    Args:
        size: number of machines B.
        tables: which tables may occur.
        draw: draws any number of machines.

    Raises:
        ValueError: so few different tables exist that the wanted part is empty.
    """
    parts: list[SetT] = []
    missing = size
    for _ in range(MAX_ROUNDS):
        drawn = draw(missing)
        if tables != "any":
            drawn = drawn[held_out(drawn.table()) == (tables == "held_out")]
        parts.append(drawn)
        missing -= len(drawn)
        if missing == 0:
            return parts[0] if len(parts) == 1 else type(drawn).concatenate(parts)
    raise ValueError(f"tables: none of those that are {tables!r} occurs in {MAX_ROUNDS} draws; use larger machines")


def name_pool(names: int, unseen: bool) -> IntArray:
    """Word numbers of the first `names` trained names, or of the unseen ones.

    Raises:
        ValueError: there are not so many.
    """
    pool = UNSEEN_NAMES if unseen else TRAINED_NAMES
    if not 1 <= names <= len(pool):
        raise ValueError(f"names: got {names}; there are 1 to {len(pool)} {'unseen' if unseen else 'trained'} names")
    return numbers(pool[:names])


def choose(rng: np.random.Generator, size: int, pool: IntArray, count: int) -> IntArray:
    """[size, count] different members of a pool in random order, independent in every row.

    Raises:
        ValueError: the pool is too small.
    """
    if count > len(pool):
        raise ValueError(f"needs {count} different words, the pool has {len(pool)}; make the machine smaller")
    return pool[np.argsort(rng.random((size, len(pool)), dtype=np.float32), axis=1)[:, :count]]


def orders(rng: np.random.Generator, size: int, count: int) -> NDArray[np.int64]:
    """[size, count] independent random permutations."""
    return np.argsort(rng.random((size, count), dtype=np.float32), axis=1)


def take(values: IntArray, order: IntArray) -> IntArray:
    """Reorder every row: values [B, E], order [B, E'] -> [B, E']."""
    return np.take_along_axis(values, order, axis=1)
