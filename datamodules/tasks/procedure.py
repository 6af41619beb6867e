"""The contract of a task: a procedure that a looped model executes, one step per loop.

A task knows its instances, renders their prompts as text and runs the reference executor. From that come both kinds of
training data: looped batches (`datamodules.batch.Batch`, built by the datamodules) and plain text examples for
ordinary models (`Procedure.example`, built here).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, TypeVar

UNDEFINED = -100
"""Value of a field where it has none (the batches' IGNORE: no loss and no metric counts it)."""

CELLS = None
"""Instead of a label set, for a field whose value is the number of a cell (`Procedure.cells`)."""

InstanceT = TypeVar("InstanceT")

PROCEDURE = "procedure/"
"""How the styles of text of these tasks begin in a checkpoint's provenance."""

TextStyle = Literal["answer", "steps", "trace"]
"""What an ordinary model writes: the last label, every label, or every label with every named field."""


@dataclass(frozen=True)
class LabelSet:
    """The labels a state may take.

    Attributes:
        names: name of each label, as people write it ("A").
        texts: continuation text of each label, as it follows a prompt (" A"). One token each for a looped model.

    Raises:
        ValueError: names and texts differ in number, or a name or a text occurs twice.
    """

    names: tuple[str, ...]
    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.texts):
            raise ValueError(f"LabelSet: {len(self.names)} names but {len(self.texts)} texts; give one text per name")
        for field, values in (("names", self.names), ("texts", self.texts)):
            if len(set(values)) != len(values):
                raise ValueError(f"LabelSet.{field}: a value occurs twice in {values}; make all of them distinct")

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class TextExample:
    """One example for an ordinary language model: it reads `prompt` and writes `completion`."""

    prompt: str
    completion: str


class Procedure(ABC, Generic[InstanceT]):
    """A task whose instances are run step by step by a reference executor.

    Attributes:
        labels: the label set of the visible state.
        views: names of the prompt views, the first is the complete prompt an ordinary model gets.
        fields: named auxiliary state fields (optional extra targets per loop), each with its label set, or CELLS where
            a value is the number of a cell; empty for most tasks.
    """

    labels: LabelSet
    views: ClassVar[tuple[str, ...]]
    fields: Mapping[str, LabelSet | None] = MappingProxyType({})

    @property
    def task_name(self) -> str:
        """Name by which a checkpoint's provenance tells the task; a task whose prompts vary has one for each kind."""
        return type(self).__name__

    @abstractmethod
    def prompt(self, instance: InstanceT, view: str) -> str:
        """Return the text of one prompt view, ending at the answer position."""

    @abstractmethod
    def steps(self, instance: InstanceT) -> int:
        """Return the number N of steps of this instance."""

    @abstractmethod
    def initial(self, instance: InstanceT) -> int | None:
        """Return the label of the state before the first step, None where the task has none."""

    @abstractmethod
    def states(self, instance: InstanceT) -> Sequence[int]:
        """Return the labels of the reference states after steps 1..N (length N)."""

    def field_states(self, instance: InstanceT) -> Mapping[str, Sequence[int]]:  # noqa: ARG002
        """Return the values of every named field at steps 0..N (length N + 1 each), UNDEFINED where there is none."""
        return {}

    def cells(self, instance: InstanceT, view: str) -> Sequence[int]:  # noqa: ARG002
        """Return the instance's cells in their own order, each as the index of one character of the prompt.

        Cells are the symbols of a string, the cells of a tape or the lines of a program: what a field may point to, and
        what a recurrence may let recur. A character stands for the token that holds it; the tokens must be distinct.
        """
        return []

    def facts(self, instance: InstanceT) -> Mapping[str, int]:  # noqa: ARG002
        """Return integers by which results may be broken down (kind, seed, tail, ...)."""
        return {}

    def example(self, instance: InstanceT, style: TextStyle) -> TextExample:
        """Render an instance for an ordinary model.

        Args:
            instance: the instance.
            style: "answer" is the last label only; "steps" all labels 1..N one after the other; "trace" one line per
                step with the label and every named field (for a task without fields, the same as "steps").

        Raises:
            ValueError: unknown style.
        """
        prompt = self.prompt(instance, self.views[0])
        texts = [self.labels.texts[state] for state in self.states(instance)]
        if style == "answer":
            return TextExample(prompt, texts[-1])
        if style == "steps" or (style == "trace" and not self.fields):
            return TextExample(prompt, "".join(texts))
        if style == "trace":
            values = self.field_states(instance)
            named = [
                {name: _value(labels, values[name][step]) for name, labels in self.fields.items()}
                for step in range(1, len(texts) + 1)
            ]
            return TextExample(prompt, "\n".join(map(trace_line, texts, named)))
        raise ValueError(f"style: got {style!r}; use 'answer', 'steps' or 'trace'")


def trace_line(label: str, fields: Mapping[str, str]) -> str:
    """Write one state: the visible label, then every named field, each value with the space that stands before it."""
    return "; ".join([label, *(f"{name}:{value}" for name, value in fields.items())])


def style_name(procedure: Procedure[Any], style: TextStyle) -> str:
    """Return task and style as one word for a checkpoint's provenance, such as "procedure/BracketTask/steps"."""
    return f"{PROCEDURE}{procedure.task_name}/{style}"


def _value(labels: LabelSet | None, value: int) -> str:
    """Write a field's value: a label's text, the number of a cell, "-" for none."""
    if value == UNDEFINED:
        return " -"
    return f" {value}" if labels is None else labels.texts[value]
