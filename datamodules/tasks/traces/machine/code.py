"""Code objects decoded once: instructions by index, jump targets, exception table, names as a state writes them.

Bytecode differs between Python versions, so a state belongs to the version that wrote it (`Trace.python`).
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

RESERVED = frozenset({"globals", "handling"})
"""Names of the lines of a state that are no frames."""


@dataclass(slots=True)
class Instruction:
    """One instruction, with the EXTENDED_ARG before it folded in.

    Attributes:
        name: opcode name.
        arg: raw argument.
        value: argument as `dis` resolves it (constant, name, ...).
        offset: byte offset, as CPython's `f_lasti`.
        line: source line.
        target: index of the jump target, -1 where there is none.
        text: argument as `dis` prints it.
    """

    name: str
    arg: int
    value: Any
    offset: int
    line: int
    target: int
    text: str


@dataclass(frozen=True)
class Handler:
    """One row of the exception table, in indices: instructions [start, end) are protected."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


@dataclass
class CodeInfo:
    """A decoded code object.

    Attributes:
        name: its name in a state's text, unique in the program.
        code: the code object.
        visible: whether its frames give events (those of the traced program's functions do).
        builtin: whether it is one of our definitions of builtins.
        instructions: by index.
        handlers: exception table, in the order CPython looks it up.
        index: index of the instruction at an offset.
        locals: names of locals, cells and free variables, in CPython's order.
        spelled: name in the text of each local.
    """

    name: str
    code: CodeType
    visible: bool
    builtin: bool = False
    instructions: list[Instruction] = field(default_factory=list)
    handlers: list[Handler] = field(default_factory=list)
    index: dict[int, int] = field(default_factory=dict)
    locals: list[str] = field(default_factory=list)
    spelled: dict[str, str] = field(default_factory=dict)

    def begins(self, offset: int) -> bool:
        """Tell whether an instruction begins at an offset (3.12 reports EXTENDED_ARG and what it extends apart)."""
        return self.instructions[self.index[offset]].offset == offset

    def handler(self, index: int) -> Handler | None:
        """Return the handler of an exception raised at an instruction."""
        for row in self.handlers:
            if row.start <= index < row.end:
                return row
        return None


def decode(name: str, code: CodeType, visible: bool) -> CodeInfo:
    """Decode a code object."""
    info = CodeInfo(name, code, visible)
    bytecode = dis.Bytecode(code)
    pending: int | None = None
    targets: list[int | None] = []
    line = code.co_firstlineno
    for raw in bytecode:
        position = raw.positions
        line = position.lineno if position is not None and position.lineno is not None else line
        begin = raw.offset if pending is None else pending
        info.index[raw.offset] = info.index[begin] = len(info.instructions)
        if raw.opname == "EXTENDED_ARG":
            pending = begin
            continue
        pending = None
        targets.append(raw.argval if "JUMP" in raw.opname or raw.opname in ("FOR_ITER", "SEND") else None)
        # dis of 3.11 does not resolve KW_NAMES.
        value = code.co_consts[raw.arg or 0] if raw.opname == "KW_NAMES" else raw.argval
        instruction = Instruction(raw.opname, raw.arg or 0, value, begin, line, -1, raw.argrepr)
        info.instructions.append(instruction)
    for instruction, target in zip(info.instructions, targets, strict=True):
        if target is not None:
            instruction.target = info.index[target]
    end = len(info.instructions)
    for row in bytecode.exception_entries:  # type: ignore[attr-defined, unused-ignore]
        first, last = info.index[row.start], info.index.get(row.end, end)
        info.handlers.append(Handler(first, last, info.index[row.target], row.depth, row.lasti))
    info.locals = list(dict.fromkeys([*code.co_varnames, *code.co_cellvars, *code.co_freevars]))
    for local in info.locals:
        text = local if local.isidentifier() else f"arg{local.strip('.')}"
        while text in info.spelled.values() or (text != local and text in info.locals):
            text += "_"
        info.spelled[local] = text
    return info


def inner_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those inside it, in a fixed order."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from inner_codes(constant)


class CodeTable:
    """All code of a run, by name and by code object.

    Args:
        base: a table to start from; it stays as it is.
    """

    def __init__(self, base: CodeTable | None = None) -> None:
        self.by_name: dict[str, CodeInfo] = {} if base is None else dict(base.by_name)
        self._by_id: dict[int, CodeInfo] = {} if base is None else dict(base._by_id)  # noqa: SLF001

    def add(self, root: CodeType, visible: bool = False, prefix: str = "") -> CodeInfo:
        """Decode a code object and all inside it; the root itself (a module or an expression) gives no events.

        Args:
            root: the code object.
            visible: whether the functions in it give events.
            prefix: for our definitions of builtins, what their names in a state begin with.
        """
        for code in inner_codes(root):
            parts = [part.strip("<>") for part in code.co_qualname.split(".") if part != "<locals>"]
            name = base = prefix + "_".join(parts)
            number = 1
            while name in self.by_name or name in RESERVED:
                number += 1
                name = f"{base}_{number}"
            info = decode(name, code, visible and code is not root)
            info.builtin = bool(prefix)
            self.by_name[name] = self._by_id[id(code)] = info
        return self._by_id[id(root)]

    def __getitem__(self, code: CodeType) -> CodeInfo:
        """Look up by code object."""
        return self._by_id[id(code)]
