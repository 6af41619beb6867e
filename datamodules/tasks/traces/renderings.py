"""Traces as text for an ordinary language model: output only, scratchpad, compact scratchpad, dynamic scratchpad.

A rendering turns one trace into text examples (`TextExample`), in training; in evaluation its prompts ask a model, and
`datamodules.tasks.traces.scoring` reads what the model writes. All of them end in `Result: VALUE`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from datamodules.tasks.procedure import TextExample
from datamodules.tasks.traces.outcome import Level, State, Trace
from datamodules.tasks.traces.state_text import apply, change, parse_state

RESULT = "Result: "

START = "start"
"""What stands for the state before the first one."""

BETWEEN = "\n\n"


def question(trace: Trace) -> str:
    """Return the beginning of every prompt: program and call."""
    return f"{trace.source.strip()}\n\nCall: {trace.call}\n"


def skipped(trace: Trace, steps: int) -> tuple[State, ...]:
    """Return the first state and every `steps`-th after it.

    Raises:
        ValueError: steps below 1, or a trace without states or result.
    """
    if steps < 1:
        raise ValueError(f"steps: got {steps}; it must be 1 or more")
    if trace.failure is not None or trace.result is None:
        raise ValueError(f"trace of {trace.call}: it ended in {trace.failure}; only traces with a result are rendered")
    if trace.states is None:
        why = trace.unresumable or "trace it with states=True"
        raise ValueError(f"trace of {trace.call}: it has no states ({why})")
    return trace.states[::steps]


class Rendering(ABC):
    """How a trace is written.

    Args:
        steps: events from one written state to the next.

    Raises:
        ValueError: steps below 1.
    """

    def __init__(self, steps: int = 1) -> None:
        if steps < 1:
            raise ValueError(f"steps: got {steps}; it must be 1 or more")
        self.steps = steps

    @abstractmethod
    def examples(self, trace: Trace) -> list[TextExample]:
        """Return the examples of a trace: one, or one per step for the dynamic scratchpad.

        Raises:
            ValueError: the trace has no result, or no states where they are needed.
        """

    def _every(self) -> str:
        """Return the words of the prompt that tell the skip."""
        return "" if self.steps == 1 else f" every {self.steps} steps"


class OutputOnly(Rendering):
    """The result, without a trace."""

    def __init__(self) -> None:
        super().__init__(1)

    def examples(self, trace: Trace) -> list[TextExample]:
        """Return one example."""
        if trace.result is None:
            raise ValueError(
                f"trace of {trace.call}: it ended in {trace.failure}; only traces with a result are rendered"
            )
        return [TextExample(question(trace) + RESULT.rstrip(), f" {trace.result}")]


class Scratchpad(Rendering):
    """Every state in full, then the result."""

    def prompt(self, trace: Trace) -> str:
        """Return the prompt."""
        return f"{question(trace)}Trace{self._every()}:\n"

    def body(self, states: Sequence[State]) -> str:
        """Write the states."""
        return BETWEEN.join(map(str, states))

    def states(self, text: str) -> list[State]:
        """Read the states back.

        Raises:
            ValueError: the text is no such trace.
        """
        return [parse_state(part) for part in text.split(BETWEEN)]

    def examples(self, trace: Trace) -> list[TextExample]:
        """Return one example."""
        body = self.body(skipped(trace, self.steps))
        return [TextExample(self.prompt(trace), f"{body}{BETWEEN}{RESULT}{trace.result}")]


class CompactScratchpad(Scratchpad):
    """The first state in full, then only what changed, then the result. `states` rebuilds the full ones exactly."""

    def prompt(self, trace: Trace) -> str:
        """Return the prompt."""
        return f"{question(trace)}Changes{self._every()}:\n"

    def body(self, states: Sequence[State]) -> str:
        """Write the first state and the changes."""
        changes = [change(before, after) for before, after in pairwise(states)]
        return BETWEEN.join([str(states[0]), *changes])

    def states(self, text: str) -> list[State]:
        """Rebuild the states.

        Raises:
            ValueError: the text is no such trace.
        """
        first, *changes = text.split(BETWEEN)
        states = [parse_state(first)]
        for part in changes:
            states.append(apply(states[-1], part))
        return states


class DynamicScratchpad(Rendering):
    """State to next state, each in a call of its own; what came before is dropped."""

    def prompt(self, trace: Trace, state: State | str) -> str:
        """Return the prompt that asks for what follows a state (`START`: before the first one)."""
        return f"{question(trace)}State:\n{state}\nNext{self._every()}:\n"

    def examples(self, trace: Trace) -> list[TextExample]:
        """Return one example per step, from the start to the result."""
        texts = [START, *map(str, skipped(trace, self.steps)), f"{RESULT}{trace.result}"]
        return [TextExample(self.prompt(trace, before), after) for before, after in pairwise(texts)]


RENDERINGS: dict[str, type[Rendering]] = {
    kind.__name__: kind for kind in (OutputOnly, Scratchpad, CompactScratchpad, DynamicScratchpad)
}

PREFIX = "traces"


@dataclass(frozen=True)
class TraceStyle:
    """How a model is, or was trained to be, asked.

    Attributes:
        rendering: what it writes.
        level: granularity of the traces.
    """

    rendering: Rendering
    level: Level

    @property
    def text(self) -> str:
        """Return it as one word for a checkpoint's provenance, such as "traces/CompactScratchpad/1/line"."""
        return f"{PREFIX}/{type(self.rendering).__name__}/{self.rendering.steps}/{self.level}"

    @classmethod
    def parse(cls, text: object) -> TraceStyle | None:
        """Read such a word; None for anything else."""
        match str(text).split("/"):
            case [prefix, name, steps, ("line" | "instruction") as level] if prefix == PREFIX and name in RENDERINGS:
                if not steps.isdecimal() or int(steps) < 1:
                    return None
                kind = RENDERINGS[name]
                return cls(kind() if kind is OutputOnly else kind(int(steps)), level)
        return None
