"""A generated corpus of small functions: loops, branches, lists, strings, dicts, nested calls.

    corpus(seed=0, count=1000)

Program i of a seed is the same however many are drawn. Each function is built statement by statement from typed
expressions over the variables at hand, so it runs without type errors; every loop ends (`for` over something that its
body does not change, `while` over a counter), numbers and containers stay small, and no subscript is out of range.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from datamodules.tasks.grammar.seeds import seeded
from datamodules.tasks.traces.expressions import KINDS, Scope, argument, expression
from datamodules.tasks.traces.programs import Program

FEATURES = ("branch", "for", "while", "list", "string", "dict", "call", "comprehension", "try")
"""Kinds of statement; a corpus may leave some out."""

INDENT = "    "


@dataclass
class _Writer:
    """The function being written."""

    rng: random.Random
    features: tuple[str, ...]
    lines: list[str] = field(default_factory=list)
    names: int = 0

    def add(self, depth: int, text: str) -> None:
        self.lines.append(INDENT * depth + text)

    def fresh(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"


Statement = Callable[[_Writer, Scope, int, int], None]


def _assign(writer: _Writer, scope: Scope, depth: int, _: int) -> None:
    kind = writer.rng.choice(KINDS)
    targets = [name for name in scope.of(kind) if name not in scope.fixed]
    again = targets and writer.rng.random() < 0.6
    target = writer.rng.choice(targets) if again else writer.fresh(kind[0])
    writer.add(depth, f"{target} = {expression(writer.rng, scope, kind, 2)}")
    scope.variables[target] = kind


def _block(writer: _Writer, scope: Scope, depth: int, size: int) -> None:
    """Write a few statements; variables first bound inside are not used after it, since it may not run."""
    inner = Scope(dict(scope.variables), set(scope.fixed), scope.helper)
    before = len(writer.lines)
    for _ in range(writer.rng.randint(1, 2)):
        _statement(writer, inner, depth, size - 1)
    assert len(writer.lines) > before


def _branch(writer: _Writer, scope: Scope, depth: int, size: int) -> None:
    writer.add(depth, f"if {expression(writer.rng, scope, 'bool', 2)}:")
    _block(writer, scope, depth + 1, size)
    if writer.rng.random() < 0.3:
        writer.add(depth, f"elif {expression(writer.rng, scope, 'bool', 1)}:")
        _block(writer, scope, depth + 1, size)
    if writer.rng.random() < 0.6:
        writer.add(depth, "else:")
        _block(writer, scope, depth + 1, size)


def _for(writer: _Writer, scope: Scope, depth: int, size: int) -> None:
    rng = writer.rng
    inner = Scope(dict(scope.variables), set(scope.fixed), scope.helper)
    forms = ["range", "enumerate", "list", "str", "dict"]
    form = rng.choice(forms)
    variable = writer.fresh("k")
    over = f"range({rng.randint(2, 6)})"
    source = rng.choice(scope.of(form)) if form in KINDS and scope.of(form) else None
    if form == "enumerate" and scope.of("list"):
        source = rng.choice(scope.of("list"))
        index, variable_text = writer.fresh("k"), variable
        writer.add(depth, f"for {index}, {variable_text} in enumerate({source}):")
        inner.variables[index] = "int"
        inner.fixed |= {index, source}
    elif form == "dict" and source:
        value = writer.fresh("v")
        writer.add(depth, f"for {variable}, {value} in {source}.items():")
        inner.variables[value] = "int"
        inner.fixed |= {value, source}
    else:
        if source:
            over = source if rng.random() < 0.7 or form == "str" else f"reversed({source})"
            inner.fixed.add(source)
        writer.add(depth, f"for {variable} in {over}:")
    inner.variables[variable] = "str" if form in ("str", "dict") and source else "int"
    inner.fixed.add(variable)
    _block(writer, inner, depth + 1, size)
    if rng.random() < 0.25:
        writer.add(depth + 1, f"if {expression(rng, inner, 'bool', 1)}:")
        writer.add(depth + 2, rng.choice(["break", "continue"]))
        _assign(writer, inner, depth + 1, size)


def _while(writer: _Writer, scope: Scope, depth: int, size: int) -> None:
    counter = writer.fresh("c")
    inner = Scope({**scope.variables, counter: "int"}, scope.fixed | {counter}, scope.helper)
    writer.add(depth, f"{counter} = {writer.rng.randint(1, 6)}")
    condition = f"{counter} > 0"
    if writer.rng.random() < 0.3:
        condition += f" and ({expression(writer.rng, scope, 'bool', 1)})"
    writer.add(depth, f"while {condition}:")
    writer.add(depth + 1, f"{counter} -= {writer.rng.randint(1, 2)}")
    _block(writer, inner, depth + 1, size)
    scope.variables[counter] = "int"


def _list(writer: _Writer, scope: Scope, depth: int, size: int) -> None:
    targets = [name for name in scope.of("list") if name not in scope.fixed]
    if not targets:
        _assign(writer, scope, depth, size)
        return
    rng, name = writer.rng, writer.rng.choice(targets)
    number = expression(rng, scope, "int", 1)
    action = rng.choice(
        [
            f"{name}.append({number})",
            f"{name}.insert({rng.randint(0, 2)}, {number})",
            f"{name}.reverse()",
            f"{name}.sort()",
            f"{name} = {name}[{rng.randint(0, 1)}:{rng.randint(2, 8)}]",
            f"{name} += [{number}]",
            f"{name}[0:1] = [{number}]",
        ]
    )
    writer.add(depth, action)
    if "append" in action or "insert" in action or "+=" in action:
        writer.add(depth, f"{name} = {name}[-8:]")


def _string(writer: _Writer, scope: Scope, depth: int, size: int) -> None:
    targets = [name for name in scope.of("str") if name not in scope.fixed]
    if not targets:
        _assign(writer, scope, depth, size)
        return
    name = writer.rng.choice(targets)
    writer.add(depth, f"{name} = ({name} + {expression(writer.rng, scope, 'str', 1)})[-12:]")


def _dict(writer: _Writer, scope: Scope, depth: int, size: int) -> None:
    targets = [name for name in scope.of("dict") if name not in scope.fixed]
    if not targets:
        _assign(writer, scope, depth, size)
        return
    rng, name = writer.rng, writer.rng.choice(targets)
    key, number = expression(rng, scope, "str", 1), expression(rng, scope, "int", 1)
    forms = [
        f"{name}[{key}] = {number}",
        f"{name}[{key}] = {name}.get({key}, 0) + 1",
        f"{name}.pop({key}, None)",
        f"{name}.setdefault({key}, {number})",
    ]
    writer.add(depth, rng.choice(forms))


def _call(writer: _Writer, scope: Scope, depth: int, _: int) -> None:
    if scope.helper is None:
        _assign(writer, scope, depth, 0)
        return
    name, kinds, result = scope.helper
    target = writer.fresh(result[0])
    values = ", ".join([expression(writer.rng, scope, kind, 1) for kind in kinds])
    writer.add(depth, f"{target} = {name}({values})")
    scope.variables[target] = result


def _comprehension(writer: _Writer, scope: Scope, depth: int, _: int) -> None:
    rng, variable = writer.rng, writer.fresh("k")
    inner = Scope({**scope.variables, variable: "int"}, set(scope.fixed), None)
    lists = scope.of("list")
    over = rng.choice(lists) if lists else f"range({rng.randint(2, 6)})"
    test = f" if {expression(rng, inner, 'bool', 1)}" if rng.random() < 0.5 else ""
    item = expression(rng, inner, "int", 1)
    target, kind, text = rng.choice(
        [
            (writer.fresh("l"), "list", f"[{item} for {variable} in {over}{test}]"),
            (writer.fresh("i"), "int", f"sum({item} for {variable} in {over}{test})"),
            (writer.fresh("d"), "dict", f"{{str({variable}): {item} for {variable} in {over}{test}}}"),
            (writer.fresh("l"), "list", f"sorted({over}, key=lambda {variable}: {item})"),
        ]
    )
    writer.add(depth, f"{target} = {text}")
    scope.variables[target] = kind


def _try(writer: _Writer, scope: Scope, depth: int, _: int) -> None:
    target = writer.fresh("i")
    rng = writer.rng
    number, other = expression(rng, scope, "int", 1), expression(rng, scope, "int", 1)
    text = rng.choice([f"{number} // {other}", f"int({expression(rng, scope, 'str', 1)})", f"[{number}][{other}]"])
    writer.add(depth, "try:")
    writer.add(depth + 1, f"{target} = {text}")
    writer.add(depth, "except (ZeroDivisionError, ValueError, IndexError):")
    writer.add(depth + 1, f"{target} = {rng.randint(-3, 3)}")
    scope.variables[target] = "int"


STATEMENTS: dict[str, Statement] = {
    "branch": _branch,
    "for": _for,
    "while": _while,
    "list": _list,
    "string": _string,
    "dict": _dict,
    "call": _call,
    "comprehension": _comprehension,
    "try": _try,
}

COMPOUND = ("branch", "for", "while")


def _statement(writer: _Writer, scope: Scope, depth: int, size: int) -> None:
    names = [name for name in writer.features if size > 0 or name not in COMPOUND]
    if not names or writer.rng.random() < 0.25:
        _assign(writer, scope, depth, size)
        return
    # Loops and branches inside loops multiply the run; they become rarer the deeper they stand.
    name = writer.rng.choice(names)
    if name in COMPOUND and writer.rng.random() < 0.25 * (depth - 1):
        _assign(writer, scope, depth, size)
    else:
        STATEMENTS[name](writer, scope, depth, size)


def _function(
    rng: random.Random, features: tuple[str, ...], name: str, statements: int, helper: tuple[str, list[str], str] | None
) -> tuple[list[str], list[str], str]:
    """Write a function; returns its lines, the kinds of its parameters and of its result."""
    writer = _Writer(rng, features)
    kinds = [rng.choice(KINDS) for _ in range(rng.randint(1, 3))]
    parameters = [f"{'abc'[position]}" for position in range(len(kinds))]
    scope = Scope(dict(zip(parameters, kinds, strict=True)), set(), helper)
    writer.add(0, f"def {name}({', '.join(parameters)}):")
    for _ in range(statements):
        _statement(writer, scope, 1, 2)
    result = rng.choice(sorted(set(scope.variables.values())))
    writer.add(1, f"return {rng.choice(scope.of(result))}")
    return writer.lines, kinds, result


def generate(
    seed: int, index: int, features: tuple[str, ...] = FEATURES, statements: tuple[int, int] = (2, 6)
) -> Program:
    """Write program `index` of a seed.

    Args:
        seed: seed of the corpus.
        index: number of the program.
        features: kinds of statement that may occur.
        statements: fewest and most statements at the top of the function.

    Raises:
        ValueError: an unknown feature, or a range of statements that is empty.
    """
    unknown = sorted(set(features) - set(FEATURES))
    if unknown:
        raise ValueError(f"features: {unknown[0]!r} is unknown; use some of {', '.join(FEATURES)}")
    low, high = statements
    if not 1 <= low <= high:
        raise ValueError(f"statements: got {statements}; give at least 1 and at most as many as the second number")
    rng = seeded("traces", seed, index)
    lines: list[str] = []
    helper = None
    if "call" in features and rng.random() < 0.5:
        lines, kinds, result = _function(rng, features, "g", rng.randint(1, 2), None)
        helper = ("g", kinds, result)
        lines += ["", ""]
    own, kinds, _ = _function(rng, features, "f", rng.randint(low, high), helper)
    values = ", ".join([argument(rng, kind) for kind in kinds])
    return Program(f"generated_{seed}_{index}", "\n".join([*lines, *own]) + "\n", f"f({values})")


def corpus(
    seed: int,
    count: int,
    features: tuple[str, ...] = FEATURES,
    statements: tuple[int, int] = (2, 6),
) -> Iterator[Program]:
    """Yield programs 0..count-1 of a seed.

    Raises:
        ValueError: as `generate`, or a count below 1.
    """
    if count < 1:
        raise ValueError(f"count: got {count}; it must be 1 or more")
    for index in range(count):
        yield generate(seed, index, features, statements)
