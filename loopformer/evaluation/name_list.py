"""Options that are names apart by commas, such as `--grammar.lane answer,written`."""

from __future__ import annotations

from collections.abc import Sequence


def names_in(text: str) -> list[str]:
    """Return the names."""
    return [name.strip() for name in text.split(",")]


def read_names(field: str, text: str, known: Sequence[str], *otherwise: str) -> list[str]:
    """Return the names of an option.

    Args:
        field: the option.
        text: the names, apart by commas.
        known: what they may be.
        otherwise: what the whole option may be instead; for the message alone.

    Raises:
        ValueError: a name is unknown, or given twice.
    """
    names = names_in(text)
    for name in names:
        if name not in known:
            fix = ", or ".join([*otherwise, f"some of {','.join(known)}"])
            raise ValueError(f"{field}: {name!r} is unknown; use {fix}")
        if names.count(name) > 1:
            raise ValueError(f"{field}: {name} is given twice; name it once")
    return names
