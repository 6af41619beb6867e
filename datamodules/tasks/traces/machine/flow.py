"""Opcodes that decide what runs next: jumps, iteration, generators, return, exceptions."""

# ruff: noqa: ARG001  (every operation has the registry's signature)

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from datamodules.tasks.traces.machine.code import Instruction
from datamodules.tasks.traces.machine.objects import Frame, Generator, UnsupportedError, make_iterator
from datamodules.tasks.traces.machine.registry import completion, operation

if TYPE_CHECKING:
    from datamodules.tasks.traces.machine.machine import Machine

AFTER_LOOP = {11: 0, 12: 1}.get(sys.version_info[1], 2)
"""Instructions after a loop's jump target that FOR_ITER skips itself when the iterator ends (END_FOR, POP_TOP)."""


@operation("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def _jump(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.pc = instruction.target


def _popping_jump(name: str, wanted: bool) -> None:
    @operation(f"POP_JUMP_FORWARD_IF_{name}", f"POP_JUMP_BACKWARD_IF_{name}", f"POP_JUMP_IF_{name}")
    def _conditional(machine: Machine, frame: Frame, instruction: Instruction) -> None:
        value = frame.stack.pop()
        truth = value is None if "NONE" in name else bool(value)
        if truth is wanted:
            frame.pc = instruction.target


for _name, _wanted in (("TRUE", True), ("FALSE", False), ("NONE", True), ("NOT_NONE", False)):
    _popping_jump(_name, _wanted)


@operation("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def _jump_or_pop(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    if bool(frame.stack[-1]) is (instruction.name == "JUMP_IF_TRUE_OR_POP"):
        frame.pc = instruction.target
    else:
        del frame.stack[-1]


@operation("GET_ITER", "GET_YIELD_FROM_ITER")
def _get_iter(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.stack[-1] = make_iterator(frame.stack[-1])


@operation("FOR_ITER")
def _for_iter(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    iterator = frame.stack[-1]
    if isinstance(iterator, Generator):
        machine.resume(iterator, None)
        return
    try:
        value = next(iterator)
    except StopIteration:
        end_loop(frame, instruction)
    else:
        frame.stack.append(value)


def end_loop(frame: Frame, instruction: Instruction) -> None:
    """Leave a loop whose iterator has ended."""
    del frame.stack[-1]
    frame.pc = instruction.target + AFTER_LOOP


@operation("SEND")
def _send(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    iterator = frame.stack[-1]
    if value is not None:
        raise UnsupportedError("a value sent into a generator")
    if isinstance(iterator, Generator):
        machine.resume(iterator, None)
        return
    try:
        item = next(iterator)
    except StopIteration as stop:
        end_delegation(frame, instruction, stop.value)
    else:
        frame.stack.append(item)


def end_delegation(frame: Frame, instruction: Instruction, value: Any) -> None:
    """Leave a `yield from` whose iterator has ended with `value`."""
    if AFTER_LOOP:
        frame.stack.append(value)  # 3.12: END_SEND removes the iterator
    else:
        frame.stack[-1] = value
    frame.pc = instruction.target


@operation("RETURN_GENERATOR")
def _return_generator(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    generator = Generator(frame)
    frame.generator = generator
    machine.frames.pop()
    machine.deliver(generator)


@operation("YIELD_VALUE")
def _yield(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    assert frame.generator is not None
    frame.generator.running = False
    machine.frames.pop()
    machine.deliver(value)


@operation("RETURN_VALUE")
def _return(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    machine.leave(frame, frame.stack.pop())


@operation("RETURN_CONST")
def _return_const(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    machine.leave(frame, instruction.value)


@completion("RETURN_GENERATOR", "YIELD_VALUE")
def _impossible(machine: Machine, frame: Frame, instruction: Instruction, value: Any) -> None:
    raise AssertionError("a suspended generator waits for no call")


@operation("RAISE_VARARGS")
def _raise(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    if instruction.arg == 0:
        if machine.handled is None:
            raise RuntimeError("No active exception to reraise")
        raise machine.handled
    cause: Any = frame.stack.pop() if instruction.arg == 2 else None
    error: Any = frame.stack.pop()
    if isinstance(error, type) and issubclass(error, BaseException):
        error = error()
    if not isinstance(error, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    if isinstance(cause, type) and issubclass(cause, BaseException):
        cause = cause()
    error.__cause__ = cause
    raise error


@operation("RERAISE")
def _reraise(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    raise frame.stack.pop()


@operation("PUSH_EXC_INFO")
def _push_exc_info(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    error = frame.stack.pop()
    frame.stack += (machine.handled, error)
    machine.handled = error


@operation("POP_EXCEPT")
def _pop_except(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    machine.handled = frame.stack.pop()


@operation("CHECK_EXC_MATCH")
def _check_exc_match(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    kinds = frame.stack[-1]
    for kind in kinds if isinstance(kinds, tuple) else (kinds,):
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError("catching classes that do not inherit from BaseException is not allowed")
    frame.stack[-1] = isinstance(frame.stack[-2], kinds)


@operation("CALL_INTRINSIC_1")
def _intrinsic(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    stopiteration, positive, list_to_tuple = 3, 5, 6
    value = frame.stack[-1]
    if instruction.arg == list_to_tuple:
        frame.stack[-1] = tuple(value)
    elif instruction.arg == positive:
        frame.stack[-1] = +value
    elif instruction.arg == stopiteration:
        if isinstance(value, StopIteration):
            frame.stack[-1] = RuntimeError("generator raised StopIteration")
    else:
        raise UnsupportedError(f"instruction {instruction.name} {instruction.text}")


@operation("LOAD_ASSERTION_ERROR")
def _load_assertion_error(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(AssertionError)
