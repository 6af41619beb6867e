"""Users' mistakes as one line on standard error, with the field and the fix, and an exit code that is not 0."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jsonargparse import ArgumentError

# jsonargparse explains a nested mistake by a tree of everything it tried; these lines of it say nothing to a user.
BOILERPLATE = ("Does not validate", "Subtypes:", "Errors:")
NOTHING = "- Expected a <class 'NoneType'>"

ABSTRACT = re.compile(r'Parser key "([\w.]+)": Expected an instantiatable class, but ([\w.]+) is abstract')
"""What jsonargparse says of an option such as --part.size 2 where no class of the part is named."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Report a mistake in one line and exit with code 2; LOOPFORMER_TRACEBACK=1 shows where it comes from."""
    try:
        yield
    except (ArgumentError, ValueError, OSError, FloatingPointError, RuntimeError) as error:
        if os.environ.get("LOOPFORMER_TRACEBACK"):
            raise
        fix = "; --help and --print_config show the accepted options" if isinstance(error, ArgumentError) else ""
        print(f"error: {one_line(str(error))}{fix}", file=sys.stderr)
        raise SystemExit(2) from None


def one_line(message: str) -> str:
    """Reduce an error message to what a user can act on, without line breaks."""
    kept, idle = [], False
    for line in message.splitlines():
        text = line.strip()
        if text.startswith("Given value"):
            break  # what follows repeats the whole configuration
        if text.startswith("- "):
            idle = text.startswith(NOTHING)  # with all of what was given, over several lines
        text = text.removeprefix("- ")  # a mistake within a mistake begins with boilerplate of its own
        if text and not idle and not text.startswith(BOILERPLATE):
            kept.append(text)
    return ABSTRACT.sub(_name_a_class, " ".join(kept) or " ".join(message.split()))


def _name_a_class(found: re.Match[str]) -> str:
    """Tell which classes an option of a part can be set on, where only the kind of part is known."""
    key, path = found.groups()
    module, _, name = path.rpartition(".")
    kind = getattr(sys.modules.get(module), name, None)
    names = ", ".join(sorted(one.__name__ for one in _classes(kind))) if isinstance(kind, type) else ""
    return f"{key}: name a class before its options, as --{key} CLASS" + (f"; use one of {names}" if names else "")


def _classes(kind: type[Any]) -> Iterator[type[Any]]:
    """The classes below one that can be made."""
    for below in kind.__subclasses__():
        if not inspect.isabstract(below):
            yield below
        yield from _classes(below)
