"""Opcodes of f-strings."""

# ruff: noqa: ARG001  (every operation has the registry's signature)

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from datamodules.tasks.traces.machine.code import Instruction
from datamodules.tasks.traces.machine.objects import Frame
from datamodules.tasks.traces.machine.registry import operation

if TYPE_CHECKING:
    from datamodules.tasks.traces.machine.machine import Machine

CONVERSIONS: tuple[Callable[[Any], Any] | None, ...] = (None, str, repr, ascii)


@operation("FORMAT_VALUE")
def _format(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    spec = frame.stack.pop() if instruction.arg & 4 else ""
    convert = CONVERSIONS[instruction.arg & 3]
    value = frame.stack[-1]
    frame.stack[-1] = format(value if convert is None else convert(value), spec)


@operation("CONVERT_VALUE")
def _convert(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    convert = CONVERSIONS[instruction.arg]
    assert convert is not None
    frame.stack[-1] = convert(frame.stack[-1])


@operation("FORMAT_SIMPLE")
def _format_simple(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.stack[-1] = format(frame.stack[-1])


@operation("FORMAT_WITH_SPEC")
def _format_spec(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    spec = frame.stack.pop()
    frame.stack[-1] = format(frame.stack[-1], spec)


@operation("BUILD_STRING")
def _build_string(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.stack[-instruction.arg :] = ["".join(frame.stack[-instruction.arg :])]
