"""The arms of the study: what a model is asked to write, the prompt, and what it is trained to write.

| arm | writes | trained | examples in the prompt |
|---|---|---|---|
| answer | FINAL: x | yes | 0 |
| trace_final | stack program, then FINAL: x | yes | 0 |
| stack, python | program alone | yes | 0 |
| zero_shot_answer | FINAL: x | no | 0 |
| zero_shot_stack, zero_shot_python | program alone | no | 0 |
| few_shot_stack, few_shot_python | program alone | no | 4 |
| values_final | stack program with the value after each instruction, then FINAL: x | yes | 0 |
| executed_answer | stack program; the machine's result is shown; then FINAL: x | yes | 0 |

Source: program task, section 1; the last six are the controls that the published study lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from datamodules.tasks.office.errors import ProgramError, Value
from datamodules.tasks.office.items import FAMILIES, OfficeItem
from datamodules.tasks.office.library import FUNCTIONS
from datamodules.tasks.office.machine import INSTRUCTIONS
from datamodules.tasks.office.programs import python_program, stack_program, with_values
from datamodules.tasks.office.splits import training
from datamodules.tasks.office.wordings import question
from datamodules.tasks.procedure import TextExample

Language = Literal["stack", "python"]
FINAL = "FINAL: "
RESULT = "RESULT: "
SHOTS_SEED = 20_260
"""Seed of the examples in few-shot prompts; they are training items, so no evaluation item is among them."""


@dataclass(frozen=True)
class Arm:
    """One arm.

    Attributes:
        name: its name.
        language: language of the program it writes; None for none.
        states_final: whether it is to state the answer itself.
        values: whether each instruction shows the value it leaves.
        executed: whether the machine's result is shown before the answer, in a second call of the model.
        trained: whether it is fine-tuned; the others ask the model as it is.
        shots: solved examples in the prompt.
    """

    name: str
    language: Language | None = None
    states_final: bool = False
    values: bool = False
    executed: bool = False
    trained: bool = True
    shots: int = 0

    @property
    def turns(self) -> int:
        """Calls of the model for one item."""
        return 2 if self.executed else 1


ARMS = {
    arm.name: arm
    for arm in (
        Arm("answer", states_final=True),
        Arm("trace_final", "stack", states_final=True),
        Arm("stack", "stack"),
        Arm("python", "python"),
        Arm("zero_shot_answer", states_final=True, trained=False),
        Arm("zero_shot_stack", "stack", trained=False),
        Arm("zero_shot_python", "python", trained=False),
        Arm("few_shot_stack", "stack", trained=False, shots=len(FAMILIES)),
        Arm("few_shot_python", "python", trained=False, shots=len(FAMILIES)),
        Arm("values_final", "stack", states_final=True, values=True),
        Arm("executed_answer", "stack", states_final=True, executed=True),
    )
}

_ASK: dict[Language, str] = {
    "stack": "a program for the stack machine, one instruction per line",
    "python": "a Python program: assignments, the last one to result",
}


def find_arm(name: str) -> Arm:
    """Look up an arm.

    Raises:
        ValueError: no such arm.
    """
    if name not in ARMS:
        raise ValueError(f"arm: got {name!r}; use one of {', '.join(ARMS)}")
    return ARMS[name]


def instruction_list(language: Language) -> str:
    """Return the list of instructions (stack) or functions (Python) as it stands in a prompt."""
    if language == "stack":
        lines = [f"{one.usage}: {one.meaning}" for one in INSTRUCTIONS.values()]
        return "\n".join(["Instructions:", *lines, "The result is the single value left."])
    return "\n".join(["Functions:", *(f"{call}: {meaning}" for call, meaning in FUNCTIONS.items())])


def prompt(item: OfficeItem, arm: Arm, listing: bool = True) -> str:
    """Write the prompt of an item for the (first) call of the model.

    Args:
        item: the item.
        arm: the arm.
        listing: list the instructions or functions; arms without a program have nothing to list.
    """
    parts = [_request(arm)]
    if listing and arm.language is not None:
        parts.append(instruction_list(arm.language))
    parts += [f"Task: {question(shot)}\n{_head(arm)}\n{target(shot, arm)}" for shot in _shots(arm.shots)]
    parts.append(f"Task: {question(item)}\n{_head(arm)}\n")
    return "\n\n".join(parts)


def target(item: OfficeItem, arm: Arm) -> str:
    """Write the reference output of the (first) call."""
    final = FINAL + item.answer().text
    if arm.language is None:
        return final
    program = stack_program(item) if arm.language == "stack" else python_program(item)
    program = with_values(program) if arm.values else program
    return f"{program}\n{final}" if arm.states_final and not arm.executed else program


def second_prompt(first: str, program: str, result: Value | ProgramError) -> str:
    """Write the prompt of the second call: the first, what the model wrote, and what the machine made of it."""
    said = result.text if isinstance(result, Value) else f"error {result.reason}"
    return f"{first}{program}\n{RESULT}{said}\n"


def examples(items: Sequence[OfficeItem], arm: Arm, listing: bool = True) -> list[TextExample]:
    """Write the training examples of items; an arm of two calls has two examples an item.

    Raises:
        ValueError: the arm is not trained.
    """
    if not arm.trained:
        raise ValueError(f"arm: {arm.name!r} is not trained; use one of {', '.join(trained_arms())}")
    found = []
    for item in items:
        first, written = prompt(item, arm, listing), target(item, arm)
        found.append(TextExample(first, written))
        if arm.executed:
            answer = item.answer()
            found.append(TextExample(second_prompt(first, written, answer), FINAL + answer.text))
    return found


@dataclass(frozen=True)
class TrainedPrompt:
    """How a model was trained to be asked.

    Attributes:
        arm: name of the arm.
        listing: whether the instructions were listed.
    """

    arm: str
    listing: bool

    @property
    def text(self) -> str:
        """Return it as one word for a checkpoint's provenance, such as "office/stack/listed"."""
        return f"office/{self.arm}/{'listed' if self.listing else 'unlisted'}"

    @classmethod
    def parse(cls, text: object) -> TrainedPrompt | None:
        """Read such a word; None for anything else."""
        task, _, rest = str(text).partition("/")
        arm, _, listed = rest.partition("/")
        known = task == "office" and arm in ARMS and listed in ("listed", "unlisted")
        return cls(arm, listed == "listed") if known else None


def trained_arms() -> list[str]:
    """Return the names of the arms that are fine-tuned."""
    return [arm.name for arm in ARMS.values() if arm.trained]


def _request(arm: Arm) -> str:
    final = f"the line {FINAL}answer"
    if arm.language is None:
        return f"Solve the task. Write only {final}."
    ask = _ASK[arm.language]
    if arm.values:
        ask += ", each followed by -> and the value it leaves on top"
    if arm.executed:
        return f"Solve the task. Write {ask}. After its {RESULT.strip()} line write {final}."
    if arm.states_final:
        return f"Solve the task. Write {ask}, then {final}."
    return f"Solve the task. Write only {ask}. Do not state the answer."


def _head(arm: Arm) -> str:
    return "Program:" if arm.language is not None else "Answer:"


@cache
def _shots(count: int) -> tuple[OfficeItem, ...]:
    return tuple(training(count, SHOTS_SEED)) if count else ()
