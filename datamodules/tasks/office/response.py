"""Reads what a model wrote, as it stands: nothing is trimmed into shape, fenced code stays fenced, and nothing raises.

An answer counts if the last line is exactly `FINAL: x`. A program is the whole text, but for a FINAL line that ends it:
whether that line is there is scored apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from datamodules.tasks.office.programs import ARROW

_FINAL_LINE = re.compile(r"FINAL: (\S(?:.{0,254}\S)?)")
_STATES_FINAL = re.compile(r"final\s*:", re.IGNORECASE)
_FINAL_WORD = "FINAL:"
_BLANKS = " \t\r\n"


@dataclass(frozen=True)
class Response:
    """A model's output, taken apart.

    Attributes:
        text: the output; None if it is no text.
        final: the x of a last line `FINAL: x`, None where the last line is anything else.
        states_final: whether `FINAL:` stands anywhere in it, in any case.
        program: the text without a last line that begins with `FINAL:`.
    """

    text: str | None
    final: str | None
    states_final: bool
    program: str


def read(output: object) -> Response:
    """Take an output apart; anything but a string is no text."""
    if not isinstance(output, str):
        return Response(None, None, False, "")
    text = output.rstrip(_BLANKS)
    start = text.rfind("\n") + 1
    last = text[start : start + 400]
    found = _FINAL_LINE.fullmatch(last) if len(text) - start <= len(last) else None
    ends_final = last.startswith(_FINAL_WORD)
    return Response(
        text=output,
        final=found.group(1) if found else None,
        states_final=_STATES_FINAL.search(output) is not None,
        program=text[:start].removesuffix("\n") if ends_final else output,
    )


def split_values(program: str) -> tuple[str, list[str | None]]:
    """Take the values off a trace: the bare program, and the value stated on each line (None where none is)."""
    lines, values = [], []
    for line in program.removesuffix("\n").split("\n"):
        instruction, arrow, value = line.partition(ARROW)
        lines.append(instruction)
        values.append(value if arrow else None)
    return "\n".join(lines), values
