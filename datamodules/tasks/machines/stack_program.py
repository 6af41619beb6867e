"""Stack programs: PUSH, POP, DUP and INC on a small stack.

    PUSH v   v on top           POP   the top goes
    DUP      the top once more   INC   the top becomes the next value, after the last comes the first

The visible state is the top of the stack. No run empties the stack or overfills it: programs are drawn so.

Shape legend: B programs, L lines, M places of the stack, V values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from datamodules.tasks.machines.machine import (
    MAX_ROUNDS,
    BoolArray,
    IntArray,
    Links,
    Tables,
    choose,
    draw_suitable,
    name_pool,
    take,
)
from datamodules.tasks.machines.program import Pace, Programs, link
from datamodules.tasks.machines.words import END_WORD, NONE_WORD, numbers

STACK_OPCODES = ("PUSH", "POP", "DUP", "INC")
PUSH, POP, DUP, INC = (int(number) for number in numbers(STACK_OPCODES))


@dataclass(frozen=True)
class StackRecipe:
    """How to draw stack programs.

    Attributes:
        lines: number of lines L, the END line of a program that ends included.
        places: most values on the stack, M.
        values: number of values V; the same in all training of a model, since INC goes round at V.
        opcodes: the instructions that occur. PUSH and DUP need POP.
        names: size of the pool from which the labels are drawn.
        end_share: share of programs that end by themselves, where they are long enough for the depth.
        links: "cycle" orders the lines in a ring; "random" lets each lead to any line that wants the stack as high.
        pace: loops per instruction, see `datamodules.tasks.machines.program`.
        unseen_names: draw from the names that no training data contain.
        tables: programs that may occur.

    Raises:
        ValueError: a value is out of range or does not go with the others.
    """

    lines: int = 8
    places: int = 4
    values: int = 8
    opcodes: Sequence[str] = STACK_OPCODES
    names: int = 128
    end_share: float = 0.0
    links: Links = "cycle"
    pace: Pace = "instruction"
    unseen_names: bool = False
    tables: Tables = "training"

    def __post_init__(self) -> None:
        bounds = (
            ("lines", self.lines, 2, len(name_pool(self.names, self.unseen_names))),
            ("places", self.places, 2, 16),
            ("values", self.values, 2, 26),
        )
        for name, value, low, high in bounds:
            if not low <= value <= high:
                raise ValueError(f"{name}: got {value}; use {low} to {high}")
        unknown = sorted(set(self.opcodes) - set(STACK_OPCODES))
        if unknown or not self.opcodes:
            raise ValueError(f"opcodes: got {list(self.opcodes)}; use some of {', '.join(STACK_OPCODES)}")
        if ("POP" in self.opcodes) != bool({"PUSH", "DUP"} & set(self.opcodes)):
            raise ValueError(f"opcodes: got {list(self.opcodes)}; give POP together with PUSH or DUP")
        if not 0 <= self.end_share <= 1:
            raise ValueError(f"end_share: got {self.end_share}; use a share between 0 and 1")
        if self.links == "random" and self.end_share:
            raise ValueError("end_share: a program with random links may never end; use 0 or links 'cycle'")

    def draw(self, rng: np.random.Generator, size: int, depth: int) -> StackPrograms:
        """Draw `size` programs that are asked for `depth` instructions."""
        return draw_suitable(size, self.tables, lambda count: _draw(self, rng, count, depth))


@dataclass(frozen=True)
class StackPrograms(Programs):
    """Stack programs of equal sizes; see `Programs`.

    Attributes:
        values: [B] number of values V.
        heights: [B, L] height of the stack before each of the lines in displayed order.
    """

    values: IntArray
    heights: IntArray

    columns: ClassVar[tuple[str, ...]] = ("op", "operand_1", "next")

    def memory_names(self) -> tuple[str, ...]:
        """One field per place, the top first."""
        return tuple(f"stack_{place}" for place in range(1, self.memory.shape[1] + 1))

    def memory_heading(self) -> str:
        """The start prints the stack, the top first."""
        return "\nStack:"

    def restart(self, rng: np.random.Generator) -> StackPrograms:
        """See `Machines.restart`; a program that ends is entered at the same line, so that it ends in time."""
        rows, entry = np.arange(len(self)), rng.integers(self.lines.shape[1], size=len(self))
        values = (rng.random(self.memory.shape) * self.values[:, None]).astype(np.int16)
        empty = np.where(
            self.ends[:, None],
            self.memory == NONE_WORD,
            np.arange(self.memory.shape[1]) >= self.heights[rows, entry][:, None],
        )
        return replace(
            self,
            start=np.where(self.ends[:, None], self.start, self.lines[rows, entry]),
            memory=np.where(empty, NONE_WORD, values).astype(np.int16),
        )

    def initial(self) -> IntArray:
        """[B] the top of the stack."""
        return self.memory[:, 0].astype(np.int64)

    def execute(self, memory: IntArray, instruction: dict[str, IntArray]) -> IntArray:
        """See `Programs.execute`."""
        op, top = instruction["op"], memory[:, 0].copy()
        down = np.concatenate([top[:, None], memory[:, :-1]], axis=1)
        up = np.concatenate([memory[:, 1:], np.full((len(memory), 1), NONE_WORD)], axis=1)
        grows, shrinks = (op == PUSH) | (op == DUP), op == POP
        memory[:] = np.where(grows[:, None], down, np.where(shrinks[:, None], up, memory))
        memory[:, 0] = np.select(
            [op == PUSH, op == INC], [instruction["operand_1"], (top + 1) % self.values], memory[:, 0]
        )
        return np.where(op == END_WORD, -1, memory[:, 0])


def _draw(recipe: StackRecipe, rng: np.random.Generator, size: int, depth: int) -> StackPrograms:
    L = recipe.lines
    ends = (rng.random(size) < recipe.end_share) & (depth < L)
    names = choose(rng, size, name_pool(recipe.names, recipe.unseen_names), L)
    op, height = _draw_walks(recipe, rng, size)
    value = np.where(op == PUSH, rng.integers(recipe.values, size=op.shape), NONE_WORD)
    links = _draw_links(rng, height) if recipe.links == "random" else None
    lines, flow, code = link(rng, names, np.stack([op, value], axis=2), None, ends, links)
    shown: BoolArray = lines[:, :, None, 0] == flow[:, None, :, 0]
    rows, first = np.arange(size), np.where(ends, max(L - 1 - depth, 0), 0)
    memory = rng.integers(recipe.values, size=(size, recipe.places))
    memory[np.arange(recipe.places) >= height[rows, first][:, None]] = NONE_WORD
    loops = 2 if recipe.pace == "half" else 1
    return StackPrograms(
        depth=np.full(size, depth * loops, dtype=np.int64),
        ends=ends,
        lines=lines,
        start=flow[rows, first],
        memory=memory.astype(np.int16),
        code=code,
        halves=np.full(size, recipe.pace == "half"),
        values=np.full(size, recipe.values, dtype=np.int64),
        heights=take(height, shown.argmax(axis=2)),
    )


def _draw_links(rng: np.random.Generator, height: IntArray) -> IntArray:
    """[B, L] positions of lines that want the stack as high as each line [B, L] leaves it."""
    fits = np.roll(height, -1, axis=1)[:, :, None] == height[:, None, :]
    return np.where(fits, rng.random(fits.shape), -1).argmax(axis=2)


def _draw_walks(recipe: StackRecipe, rng: np.random.Generator, size: int) -> tuple[IntArray, IntArray]:
    """Opcodes [B, L] that lead back to the height they start from within 1..M, and the height before each [B, L].

    Raises:
        ValueError: hardly any program of this length fits the stack.
    """
    codes = numbers(tuple(recipe.opcodes))
    change = np.array([{PUSH: 1, DUP: 1, POP: -1}.get(int(code), 0) for code in codes])
    # As many ways down as up, else almost no walk of some length returns.
    weight = np.array([1 / max((change == c).sum(), 1) for c in change])
    found: list[tuple[IntArray, IntArray]] = []
    missing = size
    for _ in range(MAX_ROUNDS):
        drawn = rng.choice(len(codes), size=(8 * missing + 64, recipe.lines), p=weight / weight.sum())
        after = change[drawn].cumsum(axis=1)
        before = after - change[drawn]
        low, high = before.min(axis=1), before.max(axis=1)
        good = np.flatnonzero((after[:, -1] == 0) & (high - low < recipe.places))[:missing]
        spare = recipe.places - (high - low)[good]  # heights to choose the lowest from
        base = 1 + (rng.random(len(good)) * spare).astype(np.int64)
        found.append((codes[drawn[good]], before[good] - low[good, None] + base[:, None]))
        missing -= len(good)
        if missing == 0:
            op, height = (np.concatenate(part) for part in zip(*found, strict=True))
            return op, height
    raise ValueError(f"lines: {recipe.lines} lines hardly ever fit {recipe.places} places; raise places")
