"""Runs generated Python, which is hostile input, and comes back in bounded time with a value or a named error.

    with PythonSandbox() as sandbox:
        sandbox.run('result = add(mul(3, 100), 25)')   # Value("number", "325")

Three walls stand around a program: pydantic-monty, an interpreter without files, network, modules or environment and
with limits of time, memory and recursion; the process that serves it (`sandbox_worker`), which has limits of its own
from the operating system; and the wall time after which this side ends that process and starts another. The third is
there because a program can make the taking over of its result endless (a list that holds one long text many times).

Nothing of this process is ever evaluated: no exec, no eval, not even a parse.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from datamodules.tasks.office.errors import ProgramError, Reason, Value
from datamodules.tasks.office.library import SOURCE
from datamodules.tasks.office.machine import MAX_CHARACTERS

WORKER = Path(__file__).with_name("sandbox_worker.py")
MIB = 2**20
LONGEST_ANSWER = 64 * 1024
START_SECONDS = 60.0
"""A busy machine may take long to start an interpreter; the first program waits for it, no limit counts it."""


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of one program.

    Attributes:
        seconds: running time inside the sandbox.
        memory: bytes of its heap.
        recursion: depth of its calls.
        output: bytes it may print.
        characters: length of its source.
        wall_seconds: time after which the serving process is ended, whatever it does.
        process_memory: bytes of address space of the serving processes, two of them.

    Raises:
        ValueError: a limit is not positive, or wall_seconds is below three times `seconds` (names the field).
    """

    seconds: float = 0.5
    memory: int = 16 * MIB
    recursion: int = 100
    output: int = 10_000
    characters: int = MAX_CHARACTERS
    wall_seconds: float = 5.0
    process_memory: int = 1024 * MIB

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ValueError(f"{name}: got {value}; use a number above 0")
        if self.wall_seconds < 3 * self.seconds:
            raise ValueError(f"wall_seconds: got {self.wall_seconds}; use at least three times seconds={self.seconds}")


class PythonSandbox:
    """A sandbox process, started with the first program and anew whenever one brings it down.

    Args:
        limits: limits of each program.
    """

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        self.limits = limits or SandboxLimits()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, source: str) -> Value:
        """Run a program; return the value of its `result`.

        Raises:
            ProgramError: it is invalid, with the named reason.
        """
        if len(source) > self.limits.characters:
            raise ProgramError(Reason.TOO_LONG, f"{len(source)} characters, at most {self.limits.characters}")
        if not source.strip():
            raise ProgramError(Reason.EMPTY_PROGRAM)
        reply = self._ask(source)
        if "reason" in reply:
            raise ProgramError(Reason(reply["reason"]), reply["detail"])
        return Value("number" if reply["kind"] == "number" else "text", reply["text"])

    def close(self) -> None:
        """End the sandbox process and everything it started."""
        process, self._process = self._process, None
        if process is None:
            return
        # The process leads a group of its own, to which Monty's worker belongs.
        with suppress(ProcessLookupError):  # all of it may be gone already
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.wait()

    @property
    def pid(self) -> int | None:
        """Process id of the serving process, None before the first program and after `close`."""
        return None if self._process is None else self._process.pid

    def _ask(self, source: str) -> dict[str, str]:
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"source": source}).encode() + b"\n")
            process.stdin.flush()
            reply: dict[str, str] = json.loads(self._read(self.limits.wall_seconds))
        except TimeoutError:
            self.close()
            raise ProgramError(Reason.TIME_LIMIT, f"no answer in {self.limits.wall_seconds} s") from None
        except (OSError, EOFError, ValueError):
            self.close()
            raise ProgramError(Reason.CRASHED, "the sandbox process ended") from None
        except BaseException:  # interrupted: its answer must not be taken for that of the next program
            self.close()
            raise
        return reply

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        self._process = subprocess.Popen(  # noqa: S603  (our own file, with arguments of our own)
            [sys.executable, "-I", "-X", "utf8", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            close_fds=True,
            start_new_session=True,
        )
        limits: dict[str, Any] = asdict(self.limits)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"library": SOURCE, "limits": limits}).encode() + b"\n")
        self._process.stdin.flush()
        try:
            self._read(START_SECONDS)  # the worker says that it is ready
        except (OSError, EOFError, TimeoutError):
            self.close()
            raise RuntimeError(
                "the Python sandbox does not start; check that pydantic-monty is installed: python -m pydantic_monty"
            ) from None
        return self._process

    def _read(self, seconds: float) -> bytes:
        """Read one line.

        Raises:
            TimeoutError: it has not come in time.
            EOFError: the process ended, or writes more than any answer has.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + seconds
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                part = os.read(descriptor, LONGEST_ANSWER)
                line += part
                if not part or len(line) > LONGEST_ANSWER:
                    raise EOFError
        return line
