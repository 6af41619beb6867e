"""Cheap rules: guesses at the label that look at the puzzle without running the search.

`LOCAL_RULES` are those a string of the language never breaks (its first and last one to three letters, apart and of one
string; any two or three neighbours; the blocks of letters it is put together from). They see the order of the letters,
so equal counts do not disarm them: our own suite takes only no strings that pass them too, and is at chance on them by
construction. `HELD_OUT_RULES` are of the same kind, one step further or in another direction, and `OTHER_RULES` look at
counts and at single places; neither was used in making any suite, so what they score says something about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache, partial

import numpy as np

from datamodules.tasks.grammar.grammar import Grammar
from datamodules.tasks.grammar.local_parts import (
    ends,
    fits_without_stack,
    in_order,
    side_by_side,
    subsequences,
    useful_productions,
    windows,
)
from datamodules.tasks.grammar.puzzle import Puzzle

Rule = Callable[[Puzzle], bool]
"""Returns the guess: True for yes."""


@lru_cache(maxsize=256)
def blocks(grammar: Grammar) -> frozenset[tuple[str, ...]]:
    """Return the unbroken blocks of terminals in the right-hand sides."""
    found = set()
    for production in grammar.productions:
        block: list[str] = []
        for symbol in (*production.rhs, grammar.start):
            if symbol in grammar.alternatives:
                found.add(tuple(block))
                block = []
            else:
                block.append(symbol)
    return frozenset(found - {()})


def first_letters(puzzle: Puzzle, length: int) -> bool:
    """Yes if some string of the language has these first letters."""
    return puzzle.string[:length] in {first for first, _ in ends(puzzle.grammar, length)[puzzle.grammar.start]}


def last_letters(puzzle: Puzzle, length: int) -> bool:
    """Yes if some string of the language has these last letters."""
    return puzzle.string[-length:] in {last for _, last in ends(puzzle.grammar, length)[puzzle.grammar.start]}


def both_ends(puzzle: Puzzle, length: int) -> bool:
    """Yes if one string of the language has both these first and these last letters."""
    return (puzzle.string[:length], puzzle.string[-length:]) in ends(puzzle.grammar, length)[puzzle.grammar.start]


def all_neighbours(puzzle: Puzzle, length: int) -> bool:
    """Yes if any so many letters side by side may stand so."""
    return windows(puzzle.string, length) <= side_by_side(puzzle.grammar, length)


def all_in_order(puzzle: Puzzle, length: int) -> bool:
    """Yes if any so many letters, at any distances, may stand in their order."""
    return in_order(puzzle.string, length) <= subsequences(puzzle.grammar, length)


def from_blocks(puzzle: Puzzle) -> bool:
    """Yes if the string can be cut into blocks of the rules."""
    reached = {0}
    for at in range(len(puzzle.string)):
        if at in reached:
            reached |= {at + len(b) for b in blocks(puzzle.grammar) if puzzle.string[at : at + len(b)] == b}
    return len(puzzle.string) in reached


def counts_add_up(puzzle: Puzzle) -> bool:
    """Yes if the rules can be used so often that the counts of all letters are those of the string.

    How often each rule is used need not be a whole number here, and the order of the letters plays no part. Of
    brackets, this counts whether both openers are as frequent as their closers.
    """
    rules = useful_productions(puzzle.grammar)
    symbols = (*puzzle.grammar.nonterminals, *puzzle.grammar.terminals)
    # One equation a symbol: what the rules write, less what they rewrite, is what the string has more than the start.
    changes = np.array([[p.rhs.count(symbol) - (p.lhs == symbol) for p in rules] for symbol in symbols], dtype=float)
    wanted = np.array(
        [puzzle.string.count(symbol) - (symbol == puzzle.grammar.start) for symbol in symbols], dtype=float
    )
    used = np.linalg.lstsq(changes, wanted, rcond=None)[0]
    return bool(np.allclose(changes @ used, wanted, atol=1e-6))


def _rule_letters(puzzle: Puzzle) -> Counter[str]:
    return Counter(symbol for p in puzzle.grammar.productions for symbol in p.rhs if symbol in puzzle.grammar.terminals)


def _commonest(counts: Counter[str]) -> str:
    # Ties go to the alphabet: the order of the letters is no matter of counts.
    return min(counts, key=lambda letter: (-counts[letter], letter))


def _terminals(puzzle: Puzzle) -> list[int]:
    return [sum(symbol in puzzle.grammar.terminals for symbol in p.rhs) for p in puzzle.grammar.productions]


def _contains(string: tuple[str, ...], part: tuple[str, ...]) -> bool:
    return any(string[at : at + len(part)] == part for at in range(len(string) - len(part) + 1))


_WORDS = {1: "letter", 2: "two", 3: "three", 4: "four", 5: "five"}


def _end_rules(length: int) -> dict[str, Rule]:
    word = _WORDS[length]
    return {
        f"first {word} possible": partial(first_letters, length=length),
        f"last {word} possible": partial(last_letters, length=length),
        f"first and last {word} of one string": partial(both_ends, length=length),
    }


def _neighbour_rule(length: int) -> dict[str, Rule]:
    return {f"all {_WORDS[length]} neighbours possible": partial(all_neighbours, length=length)}


SHORT_RULES: Mapping[str, Rule] = {
    **_end_rules(1),
    **_neighbour_rule(2),
    "made of the rules' blocks": from_blocks,
}

LOCAL_RULES: Mapping[str, Rule] = {
    **SHORT_RULES,
    **_end_rules(2),
    **_neighbour_rule(3),
    **_end_rules(3),
}

HELD_OUT_RULES: Mapping[str, Rule] = {
    **_end_rules(4),
    **_neighbour_rule(4),
    **_neighbour_rule(5),
    "any two in order possible": partial(all_in_order, length=2),
    "any three in order possible": partial(all_in_order, length=3),
    "fits the rules without a stack": lambda p: fits_without_stack(p.grammar, p.string),
}

OTHER_RULES: Mapping[str, Rule] = {
    "last rule's last symbol in string": lambda p: p.grammar.productions[-1].rhs[-1] in p.string,
    "last rule's letters in string": lambda p: (
        {symbol for symbol in p.grammar.productions[-1].rhs if symbol in p.grammar.terminals} <= set(p.string)
    ),
    "letter counts add up": counts_add_up,
    "no rule longer than string": lambda p: max(_terminals(p)) <= len(p.string),
    "every letter in some rule": lambda p: set(p.string) <= set(_rule_letters(p)),
    "rules' letters all in string": lambda p: set(_rule_letters(p)) <= set(p.string),
    "commonest letter the same": lambda p: _commonest(_rule_letters(p)) == _commonest(Counter(p.string)),
    "string at most 4": lambda p: len(p.string) <= 4,
    "string at most 8": lambda p: len(p.string) <= 8,
    "string of even length": lambda p: len(p.string) % 2 == 0,
    "at most 3 rules": lambda p: len(p.grammar.productions) <= 3,
    "at most 8 rules": lambda p: len(p.grammar.productions) <= 8,
    "first rule's first letter": lambda p: (
        next((s for s in p.grammar.productions[0].rhs if s in p.grammar.terminals), None) == p.string[0]
    ),
    "first and last letter equal": lambda p: p.string[0] == p.string[-1],
    "two equal neighbours": lambda p: any(a == b for a, b in zip(p.string, p.string[1:], strict=False)),
    "ends with a block": lambda p: any(p.string[-len(b) :] == b for b in blocks(p.grammar)),
    "longest block in string": lambda p: _contains(p.string, max(sorted(blocks(p.grammar)), key=len)),
    "half of the blocks in string": lambda p: (
        2 * sum(_contains(p.string, b) for b in blocks(p.grammar)) >= len(blocks(p.grammar))
    ),
    "first half sorted before second": lambda p: p.string[: len(p.string) // 2] <= p.string[len(p.string) // 2 :],
}

CHEAP_RULES: Mapping[str, Rule] = {**LOCAL_RULES, **HELD_OUT_RULES, **OTHER_RULES}
