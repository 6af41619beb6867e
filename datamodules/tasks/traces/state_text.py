"""Text of states back to their parts, and the changes between states that the compact scratchpad consists of.

A change is written line by line, with the depth of the call in front:

    1 g(7, 12, pop(1), 3, n=4)      call 1 is now at line 7, offset 12; one value left its stack, 3 came; n is now 4
    2 +h(9, 0, x=1)                 a call in full: a new one, or one of another function
    2 -                             the calls from depth 2 on are over

A variable that is no longer bound is written `n=unbound`. "=" stands for no change at all.
"""

from __future__ import annotations

import ast
import re

from datamodules.tasks.traces.outcome import Line, State

CHANGE = re.compile(r"(\d+) (\+|-)?(.*)")

UNBOUND = "unbound"

MOST_CHARACTERS = 1_000_000


def parse_expression(text: str) -> ast.expr:
    """Parse one Python expression.

    Raises:
        ValueError: it is none, or too long or too deep to parse.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"an expression of {len(text)} characters; at most {MOST_CHARACTERS} are read")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"no expression: {text[:80]!r}") from error


def _call(text: str) -> tuple[str, list[str], dict[str, str]]:
    """Take `name(positional, name=value)` apart into texts."""
    node = parse_expression(text)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise ValueError(f"no line of a state: {text[:80]!r}")  # noqa: TRY004  (of a text, not of an argument)
    # Positions of nodes count bytes, and leave out the brackets around a value, which belong to its text here.
    data = text.encode()
    opening = (node.func.end_col_offset or 0) + 1
    values: list[ast.expr] = [*node.args, *[keyword.value for keyword in node.keywords]]
    names = [None] * len(node.args) + [str(keyword.arg) for keyword in node.keywords]
    begins = [argument.col_offset for argument in node.args] + [keyword.col_offset for keyword in node.keywords]
    positional: list[str] = []
    named: dict[str, str] = {}
    for value, name, begin, limit in zip(values, names, begins, [*begins[1:], len(data) - 1], strict=True):
        start = begin if name is None else begin + len(name.encode()) + 1
        while name is None and start > opening and data[start - 1 : start] == b"(":
            start -= 1
        end = value.end_col_offset or 0
        while end < limit and data[end : end + 1] == b")":
            end += 1
        if name is None:
            positional.append(data[start:end].decode())
        else:
            named[name] = data[start:end].decode()
    return node.func.id, positional, named


def parse_line(text: str) -> Line:
    """Parse one line of a state; `str` of the result gives the same text for every text the writer makes.

    Raises:
        ValueError: the text is no line of a state.
    """
    name, positional, named = _call(text)
    line = Line(name, 0, 0, tuple(positional), named)
    if not line.is_call:
        return line
    where, stack = positional[:2], tuple(positional[2:])
    if len(where) != 2 or not all(number.isdecimal() for number in where):
        raise ValueError(f"no line and offset: {text[:80]!r}")
    return Line(name, int(where[0]), int(where[1]), stack, named)


def parse_state(text: str) -> State:
    """Parse a state.

    Raises:
        ValueError: the text is no state.
    """
    lines = text.splitlines()
    if not lines:
        raise ValueError("an empty state")
    return State(tuple(map(parse_line, lines)))


def change(before: State, after: State) -> str:
    """Write what differs between two states."""
    rows = []
    for depth, line in enumerate(after.lines):
        old = before.lines[depth] if depth < len(before.lines) else None
        if old is None or old != line or list(old.variables) != list(line.variables):
            rows.append(f"{depth} {_change_line(old, line)}")
    if len(before.lines) > len(after.lines):
        rows.append(f"{len(after.lines)} -")
    return "\n".join(rows) if rows else "="


def apply(before: State, text: str) -> State:
    """Rebuild the state that `change` described.

    Raises:
        ValueError: the text is no change of this state.
    """
    lines = list(before.lines)
    for row in text.splitlines() if text != "=" else []:
        match = CHANGE.fullmatch(row)
        if match is None:
            raise ValueError(f"no change: {row[:80]!r}")
        depth, sign, rest = int(match[1]), match[2], match[3]
        if depth > len(lines) or (depth == len(lines) and sign != "+"):
            raise ValueError(f"a change at depth {depth} of a state of {len(lines)} lines")
        if sign == "-":
            del lines[depth:]
        elif sign == "+":
            lines[depth : depth + 1] = [parse_line(rest)]
        else:
            lines[depth] = _apply_line(lines[depth], rest)
    return State(tuple(lines))


def _change_line(old: Line | None, line: Line) -> str:
    whole = f"+{line}"
    if old is None or old.name != line.name or not line.is_call:
        return whole
    kept = 0
    while kept < min(len(old.stack), len(line.stack)) and old.stack[kept] == line.stack[kept]:
        kept += 1
    parts = [str(line.line), str(line.offset)]
    if kept < len(old.stack):
        parts.append(f"pop({len(old.stack) - kept})")
    parts += line.stack[kept:]
    parts += [f"{name}={text}" for name, text in line.variables.items() if old.variables.get(name) != text]
    parts += [f"{name}={UNBOUND}" for name in old.variables if name not in line.variables]
    # A variable bound for the first time goes to the end. Where it belongs elsewhere, the line is written in full.
    order = [name for name in old.variables if name in line.variables]
    order += [name for name in line.variables if name not in old.variables]
    return f"{line.name}({', '.join(parts)})" if order == list(line.variables) else whole


def _apply_line(old: Line, text: str) -> Line:
    name, positional, named = _call(text)
    if name != old.name or len(positional) < 2 or not all(number.isdecimal() for number in positional[:2]):
        raise ValueError(f"no change of a line of {old.name}: {text[:80]!r}")
    pushed = positional[2:]
    stack = list(old.stack)
    if pushed and (popped := re.fullmatch(r"pop\((\d+)\)", pushed[0])):
        count = int(popped[1])
        if count > len(stack):
            raise ValueError(f"pop({count}) of {len(stack)} values")
        del stack[len(stack) - count :]
        del pushed[0]
    variables = {**old.variables, **named}
    variables = {name: value for name, value in variables.items() if value != UNBOUND}
    return Line(name, int(positional[0]), int(positional[1]), (*stack, *pushed), variables)
