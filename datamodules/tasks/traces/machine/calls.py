"""Opcodes that make functions, look up attributes and call."""

# ruff: noqa: ARG001  (every operation has the registry's signature)

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from datamodules.tasks.traces.machine.code import Instruction
from datamodules.tasks.traces.machine.containers import take
from datamodules.tasks.traces.machine.objects import NULL, Cell, Frame, Function, Generator, Position, UnsupportedError
from datamodules.tasks.traces.machine.registry import operation
from datamodules.tasks.traces.machine.values import NULL_FIRST, push_callable

if TYPE_CHECKING:
    from datamodules.tasks.traces.machine.machine import Machine

DEFAULTS, KWDEFAULTS, ANNOTATIONS, CLOSURE = 1, 2, 4, 8

METHOD_BIT = sys.version_info >= (3, 12)
"""Whether the lowest bit of LOAD_ATTR's argument says that the attribute is about to be called."""


@operation("MAKE_FUNCTION")
def _make_function(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    function = Function(machine.codes[frame.stack.pop()])
    flags = instruction.arg if NULL_FIRST else 0
    for flag in (CLOSURE, ANNOTATIONS, KWDEFAULTS, DEFAULTS):
        if flags & flag:
            _set_attribute(function, flag, frame.stack.pop())
    frame.stack.append(function)


@operation("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    function = frame.stack.pop()
    _set_attribute(function, instruction.arg, frame.stack.pop())
    frame.stack.append(function)


def _set_attribute(function: Function, flag: int, value: Any) -> None:
    if flag == DEFAULTS:
        function.defaults = value
    elif flag == KWDEFAULTS:
        function.kwdefaults = value
    elif flag == CLOSURE:
        function.closure = value


def attribute(owner: Any, name: str) -> Any:
    """Look up an attribute.

    Raises:
        UnsupportedError: of a function, a generator or an iterator of ours.
    """
    if isinstance(owner, Function | Generator | Position):
        raise UnsupportedError(f"attribute {name} of a {type(owner).__name__.lower()}")
    return getattr(owner, name)


@operation("LOAD_ATTR")
def _load_attr(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    value = attribute(frame.stack.pop(), instruction.value)
    if METHOD_BIT and instruction.arg & 1:
        push_callable(frame, value)
    else:
        frame.stack.append(value)


@operation("LOAD_METHOD")
def _load_method(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    push_callable(frame, attribute(frame.stack.pop(), instruction.value))


@operation("IMPORT_NAME")
def _import_name(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    del frame.stack[-2:]
    frame.stack.append(machine.import_module(instruction.value))


@operation("IMPORT_FROM")
def _import_from(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    try:
        frame.stack.append(getattr(frame.stack[-1], instruction.value))
    except AttributeError:
        raise ImportError(f"cannot import name {instruction.value!r}") from None


def _callable(frame: Frame) -> tuple[Any, list[Any]]:
    """Pop a callable and the slot beside it: the callable, and its first argument where the slot holds one."""
    first, second = take(frame, 2)
    if NULL_FIRST:
        return (second, []) if first is NULL else (first, [second])
    return (first, []) if second is NULL else (first, [second])


@operation("CALL", "CALL_KW")
def _call(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    names: tuple[str, ...] = ()
    if instruction.name == "CALL_KW":
        names = frame.stack.pop()
    else:
        # KW_NAMES stands right before the call (3.12) or before its PRECALL (3.11).
        for back in (2, 3):
            before = frame.code.instructions[frame.pc - back] if frame.pc >= back else instruction
            if before.name == "KW_NAMES":
                names = before.value
            if before.name != "PRECALL":
                break
    values = take(frame, instruction.arg)
    callee, first = _callable(frame)
    positional = first + values[: len(values) - len(names)]
    machine.call(callee, positional, dict(zip(names, values[len(values) - len(names) :], strict=True)))


@operation("CALL_FUNCTION_EX")
def _call_ex(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    keywords = frame.stack.pop() if instruction.arg & 1 else {}
    values = frame.stack.pop()
    callee, first = _callable(frame)
    if isinstance(values, Generator):
        raise UnsupportedError("a call with * of a generator")
    if not hasattr(values, "__iter__"):
        raise TypeError(f"argument after * must be an iterable, not {type(values).__name__}")
    machine.call(callee, [*first, *values], dict(keywords))


def bind(function: Function, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Bind arguments to parameters, free variables to their cells.

    Raises:
        TypeError: the arguments do not fit.
    """
    code = function.code.code
    name = function.__name__
    count, keyword_only = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    fast = dict(zip(names[:count], args, strict=False))
    rest = args[count:]
    star = count + keyword_only
    if code.co_flags & 0x04:
        fast[names[star]] = tuple(rest)
        star += 1
    elif rest:
        raise TypeError(f"{name}() takes {count} positional arguments but {len(args)} were given")
    extra: dict[str, Any] = {}
    for key, value in kwargs.items():
        if key in names[code.co_posonlyargcount : count + keyword_only]:
            if key in fast:
                raise TypeError(f"{name}() got multiple values for argument '{key}'")
            fast[key] = value
        elif code.co_flags & 0x08:
            extra[key] = value
        else:
            raise TypeError(f"{name}() got an unexpected keyword argument '{key}'")
    if code.co_flags & 0x08:
        fast[names[star]] = extra
    _fill_defaults(function, fast)
    fast.update(zip(code.co_freevars, function.closure, strict=True))
    return fast


def _fill_defaults(function: Function, fast: dict[str, Any]) -> None:
    code = function.code.code
    positional = code.co_varnames[: code.co_argcount]
    defaults = dict(zip(reversed(positional), reversed(function.defaults), strict=False)) | function.kwdefaults
    missing = []
    for parameter in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        if parameter not in fast:
            if parameter not in defaults:
                missing.append(repr(parameter))
            else:
                fast[parameter] = defaults[parameter]
    if missing:
        plural = "s" if len(missing) > 1 else ""
        words = " and ".join(missing)
        raise TypeError(f"{function.__name__}() missing {len(missing)} required positional argument{plural}: {words}")


@operation("LOAD_BUILD_CLASS")
def _load_build_class(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    raise UnsupportedError("a class definition")


def cell_contents(value: Any) -> Any:
    """Return what a local variable holds, through its cell."""
    return value.value if isinstance(value, Cell) else value
