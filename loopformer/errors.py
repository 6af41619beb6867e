"""Users' mistakes as one line on standard error, with the field and the fix, and an exit code that is not 0."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from jsonargparse import ArgumentError

# jsonargparse explains a nested mistake by a tree of everything it tried; these lines of it say nothing to a user.
BOILERPLATE = ("Does not validate", "Subtypes:", "Errors:")
NOTHING = "- Expected a <class 'NoneType'>"


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Report a mistake in one line and exit with code 2; LOOPFORMER_TRACEBACK=1 shows where it comes from."""
    try:
        yield
    except (ArgumentError, ValueError, FileExistsError, FileNotFoundError, FloatingPointError, RuntimeError) as error:
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
        if text and not idle and not text.startswith(BOILERPLATE):
            kept.append(text.removeprefix("- "))
    return " ".join(kept) or " ".join(message.split())
