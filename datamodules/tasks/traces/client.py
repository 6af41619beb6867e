r"""The host's side: a worker process that is started on demand, given one program at a time, and replaced when it dies.

    with Tracer() as tracer:
        trace = tracer.trace("def f(x):\n    return x + 1", "f(1)", level="line", states=True)
        tracer.resume(trace.source, trace.call, str(trace.states[0])).result

Nothing of a program runs in this process, and nothing of its answer is evaluated here.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from datamodules.tasks.traces.limits import Limits
from datamodules.tasks.traces.outcome import LEVELS, Event, Failure, Level, State, Trace

ROOT = Path(__file__).parents[3]

BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from datamodules.tasks.traces.worker import main; main()"

GRACE = 20.0
"""Seconds beyond a program's own limit after which the worker counts as dead (it starts up in the first of them)."""

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@dataclass(frozen=True)
class Resumed:
    """How a run from a state ended.

    Attributes:
        result: text of the value returned, None where it failed.
        states: the states at every instruction from there on, where they were asked for.
        failure: how it failed, None where it returned.
    """

    result: str | None
    states: tuple[State, ...] = ()
    failure: Failure | None = None


class Tracer:
    """A worker and the limits of its programs. Not for several threads at a time.

    Args:
        limits: limits of each program.

    Raises:
        ValueError: a system without the limits of processes that this needs (Windows).
    """

    def __init__(self, limits: Limits | None = None) -> None:
        if os.name != "posix":
            raise ValueError(f"system: got {os.name!r}; programs are traced on Linux and macOS only")
        self.limits = Limits() if limits is None else limits
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def command(self) -> list[str]:
        """Return the worker's command: a bare interpreter without site packages or the current folder."""
        return [sys.executable, "-P", "-s", "-S", "-B", "-c", BOOT, str(ROOT)]

    def trace(self, source: str, call: str, level: Level = "line", states: bool = False) -> Trace:
        """Run a call and return its trace.

        Args:
            source: the program: functions, and what they need at module level.
            call: `NAME(ARGUMENTS)`.
            level: "line" or "instruction".
            states: whether to have our executor follow, for the state at each event.

        Raises:
            ValueError: unknown level.
        """
        if level not in LEVELS:
            raise ValueError(f"level: got {level!r}; use one of {', '.join(LEVELS)}")
        reply = self._ask({"do": "trace", "source": source, "call": call, "level": level, "states": states})
        trace = Trace(source, call, level, PYTHON)
        try:
            return _read_trace(trace, reply)
        except (KeyError, TypeError, ValueError) as error:
            failure = Failure("WorkerDied", f"an answer that is none: {type(error).__name__}")
            return Trace(source, call, level, PYTHON, failure=failure)

    def resume(
        self, source: str, call: str, state: str, states: bool = False, instructions: int = 10_000_000
    ) -> Resumed:
        """Run our executor on from the text of a state.

        Args:
            source: the program.
            call: the call that the state belongs to.
            state: the text.
            states: whether to return the states on the way, one per instruction.
            instructions: most instructions.
        """
        request = {"do": "resume", "source": source, "call": call, "state": state, "states": states}
        reply = self._ask(request | {"instructions": instructions})
        if "failure" in reply:
            return Resumed(None, failure=Failure(*reply["failure"]))
        return Resumed(reply["result"], tuple(map(State.from_records, reply["states"])))

    def close(self) -> None:
        """End the worker and everything it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps(request | {"limits": asdict(self.limits)}).encode()
        deadline = time.monotonic() + self.limits.seconds + GRACE
        try:
            reply = self._exchange(body, deadline)
        except (OSError, EOFError, TimeoutError, ValueError, RecursionError) as error:
            self.close()
            return {"failure": ["WorkerDied", f"{type(error).__name__}: {error}"]}
        if not isinstance(reply, dict):
            return {"failure": ["WorkerDied", "an answer that is none"]}
        return reply

    def _exchange(self, body: bytes, deadline: float) -> Any:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(len(body).to_bytes(8) + body)
        process.stdin.flush()
        descriptor = process.stdout.fileno()
        size = int.from_bytes(_read(descriptor, 8, deadline))
        return json.loads(_read(descriptor, size, deadline))

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            self._process = subprocess.Popen(  # noqa: S603  (our own interpreter and code)
                self.command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                # Fixed hashes: the order of sets, and with it a trace, is the same in every worker.
                env={"PYTHONHASHSEED": "0"},
                start_new_session=True,
            )
        return self._process


def _read(descriptor: int, count: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < count:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            raise TimeoutError("the worker does not answer")
        part = os.read(descriptor, min(count - len(data), 2**20))
        if not part:
            raise EOFError("the worker has ended")
        data += part
    return bytes(data)


def _read_trace(trace: Trace, reply: dict[str, Any]) -> Trace:
    if "failure" in reply:
        failure = Failure(*reply["failure"])
        return Trace(trace.source, trace.call, trace.level, trace.python, failure=failure)
    states = reply["states"]
    return Trace(
        trace.source,
        trace.call,
        trace.level,
        trace.python,
        events=_read_events(reply["events"]),
        states=None if states is None else tuple(map(State.from_records, states)),
        unresumable=reply["reason"],
        result=reply["result"],
        printed=reply["printed"],
        seconds=reply["seconds"],
    )


def _read_events(rows: list[list[Any]]) -> tuple[Event, ...]:
    last: dict[str, Any] = {}
    events = []
    for name, line, offset, depth, variables in rows:
        if variables != 0:
            last[name] = variables
        events.append(Event(name, line, offset, depth, last[name]))
    return tuple(events)
