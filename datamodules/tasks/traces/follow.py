"""Our executor beside the real trace: it must do the same instructions on the same variables, and gives the states."""

from __future__ import annotations

from typing import Any

from datamodules.tasks.traces.limits import Limits
from datamodules.tasks.traces.machine.calls import cell_contents
from datamodules.tasks.traces.machine.machine import Machine
from datamodules.tasks.traces.machine.objects import EMPTY, Frame, UnsupportedError
from datamodules.tasks.traces.machine.writer import Record, Writer
from datamodules.tasks.traces.recorder import RawEvent, Stop
from datamodules.tasks.traces.shown import shown, snapshot

SILENT = frozenset({"RESUME", "MAKE_CELL", "COPY_FREE_VARS", "RETURN_GENERATOR", "POP_TOP"})
"""Instructions that CPython may leave out of a trace: those before it considers a call begun or resumed."""


def machine_variables(frame: Frame) -> dict[str, str]:
    """Show the local variables of one of our frames."""
    fast = {name: cell_contents(frame.fast[name]) for name in frame.code.locals if name in frame.fast}
    return snapshot({name: value for name, value in fast.items() if value is not EMPTY})


class Follower:
    """Runs a machine along a recorded trace and collects the state at every event of the level.

    Args:
        machine: the machine, not yet started.
        events: the real trace, every instruction of it.
        lines: collect states where a line begins; False: at every instruction.
        limits: the limits of the run.
        stop: ends the process with a named error.
    """

    def __init__(self, machine: Machine, events: list[RawEvent], lines: bool, limits: Limits, stop: Stop) -> None:
        self._machine = machine
        self._events = events
        self._lines = lines
        self._left = limits.states
        self._stop = stop
        self._position = 0
        self._writer: Writer | None = None
        self.states: list[list[Record]] = []

    def run(self, result: Any) -> None:
        """Run to the end and compare the result.

        Args:
            result: what CPython returned.

        Raises:
            UnsupportedError: the executor cannot do it, or does something else than CPython.
        """
        machine = self._machine
        try:
            machine.start()
            self._writer = Writer(machine)
            returned = machine.run(self._observe)
        except UnsupportedError:
            raise
        except Exception as error:  # noqa: BLE001  (whatever it is: CPython did not raise it)
            raise UnsupportedError(f"the executor raised {type(error).__name__}: {error}") from None
        if self._position != len(self._events):
            raise UnsupportedError(f"the executor ended after {self._position} of {len(self._events)} instructions")
        if shown(returned) != shown(result):
            raise UnsupportedError("the executor returned something else")

    def _observe(self, machine: Machine) -> None:
        frame = machine.frames[-1]
        instruction = frame.code.instructions[frame.pc]
        name, line, offset, depth, variables = (
            self._events[self._position] if self._position < len(self._events) else ("", 0, -1, 0, None)
        )
        if (name, offset) != (frame.code.name, instruction.offset):
            if instruction.name in SILENT:
                return
            raise UnsupportedError(f"the executor left CPython's trace at instruction {self._position}")
        if variables is not None and variables != machine_variables(frame):
            raise UnsupportedError(f"the executor's variables differ at instruction {self._position}")
        if depth != sum(1 for other in machine.frames if other.code.visible):
            raise UnsupportedError(f"the executor's calls in progress differ at instruction {self._position}")
        self._position += 1
        if line or not self._lines:
            assert self._writer is not None
            records = self._writer.records()
            self._left -= sum(map(_length, records))
            if self._left < 0:
                self._stop("StateLimit", "the states are longer than the limit")
            self.states.append(records)


def _length(record: Record) -> int:
    name, _, _, stack, variables = record
    return len(name) + 12 + sum(map(len, stack)) + sum(len(key) + len(text) + 3 for key, text in variables.items())
