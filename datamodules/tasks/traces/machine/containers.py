"""Opcodes that build and take apart lists, tuples, sets and dicts."""

# ruff: noqa: ARG001  (every operation has the registry's signature)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from datamodules.tasks.traces.machine.code import Instruction
from datamodules.tasks.traces.machine.objects import Frame, Generator
from datamodules.tasks.traces.machine.registry import completion, operation

if TYPE_CHECKING:
    from datamodules.tasks.traces.machine.machine import Machine


def take(frame: Frame, count: int) -> list[Any]:
    """Pop `count` values, in the order they were pushed."""
    if not count:
        return []
    values = frame.stack[-count:]
    del frame.stack[-count:]
    return values


@operation("BUILD_LIST")
def _build_list(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(take(frame, instruction.arg))


@operation("BUILD_TUPLE")
def _build_tuple(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(tuple(take(frame, instruction.arg)))


@operation("BUILD_SET")
def _build_set(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    result = set()
    for item in take(frame, instruction.arg):
        result.add(item)  # one by one, as CPython does: the order of a set depends on it
    frame.stack.append(result)


@operation("BUILD_MAP")
def _build_map(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    values = take(frame, 2 * instruction.arg)
    frame.stack.append(dict(zip(values[::2], values[1::2], strict=True)))


@operation("BUILD_CONST_KEY_MAP")
def _build_const_map(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    keys = frame.stack.pop()
    frame.stack.append(dict(zip(keys, take(frame, instruction.arg), strict=True)))


@operation("LIST_APPEND")
def _list_append(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    frame.stack[-instruction.arg].append(value)


@operation("SET_ADD")
def _set_add(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    frame.stack[-instruction.arg].add(value)


@operation("MAP_ADD")
def _map_add(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    key, value = take(frame, 2)
    frame.stack[-instruction.arg][key] = value


@operation("LIST_EXTEND", "SET_UPDATE")
def _extend(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    if isinstance(value, Generator):
        machine.call_definition("drain", value)
    else:
        _extended(machine, frame, instruction, value)


@completion("LIST_EXTEND", "SET_UPDATE")
def _extended(machine: Machine, frame: Frame, instruction: Instruction, value: Any) -> None:
    container = frame.stack[-instruction.arg]
    if isinstance(container, list):
        if not hasattr(value, "__iter__"):
            raise TypeError(f"Value after * must be an iterable, not {type(value).__name__}")
        container.extend(value)
    else:
        container.update(value)


@operation("DICT_UPDATE", "DICT_MERGE")
def _dict_update(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    container = frame.stack[-instruction.arg]
    if not hasattr(value, "keys"):
        raise TypeError(f"'{type(value).__name__}' object is not a mapping")
    if instruction.name == "DICT_MERGE":
        for key in value:
            if key in container:
                raise TypeError(f"got multiple values for keyword argument '{key}'")
    container.update(value)


@operation("LIST_TO_TUPLE")
def _list_to_tuple(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.stack[-1] = tuple(frame.stack[-1])


@operation("UNPACK_SEQUENCE", "UNPACK_EX")
def _unpack(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    if isinstance(value, Generator):
        # A plain unpacking asks for one item more than there are names, a starred one for all of them.
        limit = instruction.arg + 1 if instruction.name == "UNPACK_SEQUENCE" else -1
        machine.call_definition("drain", value, limit)
    else:
        _unpacked(machine, frame, instruction, value)


@completion("UNPACK_SEQUENCE", "UNPACK_EX")
def _unpacked(machine: Machine, frame: Frame, instruction: Instruction, value: Any) -> None:
    if not hasattr(value, "__iter__"):
        raise TypeError(f"cannot unpack non-iterable {type(value).__name__} object")
    if instruction.name == "UNPACK_SEQUENCE":
        frame.stack += reversed(_exactly(list(value), instruction.arg))
        return
    before, after = instruction.arg & 0xFF, instruction.arg >> 8
    items = list(value)
    if len(items) < before + after:
        raise ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(items)})")
    middle = items[before : len(items) - after]
    frame.stack += reversed([*items[:before], middle, *items[len(items) - after :]])


def _exactly(items: list[Any], count: int) -> list[Any]:
    if len(items) < count:
        raise ValueError(f"not enough values to unpack (expected {count}, got {len(items)})")
    if len(items) > count:
        raise ValueError(f"too many values to unpack (expected {count})")
    return items
