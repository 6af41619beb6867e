"""Runs of machines as text for an ordinary language model: output only, scratchpad, compact and dynamic scratchpad.

    MachineOutput              the last visible state: ` C`
    MachineScratchpad          a line per step with the visible state and every field: ` C; symbol: t; next: ad`
    MachineCompactScratchpad   a line per step with what it changed: ` symbol: t; next: ad`, or ` =` for nothing
    MachineDynamicScratchpad   a call per step: the state in the prompt, the next state, in full, as the completion

The notation is that of `Procedure.example`. A machine that ends by itself is asked without the number of steps: whoever
writes has to know when. All text is parsed strictly and never evaluated; `read` takes whatever a model wrote.

The traces of Python functions have renderings of the same kind (`datamodules.tasks.traces.renderings`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import ClassVar

from datamodules.tasks.machines.family import FIELDS
from datamodules.tasks.machines.machine import IntArray, Machines, Prompt
from datamodules.tasks.machines.words import STATES, TEXTS, WORDS
from datamodules.tasks.procedure import TextExample, trace_line

VISIBLE = "visible"
"""Key of the visible state, which is written without a name."""

ANSWER, STATE, UNCHANGED = "\nAnswer:", ";\nState:", "="
SEPARATOR, NAMED = "; ", ": "

PHRASES = (STATE, *(f"{before}{name}:" for name in FIELDS for before in (" ", SEPARATOR)))
"""Fixed parts of these texts; a tokenizer that knows them as tokens writes a state in few."""

KNOWN = {VISIBLE: frozenset(STATES), **{name: frozenset(words) for name, words in FIELDS.items()}}

State = Mapping[str, str]
"""A machine's whole state as words: the visible one under `VISIBLE`, then every field, in a fixed order."""


@dataclass(frozen=True)
class WrittenRun:
    """One run of one machine in words.

    Attributes:
        prompt: the complete prompt; with the number of steps, unless the machine ends by itself.
        table: the prompt up to the start, without what closes its last entry.
        states: the states at steps 0..N.
    """

    prompt: str
    table: str
    states: tuple[State, ...]


@dataclass(frozen=True)
class Reading:
    """What a model's text says.

    Attributes:
        states: states after steps 1, 2, ... as far as the text is well formed.
        whole: whether all of it is.
    """

    states: list[State]
    whole: bool


def written_runs(machines: Machines, steps: IntArray | None = None) -> list[WrittenRun]:
    """Put runs of machines into words.

    Args:
        machines: B machines.
        steps: [B] steps of each run, 1 or more; default `machines.depth`.
    """
    counts = (machines.depth if steps is None else steps).tolist()
    run, prompt, first = machines.run(max(counts, default=1)), machines.prompt(), machines.initial()
    runs = []
    for row, (count, ends) in enumerate(zip(counts, machines.ends.tolist(), strict=True)):
        visible = [int(first[row]), *run.visible[row, :count].tolist()]
        fields = {name: words[row, : count + 1].tolist() for name, words in run.state.items()}
        states = tuple(
            {VISIBLE: STATES[label], **{name: WORDS[words[step]] for name, words in fields.items()}}
            for step, label in enumerate(visible)
        )
        runs.append(WrittenRun(_question(prompt, row, None if ends else count), _table(prompt, row), states))
    return runs


def _question(prompt: Prompt, row: int, count: int | None) -> str:
    """Return the whole prompt. Without a count a looped model's may end in the start itself; a text needs a place."""
    return prompt.text(row, count).removesuffix(ANSWER) + ANSWER


def _table(prompt: Prompt, row: int) -> str:
    """Return the prompt before the start."""
    words = prompt.words[row, : prompt.start].tolist()
    return "".join(piece + TEXTS[word] for piece, word in zip(prompt.pieces, words, strict=False))


def full_line(state: State) -> str:
    """Write a state with every field."""
    return trace_line(f" {state[VISIBLE]}", {name: f" {value}" for name, value in state.items() if name != VISIBLE})


def change_line(before: State, after: State) -> str:
    """Write what differs between two states, in the order of the fields."""
    changed = {name: value for name, value in after.items() if before[name] != value}
    parts = [value if name == VISIBLE else f"{name}{NAMED}{value}" for name, value in changed.items()]
    return " " + (SEPARATOR.join(parts) or UNCHANGED)


def parse_line(line: str, before: State) -> State:
    """Read the parts of a line, whichever fields it names; `before` tells which there are.

    Raises:
        ValueError: a part is not a field with one of its values, or stands twice or out of order.
    """
    order, last, found = list(before), -1, {}
    for part in line.removeprefix(" ").split(SEPARATOR, len(order)):
        name, named, value = part.partition(NAMED) if NAMED in part else (VISIBLE, "", part)
        if (
            bool(named) == (name == VISIBLE)
            or name not in before
            or value not in KNOWN[name]
            or order.index(name) <= last
        ):
            raise ValueError(f"no part of a state: {part[:40]!r}")
        last = order.index(name)
        found[name] = value
    return found


def parse_full(line: str, before: State) -> State:
    """Read a line of `full_line`.

    Raises:
        ValueError: it is none, or a field is missing.
    """
    found = parse_line(line, before)
    if len(found) < len(before):
        raise ValueError(f"a state without {next(name for name in before if name not in found)}")
    return found


def parse_change(line: str, before: State) -> State:
    """Read a line of `change_line` and return the state it leads to.

    Raises:
        ValueError: it is no change.
    """
    return {**before, **({} if line.removeprefix(" ") == UNCHANGED else parse_line(line, before))}


class MachineRendering(ABC):
    """How a run is written.

    Attributes:
        trajectory: whether every step is written, so that a complete run and a first error can be told.
        by_step: whether the model is called once per step; the number of steps is then not in the prompt.
    """

    trajectory: ClassVar[bool] = True
    by_step: ClassVar[bool] = False

    @abstractmethod
    def examples(self, run: WrittenRun) -> list[TextExample]:
        """Return the examples of a run: one, or one per step for the dynamic scratchpad."""

    @abstractmethod
    def read(self, text: str, before: State, most: int) -> Reading:
        """Read what a model wrote.

        Args:
            text: any text.
            before: the state it follows.
            most: states after which reading stops, 1 or more; a longer text counts as whole.
        """


class MachineOutput(MachineRendering):
    """The last visible state, without a run."""

    trajectory = False

    def examples(self, run: WrittenRun) -> list[TextExample]:
        """Return one example."""
        return [TextExample(run.prompt, f" {run.states[-1][VISIBLE]}")]

    def read(self, text: str, before: State, most: int) -> Reading:
        """Read one visible state; it stands for the last step, whatever its number."""
        del before, most
        word = text.strip()
        return Reading([{VISIBLE: word}], True) if word in KNOWN[VISIBLE] else Reading([], False)


class _Lines(MachineRendering):
    """A line per step in one text."""

    @abstractmethod
    def line(self, before: State, after: State) -> str:
        """Write a step."""

    @abstractmethod
    def parse(self, line: str, before: State) -> State:
        """Read a step.

        Raises:
            ValueError: it is none.
        """

    def lines(self, states: Sequence[State]) -> str:
        """Write all steps."""
        return "\n".join(self.line(before, after) for before, after in pairwise(states))

    def examples(self, run: WrittenRun) -> list[TextExample]:
        """Return one example."""
        return [TextExample(run.prompt, self.lines(run.states))]

    def read(self, text: str, before: State, most: int) -> Reading:
        """Read the lines up to the first that is malformed."""
        states: list[State] = []
        # Split no further than is read: a text may be endless.
        for line in islice(text.split("\n", most), most):
            try:
                states.append(self.parse(line, states[-1] if states else before))
            except ValueError:
                return Reading(states, False)
        return Reading(states, True)


class MachineScratchpad(_Lines):
    """Every state in full."""

    def line(self, before: State, after: State) -> str:
        """Write a step."""
        del before
        return full_line(after)

    def parse(self, line: str, before: State) -> State:
        """Read a step; see `parse_full`."""
        return parse_full(line, before)


class MachineCompactScratchpad(_Lines):
    """Only what each step changed; with the start, which the prompt tells, the full states are rebuilt exactly."""

    def line(self, before: State, after: State) -> str:
        """Write a step."""
        return change_line(before, after)

    def parse(self, line: str, before: State) -> State:
        """Read a step; see `parse_change`."""
        return parse_change(line, before)


class MachineDynamicScratchpad(MachineRendering):
    """State to next state, each in a call of its own; what came before is dropped, and so is the number of steps."""

    by_step = True

    def prompt(self, table: str, state: State) -> str:
        """Return the prompt that asks for what follows a state."""
        return f"{table}{STATE}{full_line(state)}{ANSWER}"

    def examples(self, run: WrittenRun) -> list[TextExample]:
        """Return one example per step."""
        return [TextExample(self.prompt(run.table, before), full_line(after)) for before, after in pairwise(run.states)]

    def read(self, text: str, before: State, most: int) -> Reading:
        """Read the one state of a call."""
        del most
        try:
            return Reading([parse_full(text, before)], True)
        except ValueError:
            return Reading([], False)


RENDERINGS = {
    kind.__name__: kind
    for kind in (MachineOutput, MachineScratchpad, MachineCompactScratchpad, MachineDynamicScratchpad)
}

PREFIX = "machine"


def text_style(machine: str, rendering: MachineRendering) -> str:
    """Return task and rendering as an exported model remembers them, such as "machine/fsm/MachineScratchpad"."""
    return f"{PREFIX}/{machine}/{type(rendering).__name__}"


def trained_task(style: object) -> str | None:
    """Return the task of such a word; None for anything else."""
    prefix, _, rest = str(style).partition("/")
    return rest.rpartition("/")[0] or None if prefix == PREFIX else None


def trained_rendering(style: object) -> MachineRendering | None:
    """Return the rendering of such a word; None for anything else."""
    prefix, _, rest = str(style).partition("/")
    name = rest.rpartition("/")[2]
    return RENDERINGS[name]() if prefix == PREFIX and name in RENDERINGS else None
