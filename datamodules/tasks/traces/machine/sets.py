"""How to write a set so that the one made from the text behaves the same for good.

The order of a set depends on its hash table: its size, and the order in which colliding items came. So the text must
rebuild the table, not only the items. Hashes themselves are the same in every worker (PYTHONHASHSEED is fixed there).
"""

from __future__ import annotations

import random
import sys
from typing import Any

TRIES = 500
"""Orders of insertion tried; collisions are few, so the first one nearly always does."""


def _one_by_one(items: list[Any]) -> set[Any]:
    made = set()
    for item in items:
        made.add(item)
    return made


def _same_table(made: Any, value: Any) -> bool:
    return sys.getsizeof(made) == sys.getsizeof(value) and list(made) == list(value)


def recipe(value: set[Any] | frozenset[Any]) -> tuple[list[Any], bool] | None:
    """Find how to make a set with the same table.

    Returns:
        The items in an order of insertion, and whether the set must be made from another set, which gives a smaller
        table than items one by one; None where nothing tried gives the same table.
    """
    kind = type(value)
    items = list(value)
    rng = random.Random(0)
    for _ in range(TRIES):
        made = _one_by_one(items)
        if _same_table(made if kind is set else frozenset(items), value):
            return items, False
        if _same_table(kind(made), value):
            return items, True
        rng.shuffle(items)
    return None
