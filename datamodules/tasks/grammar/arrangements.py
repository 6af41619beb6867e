"""Distinct arrangements of a word, in alphabetical order, without making any of them twice."""

from __future__ import annotations

from collections.abc import Iterator


def arrangements(word: str) -> Iterator[str]:
    """Yield every distinct arrangement of the letters of a word, the sorted one first."""
    letters = sorted(word)
    while True:
        yield "".join(letters)
        # The next arrangement: raise the last letter that can be raised, and sort what follows it.
        rise = next((at for at in range(len(letters) - 2, -1, -1) if letters[at] < letters[at + 1]), None)
        if rise is None:
            return
        other = next(at for at in range(len(letters) - 1, rise, -1) if letters[at] > letters[rise])
        letters[rise], letters[other] = letters[other], letters[rise]
        letters[rise + 1 :] = reversed(letters[rise + 1 :])
