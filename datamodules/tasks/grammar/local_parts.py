"""What the strings of a language look like in small parts: their first and last letters, neighbours and subsequences.

Each is a small fixpoint over the grammar, far cheaper than any search, and exact: a part is listed if and only if some
string of the language has it. A string with a part that is not listed is therefore no string of the language, which is
what makes these parts cheap rules (`cheap_rules`).

    ends(grammar, 2)[grammar.start]     # {(("a", "b"), ("b", "a")), ...}: first two and last two letters of one string
    side_by_side(grammar, 3)            # {("a", "b", "b"), ...}: three letters that may stand side by side
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import TypeAlias, TypeVar

from datamodules.tasks.grammar.grammar import Grammar, Production

Letters: TypeAlias = tuple[str, ...]
Ends: TypeAlias = tuple[Letters, Letters]
"""First and last k letters of one string; a string of fewer letters is both of them as a whole."""

Place: TypeAlias = tuple[int, int]
"""A useful production and how many symbols of its right-hand side have been read."""

_T = TypeVar("_T")

# Sets of four letters are large, so few are kept: whoever asks for many grammars asks grammar by grammar.
_KEPT = 32


@lru_cache(maxsize=_KEPT)
def useful_productions(grammar: Grammar) -> tuple[Production, ...]:
    """Return the productions that occur in a derivation of some string, in list order."""
    ending = set(grammar.terminals)
    while more := {p.lhs for p in grammar.productions if ending.issuperset(p.rhs)} - ending:
        ending |= more
    usable = [p for p in grammar.productions if ending.issuperset(p.rhs)]
    reached = {grammar.start}
    while more := {symbol for p in usable if p.lhs in reached for symbol in p.rhs} - reached:
        reached |= more
    return tuple(p for p in usable if p.lhs in reached)


@lru_cache(maxsize=_KEPT)
def ends(grammar: Grammar, length: int) -> Mapping[str, frozenset[Ends]]:
    """Return the first and last letters, jointly, of the strings of each symbol.

    Args:
        grammar: the grammar.
        length: letters at each end, at least 1; both ends may share letters of a short string.
    """
    found = {symbol: frozenset({((symbol,), (symbol,))}) for symbol in grammar.terminals}
    return _closure(grammar, found, lambda left, right: _join(left, right, length))


@lru_cache(maxsize=_KEPT)
def side_by_side(grammar: Grammar, length: int) -> frozenset[Letters]:
    """Return the letters that stand side by side somewhere in some string of the language.

    Args:
        grammar: the grammar.
        length: how many of them, at least 2.
    """
    parts = ends(grammar, length - 1)
    found: set[Letters] = set()
    for production in useful_productions(grammar):
        left = parts[production.rhs[0]]
        for symbol in production.rhs[1:]:
            # Whatever is new lies across a border between two symbols.
            befores, afters = {last for _, last in left}, {first for first, _ in parts[symbol]}
            for text in {before + after for before in befores for after in afters}:
                found.update(windows(text, length))
            left = _join(left, parts[symbol], length - 1)
    return frozenset(found)


@lru_cache(maxsize=_KEPT)
def subsequences(grammar: Grammar, length: int) -> frozenset[Letters]:
    """Return the letters that stand in that order, at any distances, in some string of the language.

    Args:
        grammar: the grammar.
        length: how many of them, at least 1; shorter ones are listed too.
    """
    found: dict[str, frozenset[Letters]] = {symbol: frozenset({(), (symbol,)}) for symbol in grammar.terminals}

    def join(left: Collection[Letters], right: Collection[Letters]) -> frozenset[Letters]:
        return frozenset(a + b for a in left for b in right if len(a) + len(b) <= length)

    return _closure(grammar, found, join)[grammar.start]


def windows(string: Letters, length: int) -> set[Letters]:
    """Return all parts of a string with that many letters side by side, none of a shorter string."""
    return {string[at : at + length] for at in range(len(string) - length + 1)}


def in_order(string: Letters, length: int) -> set[Letters]:
    """Return all parts of a string with so many letters, or fewer, in its order and at any distances."""
    found: set[Letters] = {()}
    for letter in string:
        found |= {(*part, letter) for part in found if len(part) < length}
    return found


def fits_without_stack(grammar: Grammar, string: Letters) -> bool:
    """Tell whether the string can be read if the end of a rule may go on behind any occurrence of its nonterminal.

    A machine without a stack forgets where a nonterminal was begun. It reads every string of the language, and some
    more.
    """
    rules = useful_productions(grammar)
    behind: dict[str, list[Place]] = {}
    for index, production in enumerate(rules):
        for at, symbol in enumerate(production.rhs):
            behind.setdefault(symbol, []).append((index, at + 1))
    begin = {symbol: [(at, 0) for at, p in enumerate(rules) if p.lhs == symbol] for symbol in grammar.nonterminals}

    def reach(places: Collection[Place]) -> set[Place]:
        reached, ahead = set(places), list(places)
        while ahead:
            index, at = ahead.pop()
            production = rules[index]
            ended = at == len(production.rhs)
            following = behind.get(production.lhs, []) if ended else begin.get(production.rhs[at], [])
            ahead += [place for place in following if place not in reached]
            reached |= set(following)
        return reached

    places = reach(begin[grammar.start])
    for letter in string:
        places = reach([(i, at + 1) for i, at in places if at < len(rules[i].rhs) and rules[i].rhs[at] == letter])
    return any(rules[i].lhs == grammar.start and at == len(rules[i].rhs) for i, at in places)


def _closure(
    grammar: Grammar,
    terminals: Mapping[str, frozenset[_T]],
    join: Callable[[frozenset[_T], frozenset[_T]], frozenset[_T]],
) -> Mapping[str, frozenset[_T]]:
    """Return the parts of every symbol: those of the terminals, joined along the useful productions."""
    found: dict[str, frozenset[_T]] = {symbol: frozenset() for symbol in grammar.nonterminals} | dict(terminals)
    changed = True
    while changed:
        changed = False
        for production in reversed(useful_productions(grammar)):
            parts = found[production.rhs[0]]
            for symbol in production.rhs[1:]:
                parts = join(parts, found[symbol])
            more = found[production.lhs] | parts
            changed = changed or len(more) > len(found[production.lhs])
            found[production.lhs] = more
    return found


def _join(left: frozenset[Ends], right: frozenset[Ends], length: int) -> frozenset[Ends]:
    """Return the ends of all strings put together of a left and a right one."""
    long_left, long_right = ([pair for pair in side if len(pair[0]) == length] for side in (left, right))
    short_left, short_right = ([pair[0] for pair in side if len(pair[0]) < length] for side in (left, right))
    # Two long strings hide what lies between them, so any first goes with any last: far fewer steps than all pairs.
    firsts, lasts = {first for first, _ in long_left}, {last for _, last in long_right}
    joined = {(first, last) for first in firsts for last in lasts}
    joined |= {(first, (last + text)[-length:]) for first, last in long_left for text in short_right}
    joined |= {((text + first)[:length], last) for text in short_left for first, last in long_right}
    joined |= {((a + b)[:length], (a + b)[-length:]) for a in short_left for b in short_right}
    return frozenset(joined)
