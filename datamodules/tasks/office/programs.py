"""Reference programs of an item, in both languages: what a model is trained to write.

Stack programs have one instruction a line. Python programs are assignments that end in `result` and call the nine
functions of `datamodules.tasks.office.library`.
"""

from __future__ import annotations

from datetime import date

from datamodules.tasks.office.items import FACTORS, OfficeItem, Step
from datamodules.tasks.office.machine import trace

ARROW = " -> "
"""What stands between an instruction and the value it leaves on top, in a trace with values."""


def stack_program(item: OfficeItem) -> str:
    """Write the stack program of an item, without a line break at its end."""
    facts = item.facts
    if item.family == "string":
        lines = [f"PUSH_CODE {facts.code}", "STRIP_HYPHENS"]
    elif item.family == "unit":
        lines = [f"PUSH {facts.number}"]
    elif item.family == "table":
        entries = " ".join(f"{key}:{value}" for key, value in facts.table)
        lines = [f"TABLE {entries}", f"LOOKUP {facts.key}"]
    else:
        lines = [f"PUSH_DATE {facts.day}"]
    unit = facts.unit
    for step in item.steps:
        lines += _stack_lines(step, unit)
        unit = str(step.arguments[0]) if step.name == "convert" else unit
    return "\n".join(lines)


def _stack_lines(step: Step, unit: str) -> list[str]:
    if step.name == "convert":
        return [f"MUL {FACTORS[unit, str(step.arguments[0])]}"]
    if step.name == "add_value":
        return [f"LOOKUP {step.arguments[0]}", "ADD_TOP"]
    opcode = "MUL" if step.name == "scale" else step.name.upper()
    return [" ".join([opcode, *map(str, step.arguments)])]


def with_values(program: str) -> str:
    """Write behind every instruction of a valid stack program the value it leaves on top.

    Raises:
        ProgramError: the program is invalid.
    """
    tops, _ = trace(program)
    lines = zip(program.split("\n"), tops, strict=True)
    return "\n".join(line if top is None else f"{line}{ARROW}{as_written(top)}" for line, top in lines)


def as_written(top: int | str | date) -> str:
    """Write a value of the machine as traces show it."""
    return top.isoformat() if isinstance(top, date) else str(top)


def python_program(item: OfficeItem) -> str:
    """Write the Python program of an item, without a line break at its end."""
    facts = item.facts
    lines: list[str] = []
    calls: list[str] = []
    value = ""  # the expression of the value so far
    if item.family == "string":
        calls.append(f'strip_hyphens("{facts.code}")')
    elif item.family == "unit":
        value = str(facts.number)
    elif item.family == "table":
        entries = ", ".join(f'"{key}": {number}' for key, number in facts.table)
        lines.append(f"table = {{{entries}}}")
        calls.append(f'lookup(table, "{facts.key}")')
    else:
        value = f'"{facts.day}"'
    unit, first = facts.unit, 0 if lines else 1  # a table takes a line but no number
    for step in item.steps:
        if calls:
            value = f"x{len(lines) + first}"
            lines.append(f"{value} = {calls.pop()}")
        if step.name == "add_value":
            other = f"x{len(lines) + first}"
            lines.append(f'{other} = lookup(table, "{step.arguments[0]}")')
            calls.append(f"add({value}, {other})")
        else:
            calls.append(_python_call(step, value, unit))
        unit = str(step.arguments[0]) if step.name == "convert" else unit
    return "\n".join([*lines, f"result = {calls.pop()}"])


def _python_call(step: Step, value: str, unit: str) -> str:
    if step.name == "convert":
        return f"mul({value}, {FACTORS[unit, str(step.arguments[0])]})"
    if step.name in ("add_days", "add_weeks"):
        return f"date_add({value}, {step.name.removeprefix('add_')}={step.arguments[0]})"
    name = {"scale": "mul", "slice": "slice1"}.get(step.name, step.name)
    return f"{name}({', '.join([value, *map(str, step.arguments)])})"
