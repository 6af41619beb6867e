"""Cheap rules: guesses at the label that look at the puzzle without running the search.

`LOCAL_RULES` are those a string of the language never breaks (its first and last letter, its neighbours, the blocks of
letters it is put together from). They see the order of the letters, so equal counts do not disarm them: our own suite
takes only no strings that pass them too. The other rules were not used in making any suite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache

from datamodules.tasks.grammar.grammar import Grammar
from datamodules.tasks.grammar.puzzle import Puzzle

Rule = Callable[[Puzzle], bool]
"""Returns the guess: True for yes."""


@lru_cache(maxsize=256)
def edges(grammar: Grammar) -> tuple[Mapping[str, frozenset[str]], Mapping[str, frozenset[str]]]:
    """Return the terminals each symbol can begin with and those it can end with."""

    def closure(side: int) -> dict[str, frozenset[str]]:
        found = {symbol: frozenset({symbol}) for symbol in grammar.terminals}
        found |= {symbol: frozenset() for symbol in grammar.nonterminals}
        changed = True
        while changed:
            changed = False
            for production in grammar.productions:
                more = found[production.lhs] | found[production.rhs[side]]
                changed = changed or more != found[production.lhs]
                found[production.lhs] = more
        return found

    return closure(0), closure(-1)


@lru_cache(maxsize=256)
def neighbours(grammar: Grammar) -> frozenset[tuple[str, str]]:
    """Return the pairs of terminals that may stand side by side in a string of the language."""
    first, last = edges(grammar)
    return frozenset(
        (left, right)
        for production in grammar.productions
        for a, b in zip(production.rhs, production.rhs[1:], strict=False)
        for left in last[a]
        for right in first[b]
    )


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


def first_letter(puzzle: Puzzle) -> bool:
    """Yes if the start symbol can begin with the first letter."""
    return puzzle.string[0] in edges(puzzle.grammar)[0][puzzle.grammar.start]


def last_letter(puzzle: Puzzle) -> bool:
    """Yes if the start symbol can end with the last letter."""
    return puzzle.string[-1] in edges(puzzle.grammar)[1][puzzle.grammar.start]


def all_neighbours(puzzle: Puzzle) -> bool:
    """Yes if every two neighbours may stand side by side."""
    return set(zip(puzzle.string, puzzle.string[1:], strict=False)) <= neighbours(puzzle.grammar)


def from_blocks(puzzle: Puzzle) -> bool:
    """Yes if the string can be cut into blocks of the rules."""
    reached = {0}
    for at in range(len(puzzle.string)):
        if at in reached:
            reached |= {at + len(b) for b in blocks(puzzle.grammar) if puzzle.string[at : at + len(b)] == b}
    return len(puzzle.string) in reached


def _rule_letters(puzzle: Puzzle) -> Counter[str]:
    return Counter(symbol for p in puzzle.grammar.productions for symbol in p.rhs if symbol in puzzle.grammar.terminals)


def _commonest(counts: Counter[str]) -> str:
    # Ties go to the alphabet: the order of the letters is no matter of counts.
    return min(counts, key=lambda letter: (-counts[letter], letter))


def _terminals(puzzle: Puzzle) -> list[int]:
    return [sum(symbol in puzzle.grammar.terminals for symbol in p.rhs) for p in puzzle.grammar.productions]


def _contains(string: tuple[str, ...], part: tuple[str, ...]) -> bool:
    return any(string[at : at + len(part)] == part for at in range(len(string) - len(part) + 1))


LOCAL_RULES: Mapping[str, Rule] = {
    "first letter possible": first_letter,
    "last letter possible": last_letter,
    "all neighbours possible": all_neighbours,
    "made of the rules' blocks": from_blocks,
}

OTHER_RULES: Mapping[str, Rule] = {
    "last rule's last symbol in string": lambda p: p.grammar.productions[-1].rhs[-1] in p.string,
    "last rule's letters in string": lambda p: (
        {symbol for symbol in p.grammar.productions[-1].rhs if symbol in p.grammar.terminals} <= set(p.string)
    ),
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

CHEAP_RULES: Mapping[str, Rule] = {**LOCAL_RULES, **OTHER_RULES}
