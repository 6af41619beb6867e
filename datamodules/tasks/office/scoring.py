"""Scores one output of a model: what it stated, what its program does, and where that comes from.

    primary      program arms: the program executes to the answer, states no FINAL and smuggles nothing
                 answer arms: the last line is exactly `FINAL: answer`
    executed     the program executes to the answer
    valid        the program executes to a single value
    no_final     no `FINAL:` anywhere
    smuggled     the program executes to the answer, but brought it along
    provenance   of the programs that execute to the answer: every literal occurs in the task or in the constant table
    perturbed    of the programs that execute to the answer: the program follows a change of the task

Source: program task, section 1. No output is refused and none is repaired.
"""

from __future__ import annotations

from dataclasses import dataclass

from datamodules.tasks.office.arms import Arm, Language
from datamodules.tasks.office.errors import ProgramError, Reason, Value
from datamodules.tasks.office.items import OfficeItem
from datamodules.tasks.office.machine import MAX_CHARACTERS, run, trace
from datamodules.tasks.office.programs import as_written
from datamodules.tasks.office.provenance import perturb, provenance
from datamodules.tasks.office.response import Response, read, split_values
from datamodules.tasks.office.sandbox import PythonSandbox


@dataclass(frozen=True)
class Score:
    """Score of one output; None where a question does not arise (a program in the answer arms, say).

    Attributes:
        primary: the arm's main score.
        no_final: no `FINAL:` anywhere.
        executed: the program executes to the answer.
        valid: the program executes.
        reason: why it does not; None where it does.
        detail: what exactly.
        smuggled: the program executes to the answer, but brought it along.
        provenance: every literal of a program that executes to the answer is known.
        perturbed: a program that executes to the answer follows a change of the task; None where none applies, too.
        values: share of lines of a trace that state the value the machine has there.
    """

    primary: bool
    no_final: bool
    executed: bool | None = None
    valid: bool | None = None
    reason: Reason | None = None
    detail: str = ""
    smuggled: bool | None = None
    provenance: bool | None = None
    perturbed: bool | None = None
    values: float | None = None


def execute(program: str, language: Language, sandbox: PythonSandbox) -> Value:
    """Run a program on its machine.

    Raises:
        ProgramError: it is invalid, with the named reason.
    """
    return run(program) if language == "stack" else sandbox.run(program)


def bare_program(response: Response, arm: Arm) -> str:
    """Return the program in an output, without the values that a trace states.

    Raises:
        ProgramError: the output is no text, or too long for any program.
    """
    if response.text is None:
        raise ProgramError(Reason.NOT_TEXT)
    if arm.values and len(response.program) <= 2 * MAX_CHARACTERS:
        return split_values(response.program)[0]
    return response.program


def run_output(output: object, arm: Arm, sandbox: PythonSandbox) -> Value | ProgramError:
    """Execute the program in an output; what a second call of the model is shown."""
    assert arm.language is not None
    try:
        return execute(bare_program(read(output), arm), arm.language, sandbox)
    except ProgramError as error:
        return error


def score(item: OfficeItem, arm: Arm, output: object, sandbox: PythonSandbox, second: object = None) -> Score:
    """Score an output.

    Args:
        item: the item it answers.
        arm: the arm it was written for.
        output: what the model wrote, of any shape and length.
        sandbox: where Python programs run.
        second: what it wrote in its second call, for an arm that has one.
    """
    response = read(output)
    stated = read(second) if arm.executed else response
    answered = arm.states_final and stated.final == item.answer().text
    no_final = not stated.states_final
    if arm.language is None:
        return Score(primary=answered, no_final=no_final)

    result = run_output(output, arm, sandbox)
    values = _stated_values(response) if arm.values else None
    if isinstance(result, ProgramError):
        return Score(
            primary=answered,
            no_final=no_final,
            executed=False,
            valid=False,
            reason=result.reason,
            detail=str(result),
            smuggled=False,
            values=values,
        )
    executed = result == item.answer()
    program = bare_program(response, arm)
    origin = provenance(program, arm.language, item)
    smuggled = executed and origin.smuggled
    return Score(
        primary=answered if arm.states_final else executed and no_final and not smuggled,
        no_final=no_final,
        executed=executed,
        valid=True,
        smuggled=smuggled,
        provenance=origin.known if executed else None,
        perturbed=_follows(item, program, arm.language, sandbox) if executed else None,
        values=values,
    )


def _follows(item: OfficeItem, program: str, language: Language, sandbox: PythonSandbox) -> bool | None:
    change = perturb(item)
    if change is None:
        return None
    try:
        return execute(change.apply(program, language), language, sandbox) == change.item.answer()
    except ProgramError:
        return False


def _stated_values(response: Response) -> float:
    """Share of a valid trace's lines whose value is the machine's; 0 for an invalid one."""
    if len(response.program) > 2 * MAX_CHARACTERS:
        return 0.0
    program, stated = split_values(response.program)
    try:
        tops, _ = trace(program)
    except ProgramError:
        return 0.0
    written = [None if top is None else as_written(top) for top in tops]
    return sum(a == b for a, b in zip(written, stated, strict=True)) / len(written)
