"""The way back: the text of a state becomes the state of a machine. Only known constructors count, nothing is run.

A text may come from a model, so everything wrong with it raises `StateError` with a reason.
"""

from __future__ import annotations

import ast
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import CodeType, SimpleNamespace
from typing import Any

from datamodules.tasks.traces.machine.machine import Machine
from datamodules.tasks.traces.machine.objects import (
    EMPTY,
    NULL,
    BackwardIterator,
    Cell,
    CountingIterator,
    FilteringIterator,
    Frame,
    Function,
    Generator,
    HashIterator,
    MappingIterator,
    ParallelIterator,
    SequenceIterator,
)

PLAIN: dict[str, Callable[..., Any]] = {
    "bytearray": bytearray,
    "complex": complex,
    "Counter": lambda items: Counter(dict(items)),
    "defaultdict": lambda items, factory: defaultdict(factory, items),
    "deque": deque,
    "dict_items": dict.items,
    "dict_keys": dict.keys,
    "dict_values": dict.values,
    "enumerate": CountingIterator,
    "filter": FilteringIterator,
    "frozenset": frozenset,
    "iter": SequenceIterator,
    "map": MappingIterator,
    "number": float,
    "OrderedDict": OrderedDict,
    "range": range,
    "reversed": BackwardIterator,
    "set": set,
    "slice": slice,
    "walk": HashIterator,
    "zip": ParallelIterator,
}
"""Constructors that need nothing but their arguments."""


class StateError(ValueError):
    """A text that is no state of this program."""


class Reader:
    """Reads one state.

    Args:
        machine: a machine whose module has run (`Machine.prepare`).
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._definitions: dict[str, ast.expr] = {}
        self._made: dict[str, Any] = {}
        self._open: set[str] = set()
        self._special: dict[str, Callable[[list[ast.expr]], Any]] = {
            "builtin": self._builtin,
            "cell": self._cell,
            "closure": self._closure,
            "code": self._code,
            "error": self._error,
            "function": self._function,
            "generator": self._generator,
            "member": self._member,
            "method": self._method,
            "module": self._module,
        }

    def load(self, text: str) -> None:
        """Put the machine into the state.

        Raises:
            StateError: the text is no state of this program.
        """
        try:
            self._load(text)
        except StateError:
            raise
        except (SyntaxError, TypeError, ValueError, AttributeError, LookupError, RecursionError) as error:
            raise StateError(f"not a state of this program: {error}") from error

    def _load(self, text: str) -> None:
        calls = [self._line(line) for line in text.splitlines()]
        for call in calls:
            for node in ast.walk(call):
                if isinstance(node, ast.NamedExpr):
                    if node.target.id in self._definitions:
                        raise StateError(f"{node.target.id} is defined twice")
                    self._definitions[node.target.id] = node.value
        machine = self._machine
        machine.globals = {"__name__": "program", **machine.module_functions}
        machine.frames, machine.handled, machine.done = [], None, False
        for call in calls:
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if name == "globals":
                machine.globals.update({str(keyword.arg): self.value(keyword.value) for keyword in call.keywords})
            elif name == "handling":
                (argument,) = call.args
                machine.handled = self.value(argument)
            else:
                machine.frames.append(self._frame(call))
        if not machine.frames:
            raise StateError("a state without a call in progress")
        machine.frames[-1].pc -= 1

    @staticmethod
    def _line(line: str) -> ast.Call:
        node = ast.parse(line, mode="eval").body
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            raise StateError(f"not a line of a state: {line[:80]!r}")
        return node

    def _frame(self, call: ast.Call) -> Frame:
        """Return a frame whose line names the instruction in progress."""
        assert isinstance(call.func, ast.Name)
        code = self._machine.codes.by_name.get(call.func.id)
        if code is None:
            raise StateError(f"no function {call.func.id} in this program")
        line, offset, *stack = call.args
        del line
        frame = Frame(code, {})
        frame.pc = code.index[self.value(offset)] + 1
        names = {text: name for name, text in code.spelled.items()}
        for keyword in call.keywords:
            frame.fast[names[str(keyword.arg)]] = self.value(keyword.value)
        for node in stack:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "running":
                generator = self.value(node.args[0])
                generator.frame, generator.running, frame.generator = frame, True, generator
            else:
                frame.stack.append(self.value(node))
        return frame

    def value(self, node: ast.expr) -> Any:
        """Make the value of an expression."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return -number
            case ast.Name(id=name):
                return self._named(name)
            case ast.NamedExpr(target=ast.Name(id=name)):
                return self._named(name)
            case ast.Tuple(elts=items):
                return tuple([self.value(item) for item in items])
            case ast.Set(elts=items):
                return self._fill(set(), items)
            case ast.List() | ast.Dict():
                return self._fill([] if isinstance(node, ast.List) else {}, node)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                special = self._special.get(name)
                if special is not None:
                    return special(arguments)
                if name in PLAIN:
                    return PLAIN[name](*[self.value(argument) for argument in arguments])
        raise StateError(f"no value: {ast.unparse(node)[:80]}")

    def _named(self, name: str) -> Any:
        if name in self._made:
            return self._made[name]
        if name in ("NULL", "EMPTY"):
            return NULL if name == "NULL" else EMPTY
        node = self._definitions.get(name)
        if node is None or name in self._open:
            raise StateError(f"{name} is not defined")
        # Lists and dicts exist before what they hold, since it may refer back to them.
        if isinstance(node, ast.List | ast.Dict):
            container: Any = [] if isinstance(node, ast.List) else {}
            self._made[name] = container
            return self._fill(container, node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cell":
            cell = self._made[name] = Cell()
            if node.args:
                cell.value = self.value(node.args[0])
            return cell
        self._open.add(name)
        made = self._made[name] = self.value(node)
        self._open.discard(name)
        return made

    def _fill(self, container: Any, node: Any) -> Any:
        if isinstance(container, dict):
            for key, item in zip(node.keys, node.values, strict=True):
                if key is None:
                    raise StateError("a dict with **")
                container[self.value(key)] = self.value(item)
        elif isinstance(container, set):
            for item in node:
                container.add(self.value(item))  # one by one, in order: the order of a set depends on it
        else:
            for item in node.elts:
                container.append(self.value(item))
        return container

    def _string(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        raise StateError(f"a name was expected, not {ast.unparse(node)[:80]}")

    def _builtin(self, arguments: list[ast.expr]) -> Any:
        (name,) = map(self._string, arguments)
        return self._machine.builtins[name]

    def _module(self, arguments: list[ast.expr]) -> SimpleNamespace:
        (name,) = map(self._string, arguments)
        return self._machine.modules[name]

    def _member(self, arguments: list[ast.expr]) -> Any:
        module, name = map(self._string, arguments)
        return vars(self._machine.modules[module])[name]

    def _method(self, arguments: list[ast.expr]) -> Any:
        owner, name = arguments
        if self._string(name).startswith("_"):
            raise StateError(f"method {self._string(name)}")
        return getattr(self.value(owner), self._string(name))

    def _cell(self, arguments: list[ast.expr]) -> Cell:
        return Cell(self.value(arguments[0])) if arguments else Cell()

    def _function(self, arguments: list[ast.expr]) -> Function:
        (name,) = map(self._string, arguments)
        return self._machine.module_functions[name]

    def _code(self, arguments: list[ast.expr]) -> CodeType:
        (name,) = map(self._string, arguments)
        return self._machine.codes.by_name[name].code

    def _closure(self, arguments: list[ast.expr]) -> Function:
        code = self._machine.codes.by_name[self._string(arguments[0])]
        cells = self.value(arguments[1])
        # No cells: 3.13 attaches them in an instruction of its own.
        if not all(isinstance(cell, Cell) for cell in cells) or len(cells) not in (0, len(code.code.co_freevars)):
            raise StateError(f"{code.name} needs {len(code.code.co_freevars)} cells")
        defaults, kwdefaults = [self.value(node) for node in arguments[2:]] or [(), {}]
        return Function(code, defaults, kwdefaults, cells)

    def _error(self, arguments: list[ast.expr]) -> BaseException:
        kind = self._machine.builtins[self._string(arguments[0])]
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise StateError(f"{kind} is no exception")
        return kind(*self.value(arguments[1]))

    def _generator(self, arguments: list[ast.expr]) -> Generator:
        generator = Generator(None)
        if arguments and isinstance(arguments[0], ast.Call):
            generator.frame = self._frame(arguments[0])
            generator.frame.generator = generator
        return generator
