"""Lines of files of what models wrote: one JSON object each, whatever the model wrote in it."""

from __future__ import annotations

import json
from typing import Any


def read_object(line: str, place: str) -> dict[str, Any]:
    """Read a line.

    Args:
        line: the line.
        place: file and number of the line, for messages.

    Raises:
        ValueError: the line is no JSON object.
    """
    try:
        found = json.loads(line, parse_int=_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: it is no JSON ({error}); write one object a line") from None
    if not isinstance(found, dict):
        raise ValueError(f"{place}: got a {type(found).__name__}; write one JSON object a line")  # noqa: TRY004
    return found


def _number(digits: str) -> int | float:
    """Read a whole number; one of thousands of digits, which Python refuses, is infinite: no field takes it for one."""
    try:
        return int(digits)
    except ValueError:
        return float(digits)
