"""Typed random expressions over the variables of a generated function."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

KINDS = ("int", "str", "list", "dict")
"""Kinds of variable: an integer, a string, a list of integers, a dict from strings to integers."""

WORDS = ("ab", "cat", "x1", "Moon", "k", "two", "Zed", "a-b", "")


@dataclass
class Scope:
    """What an expression may use.

    Attributes:
        variables: kind of each variable by name.
        fixed: variables that must not change now (a loop runs over them, or counts with them).
        helper: name, kinds of the parameters and kind of the result of the function that may be called.
    """

    variables: dict[str, str] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    helper: tuple[str, list[str], str] | None = None

    def of(self, kind: str) -> list[str]:
        """Return the variables of a kind."""
        return [name for name, other in self.variables.items() if other == kind]


def argument(rng: random.Random, kind: str) -> str:
    """Return a literal of a kind."""
    if kind == "int":
        return str(rng.randint(-9, 20))
    if kind == "str":
        return repr(rng.choice(WORDS) + rng.choice(WORDS))
    if kind == "list":
        return repr([rng.randint(-5, 12) for _ in range(rng.randint(0, 6))])
    return repr({rng.choice(WORDS): rng.randint(-5, 12) for _ in range(rng.randint(0, 4))})


def expression(rng: random.Random, scope: Scope, kind: str, depth: int) -> str:
    """Return an expression of a kind ("bool" too), at most `depth` operations deep."""
    make = {"int": _int, "str": _str, "list": _list, "dict": _dict, "bool": _bool}[kind]
    return make(rng, scope, depth)


def _leaf(rng: random.Random, scope: Scope, kind: str) -> str:
    names = scope.of(kind)
    return rng.choice(names) if names and rng.random() < 0.8 else argument(rng, kind)


def _int(rng: random.Random, scope: Scope, depth: int) -> str:
    if depth == 0:
        return _leaf(rng, scope, "int")
    number = _leaf(rng, scope, "int")
    other = expression(rng, scope, "int", depth - 1)
    forms = [
        f"({number} {rng.choice('+-')} {other}) % {rng.randint(5, 50)}",
        f"{number} * {rng.randint(2, 5)} % {rng.randint(7, 30)}",
        f"abs({number})",
        f"max({number}, {other})",
        f"{number} // {rng.randint(2, 5)}",
        f"{number} if {expression(rng, scope, 'bool', 0)} else {other}",
    ]
    forms += [f"len({name})" for name in scope.variables if scope.variables[name] != "int"]
    for name in scope.of("list"):
        forms += [
            f"sum({name}) % 100",
            f"({name}[{number} % len({name})] if {name} else {other})",
            f"{name}.count({number})",
        ]
    for name in scope.of("str"):
        forms += [f"{name}.find({rng.choice(WORDS)!r})", f"{name}.count('a')"]
    for name in scope.of("dict"):
        forms += [f"{name}.get({_leaf(rng, scope, 'str')}, {number})", f"sum({name}.values()) % 100"]
    return rng.choice(forms)


def _str(rng: random.Random, scope: Scope, depth: int) -> str:
    text = _leaf(rng, scope, "str")
    if depth == 0:
        return text
    forms = [
        f"{text}.{rng.choice(['upper', 'lower', 'swapcase', 'title', 'strip'])}()",
        f"{text}[::-1]",
        f"{text}[{rng.randint(0, 2)}:{rng.randint(2, 6)}]",
        f"{text}.replace({rng.choice('abk')!r}, {rng.choice(WORDS)!r})[:10]",
        f"str({expression(rng, scope, 'int', depth - 1)})",
        f"f'{{{_leaf_name(rng, scope)}}}'[:9]",
        f"({text} + {expression(rng, scope, 'str', depth - 1)})[:9]",
    ]
    forms += [f"''.join(sorted({name}))" for name in scope.of("str")]
    forms += [f"'-'.join(map(str, {name}))[:12]" for name in scope.of("list")]
    forms += [f"''.join({name})[:12]" for name in scope.of("dict")]
    return rng.choice(forms)


def _leaf_name(rng: random.Random, scope: Scope) -> str:
    names = scope.of("int") + scope.of("str")
    return rng.choice(names) if names else str(rng.randint(0, 9))


def _list(rng: random.Random, scope: Scope, depth: int) -> str:
    values = _leaf(rng, scope, "list")
    if depth == 0:
        return values
    forms = [
        f"[{expression(rng, scope, 'int', depth - 1)}, {_leaf(rng, scope, 'int')}]",
        f"{values}[{rng.randint(-3, 2)}:]",
        f"{values}[::-1]",
        f"sorted({values})",
        f"({values} + [{_leaf(rng, scope, 'int')}])[-8:]",
        f"list(range({rng.randint(0, 5)}))",
    ]
    forms += [f"list({name}.values())" for name in scope.of("dict")]
    forms += [f"[len(part) for part in {name}.split('a')]" for name in scope.of("str")]
    return rng.choice(forms)


def _dict(rng: random.Random, scope: Scope, depth: int) -> str:
    values = _leaf(rng, scope, "dict")
    if depth == 0:
        return values
    forms = [
        f"{{{expression(rng, scope, 'str', depth - 1)}: {_leaf(rng, scope, 'int')}}}",
        f"dict({values})",
        f"{{**{values}, {_leaf(rng, scope, 'str')}: {_leaf(rng, scope, 'int')}}}",
    ]
    forms += [f"dict(zip({name}, {other}))" for name in scope.of("str") for other in scope.of("list")]
    return rng.choice(forms)


def _bool(rng: random.Random, scope: Scope, depth: int) -> str:
    number = _leaf(rng, scope, "int")
    simple = [
        f"{number} {rng.choice(['<', '>', '<=', '==', '!='])} {_leaf(rng, scope, 'int')}",
        f"{number} % {rng.randint(2, 4)} == {rng.randint(0, 1)}",
    ]
    simple += [f"{number} in {name}" for name in scope.of("list")]
    simple += [f"{rng.choice(WORDS)!r} in {name}" for name in scope.of("str") + scope.of("dict")]
    simple += [f"not {name}" for name in scope.variables]
    if depth == 0:
        return rng.choice(simple)
    join = rng.choice(["and", "or"])
    return rng.choice([*simple, f"{expression(rng, scope, 'bool', 0)} {join} {rng.choice(simple)}"])
