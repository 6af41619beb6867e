"""Slow interpreters of the machines: they read a prompt's text, as a person would, and execute it word by word.

Nothing here comes from the generators: what the arrays say and what the prompt says are held to agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Trace:
    """Visible states 1..T, state fields 0..T, opcode and taken jump of each loop."""

    visible: list[str]
    fields: dict[str, list[str]]
    opcode: list[str]
    taken: list[bool]


def sections(prompt: str) -> dict[str, list[list[str]]]:
    """The lines of a prompt by heading, each as entries of words."""
    found = {}
    for line in prompt.split("\n"):
        heading, _, body = line.partition(":")
        found[heading] = [entry.split() for entry in body.split(";") if entry.split()]
    return found


def run(prompt: str, loops: int, values: int = 8, half: bool = False) -> Trace:
    parts = sections(prompt)
    if "Rules" in parts:
        return run_tape(parts, loops)
    steps = run_program(parts, (loops + 1) // 2 if half else loops, values)
    return halved(steps, loops) if half else steps.trace()


def run_tape(parts: dict[str, list[list[str]]], loops: int) -> Trace:
    rules = {(state, symbol): target for state, symbol, target in parts["Rules"]}
    cells = {name: (symbol, following) for symbol, name, following in parts["Tape"]}
    [[symbol, state, following]] = parts["Start"]
    trace = Trace([], {"symbol": [symbol], "next": [following]}, [], [])
    for _ in range(loops):
        trace.opcode.append(symbol)
        if symbol != "END":
            state = rules[state, symbol]
        symbol, following = cells[following]
        trace.visible.append(state)
        trace.fields["symbol"].append(symbol)
        trace.fields["next"].append(following)
        trace.taken.append(False)
    return trace


@dataclass
class Steps:
    """States of a program before and after each instruction, and what each instruction did."""

    states: list[dict[str, str]]
    visible: list[str]
    opcode: list[str]
    taken: list[bool]
    leads_to: list[str]

    def trace(self) -> Trace:
        fields = {name: [state[name] for state in self.states] for name in self.states[0]}
        return Trace(self.visible, fields, self.opcode, self.taken)


def run_program(parts: dict[str, list[list[str]]], count: int, values: int) -> Steps:
    stack = "Stack" in parts
    width = len(parts["Program"][0])
    columns = ["op", "operand_1", "next"] if stack else ["op", "operand_1", "operand_2", "next"]
    if not stack and width == 6:
        columns.insert(3, "target")
    lines = {label: dict(zip(columns, rest, strict=True)) for label, rest in map(labelled, parts["Program"])}
    held, first = parts["Start"][0][:-width], parts["Start"][0][-width:]
    instruction = dict(zip(columns, labelled(first)[1], strict=True))
    memory: Any
    if stack:
        memory = [word for word in held if word != "nil"]
        places = len(held)
        shown = memory[0]
    else:
        memory = dict(zip(parts["Registers"][0], held, strict=True))
        shown = memory.get(instruction["operand_1"], next(iter(memory.values())))

    def snapshot() -> dict[str, str]:
        if stack:
            padded = memory + ["nil"] * (places - len(memory))
            held = {f"stack_{place}": word for place, word in enumerate(padded, 1)}
        else:
            held = {f"register_{name}": value for name, value in memory.items()}
        state = held | instruction
        if "target" in instruction:
            state["jumps"] = "yes" if jumps(instruction, memory) else "no"
        return state

    steps = Steps([snapshot()], [], [], [], [])
    for _ in range(count):
        taken = not stack and jumps(instruction, memory)
        said = stack_step(instruction, memory, values) if stack else register_step(instruction, memory, values)
        shown = shown if said is None else said
        label = instruction["target"] if taken else instruction["next"]
        steps.opcode.append(instruction["op"])
        instruction = lines[label]
        steps.visible.append(shown)
        steps.taken.append(taken)
        steps.leads_to.append(label)
        steps.states.append(snapshot())
    return steps


def labelled(entry: list[str]) -> tuple[str, list[str]]:
    """A printed line's label, and the rest of it."""
    *rest, label, following = entry
    return label, [*rest, following]


def jumps(instruction: dict[str, str], registers: dict[str, str]) -> bool:
    op, named, value = instruction["op"], instruction["operand_1"], instruction["operand_2"]
    if op == "EQ":
        return registers[named] == value
    return op == "NE" and registers[named] != value


def register_step(instruction: dict[str, str], registers: dict[str, str], values: int) -> str | None:
    op, named, other = instruction["op"], instruction["operand_1"], instruction["operand_2"]
    if op == "END":
        return None
    if op == "SET":
        registers[named] = other
    elif op == "MOV":
        registers[named] = registers[other]
    elif op in ("INC", "DEC"):
        registers[named] = neighbour(registers[named], 1 if op == "INC" else -1, values)
    else:
        assert op in ("EQ", "NE")
    return registers[named]


def stack_step(instruction: dict[str, str], stack: list[str], values: int) -> str | None:
    op = instruction["op"]
    if op == "END":
        return None
    if op == "PUSH":
        stack.insert(0, instruction["operand_1"])
    elif op == "DUP":
        stack.insert(0, stack[0])
    elif op == "POP":
        stack.pop(0)
    else:
        assert op == "INC"
        stack[0] = neighbour(stack[0], 1, values)
    assert stack, "a run never empties its stack"
    return stack[0]


def neighbour(letter: str, by: int, values: int) -> str:
    return chr(ord("A") + (ord(letter) - ord("A") + by) % values)


def halved(steps: Steps, loops: int) -> Trace:
    """Two loops an instruction, told step by step: execute and decide, then fetch."""
    states = [steps.states[0] | {"phase": "no"} | ({"jumps": "no"} if "jumps" in steps.states[0] else {})]
    visible, opcode, taken = [], [], []
    for index, after in enumerate(steps.states[1:]):
        middle = dict(states[-1])
        middle |= {name: word for name, word in after.items() if name.startswith(("register_", "stack_"))}
        middle |= {"phase": "yes", "next": steps.leads_to[index]}
        if "jumps" in middle:
            middle["jumps"] = "yes" if steps.taken[index] else "no"
        states += [middle, after | {"phase": "no"} | ({"jumps": "no"} if "jumps" in after else {})]
        visible += [steps.visible[index]] * 2
        opcode += [steps.opcode[index]] * 2
        taken += [False, steps.taken[index]]
    fields = {name: [state[name] for state in states][: loops + 1] for name in states[0]}
    return Trace(visible[:loops], fields, opcode[:loops], taken[:loops])
