"""The few kinds of object that CPython hides and our executor must see: frames, cells, functions, iterators.

Everything else (numbers, strings, lists, dicts, ...) is the real Python object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from datamodules.tasks.traces.machine.code import CodeInfo


class UnsupportedError(BaseException):
    """The program left the part of Python that the executor knows; the message says where.

    Not an Exception: the traced program must not be able to catch it.
    """


class Marker:
    """A named object that means only itself.

    Args:
        name: what its text is.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


NULL = Marker("NULL")
"""The empty slot that CPython keeps beside a callable on the value stack."""

EMPTY = Marker("EMPTY")
"""The content of a cell whose variable is unbound."""


class Cell:
    """A variable shared between a function and the functions inside it."""

    __slots__ = ("value",)

    def __init__(self, value: object = EMPTY) -> None:
        self.value = value


class Function:
    """A function of the traced program. Only the executor calls it.

    Args:
        code: its code.
        defaults: defaults of the last positional parameters.
        kwdefaults: defaults of keyword-only parameters.
        closure: cells of its free variables, in the order of the code.
    """

    def __init__(
        self,
        code: CodeInfo,
        defaults: tuple[Any, ...] = (),
        kwdefaults: dict[str, Any] | None = None,
        closure: tuple[Cell, ...] = (),
    ) -> None:
        self.code = code
        self.defaults = defaults
        self.kwdefaults = kwdefaults or {}
        self.closure = closure
        self.__name__ = code.code.co_name

    def __call__(self, *_: object, **__: object) -> object:
        """Refuse: a builtin was given the function and calls it behind the executor's back."""
        raise UnsupportedError(f"a builtin calls the Python function {self.__name__}")


class Frame:
    """One call in progress.

    Attributes:
        code: what it runs.
        pc: index of the next instruction.
        fast: bound local variables; those shared with inner functions hold a `Cell`.
        stack: the value stack.
        generator: the generator whose body this is, None for an ordinary call.
    """

    __slots__ = ("code", "fast", "generator", "pc", "stack")

    def __init__(self, code: CodeInfo, fast: dict[str, Any], generator: Generator | None = None) -> None:
        self.code = code
        self.pc = 0
        self.fast = fast
        self.stack: list[Any] = []
        self.generator = generator


class Generator:
    """A suspended, running or finished (`frame` is None) generator of the traced program."""

    def __init__(self, frame: Frame | None) -> None:
        self.frame = frame
        self.running = False

    def __iter__(self) -> Generator:
        return self

    def __next__(self) -> object:
        raise UnsupportedError("a builtin iterates over a generator")


class Position:
    """Base of our iterators: `make` names the constructor in the state's text, `parts` are its arguments."""

    make = ""

    def parts(self) -> tuple[Any, ...]:
        """Return what the constructor `make` takes."""
        raise NotImplementedError

    def __iter__(self) -> Position:
        return self

    def __next__(self) -> object:
        raise NotImplementedError


class SequenceIterator(Position):
    """`iter` of a list, tuple, string, bytes or range; `index` is the next position."""

    make = "iter"

    def __init__(self, sequence: Any, index: int = 0) -> None:
        self.sequence = sequence
        self.index = index

    def parts(self) -> tuple[Any, ...]:
        """Return the sequence and the next index."""
        return self.sequence, self.index

    def __next__(self) -> object:
        try:
            value = self.sequence[self.index]
        except IndexError:
            # For good: a list that grows after its iterator has ended gives nothing more.
            self.sequence, self.index = (), 0
            raise StopIteration from None
        self.index += 1
        return value


class BackwardIterator(Position):
    """`reversed` of a sequence; `index` is the next position, counting down."""

    make = "reversed"

    def __init__(self, sequence: Any, index: int | None = None) -> None:
        self.sequence = sequence
        self.index = len(sequence) - 1 if index is None else index

    def parts(self) -> tuple[Any, ...]:
        """Return the sequence and the next index."""
        return self.sequence, self.index

    def __next__(self) -> object:
        if not 0 <= self.index < len(self.sequence):
            self.sequence, self.index = (), -1
            raise StopIteration
        value = self.sequence[self.index]
        self.index -= 1
        return value


class HashIterator(Position):
    """`iter` of a dict, a dict view or a set.

    Args:
        container: the dict, view or set.
        index: items already given.
        size: length at the start, since a change of it is an error.
    """

    make = "walk"

    def __init__(self, container: Any, index: int = 0, size: int | None = None) -> None:
        self.container = container
        self.index = index
        self.size = len(container) if size is None else size
        self._real = iter(container)
        for _ in range(index):
            next(self._real, None)

    def parts(self) -> tuple[Any, ...]:
        """Return the container, the items already given and the length at the start."""
        return self.container, self.index, self.size

    def __next__(self) -> object:
        if self.size >= 0 and len(self.container) != self.size:
            kind = "Set" if isinstance(self.container, set | frozenset) else "dictionary"
            raise RuntimeError(f"{kind} changed size during iteration")
        try:
            value = next(self._real)
        except StopIteration:
            # Ended for good. The state keeps no container: a later change of it must not matter.
            self.container, self.index, self.size, self._real = (), 0, -1, iter(())
            raise
        self.index += 1
        return value


class CountingIterator(Position):
    """`enumerate`: the iterator inside and the next number."""

    make = "enumerate"

    def __init__(self, inner: Any, start: int = 0) -> None:
        self.inner = inner
        self.number = start

    def parts(self) -> tuple[Any, ...]:
        """Return the iterator inside and the next number."""
        return self.inner, self.number

    def __next__(self) -> object:
        value = next(self.inner)
        self.number += 1
        return self.number - 1, value


class ParallelIterator(Position):
    """`zip` of iterators."""

    make = "zip"

    def __init__(self, *inners: Any) -> None:
        self.inners = inners

    def parts(self) -> tuple[Any, ...]:
        """Return the iterators inside."""
        return self.inners

    def __next__(self) -> object:
        if not self.inners:
            raise StopIteration
        return tuple([next(inner) for inner in self.inners])


class MappingIterator(Position):
    """`map` of a builtin over iterators."""

    make = "map"

    def __init__(self, function: Callable[..., Any], *inners: Any) -> None:
        self.function = function
        self.inners = inners

    def parts(self) -> tuple[Any, ...]:
        """Return the builtin and the iterators inside."""
        return self.function, *self.inners

    def __next__(self) -> object:
        return self.function(*[next(inner) for inner in self.inners])


class FilteringIterator(Position):
    """`filter` by a builtin (None: by truth)."""

    make = "filter"

    def __init__(self, function: Callable[..., Any] | None, inner: Any) -> None:
        self.function = function
        self.inner = inner

    def parts(self) -> tuple[Any, ...]:
        """Return the builtin and the iterator inside."""
        return self.function, self.inner

    def __next__(self) -> object:
        while True:
            value = next(self.inner)
            if value if self.function is None else self.function(value):
                return value


VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


def make_iterator(value: Any) -> Iterator[Any] | Generator | Position:
    """Return an iterator whose position is data.

    Raises:
        UnsupportedError: a kind of iterable that the executor does not know.
        TypeError: the value is not iterable (Python's own message).
    """
    kind = type(value)
    if kind in (list, str, tuple, range, bytes):
        return SequenceIterator(value)
    if isinstance(value, Generator | Position):
        return value
    if kind in (dict, set, frozenset, *VIEWS) or isinstance(value, dict):
        return HashIterator(value)
    iter(value)  # Python's own error for what cannot be iterated at all
    raise UnsupportedError(f"iteration over a {kind.__name__}")
