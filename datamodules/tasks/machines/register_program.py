"""Register programs: SET, MOV, INC and DEC on a few registers, and conditional jumps.

    SET x v   register x becomes v          EQ x v target   jump to target if register x is v
    MOV x y   register x becomes register y  NE x v target   jump to target if it is not
    INC x     register x becomes the next value, after the last comes the first; DEC x the one before

The visible state is the register that the instruction names, after it. The values are the first letters.

Shape legend: B programs, L lines, R registers, V values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from datamodules.tasks.machines.machine import (
    BoolArray,
    IntArray,
    Links,
    Tables,
    choose,
    draw_suitable,
    name_pool,
)
from datamodules.tasks.machines.program import Pace, Programs, link
from datamodules.tasks.machines.words import END_WORD, NONE_WORD, REGISTERS, numbers

SET, MOV, INC, DEC, EQ, NE = (int(number) for number in numbers(("SET", "MOV", "INC", "DEC", "EQ", "NE")))
WRITING = ("SET", "MOV", "INC", "DEC")
REGISTER_WORDS = numbers(REGISTERS)


@dataclass(frozen=True)
class RegisterRecipe:
    """How to draw register programs.

    Attributes:
        lines: number of lines L, the END line of a program that ends included.
        registers: number of registers R.
        values: number of values V; the same in all training of a model, since INC goes round at V.
        tested: all jumps of a program ask for the same value, one of the first so many, and half of its other constants
            are that value, so that conditions hold about half the time; default: each line has its own. Of 8 values EQ
            holds for one in eight, and a learner that never looks is right nearly always.
        opcodes: the writing instructions that occur.
        branch_rate: share of lines that are conditional jumps, to any line (forward only in a program that ends).
        targets: whether every line has a place for the target of a jump.
        names: size of the pool from which the labels are drawn.
        end_share: share of programs with an END line; they end, or are cut at the depth asked for.
        links: "cycle" orders the lines in a ring; "random" lets each lead to any line.
        pace: loops per instruction, see `datamodules.tasks.machines.program`.
        unseen_names: draw from the names that no training data contain.
        tables: programs that may occur.

    Raises:
        ValueError: a value is out of range or does not go with the others.
    """

    lines: int = 8
    registers: int = 2
    values: int = 8
    tested: int | None = None
    opcodes: Sequence[str] = ("SET", "MOV", "INC")
    branch_rate: float = 0.0
    targets: bool = False
    names: int = 128
    end_share: float = 0.0
    links: Links = "cycle"
    pace: Pace = "instruction"
    unseen_names: bool = False
    tables: Tables = "training"

    def __post_init__(self) -> None:
        bounds = (
            ("lines", self.lines, 2, len(name_pool(self.names, self.unseen_names))),
            ("registers", self.registers, 1, len(REGISTERS)),
            ("values", self.values, 2, 26),
            ("tested", self.values if self.tested is None else self.tested, 1, self.values),
        )
        for name, value, low, high in bounds:
            if not low <= value <= high:
                raise ValueError(f"{name}: got {value}; use {low} to {high}")
        unknown = sorted(set(self.opcodes) - set(WRITING))
        if unknown or not self.opcodes:
            raise ValueError(f"opcodes: got {list(self.opcodes)}; use some of {', '.join(WRITING)}")
        if self.registers == 1 and "MOV" in self.opcodes:
            raise ValueError("opcodes: MOV needs 2 registers; raise registers or leave MOV out")
        for name, share in (("branch_rate", self.branch_rate), ("end_share", self.end_share)):
            if not 0 <= share <= 1:
                raise ValueError(f"{name}: got {share}; use a share between 0 and 1")
        if self.links == "random" and self.end_share:
            raise ValueError("end_share: a program with random links may never end; use 0 or links 'cycle'")
        if self.branch_rate and not self.targets:
            raise ValueError("branch_rate: jumps need a place for their target; set targets=True")

    def draw(self, rng: np.random.Generator, size: int, depth: int) -> RegisterPrograms:
        """Draw `size` programs that are asked for `depth` instructions."""
        return draw_suitable(size, self.tables, lambda count: _draw(self, rng, count, depth))


@dataclass(frozen=True)
class RegisterPrograms(Programs):
    """Register programs of equal sizes; see `Programs`.

    Attributes:
        values: [B] number of values V.
        tested: [B] value that all jumps ask for, -1 where each has its own.
        asked: [B] instructions asked for, whenever the program ends.
    """

    values: IntArray
    tested: IntArray
    asked: IntArray

    columns: ClassVar[tuple[str, ...]] = ("op", "operand_1", "operand_2", "next")

    @property
    def can_end(self) -> BoolArray:
        """[B] whether there is an END line."""
        return (self.lines[:, :, 0] == END_WORD).any(axis=1)

    def memory_names(self) -> tuple[str, ...]:
        """One field per register."""
        return tuple(f"register_{name}" for name in REGISTERS[: self.memory.shape[1]])

    def memory_heading(self) -> str:
        """Name every register."""
        return "\nRegisters:" + "".join(f" {name}" for name in REGISTERS[: self.memory.shape[1]])

    def restart(self, rng: np.random.Generator) -> RegisterPrograms:
        """See `Machines.restart`; a program that ends is entered at the same line and counted anew."""
        rows, half = np.arange(len(self)), bool(self.halves.any())
        entry = self.lines[rows, rng.integers(self.lines.shape[1], size=len(self))]
        memory = _constants(rng, self.values, self.tested, self.memory.shape[1])
        start = np.where(self.can_end[:, None], self.start, entry)
        fresh = replace(self, start=start, memory=memory, halves=np.zeros(len(self), dtype=np.bool_))
        return _with_ends(fresh, self.asked, half)

    def initial(self) -> IntArray:
        """[B] the register that the first instruction names, before it."""
        named = np.maximum(self.start[:, 2] - REGISTER_WORDS[0], 0).astype(np.int64)
        return np.take_along_axis(self.memory, named[:, None], axis=1)[:, 0].astype(np.int64)

    def execute(self, memory: IntArray, instruction: dict[str, IntArray]) -> IntArray:
        """See `Programs.execute`."""
        op, rows = instruction["op"], np.arange(len(memory))
        named = np.clip(instruction["operand_1"] - REGISTER_WORDS[0], 0, memory.shape[1] - 1)
        other = np.clip(instruction["operand_2"] - REGISTER_WORDS[0], 0, memory.shape[1] - 1)
        before = memory[rows, named]
        after = np.select(
            [op == SET, op == MOV, op == INC, op == DEC],
            [instruction["operand_2"], memory[rows, other], (before + 1) % self.values, (before - 1) % self.values],
            before,
        )
        memory[rows, named] = after
        return np.where(op == END_WORD, -1, after)

    def jumps(self, memory: IntArray, instruction: dict[str, IntArray]) -> BoolArray:
        """[B] whether a conditional jump's condition holds."""
        named = np.clip(instruction["operand_1"] - REGISTER_WORDS[0], 0, memory.shape[1] - 1)
        equal = memory[np.arange(len(memory)), named] == instruction["operand_2"]
        return ((instruction["op"] == EQ) & equal) | ((instruction["op"] == NE) & ~equal)


class BranchingPrograms(RegisterPrograms):
    """Register programs whose lines have a place for a jump's target."""

    columns: ClassVar[tuple[str, ...]] = ("op", "operand_1", "operand_2", "target", "next")


def _draw(recipe: RegisterRecipe, rng: np.random.Generator, size: int, depth: int) -> RegisterPrograms:
    L = recipe.lines
    ends = (rng.random(size) < recipe.end_share) & ((depth < L) | bool(recipe.branch_rate))
    names = choose(rng, size, name_pool(recipe.names, recipe.unseen_names), L)
    values = np.full(size, recipe.values, dtype=np.int64)
    tested = np.full_like(values, -1) if recipe.tested is None else rng.integers(recipe.tested, size=size)
    body, jump = _draw_instructions(recipe, rng, values, tested)
    targets = _draw_targets(rng, jump, ends) if recipe.targets else None
    links = rng.integers(L, size=names.shape) if recipe.links == "random" else None
    lines, flow, code = link(rng, names, body, targets, ends, links)
    # A straight program that ends starts so that it ends in time; anything else starts where chance (or line 0) has it.
    first = np.where(ends, max(L - 1 - depth, 0), 0)
    kind = BranchingPrograms if recipe.targets else RegisterPrograms
    programs = kind(
        depth=np.full(size, depth, dtype=np.int64),
        ends=ends,
        lines=lines,
        start=flow[np.arange(size), first],
        memory=_constants(rng, values, tested, recipe.registers),
        code=code,
        halves=np.zeros(size, dtype=np.bool_),
        values=values,
        tested=tested,
        asked=np.full(size, depth, dtype=np.int64),
    )
    return _with_ends(programs, programs.asked, recipe.pace == "half")


def _with_ends(programs: RegisterPrograms, asked: IntArray, half: bool) -> RegisterPrograms:
    """Find when each program ends, or cut it at the [B] instructions asked for; then count in loops."""
    over = programs.run(int(asked.max(initial=1))).state["op"] == END_WORD  # [B, T + 1]
    first = np.where(over.any(axis=1), over.argmax(axis=1), asked + 1)
    steps = np.minimum(first, asked) * (2 if half else 1)
    return replace(programs, depth=steps, ends=first <= asked, halves=np.full(len(programs), half))


def _constants(rng: np.random.Generator, values: IntArray, tested: IntArray, count: int) -> IntArray:
    """[B, count] any values; half of them are the one that jumps ask for, where there is one."""
    drawn = (rng.random((len(values), count)) * values[:, None]).astype(np.int16)
    wanted = (rng.random(drawn.shape) < 1 / 2) & (tested >= 0)[:, None]
    return np.where(wanted, tested[:, None], drawn).astype(np.int16)


def _draw_instructions(
    recipe: RegisterRecipe, rng: np.random.Generator, values: IntArray, tested: IntArray
) -> tuple[IntArray, BoolArray]:
    """Opcode and operands [B, L, 3] and which lines are jumps [B, L]."""
    L = recipe.lines
    shape = (len(values), L)
    jump = rng.random(shape) < recipe.branch_rate
    writing = numbers(tuple(recipe.opcodes))[rng.integers(len(recipe.opcodes), size=shape)]
    op = np.where(jump, np.array([EQ, NE])[rng.integers(2, size=shape)], writing)
    named = rng.integers(recipe.registers, size=shape)
    other = (named + rng.integers(1, max(recipe.registers, 2), size=shape)) % recipe.registers
    value = _constants(rng, values, tested, L)
    value = np.where(jump & (tested >= 0)[:, None], tested[:, None], value)
    second = np.select([op == MOV, (op == INC) | (op == DEC)], [REGISTER_WORDS[other], NONE_WORD], value)
    return np.stack([op, REGISTER_WORDS[named], second], axis=2), jump


def _draw_targets(rng: np.random.Generator, jump: BoolArray, ends: BoolArray) -> IntArray:
    """[B, L] where jumps lead: not to themselves nor the next line; in a program that ends, to a later line."""
    L = jump.shape[1]
    here = np.arange(L)
    # Any line but the next one and itself (a jump to itself that holds once holds for ever).
    anywhere = (here + 1 + rng.integers(1, max(L - 1, 2), size=jump.shape)) % L
    later = here + 1 + (rng.random(jump.shape) * np.maximum(L - 1 - here, 1)).astype(np.int64)
    return np.where(jump, np.where(ends[:, None], np.minimum(later, L - 1), anywhere), -1)
