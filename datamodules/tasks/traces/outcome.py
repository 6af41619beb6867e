"""What comes back from the worker: a trace, its events and states, or a named error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["line", "instruction"]
LEVELS: tuple[Level, Level] = ("line", "instruction")

FAILURES: Mapping[str, str] = {
    "SyntaxError": "the source or the call is no Python",
    "Forbidden": "the program tried what no traced program may: the reason says what",
    "Raised": "the call ended in an exception: the reason says which",
    "TimeLimit": "wall-clock time",
    "CpuLimit": "processor time",
    "MemoryLimit": "memory",
    "RecursionLimit": "calls in progress",
    "EventLimit": "events",
    "OutputLimit": "printed text, text of the result, or size of the answer",
    "StateLimit": "text of the states",
    "Crash": "the interpreter died",
    "WorkerDied": "the worker itself did not answer; it was replaced",
    "Unsupported": "our executor does not know what the program does",
    "StateError": "a text is no state of the program",
}
"""How a program may end other than with a result."""


@dataclass(frozen=True)
class Failure:
    """A named error.

    Attributes:
        name: one of `FAILURES`.
        reason: what exactly happened.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the real trace, before it happens.

    Attributes:
        function: name of the function, unique in the program.
        line: source line; at instruction level 0 where the instruction begins no line.
        offset: bytecode offset.
        depth: calls of the program in progress.
        variables: text of each local variable.
    """

    function: str
    line: int
    offset: int
    depth: int
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a state (`machine.writer`): a call in progress, `globals` or `handling`.

    Attributes:
        name: function.
        line: source line.
        offset: bytecode offset.
        stack: texts of the value stack.
        variables: text of each variable.
    """

    name: str
    line: int
    offset: int
    stack: tuple[str, ...]
    variables: Mapping[str, str]

    @property
    def is_call(self) -> bool:
        """Whether this is a call in progress."""
        return self.name not in ("globals", "handling")

    def __str__(self) -> str:
        where = [str(self.line), str(self.offset)] if self.is_call else []
        named = [f"{name}={text}" for name, text in self.variables.items()]
        return f"{self.name}({', '.join([*where, *self.stack, *named])})"


@dataclass(frozen=True)
class State:
    """A state from which our executor can go on."""

    lines: tuple[Line, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))

    @classmethod
    def from_records(cls, records: list[list[Any]]) -> State:
        """Make a state from the worker's answer."""
        return cls(tuple(Line(name, line, at, tuple(stack), names) for name, line, at, stack, names in records))


@dataclass(frozen=True)
class Trace:
    """A traced call.

    Attributes:
        source: the program.
        call: the call.
        level: granularity of the events.
        python: the version whose bytecode the offsets belong to, "3.11".
        events: the real trace.
        states: our executor's state at each event; None where it was not asked for or does not exist.
        unresumable: why there are no states although they were asked for; "" otherwise.
        result: text of the value returned, None where the call failed.
        printed: what the program printed.
        failure: how the call failed, None where it returned.
        seconds: processor time of the worker for running the call under the tracer.
    """

    source: str
    call: str
    level: Level
    python: str
    events: tuple[Event, ...] = ()
    states: tuple[State, ...] | None = None
    unresumable: str = ""
    result: str | None = None
    printed: str = ""
    failure: Failure | None = None
    seconds: float = 0.0
