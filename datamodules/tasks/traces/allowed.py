"""What a traced program may see: builtins and modules without a way to files, processes or the interpreter."""

from __future__ import annotations

import builtins
import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

_BUILTINS = """
abs all any ascii bin bool bytearray bytes callable chr complex dict divmod enumerate filter float format frozenset hash
hex id int isinstance issubclass iter len list map max min next object oct ord pow range repr reversed round set slice
sorted str sum tuple type zip None True False NotImplemented Ellipsis property staticmethod classmethod super
__build_class__ __debug__
"""

BUILTINS = tuple(_BUILTINS.split())
"""Builtins by name; every exception class comes on top. getattr and its kin are made by `program_builtins`."""

_MODULES = "bisect cmath collections copy functools heapq itertools math operator re string"

MODULES = tuple(_MODULES.split())
"""Modules by name; a program gets a namespace of their public functions and classes, never the module itself."""

WITHHELD = frozenset(
    {"attrgetter", "methodcaller", "singledispatch", "singledispatchmethod", "Formatter", "namedtuple"}
)
"""Public names that would reach attributes by a string (the screen reads attributes in the source only)."""


class ForbiddenError(BaseException):
    """A program tried what no traced program may do. The message says what; a program cannot catch it by Exception."""


class OutputLimitError(BaseException):
    """A program printed or returned more than it may."""


def public_members(module: ModuleType) -> SimpleNamespace:
    """Return the public functions, classes and constants of a module, without modules it imports itself."""
    names = getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
    members = {name: getattr(module, name) for name in names if name not in WITHHELD}
    return SimpleNamespace(**{name: value for name, value in members.items() if not isinstance(value, ModuleType)})


def program_modules() -> dict[str, SimpleNamespace]:
    """Import the allowed modules, each as the namespace of its public members."""
    return {name: public_members(importlib.import_module(name)) for name in MODULES}


def checked_name(name: object) -> str:
    """Return an attribute name given as a value.

    Raises:
        ForbiddenError: a name with an underscore in front.
        TypeError: no string.
    """
    if type(name) is not str:
        raise TypeError("attribute name must be string")
    if name.startswith("_"):
        raise ForbiddenError(f"attribute {name}")
    return name


class Output:
    """What a program prints, up to a limit.

    Args:
        limit: most characters.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.text: list[str] = []
        self._length = 0

    def print(self, *values: object, sep: str | None = None, end: str | None = None, **_: object) -> None:
        """Stand in for the builtin."""
        text = (" " if sep is None else sep).join([str(value) for value in values]) + ("\n" if end is None else end)
        self._length += len(text)
        if self._length > self.limit:
            raise OutputLimitError(f"the program printed more than {self.limit} characters")
        self.text.append(text)


def program_builtins(modules: dict[str, SimpleNamespace], output: Output) -> dict[str, Any]:
    """Return the builtins of a program.

    Args:
        modules: what it may import.
        output: where print writes.
    """
    table = {name: getattr(builtins, name) for name in BUILTINS}
    errors = {
        name: value
        for name, value in vars(builtins).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }

    def import_module(name: str, *_: object, **__: object) -> SimpleNamespace:
        if name not in modules:
            raise ForbiddenError(f"import {name}")
        return modules[name]

    def get_attribute(owner: object, name: object, *default: object) -> object:
        return getattr(owner, checked_name(name), *default)

    def has_attribute(owner: object, name: object) -> bool:
        return hasattr(owner, checked_name(name))

    def set_attribute(owner: object, name: object, value: object) -> None:
        setattr(owner, checked_name(name), value)

    named = {"getattr": get_attribute, "hasattr": has_attribute, "setattr": set_attribute}
    for name, function in named.items():
        function.__name__ = name
    return table | errors | named | {"print": output.print, "__import__": import_module, "__name__": "program"}
