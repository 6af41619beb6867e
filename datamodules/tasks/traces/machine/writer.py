"""The state of the executor as text: one line per call in progress, outermost first.

    f(3, 8, iter(s1, 1), nums=(s1 := [4, 5]), total=4, n=4)

is a call of `f` at line 3, bytecode offset 8, with one value on its value stack (an iterator over `nums` that gives
`nums[1]` next) and three variables. The text is Python's syntax with a few constructors. A list, dict, set or other
object with an identity that occurs more than once is named where it is written (`(s1 := [4, 5])`) and then referred to
by the name, so that aliases stay aliases. The innermost line is about to execute its offset; the others wait for the
call they are in the middle of. Two further lines exist where they are needed: `globals(...)`, first, the module's
variables other than its functions; `handling(...)`, last, the exception whose handler is running.
"""

from __future__ import annotations

import gc
import math
from collections import Counter, OrderedDict, defaultdict, deque
from types import BuiltinFunctionType, BuiltinMethodType, CodeType, SimpleNamespace
from typing import Any

from datamodules.tasks.traces.machine.machine import Machine
from datamodules.tasks.traces.machine.objects import (
    EMPTY,
    NULL,
    VIEWS,
    Cell,
    Frame,
    Function,
    Generator,
    Position,
    UnsupportedError,
)
from datamodules.tasks.traces.machine.sets import recipe

Record = list[Any]
"""One line of a state: name, line, offset, texts of the value stack, texts of the variables by name."""

ATOMS = (int, str, bool, type(None), bytes)

DEEPEST = 60
"""Deepest nesting of values that a state may write (Python's own parser ends at 200 brackets)."""

MOST_CHARACTERS = 200_000
"""Most characters of one state."""

NATIVE = (BuiltinFunctionType, BuiltinMethodType, type(str.upper), type("".__len__), type)


def dict_of(view: Any) -> Any:
    """Return the dict behind a view of its keys, values or items (`view.mapping` is only a proxy of it)."""
    (owner,) = gc.get_referents(view)
    return owner


class Namer:
    """Names of builtins and of the members of the modules, both ways.

    Args:
        machine: whose builtins and modules.
    """

    def __init__(self, machine: Machine) -> None:
        self._names: dict[int, str] = {}
        for module, namespace in machine.modules.items():
            self._names[id(namespace)] = f"module({module!r})"
            for name, value in vars(namespace).items():
                if callable(value):
                    self._names.setdefault(id(value), f"member({module!r}, {name!r})")
        for name, value in machine.builtins.items():
            self._names[id(value)] = f"builtin({name!r})"
        # Static methods: unlike other methods they do not know their owner.
        for kind in (str, bytes, bytearray):
            self._names[id(kind.maketrans)] = f"method(builtin({kind.__name__!r}), 'maketrans')"

    def find(self, value: Any) -> str | None:
        """Return the text of a builtin, a module or a member of a module."""
        return self._names.get(id(value))


class Writer:
    """Writes states of one machine.

    Args:
        machine: the machine.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._namer = Namer(machine)
        self._functions = {id(function): name for name, function in machine.module_functions.items()}
        self._seen: Counter[int] = Counter()
        self._marks: dict[int, str] = {}
        self._size = 0

    def records(self) -> list[Record]:
        """Return the lines of the state.

        Raises:
            UnsupportedError: the state holds what the text cannot express.
        """
        machine = self._machine
        self._seen.clear()
        self._marks.clear()
        self._size = 0
        variables = {name: value for name, value in machine.globals.items() if self._is_variable(name, value)}
        for value in variables.values():
            self._count(value, 0)
        for frame in machine.frames:
            self._count_frame(frame)
        if machine.handled is not None:
            self._count(machine.handled, 0)
        lines: list[Record] = []
        if variables:
            lines.append(["globals", 0, 0, [], {name: self.text(value) for name, value in variables.items()}])
        lines += [self._frame(frame, frame.pc - 1) for frame in machine.frames[:-1]]
        lines.append(self._frame(machine.frames[-1], machine.frames[-1].pc))
        if machine.handled is not None:
            lines.append(["handling", 0, 0, [self.text(machine.handled)], {}])
        return lines

    def _is_variable(self, name: str, value: Any) -> bool:
        return name != "__name__" and self._machine.module_functions.get(name) is not value

    def _count_frame(self, frame: Frame) -> None:
        if frame.generator is not None:
            self._seen[id(frame.generator)] += 2
        for value in (*frame.fast.values(), *frame.stack):
            self._count(value, 0)

    def _count(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind in ATOMS or kind is float or value is NULL or value is EMPTY:
            return
        if depth > DEEPEST:
            raise UnsupportedError(f"a value nested more than {DEEPEST} deep")
        if kind not in (tuple, frozenset):
            if self._namer.find(value) is not None or id(value) in self._functions:
                return
            self._seen[id(value)] += 1
            if self._seen[id(value)] > 1:
                return
        for part in self._parts(value):
            self._count(part, depth + 1)

    def _parts(self, value: Any) -> tuple[Any, ...]:
        """Return what an object refers to, in the order in which the text writes it."""
        if isinstance(value, list | tuple | set | frozenset | deque):
            return tuple(value)
        if isinstance(value, dict):
            return tuple(part for item in value.items() for part in item)
        if isinstance(value, Position):
            return value.parts()
        if isinstance(value, Cell):
            return (value.value,)
        if isinstance(value, Function):
            return (*value.defaults, *value.kwdefaults.values(), *value.closure)
        if isinstance(value, Generator):
            return () if value.frame is None or value.running else (*value.frame.fast.values(), *value.frame.stack)
        if isinstance(value, BaseException):
            return value.args
        if isinstance(value, VIEWS):
            return (dict_of(value),)
        owner = getattr(value, "__self__", None) if isinstance(value, NATIVE) else None
        return () if owner is None else (owner,)

    def _frame(self, frame: Frame, index: int) -> Record:
        instruction = frame.code.instructions[index]
        code = frame.code
        bound = [name for name in code.locals if name in frame.fast]
        # Variables first: an object is written out at its variable and referred to from the value stack.
        variables = {code.spelled[name]: self.text(frame.fast[name]) for name in bound}
        stack = [self.text(value) for value in frame.stack]
        if frame.generator is not None:
            stack.append(f"running({self.text(frame.generator)})")
        if self._size > MOST_CHARACTERS:
            raise UnsupportedError(f"a state of more than {MOST_CHARACTERS} characters")
        return [code.name, instruction.line, instruction.offset, stack, variables]

    def text(self, value: Any) -> str:
        """Write a value."""
        kind = type(value)
        if kind in ATOMS:
            try:
                result = repr(value)
            except ValueError:
                raise UnsupportedError("an integer too long to write") from None
            self._size += len(result)
            return result
        if kind is float:
            return repr(value) if math.isfinite(value) else f"number({str(value)!r})"
        if kind in (tuple, frozenset):
            return self._plain(value)
        known = self._namer.find(value) or self._marks.get(id(value))
        if known is not None:
            return known
        if self._seen[id(value)] < 2:
            return self._plain(value)
        mark = self._marks[id(value)] = f"s{len(self._marks) + 1}"
        return f"({mark} := {self._plain(value)})"

    def _plain(self, value: Any) -> str:
        kind = type(value)
        if kind is list:
            return f"[{self._joined(value)}]"
        if kind is tuple:
            return f"({self._joined(value)},)" if len(value) == 1 else f"({self._joined(value)})"
        if kind is dict:
            return "{" + ", ".join([f"{self.text(key)}: {self.text(item)}" for key, item in value.items()]) + "}"
        if kind in (set, frozenset):
            return self._set(value)
        if kind in VIEWS:
            return f"{kind.__name__}({self.text(dict_of(value))})"
        if value is NULL or value is EMPTY:
            return repr(value)
        return self._object(value)

    def _joined(self, values: Any) -> str:
        return ", ".join([self.text(value) for value in values])

    def _set(self, value: Any) -> str:
        name = type(value).__name__
        if not value:
            return f"{name}()"
        found = recipe(value)
        if found is None:
            raise UnsupportedError("a set whose order depends on what was removed from it")
        items, from_set = found
        if from_set:
            return f"{name}({{{self._joined(items)}}})"
        return f"{{{self._joined(items)}}}" if name == "set" else f"frozenset([{self._joined(items)}])"

    def _object(self, value: Any) -> str:
        if isinstance(value, Position):
            return f"{value.make}({self._joined(value.parts())})"
        if isinstance(value, Cell):
            return f"cell({'' if value.value is EMPTY else self.text(value.value)})"
        if isinstance(value, Function):
            return self._function(value)
        if isinstance(value, Generator):
            return self._generator(value)
        return self._library_object(value)

    def _function(self, value: Function) -> str:
        name = self._functions.get(id(value))
        if name is not None:
            return f"function({name!r})"
        parts = [repr(value.code.name), f"({''.join(f'{self.text(cell)}, ' for cell in value.closure)})"]
        if value.defaults or value.kwdefaults:
            parts += [self._plain(value.defaults), self._plain(value.kwdefaults)]
        return f"closure({', '.join(parts)})"

    def _generator(self, value: Generator) -> str:
        if value.frame is None:
            return "generator()"
        if value.running:
            return "generator(running)"
        name, line, offset, stack, variables = self._frame_of(value.frame)
        return f"generator({compose([name, line, offset, stack, variables])})"

    def _frame_of(self, frame: Frame) -> Record:
        generator, frame.generator = frame.generator, None
        record = self._frame(frame, frame.pc - 1)
        frame.generator = generator
        return record

    def _library_object(self, value: Any) -> str:
        kind = type(value)
        if kind is bytearray:
            return f"bytearray({bytes(value)!r})"
        if kind is range:
            return repr(value)
        if kind is CodeType:
            return f"code({self._machine.codes[value].name!r})"
        if kind is complex:
            return f"complex({self.text(value.real)}, {self.text(value.imag)})"
        if kind is slice:
            return f"slice({self._joined((value.start, value.stop, value.step))})"
        if kind is deque:
            return f"deque([{self._joined(value)}], {value.maxlen})"
        if kind in (Counter, OrderedDict, defaultdict):
            items = ", ".join([f"({self.text(key)}, {self.text(item)})" for key, item in value.items()])
            factory = f", {self.text(value.default_factory)}" if kind is defaultdict else ""
            return f"{kind.__name__}([{items}]{factory})"
        if isinstance(value, BaseException) and self._namer.find(kind) is not None:
            return f"error({kind.__name__!r}, {self._plain(value.args)})"
        if isinstance(value, NATIVE):
            return self._native(value)
        if isinstance(value, SimpleNamespace):
            raise UnsupportedError("a namespace in the state")
        raise UnsupportedError(f"a value of type {kind.__name__}")

    def _native(self, value: Any) -> str:
        owner = getattr(value, "__self__", None)
        if owner is None:
            owner = getattr(value, "__objclass__", None)
        if owner is None or isinstance(owner, type(math)):
            raise UnsupportedError(f"the builtin {getattr(value, '__name__', value)!r} in the state")
        return f"method({self.text(owner)}, {value.__name__!r})"


def compose(record: Record) -> str:
    """Write one line of a state."""
    name, line, offset, stack, variables = record
    where = [] if name in ("globals", "handling") else [str(line), str(offset)]
    return f"{name}({', '.join([*where, *stack, *[f'{key}={text}' for key, text in variables.items()]])})"
