"""Programs of named lines, whatever their instructions do: flow, prompts and runs.

A line prints `opcode operands [target] label next-label`, so the program counter is a name and fetching is a lookup.
START prints the memory and the whole first line: one loop executes the instruction at hand and fetches the next one.
As on a tape, what a line is found by stands right before its last word, and START ends as every line does, so that
whoever learns to gather a line at the token that closes it gathers START as well.

    Program: SET w B ab ac; INC w nil ad ab; MOV x w ac ad;
    Registers: w x
    Start: A C SET w B ab ac;               loop 1: B, carrying `MOV x w ad`; loop 2: B, carrying `INC w ab` ...

At pace "half" each instruction takes two loops: the first executes (and decides a jump), the second fetches.

Shape legend: B programs, L lines, F columns of a line without its label, M memory words, T loops.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from datamodules.tasks.machines.machine import BoolArray, IntArray, Machines, Prompt, Run, orders, take
from datamodules.tasks.machines.words import BITS, END_WORD, NONE_WORD, WORDS, numbers

Pace = Literal["instruction", "half"]


@dataclass(frozen=True)
class Programs(Machines):
    """Programs of equal sizes, as word numbers.

    Attributes:
        lines: [B, L, 1 + F] label, opcode, operands, target (machines with jumps), next label; in displayed order.
        start: [B, 1 + F] first line, its label first.
        memory: [B, M] registers or stack before the first loop; NONE where there is nothing.
        code: [B, X] the instructions in the order of the flow, without names.
        halves: [B] whether every instruction takes two loops.
    """

    lines: IntArray
    start: IntArray
    memory: IntArray
    code: IntArray
    halves: BoolArray

    columns: ClassVar[tuple[str, ...]]
    """Names of the F columns; the last is `next`, and `target` stands before it where there is one."""

    @abstractmethod
    def memory_names(self) -> tuple[str, ...]:
        """Names of the M memory words as state fields."""

    @abstractmethod
    def memory_heading(self) -> str:
        """What the prompt says between program and start: what the M words of memory are."""

    @abstractmethod
    def execute(self, memory: IntArray, instruction: dict[str, IntArray]) -> IntArray:
        """Carry one instruction of each program out.

        Args:
            memory: [B, M]; changed in place.
            instruction: [B] word numbers by column.

        Returns:
            the visible state [B], -1 where the instruction shows nothing (END).
        """

    def jumps(self, memory: IntArray, instruction: dict[str, IntArray]) -> BoolArray:
        """[B] whether the instruction jumps when it is executed with this memory; nothing does by default."""
        del memory
        return np.zeros(len(instruction["op"]), dtype=np.bool_)

    @property
    def has_targets(self) -> bool:
        """Whether lines print the target of a jump."""
        return "target" in self.columns

    def run(self, loops: int) -> Run:
        """Execute and fetch, instruction after instruction."""
        if not self.halves.any():
            return self._run(loops)[0]
        assert self.halves.all(), "one pace per set of programs"
        return _halve(*self._run((loops + 1) // 2), self.memory_names(), loops)

    def _run(self, steps: int) -> tuple[Run, IntArray]:
        """Run a number of instructions; also return the name [B, steps] that each of them leads to."""
        dense = np.full((len(self), len(WORDS), len(self.columns)), NONE_WORD, dtype=np.int16)
        np.put_along_axis(dense, self.lines[:, :, :1].astype(np.int64), self.lines[:, :, 1:], axis=1)
        rows, memory = np.arange(len(self)), self.memory.astype(np.int64)
        fetched, visible = self.start[:, 1:].astype(np.int64), self.initial()
        states, steps_of = [self._snapshot(memory, fetched)], []
        for _ in range(steps):
            instruction = dict(zip(self.columns, fetched.T, strict=True))
            jumping = self.jumps(memory, instruction)
            said = self.execute(memory, instruction)
            visible = np.where(said < 0, visible, said)
            following = np.where(jumping, instruction.get("target", instruction["next"]), instruction["next"])
            fetched = dense[rows, following].astype(np.int64)
            states.append(self._snapshot(memory, fetched))
            steps_of.append(np.stack([visible, instruction["op"], jumping, following]))
        fields = dict(zip(self.field_names(), np.stack(states, axis=2).swapaxes(0, 1), strict=True))
        visible, opcode, taken, following = np.stack(steps_of, axis=2)
        return Run(visible, fields, opcode, taken.astype(np.bool_)), following

    def field_names(self) -> tuple[str, ...]:
        """Names of the state fields: memory, the instruction at hand and, with jumps, whether it will jump."""
        return (*self.memory_names(), *self.columns, *(("jumps",) if self.has_targets else ()))

    def _snapshot(self, memory: IntArray, fetched: IntArray) -> IntArray:
        """[B, fields] the state as word numbers."""
        parts = [memory, fetched]
        if self.has_targets:
            will = self.jumps(memory, dict(zip(self.columns, fetched.T, strict=True)))
            parts.append(bits(will)[:, None])
        return np.concatenate(parts, axis=1)

    def prompt(self) -> Prompt:
        """Program, memory and start."""
        count, width = self.lines.shape[1:]
        gaps = ("",) * (width - 1)
        pieces = ["Program:", *gaps, *(";", *gaps) * (count - 1), f";{self.memory_heading()}\nStart:"]
        lines, start = (_label_last_but_one(entries) for entries in (self.lines, self.start))
        words = np.concatenate([lines.reshape(len(self), -1), self.memory, start], axis=1)
        return Prompt((*pieces, *("",) * (self.memory.shape[1] + width)), words, count * width)

    def table(self) -> IntArray:
        """[B, X] the instructions without names."""
        return self.code

    def facts(self) -> dict[str, IntArray]:
        """[B] each: number of lines, whether the program ends."""
        lines = np.full(len(self), self.lines.shape[1], dtype=np.int64)
        return {"length": lines, "ends": self.ends.astype(np.int64)}


def _halve(run: Run, following: IntArray, memory: tuple[str, ...], loops: int) -> Run:
    """Stretch a run to two loops an instruction: the first executes and decides, the second fetches.

    After a first half the memory is new, `next` is the name to fetch, `jumps` tells whether a jump decided it and
    `phase` is yes; the instruction still is the one just executed.
    """
    state = {name: values.repeat(2, axis=1) for name, values in run.state.items()}
    for name in memory:
        state[name][:, 1:-1:2] = run.state[name][:, 1:]
    state["next"][:, 1:-1:2] = following
    if "jumps" in state:
        state["jumps"] = np.zeros_like(state["next"]) + bits(np.zeros(1, dtype=np.bool_))
        state["jumps"][:, 1:-1:2] = bits(run.taken)
    state["phase"] = np.broadcast_to(bits(np.arange(state["next"].shape[1]) % 2 == 1), state["next"].shape)
    taken = run.taken.repeat(2, axis=1)
    taken[:, ::2] = False  # a jump shows after the loop that fetches its target
    visible, opcode = run.visible.repeat(2, axis=1), run.opcode.repeat(2, axis=1)
    fields = {name: values[:, : loops + 1] for name, values in state.items()}
    return Run(visible[:, :loops], fields, opcode[:, :loops], taken[:, :loops])


def _label_last_but_one(entries: IntArray) -> IntArray:
    """[..., 1 + F] entries with the label right before the next label, as they are printed."""
    return np.concatenate([entries[..., 1:-1], entries[..., :1], entries[..., -1:]], axis=-1)


def bits(values: BoolArray) -> IntArray:
    """Truth values as words."""
    return numbers(BITS)[values.astype(np.int64)]


def link(
    rng: np.random.Generator,
    names: IntArray,
    body: IntArray,
    targets: IntArray | None,
    ends: BoolArray,
    links: IntArray | None = None,
) -> tuple[IntArray, IntArray, IntArray]:
    """Join instructions to lines, in displayed order.

    Args:
        rng: shuffles the lines.
        names: [B, L] labels in the order of the flow.
        body: [B, L, X] opcode and operands in the order of the flow.
        targets: [B, L] position of each jump's target, -1 where there is none; None for machines without jumps.
        ends: [B] whether the last line is replaced by the END line, which the last but one leads to.
        links: [B, L] position of the line that each leads to; default the next one, in a ring.

    Returns:
        lines [B, L, 1 + F] in displayed order, the same in the order of the flow, code [B, L * (X + 1)].
    """
    names, body = names.copy(), body.copy()
    following = np.roll(names, -1, axis=1) if links is None else take(names, links)
    names[ends, -1] = END_WORD
    following[ends, -2:] = END_WORD
    body[ends, -1, 0] = END_WORD
    body[ends, -1, 1:] = NONE_WORD
    parts = [body]
    jump = np.full(names.shape, -1) if targets is None else np.where(ends[:, None] & _last(names), -1, targets)
    if targets is not None:
        words = np.where(jump < 0, NONE_WORD, np.take_along_axis(names, np.maximum(jump, 0), axis=1))
        parts.append(words[:, :, None])
    lines = np.concatenate([names[:, :, None], *parts, following[:, :, None]], axis=2).astype(np.int16)
    shown = orders(rng, *names.shape)[:, :, None]
    code = np.concatenate([body, jump[:, :, None]], axis=2).reshape(len(names), -1).astype(np.int64)
    return np.take_along_axis(lines, shown, axis=1), lines, code


def _last(names: IntArray) -> BoolArray:
    """[1, L] True at the last line."""
    return np.arange(names.shape[1])[None] == names.shape[1] - 1
