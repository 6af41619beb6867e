"""The real trace: what CPython reports while it runs the program (`sys.settrace` on 3.11, `sys.monitoring` later).

settrace serves 3.12 and 3.13 for lines only: there it misses instructions of frames that were entered before a tracer
asked for them. One event is a tuple (function, line, offset, depth, variables): the line is 0 where the instruction
begins no line; depth counts the calls of the program in progress.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NoReturn

from datamodules.tasks.traces.allowed import OutputLimitError
from datamodules.tasks.traces.guard import Guard
from datamodules.tasks.traces.limits import Limits
from datamodules.tasks.traces.shown import snapshot

RawEvent = tuple[str, int, int, int, "dict[str, str] | None"]

INSTRUCTIONS_PER_LINE = 60
"""Instructions recorded at most for each line event allowed (a line of many calls has dozens)."""

Stop = Callable[[str, str], NoReturn]


class Recorder(ABC):
    """Records one run.

    Args:
        names: name of each code object to trace, by its id.
        codes: these code objects.
        instructions: record every instruction, not only those that begin a line.
        variables: "all" to show variables at every event, "lines" at those that begin a line.
        limits: the limits of the run.
        stop: ends the process with a named error.
    """

    def __init__(
        self,
        names: dict[int, str],
        codes: list[CodeType],
        instructions: bool,
        variables: str,
        limits: Limits,
        stop: Stop,
    ) -> None:
        self._names = names
        self._codes = codes
        self._instructions = instructions
        self._everywhere = variables == "all"
        self._most_lines = limits.events
        self._most = limits.events
        if instructions and not self._everywhere:
            self._most *= INSTRUCTIONS_PER_LINE
        self._deepest = limits.depth
        self._stop = stop
        self._depth = self._lines = 0
        self._lost = False
        self._last: dict[str, dict[str, str]] = {}
        self._bare: dict[RawEvent, RawEvent] = {}
        self.events: list[RawEvent] = []

    @abstractmethod
    def run(self, function: Callable[[], Any], guard: Guard) -> Any:
        """Call the function under the tracer and return its result."""

    def _variables(self, name: str, frame: FrameType) -> dict[str, str]:
        """Show the variables of a frame; the same object as last time in this function if nothing has changed."""
        try:
            variables = snapshot(frame.f_locals)
        except OutputLimitError as error:
            # Not raised into the program, which could catch it: CPython would then go on without the tracer.
            self._stop("OutputLimit", str(error))
        if variables == self._last.get(name):
            return self._last[name]
        self._last[name] = variables
        return variables

    def _instruction(self, name: str, line: int, offset: int, frame: FrameType) -> None:
        """Record an instruction, `line` not 0 where it begins one."""
        if line or self._everywhere:
            self.events.append((name, line, offset, self._depth, self._variables(name, frame)))
            if not self._everywhere:
                self._lines += 1
                if self._lines > self._most_lines:
                    self._full(self._most_lines)
        else:
            # There are dozens of these a line, and a loop repeats them: equal ones are one object.
            bare = (name, 0, offset, self._depth, None)
            self.events.append(self._bare.setdefault(bare, bare))
        if len(self.events) > self._most:
            self._full(self._most)

    def lost(self) -> bool:
        """Tell whether the tracer was no longer there when the call returned."""
        return self._lost

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > self._deepest:
            self._stop("RecursionLimit", f"more than {self._deepest} calls in progress")

    def _full(self, most: int) -> None:
        self._stop("EventLimit", f"more than {most} events")


class SettraceRecorder(Recorder):
    """`sys.settrace`, for Python 3.11."""

    def run(self, function: Callable[[], Any], guard: Guard) -> Any:
        """Call the function under the tracer and return its result."""
        trace = self._trace_instructions() if self._instructions else self._trace_lines()
        guard.tracing = 1
        sys.settrace(trace)
        try:
            return function()
        finally:
            # An error inside the tracer (no memory left) makes CPython take it away.
            self._lost = sys.gettrace() is not trace
            guard.tracing = 1
            sys.settrace(None)

    def _trace_lines(self) -> Callable[..., Any]:
        # Closures, not attributes: this runs at every line of the program.
        names, events, most = self._names, self.events, self._most

        def local(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                name = names[id(frame.f_code)]
                events.append((name, frame.f_lineno, frame.f_lasti, self._depth, self._variables(name, frame)))
                if len(events) > most:
                    self._full(most)
            elif event == "return":
                self._depth -= 1
            return local

        def outer(frame: FrameType, event: str, _: Any) -> Any:
            if event != "call" or id(frame.f_code) not in names:
                return None
            self._enter()
            return local

        return outer

    def _trace_instructions(self) -> Callable[..., Any]:
        names, record = self._names, self._instruction
        line = 0

        def local(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal line
            if event == "opcode":
                record(names[id(frame.f_code)], line, frame.f_lasti, frame)
                line = 0
            elif event == "line":
                line = frame.f_lineno
            elif event == "return":
                self._depth -= 1
            return local

        def outer(frame: FrameType, event: str, _: Any) -> Any:
            if event != "call" or id(frame.f_code) not in names:
                return None
            self._enter()
            frame.f_trace_opcodes = True
            return local

        return outer


class MonitoringRecorder(Recorder):
    """`sys.monitoring`, from Python 3.12 on.

    There a generator that is closed because nothing refers to it any more runs instructions for it. They are left out:
    3.11 has none.
    """

    TOOL = 3

    _closing = 0
    """Depth of the generator that is being closed, 0 for none."""

    def run(self, function: Callable[[], Any], guard: Guard) -> Any:
        """Call the function under the tracer and return its result."""
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
        kinds = monitoring.events
        callbacks = self._callbacks(kinds)
        guard.tracing = len(callbacks)
        monitoring.use_tool_id(self.TOOL, "loopformer")
        for kind, callback in callbacks.items():
            monitoring.register_callback(self.TOOL, kind, callback)
        local = 0
        for kind in callbacks:
            local |= kind if kind not in (kinds.PY_UNWIND, kinds.PY_THROW) else 0
        for code in self._codes:
            monitoring.set_local_events(self.TOOL, code, local)
        monitoring.set_events(self.TOOL, kinds.PY_UNWIND | kinds.PY_THROW)  # these know no single code
        try:
            return function()
        finally:
            monitoring.set_events(self.TOOL, 0)
            for code in self._codes:
                monitoring.set_local_events(self.TOOL, code, 0)

    def _callbacks(self, kinds: Any) -> dict[int, Callable[..., Any]]:
        on_line, on_instruction = self._event_callbacks()
        callbacks: dict[int, Callable[..., Any]] = {
            kinds.LINE: on_line,
            kinds.PY_START: self._on_start,
            kinds.PY_RESUME: self._on_start,
            kinds.PY_RETURN: self._on_leave,
            kinds.PY_YIELD: self._on_leave,
            kinds.PY_UNWIND: self._on_leave,
            kinds.PY_THROW: self._on_throw,
        }
        if self._instructions:
            callbacks[kinds.INSTRUCTION] = on_instruction
        return callbacks

    def _event_callbacks(self) -> tuple[Callable[[CodeType, int], None], Callable[[CodeType, int], None]]:
        names, events, most, record = self._names, self.events, self._most, self._instruction
        get_frame = sys._getframe  # noqa: SLF001  (the documented way to a frame's variables)
        pending = 0

        def on_line(code: CodeType, line: int) -> None:
            nonlocal pending
            if self._closing:
                return
            if self._instructions:
                pending = line
                return
            frame, name = get_frame(1), names[id(code)]
            events.append((name, line, frame.f_lasti, self._depth, self._variables(name, frame)))
            if len(events) > most:
                self._full(most)

        def on_instruction(code: CodeType, offset: int) -> None:
            nonlocal pending
            if self._closing:
                return
            record(names[id(code)], pending, offset, get_frame(1))
            pending = 0

        return on_line, on_instruction

    def _on_start(self, *_: Any) -> None:
        self._enter()

    def _on_throw(self, code: CodeType, _: int, error: BaseException) -> None:
        if id(code) in self._names:
            self._enter()
            if isinstance(error, GeneratorExit) and not self._closing:
                self._closing = self._depth

    def _on_leave(self, code: CodeType, *_: Any) -> None:
        if id(code) in self._names:
            if self._depth == self._closing:
                self._closing = 0
            self._depth -= 1


def make_recorder(
    names: dict[int, str],
    codes: list[CodeType],
    instructions: bool,
    variables: str,
    limits: Limits,
    stop: Stop,
) -> Recorder:
    """Make the recorder of this Python; see `Recorder` for the arguments."""
    if sys.version_info >= (3, 12):
        return MonitoringRecorder(names, codes, instructions, variables, limits, stop)
    return SettraceRecorder(names, codes, instructions, variables, limits, stop)
