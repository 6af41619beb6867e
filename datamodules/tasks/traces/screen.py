"""The first layer: source that reaches for the interpreter's inside is refused before it runs.

A screen alone proves nothing (Python has too many corners); it makes the refusal clear and early. What slips through
meets the builtins without ways out (`allowed`), the audit hook, the kernel's system-call filter and the limits of the
process (`guard`).
"""

from __future__ import annotations

import ast

from datamodules.tasks.traces.allowed import ForbiddenError

_METHODS = """
init repr str eq ne lt le gt ge hash bool len iter next getitem setitem delitem contains call add radd iadd sub rsub
isub mul rmul imul truediv floordiv mod pow neg pos abs invert and or xor lshift rshift int float index round enter exit
reversed missing format name doc del
"""

METHODS = frozenset(f"__{name}__" for name in _METHODS.split())
"""Special names that a program may define or use."""

_FRAMES = """
gi_frame gi_code gi_yieldfrom cr_frame cr_code cr_await cr_origin ag_frame ag_code ag_await f_back f_builtins f_code
f_globals f_locals f_trace f_lasti f_lineno tb_frame tb_next tb_lasti tb_lineno co_code co_consts func_globals mro
with_traceback
"""

FRAMES = frozenset(_FRAMES.split())
"""Names without underscores in front that lead to frames or code."""

MOST_CHARACTERS = 100_000

ASYNC = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)


def screen(source: str) -> None:
    """Check a program.

    Raises:
        ForbiddenError: it names what no program may.
        SyntaxError: it is no Python.
    """
    if len(source) > MOST_CHARACTERS:
        raise ForbiddenError(f"source of more than {MOST_CHARACTERS} characters")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ASYNC):
            raise ForbiddenError("async code")
        if isinstance(node, ast.Constant):
            continue
        # Whatever else is text in a syntax tree is a name: of a variable, attribute, parameter, module, pattern, ...
        for value in vars(node).values():
            for name in value if isinstance(value, list) else [value]:
                if isinstance(name, str):
                    _refuse(name, type(node).__name__.lower())


def _refuse(name: str, what: str) -> None:
    for part in name.split("."):
        if (part.startswith("__") and part.strip("_") and part not in METHODS) or part in FRAMES:
            raise ForbiddenError(f"{what} {name}")
