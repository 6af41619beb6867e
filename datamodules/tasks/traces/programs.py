"""Programs to trace, and what becomes of them: traced, or refused by name and reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from datamodules.tasks.traces.client import Tracer
from datamodules.tasks.traces.outcome import Level, Trace
from datamodules.tasks.traces.scoring import correct_result


@dataclass(frozen=True)
class Program:
    """A function with an input.

    Attributes:
        name: name in reports.
        source: its source.
        call: the call, `NAME(ARGUMENTS)`.
        output: recorded output as text, None where none is recorded.
    """

    name: str
    source: str
    call: str
    output: str | None = None


@dataclass(frozen=True)
class Refused:
    """A program that gives no trace.

    Attributes:
        name: name of the program.
        reason: why.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class Traced:
    """A program and its trace.

    Attributes:
        program: the program.
        trace: its trace; it ended in the recorded output where there is one.
    """

    program: Program
    trace: Trace


def trace_each(
    programs: Iterable[Program], tracer: Tracer, level: Level = "line", states: bool = True
) -> Iterator[Traced | Refused]:
    """Trace programs one after the other.

    Args:
        programs: the programs.
        tracer: the worker.
        level: "line" or "instruction".
        states: whether each trace needs the states from which our executor can resume.
    """
    for program in programs:
        trace = tracer.trace(program.source, program.call, level=level, states=states)
        if trace.failure is not None:
            yield Refused(program.name, str(trace.failure))
        elif program.output is not None and not correct_result(trace.result, program.output):
            yield Refused(program.name, f"it returned {trace.result}, recorded is {program.output}")
        elif states and trace.states is None:
            yield Refused(program.name, f"not resumable: {trace.unresumable}")
        else:
            yield Traced(program, trace)
