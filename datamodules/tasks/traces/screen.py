"""The first layer: source that reaches for the interpreter's inside is refused before it runs.

A screen alone proves nothing (Python has too many corners); it makes the refusal clear and early. What slips through
meets the builtins without ways out (`allowed`), the audit hook, the kernel's system-call filter and the limits of the
process (`guard`).
"""

from __future__ import annotations

import ast

from datamodules.tasks.traces.allowed import ForbiddenError

METHODS = frozenset(
    f"__{name}__"
    for name in (
        "init repr str eq ne lt le gt ge hash bool len iter next getitem setitem delitem contains call add radd iadd sub "
        "rsub isub mul rmul imul truediv floordiv mod pow neg pos abs invert and or xor lshift rshift int float index "
        "round enter exit reversed missing format name doc del"
    ).split()
)
"""Special names that a program may define or use."""

FRAMES = frozenset(
    "gi_frame gi_code gi_yieldfrom cr_frame cr_code cr_await cr_origin ag_frame ag_code ag_await f_back f_builtins f_code "
    "f_globals f_locals f_trace f_lasti f_lineno tb_frame tb_next tb_lasti tb_lineno co_code co_consts func_globals mro "
    "with_traceback".split()
)
"""Attributes without underscores in front that lead to frames or code."""

MOST_CHARACTERS = 100_000


def _refuse_name(name: str, what: str) -> None:
    if (name.startswith("__") and name.strip("_") and name not in METHODS) or name in FRAMES:
        raise ForbiddenError(f"{what} {name}")


def screen(source: str) -> None:
    """Check a program.

    Raises:
        ForbiddenError: it names what no program may.
        SyntaxError: it is no Python.
    """
    if len(source) > MOST_CHARACTERS:
        raise ForbiddenError(f"source of more than {MOST_CHARACTERS} characters")
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name):
                _refuse_name(name, "attribute")
            case ast.Name(id=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                _refuse_name(name, "name")
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                _refuse_name(name, "definition")
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                for name in names:
                    _refuse_name(name, "name")
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                for alias in aliases:
                    _refuse_name(alias.name, "import")
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                raise ForbiddenError("async code")
            case ast.MatchClass(kwd_attrs=names):
                for name in names:
                    _refuse_name(name, "attribute")
            case ast.ExceptHandler(name=str(name)):
                _refuse_name(name, "name")
            case _:
                pass
