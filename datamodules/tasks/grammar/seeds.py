"""One random generator per puzzle, so that a puzzle does not depend on how many were drawn before it."""

from __future__ import annotations

import hashlib
import random


def seeded(*parts: str | int) -> random.Random:
    """Return Python's generator seeded with the first 8 bytes, big-endian, of the SHA-256 of the joined parts."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))
