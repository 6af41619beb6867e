"""Opcodes that move and compute values: constants, variables, operators, subscripts."""

# ruff: noqa: ARG001  (every operation has the registry's signature)

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from datamodules.tasks.traces.machine.code import Instruction
from datamodules.tasks.traces.machine.objects import EMPTY, NULL, Cell, Frame, Generator, UnsupportedError
from datamodules.tasks.traces.machine.registry import completion, operation

if TYPE_CHECKING:
    from datamodules.tasks.traces.machine.machine import Machine

NULL_FIRST = sys.version_info < (3, 13)
"""Whether the empty slot of a call lies below the callable (3.11, 3.12) or above it."""

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "@": operator.matmul,
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
    "&=": operator.iand,
    "|=": operator.ior,
    "^=": operator.ixor,
    "@=": operator.imatmul,
}

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}

UNARY: dict[str, Callable[[Any], Any]] = {
    "UNARY_NEGATIVE": operator.neg,
    "UNARY_POSITIVE": operator.pos,
    "UNARY_INVERT": operator.invert,
    "UNARY_NOT": operator.not_,
    "TO_BOOL": bool,
}


def push_callable(frame: Frame, value: Any) -> None:
    """Push a callable and the empty slot beside it, in this version's order."""
    frame.stack += (NULL, value) if NULL_FIRST else (value, NULL)


def load(frame: Frame, name: str) -> Any:
    """Return a local variable; raises UnboundLocalError as Python does."""
    try:
        return frame.fast[name]
    except KeyError:
        message = f"cannot access local variable '{name}' where it is not associated with a value"
        raise UnboundLocalError(message) from None


@operation("NOP", "RESUME", "CACHE", "PRECALL", "KW_NAMES", "COPY_FREE_VARS", "EXTENDED_ARG")
def _nothing(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """KW_NAMES is read by the call after it, so that no state is needed between the two."""


@operation("POP_TOP", "END_FOR")
def _pop(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    del frame.stack[-1]


@operation("END_SEND")
def _end_send(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    del frame.stack[-2]


@operation("PUSH_NULL")
def _push_null(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(NULL)


@operation("COPY")
def _copy(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(frame.stack[-instruction.arg])


@operation("SWAP")
def _swap(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    stack, depth = frame.stack, instruction.arg
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


@operation("LOAD_CONST")
def _load_const(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(instruction.value)


@operation("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CLOSURE")
def _load_fast(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(load(frame, instruction.value))


@operation("LOAD_FAST_LOAD_FAST")
def _load_two(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    first, second = instruction.value
    frame.stack += (load(frame, first), load(frame, second))


@operation("LOAD_FAST_AND_CLEAR")
def _load_and_clear(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(frame.fast.pop(instruction.value, NULL))


def store(frame: Frame, name: str, value: Any) -> None:
    """Bind a local variable; the empty slot unbinds it (3.12 puts a comprehension's shadowed variable back so)."""
    if value is NULL:
        frame.fast.pop(name, None)
    else:
        frame.fast[name] = value


@operation("STORE_FAST")
def _store_fast(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    store(frame, instruction.value, frame.stack.pop())


@operation("STORE_FAST_STORE_FAST")
def _store_two(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    for name in instruction.value:
        store(frame, name, frame.stack.pop())


@operation("STORE_FAST_LOAD_FAST")
def _store_load(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    first, second = instruction.value
    store(frame, first, frame.stack.pop())
    frame.stack.append(load(frame, second))


@operation("DELETE_FAST")
def _delete_fast(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    load(frame, instruction.value)
    del frame.fast[instruction.value]


@operation("MAKE_CELL")
def _make_cell(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.fast[instruction.value] = Cell(frame.fast.get(instruction.value, EMPTY))


@operation("LOAD_DEREF")
def _load_deref(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    value = frame.fast[instruction.value].value
    if value is EMPTY:
        name = instruction.value
        raise NameError(f"cannot access free variable '{name}' where it is not associated with a value")
    frame.stack.append(value)


@operation("STORE_DEREF")
def _store_deref(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.fast[instruction.value].value = frame.stack.pop()


@operation("DELETE_DEREF")
def _delete_deref(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.fast[instruction.value].value = EMPTY


@operation("LOAD_GLOBAL")
def _load_global(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    value = machine.find_global(instruction.value)
    if instruction.arg & 1:
        push_callable(frame, value)
    else:
        frame.stack.append(value)


@operation("LOAD_NAME")
def _load_name(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(machine.find_global(instruction.value))


@operation("STORE_GLOBAL", "STORE_NAME")
def _store_global(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    machine.globals[instruction.value] = frame.stack.pop()


@operation("DELETE_GLOBAL", "DELETE_NAME")
def _delete_global(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    if instruction.value not in machine.globals:
        raise NameError(f"name '{instruction.value}' is not defined")
    del machine.globals[instruction.value]


@operation(*UNARY)
def _unary(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.stack[-1] = UNARY[instruction.name](frame.stack[-1])


@operation("BINARY_OP")
def _binary(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    right = frame.stack.pop()
    frame.stack[-1] = BINARY[instruction.text](frame.stack[-1], right)


@operation("COMPARE_OP")
def _compare(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    right = frame.stack.pop()
    result = COMPARE[instruction.value](frame.stack[-1], right)
    wants_bool = not NULL_FIRST and instruction.arg & 16
    frame.stack[-1] = bool(result) if wants_bool else result


@operation("IS_OP")
def _is(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    right = frame.stack.pop()
    frame.stack[-1] = (frame.stack[-1] is right) ^ bool(instruction.arg)


@operation("CONTAINS_OP")
def _contains(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    container = frame.stack.pop()
    item = frame.stack.pop()
    if isinstance(container, Generator):
        machine.call_definition("contains", container, item)
    else:
        _contained(machine, frame, instruction, item in container)


@completion("CONTAINS_OP")
def _contained(machine: Machine, frame: Frame, instruction: Instruction, value: Any) -> None:
    frame.stack.append(value ^ bool(instruction.arg))


@operation("BINARY_SUBSCR")
def _subscript(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    key = frame.stack.pop()
    frame.stack[-1] = frame.stack[-1][key]


@operation("STORE_SUBSCR")
def _store_subscript(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    value, container, key = frame.stack[-3:]
    del frame.stack[-3:]
    if isinstance(value, Generator):
        raise UnsupportedError("assignment of a generator to a part of a list")
    container[key] = value


@operation("DELETE_SUBSCR")
def _delete_subscript(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    container, key = frame.stack[-2:]
    del frame.stack[-2:]
    del container[key]


@operation("BINARY_SLICE")
def _slice(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    container, start, stop = frame.stack[-3:]
    frame.stack[-3:] = [container[start:stop]]


@operation("STORE_SLICE")
def _store_slice(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    value, container, start, stop = frame.stack[-4:]
    del frame.stack[-4:]
    if isinstance(value, Generator):
        raise UnsupportedError("assignment of a generator to a part of a list")
    container[start:stop] = value


@operation("BUILD_SLICE")
def _build_slice(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.stack[-instruction.arg :] = [slice(*frame.stack[-instruction.arg :])]


@operation("GET_LEN")
def _length(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(len(frame.stack[-1]))
