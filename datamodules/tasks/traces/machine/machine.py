"""The executor: it runs a program one instruction after the other on a state that is plain data.

    machine = Machine(source, "f([1, 2])", builtins, modules)
    machine.start()                 # runs the module and evaluates the arguments; stops at the first step of f
    machine.run(observe)            # observe(machine) is called before each instruction of the program's functions
    machine.result

It knows the part of Python that small programs use: everything of functions, loops, comprehensions, generators,
exceptions and the builtin types, but no class definitions, no `with`, no pattern matching, no coroutines. What it does
not know raises `UnsupportedError`, which says what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from datamodules.tasks.traces.machine import containers, strings, values
from datamodules.tasks.traces.machine.calls import bind
from datamodules.tasks.traces.machine.code import CodeInfo, CodeTable
from datamodules.tasks.traces.machine.flow import end_delegation, end_loop
from datamodules.tasks.traces.machine.natives import DEFINED, DEFINED_METHODS, ITERATORS, compiled_definitions
from datamodules.tasks.traces.machine.objects import Frame, Function, Generator, UnsupportedError
from datamodules.tasks.traces.machine.registry import COMPLETIONS, OPERATIONS

REGISTERED = (containers, strings, values)
"""Modules imported for the opcodes they register."""

Observer = Callable[["Machine"], None]


class Machine:
    """A run of a program.

    Args:
        source: source of the program: functions, and what they need at module level.
        call: the call to trace, `name(arguments)`.
        builtins: the builtins the program sees.
        modules: the modules it may import.
        depth: most calls in progress at a time.

    Attributes:
        codes: all code, by name.
        globals: the module's variables.
        frames: calls in progress, outermost first.
        handled: the exception whose handler is running, None outside handlers.
        done: whether the call has returned, with `result`.
    """

    def __init__(
        self,
        source: str,
        call: str,
        builtins: Mapping[str, Any],
        modules: Mapping[str, SimpleNamespace],
        depth: int = 200,
    ) -> None:
        definitions = compiled_definitions()
        self.codes = CodeTable(definitions)
        self._module = self.codes.add(compile(source, "<program>", "exec", dont_inherit=True), visible=True)
        self._call = self.codes.add(compile(call, "<call>", "eval", dont_inherit=True))
        self.builtins = builtins
        self.modules = modules
        self.depth = depth
        self.globals: dict[str, Any] = {"__name__": "program"}
        self.module_functions: dict[str, Function] = {}
        self.frames: list[Frame] = []
        self.handled: BaseException | None = None
        self.done = False
        self.result: Any = None
        self._definitions = self._define(definitions.by_name["builtin_module"])
        self._defined = {id(builtins[name]): self._definitions[f"{name}_"] for name in DEFINED if name in builtins}
        if "functools" in modules:
            self._defined[id(modules["functools"].reduce)] = self._definitions["reduce_"]
        self._iterators = {id(builtins[name]): make for name, make in ITERATORS.items() if name in builtins}

    def _define(self, definitions: CodeInfo) -> dict[str, Function]:
        """Run the module of our definitions, which only makes functions."""
        outer, self.globals = self.globals, {}
        self._execute(Frame(definitions, {}))
        made, self.globals = self.globals, outer
        return {name: function for name, function in made.items() if isinstance(function, Function)}

    def prepare(self) -> None:
        """Run the module: define its functions."""
        self._execute(Frame(self._module, {}))
        self.module_functions = {name: f for name, f in self.globals.items() if isinstance(f, Function)}

    def start(self) -> None:
        """Run the module, evaluate the arguments and stop where the called function begins."""
        self.prepare()
        self.frames = [Frame(self._call, {})]
        self.done = False
        while not any(frame.code.visible for frame in self.frames):
            if self.done:
                raise UnsupportedError("a call that runs no function of the program")
            self.step()
        # What waits below the function is the call's own frame, which only hands the result on.
        self.frames = [frame for frame in self.frames if frame.code is not self._call]

    def _execute(self, frame: Frame) -> Any:
        self.frames, self.done = [frame], False
        while not self.done:
            self.step()
        self.done, result = False, self.result
        self.result = None
        return result

    def run(self, observe: Observer | None = None) -> Any:
        """Run until the call returns, and return its result.

        Raises:
            UnsupportedError: the program leaves what the executor knows.
            BaseException: what the program itself raises and does not handle.
        """
        while not self.done:
            if observe is not None and self.frames[-1].code.visible:
                observe(self)
            self.step()
        return self.result

    def step(self) -> None:
        """Execute one instruction."""
        frame = self.frames[-1]
        instruction = frame.code.instructions[frame.pc]
        frame.pc += 1
        function = OPERATIONS.get(instruction.name)
        if function is None:
            raise UnsupportedError(f"instruction {instruction.name}")
        try:
            function(self, frame, instruction)
        except UnsupportedError:
            raise
        except BaseException as error:  # noqa: BLE001  (the program may raise and handle anything)
            error.__traceback__ = None
            self._unwind(error)

    def _unwind(self, error: BaseException) -> None:
        while self.frames:
            frame = self.frames[-1]
            handler = frame.code.handler(frame.pc - 1)
            if handler is not None:
                del frame.stack[handler.depth :]
                if handler.lasti:
                    frame.stack.append(frame.code.instructions[frame.pc - 1].offset)
                frame.stack.append(error)
                frame.pc = handler.target
                return
            self.frames.pop()
            if frame.generator is not None:
                frame.generator.frame, frame.generator.running = None, False
                if isinstance(error, StopIteration):
                    error = RuntimeError("generator raised StopIteration")
        raise error

    def deliver(self, value: Any) -> None:
        """Give a value to the instruction that waits for it, or end the run with it."""
        if not self.frames:
            self.done, self.result = True, value
            return
        frame = self.frames[-1]
        instruction = frame.code.instructions[frame.pc - 1]
        complete = COMPLETIONS.get(instruction.name)
        if complete is None:
            frame.stack.append(value)
        else:
            complete(self, frame, instruction, value)

    def leave(self, frame: Frame, value: Any) -> None:
        """Return from a frame."""
        self.frames.pop()
        if frame.generator is None:
            self.deliver(value)
        else:
            frame.generator.frame, frame.generator.running = None, False
            self._end_iteration(value)

    def _end_iteration(self, value: Any) -> None:
        frame = self.frames[-1]
        instruction = frame.code.instructions[frame.pc - 1]
        if instruction.name == "FOR_ITER":
            end_loop(frame, instruction)
        else:
            end_delegation(frame, instruction, value)

    def resume(self, generator: Generator, value: Any) -> None:
        """Run a generator on until it yields to the instruction in progress."""
        if generator.running:
            raise ValueError("generator already executing")
        if generator.frame is None:
            self._end_iteration(None)
            return
        generator.running = True
        generator.frame.stack.append(value)
        self._push(generator.frame)

    def call(self, callee: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Call: enter a Python function, or run a builtin at once and deliver what it returns."""
        if isinstance(callee, Function):
            self._push(Frame(callee.code, bind(callee, args, kwargs)))
            return
        if any(isinstance(value, Function | Generator) for value in (*args, *kwargs.values())):
            definition, first = self._definition(callee)
            if definition is not None:
                self._push(Frame(definition.code, bind(definition, [*first, *args], kwargs)))
                return
        make = self._iterators.get(id(callee))
        self.deliver((callee if make is None else make)(*args, **kwargs))

    def call_definition(self, name: str, *args: Any) -> None:
        """Enter one of our definitions of builtins."""
        definition = self._definitions[name]
        self._push(Frame(definition.code, bind(definition, list(args), {})))

    def _push(self, frame: Frame) -> None:
        if len(self.frames) >= self.depth:
            raise RecursionError("maximum recursion depth exceeded")
        self.frames.append(frame)

    def _definition(self, callee: Any) -> tuple[Function | None, list[Any]]:
        defined = self._defined.get(id(callee))
        if defined is not None:
            return defined, []
        owner = getattr(callee, "__self__", None)
        name = DEFINED_METHODS.get((type(owner), getattr(callee, "__name__", "")))
        return (None, []) if name is None else (self._definitions[name], [owner])

    def find_global(self, name: str) -> Any:
        """Look up a name in the module, then in the builtins; our own definitions see the builtins only."""
        if self.frames[-1].code.builtin:
            if name in self._definitions:
                return self._definitions[name]
        elif name in self.globals:
            return self.globals[name]
        try:
            return self.builtins[name]
        except KeyError:
            raise NameError(f"name '{name}' is not defined") from None

    def import_module(self, name: str) -> SimpleNamespace:
        """Return a module the program may use.

        Raises:
            ImportError: any other module.
        """
        try:
            return self.modules[name]
        except KeyError:
            raise ImportError(f"No module named '{name}'") from None
