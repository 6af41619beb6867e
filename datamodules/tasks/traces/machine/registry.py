"""Which function executes which opcode, and which one takes the result of a call that an instruction had to make."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from datamodules.tasks.traces.machine.code import Instruction
from datamodules.tasks.traces.machine.objects import Frame

if TYPE_CHECKING:
    from datamodules.tasks.traces.machine.machine import Machine

Operation = Callable[["Machine", Frame, Instruction], None]
Completion = Callable[["Machine", Frame, Instruction, Any], None]

OPERATIONS: dict[str, Operation] = {}
"""By opcode name, of every supported Python version."""

COMPLETIONS: dict[str, Completion] = {}
"""By opcode name: what to do with the value that came back. Default: push it.

That the instruction in progress decides this, and nothing else, is what keeps a suspended frame plain data.
"""


def operation(*names: str) -> Callable[[Operation], Operation]:
    """Register the function as the meaning of the opcodes."""

    def register(function: Operation) -> Operation:
        OPERATIONS.update(dict.fromkeys(names, function))
        return function

    return register


def completion(*names: str) -> Callable[[Completion], Completion]:
    """Register the function as the second half of the opcodes."""

    def register(function: Completion) -> Completion:
        COMPLETIONS.update(dict.fromkeys(names, function))
        return function

    return register
