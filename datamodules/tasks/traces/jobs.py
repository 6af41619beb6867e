"""What a guarded child does: trace a program, or run our executor on from the text of a state."""

from __future__ import annotations

import ast
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from types import CodeType, SimpleNamespace
from typing import Any, NoReturn

from datamodules.tasks.traces.allowed import ForbiddenError, Output, OutputLimitError, program_builtins
from datamodules.tasks.traces.follow import Follower
from datamodules.tasks.traces.guard import Guard
from datamodules.tasks.traces.limits import Limits
from datamodules.tasks.traces.machine.code import CodeTable
from datamodules.tasks.traces.machine.machine import Machine
from datamodules.tasks.traces.machine.objects import UnsupportedError
from datamodules.tasks.traces.machine.reader import Reader, StateError
from datamodules.tasks.traces.machine.writer import Writer
from datamodules.tasks.traces.outcome import FAILURES
from datamodules.tasks.traces.recorder import RawEvent, make_recorder
from datamodules.tasks.traces.shown import shown

Screen = Callable[[str], None]

FILENAME = "<program>"

STACK_MARGIN = 1_500
"""Calls beyond the program's own that the interpreter may nest (the tracer, builtins that call back)."""


class Job:
    """One request in one child.

    Args:
        modules: what programs may import.
        screening: the check of the source.
    """

    def __init__(self, modules: dict[str, SimpleNamespace], screening: Screen) -> None:
        self._modules = modules
        self._screen = screening
        self._descriptor = -1
        self._guard = Guard(lambda event: self.stop("Forbidden", event))

    def run(self, request: dict[str, Any], limits: Limits, idle: int, descriptor: int) -> NoReturn:
        """Put up the walls, do the request, write the answer and exit."""
        self._descriptor = descriptor
        self._guard.raise_walls(limits, idle)
        sys.setrecursionlimit(3 * limits.depth + STACK_MARGIN)
        work = {"trace": self._trace, "resume": self._resume}[request["do"]]
        try:
            result = work(request, limits)
        except BaseException as error:  # noqa: BLE001  (a program may raise anything; the process ends here)
            name, reason = describe(error)
            del error
            self.stop(name, reason)
        self._finish(result)

    def stop(self, name: str, reason: str) -> NoReturn:
        """End the process with a named error. Nothing of the program runs any more, not even its handlers."""
        self._finish({"failure": [name, reason]})

    def _finish(self, result: dict[str, Any]) -> NoReturn:
        try:
            data = memoryview(json.dumps(result).encode())
            while data:
                data = data[os.write(self._descriptor, data) :]
        except MemoryError:
            os.write(self._descriptor, b'{"failure": ["MemoryLimit", "the memory is used up"]}')
        os._exit(0)

    def _trace(self, request: dict[str, Any], limits: Limits) -> dict[str, Any]:
        source, call, level = request["source"], check_call(request["call"]), request["level"]
        self._screen(source)
        self._screen(call)
        output = Output(limits.output)
        namespace: dict[str, Any] = {
            "__name__": "program",
            "__builtins__": program_builtins(self._modules, output),
        }
        module = compile(source, FILENAME, "exec", dont_inherit=True)
        table = CodeTable()
        table.add(module, visible=True)
        visible = [info for info in table.by_name.values() if info.visible]
        names = {id(info.code): info.name for info in visible}
        wanted_states = request["states"]
        by_instruction = level == "instruction"
        recorder = make_recorder(
            names,
            [info.code for info in visible],
            by_instruction or wanted_states,
            "all" if by_instruction or not wanted_states else "lines",
            limits,
            self.stop,
        )
        exec(module, namespace)  # noqa: S102  (this process exists for nothing else)
        expression: CodeType = compile(call, "<call>", "eval", dont_inherit=True)
        begin = time.process_time()
        value = recorder.run(lambda: eval(expression, namespace), self._guard)  # noqa: S307
        seconds = time.process_time() - begin
        if recorder.lost():
            self.stop("Forbidden", "the tracer was taken away")
        events = [event for event in recorder.events if table.by_name[event[0]].begins(event[2])]
        result: dict[str, Any] = {
            "result": shown(value, limits.output),
            "printed": "".join(output.text),
            "seconds": seconds,
            "states": None,
            "reason": "",
        }
        if wanted_states:
            result |= self._follow(source, call, events, value, by_instruction, limits)
        result["events"] = packed(event for event in events if by_instruction or event[1])
        return result

    def _follow(
        self, source: str, call: str, events: list[Any], value: Any, by_instruction: bool, limits: Limits
    ) -> dict[str, Any]:
        machine = self._machine(source, call, limits)
        follower = Follower(machine, events, not by_instruction, limits, self.stop)
        try:
            follower.run(value)
        except UnsupportedError as error:
            return {"reason": str(error)}
        return {"states": follower.states}

    def _machine(self, source: str, call: str, limits: Limits) -> Machine:
        builtins = program_builtins(self._modules, Output(limits.output))
        return Machine(source, call, builtins, self._modules, limits.depth)

    def _resume(self, request: dict[str, Any], limits: Limits) -> dict[str, Any]:
        source, call = request["source"], check_call(request["call"])
        self._screen(source)
        self._screen(call)
        machine = self._machine(source, call, limits)
        machine.prepare()
        Reader(machine).load(request["state"])
        writer = Writer(machine)
        states: list[Any] = []
        left = request["instructions"]

        def observe(_: Machine) -> None:
            nonlocal left
            if left == 0:
                self.stop("EventLimit", f"more than {request['instructions']} instructions")
            left -= 1
            if request["states"]:
                states.append(writer.records())

        value = machine.run(observe)
        return {"result": shown(value, limits.output), "states": states}


def packed(events: Iterable[RawEvent]) -> list[Any]:
    """Leave out of each event the variables that are those of its function's last event (0 stands for them)."""
    last: dict[str, Any] = {}
    result = []
    for name, line, offset, depth, variables in events:
        same = variables is last.get(name)
        last[name] = variables
        result.append((name, line, offset, depth, 0 if same else variables))
    return result


def check_call(call: str) -> str:
    """Check that a call is one, of a function by its name.

    Raises:
        ForbiddenError: it is something else.
        SyntaxError: it is no Python.
    """
    node = ast.parse(call, mode="eval").body
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise ForbiddenError("a call must be NAME(ARGUMENTS)")
    return call


LIMITS: dict[type[BaseException], str] = {
    MemoryError: "MemoryLimit",
    RecursionError: "RecursionLimit",
    OutputLimitError: "OutputLimit",
    ForbiddenError: "Forbidden",
    UnsupportedError: "Unsupported",
    StateError: "StateError",
    SyntaxError: "SyntaxError",
}
"""Errors that are not the program's own."""


def describe(error: BaseException) -> tuple[str, str]:
    """Name an error that ended a program, without running code of the program."""
    kind = type(error)
    for base, name in LIMITS.items():
        if kind is base or (base is SyntaxError and issubclass(kind, base)):
            return name, _message(error) or FAILURES[name]
    return "Raised", f"{kind.__name__}: {_message(error)}" if kind.__module__ == "builtins" else kind.__name__


def _message(error: BaseException) -> str:
    # Only the text of a plain string: str() of anything else could run code of the program.
    return ", ".join([shown(value) if type(value) is not str else value for value in error.args[:1]])[:500]
