"""The graph task as ordinary text: what a language model without loops reads and writes.

Three styles, all around the published four-line prompt:

    trace   the prompt alone; the model continues with the whole path (" Q B C")
    steps   one message: an explanation, three worked examples with the whole path, then the prompt
    direct  the same message, but the examples show the final letter only

The wording of the explanation and the worked examples are this project's own; with the tokenizer of Qwen2.5 the
longest trained row (12 steps, style "steps", end token included) has the published 439 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from datamodules.tasks.graph_task import GraphQuery, GraphTask
from datamodules.tasks.procedure import TextExample

GraphTextStyle = Literal["trace", "steps", "direct"]
STYLES: tuple[GraphTextStyle, ...] = get_args(GraphTextStyle)

NEW_TOKENS: dict[GraphTextStyle, int] = {"trace": 272, "steps": 272, "direct": 8}
"""New tokens a model may write (published baselines; a trace may be as long as a rollout's safety cap)."""

INTRODUCTION = (
    "You are given a table of rules between letters, a start letter and a number of steps. The rules have no order. "
    "Each rule ( A, B) says that one step from the first letter leads to the second letter. "
    "Begin at the letter after Start and take as many steps as the number after Steps says, one rule per step. "
    "Letters may come up more than once; keep going until all the steps have been taken. "
)
INSTRUCTIONS: dict[GraphTextStyle, str] = {
    "steps": (
        "Answer with the letter reached after every single step, in order, separated by single spaces. "
        "Leave the start letter out and write nothing else."
    ),
    "direct": "Answer with the letter reached after the last step. Write this single letter and nothing else.",
}


@dataclass(frozen=True)
class Worked:
    """A worked example: rules as pairs of letters in displayed order, start and count."""

    rules: str
    start: str
    count: int

    def query(self, names: tuple[str, ...]) -> GraphQuery:
        """Return it as a query over the node names."""
        pairs = self.rules.split()
        index = names.index
        return GraphQuery(
            tuple(index(pair[0]) for pair in pairs),
            tuple(index(pair[1]) for pair in pairs),
            index(self.start),
            self.count,
        )


WORKED = (
    Worked("DT GM TJ MD PG JP", "M", 1),
    Worked("HC WR CW RH LR ZL", "L", 2),
    Worked("XK BF NX FS KB SN", "F", 3),
)
"""Six-letter tables at depths 1, 2 and 3: a full cycle, a tail into a cycle, another full cycle."""


class GraphTexts:
    """Writes queries as text.

    Args:
        style: "trace", "steps" or "direct".
        template: wording of the four-line prompt.
        letters: letters of a node name; the worked examples exist for 1 only.

    Attributes:
        task: the task that renders prompts and runs the reference.

    Raises:
        ValueError: unknown style or template, or worked examples asked for with two-letter names.
    """

    def __init__(self, style: GraphTextStyle = "trace", template: str = "published", letters: int = 1) -> None:
        if style not in STYLES:
            raise ValueError(f"style: got {style!r}; use one of {', '.join(STYLES)}")
        if style != "trace" and letters != 1:
            raise ValueError(f"style: {style!r} has worked examples with one-letter names only; use style 'trace'")
        self.style: GraphTextStyle = style
        self.task = GraphTask(template, letters)

    @property
    def is_message(self) -> bool:
        """Whether the prompt is a message to a chat model (rendered by its template) rather than raw text."""
        return self.style != "trace"

    def example(self, query: GraphQuery) -> TextExample:
        """Return prompt and completion; the completion starts with a space, as it follows the prompt's colon."""
        asked = self.task.example(query, "answer" if self.style == "direct" else "steps")
        if not self.is_message:
            return asked
        worked = [self.task.example(w.query(self.task.labels.names), self._worked_style) for w in WORKED]
        parts = [INTRODUCTION + INSTRUCTIONS[self.style], *(w.prompt + w.completion for w in worked), asked.prompt]
        return TextExample("\n\n".join(parts), asked.completion)

    def further(self, query: GraphQuery) -> TextExample:
        """Return another question about the same table, as it follows an answered one."""
        asked = self.task.example(query, "steps")
        question = asked.prompt[asked.prompt.index("\nStart:") :]
        return TextExample(question, asked.completion)

    @property
    def _worked_style(self) -> Literal["answer", "steps"]:
        return "answer" if self.style == "direct" else "steps"
