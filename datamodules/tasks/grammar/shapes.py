"""The shape of a grammar, and the split it belongs to: train, validation and test never share a shape.

A shape forgets the names and the order of everything and which letter stands where; it keeps, for every nonterminal,
what kinds of rules it has. Two grammars that differ only by renaming or reordering therefore always have one shape, and
so do some that differ by more: splits kept apart by it are further apart than they need to be.
"""

from __future__ import annotations

import hashlib
from typing import Literal, TypeAlias

from datamodules.tasks.grammar.grammar import Grammar

Split = Literal["train", "validation", "test"]
Shape: TypeAlias = tuple[tuple[str, ...], ...]


def shape_of(grammar: Grammar) -> Shape:
    """Return the sorted rule patterns ("tNt": terminal, nonterminal, terminal) of every nonterminal, sorted."""

    def pattern(index: int) -> str:
        rhs = grammar.productions[index].rhs
        return "".join("N" if symbol in grammar.alternatives else "t" for symbol in rhs)

    return tuple(sorted(tuple(sorted(map(pattern, indices))) for indices in grammar.alternatives.values()))


def split_of(grammar: Grammar) -> Split:
    """Return the split of a grammar, decided by its shape alone: 1 in 5 test, 1 in 5 validation, the rest train."""
    bucket = hashlib.sha256(repr(shape_of(grammar)).encode()).digest()[0] % 10
    return "test" if bucket < 2 else "validation" if bucket < 4 else "train"
