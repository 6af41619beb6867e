"""Options that are names or numbers apart by commas, such as `--grammar.lane answer,written`, or a list of them."""

from __future__ import annotations

from collections.abc import Sequence

Names = list[str] | str
"""Names as an option takes them: apart by commas, or in a file of options also as a list."""
Numbers = list[int] | int | str
"""Whole numbers as an option takes them."""


def joined(given: Names | Numbers) -> str:
    """Return names or numbers as one text, apart by commas, however they were given."""
    return ",".join(map(str, given)) if isinstance(given, list) else str(given)


def names_in(given: Names) -> list[str]:
    """Return the names."""
    return [name.strip() for name in joined(given).split(",")]


def read_names(field: str, given: Names, known: Sequence[str], *otherwise: str) -> list[str]:
    """Return the names of an option.

    Args:
        field: the option.
        given: the names.
        known: what they may be.
        otherwise: what the whole option may be instead; for the message alone.

    Raises:
        ValueError: a name is unknown, or given twice, or what stands for the whole option is one of several.
    """
    names = names_in(given)
    for name in names:
        if name in otherwise:
            raise ValueError(f"{field}: {name} stands alone; use it without other names, or some of {','.join(known)}")
        if name not in known:
            fix = ", or ".join([*otherwise, f"some of {','.join(known)}"])
            raise ValueError(f"{field}: {name!r} is unknown; use {fix}")
        if names.count(name) > 1:
            raise ValueError(f"{field}: {name} is given twice; name it once")
    return names
