"""What strings of a language look like in small parts, against all strings of finite languages."""

from __future__ import annotations

import random
from itertools import combinations, product

import pytest

from datamodules.tasks.grammar.cheap_rules import both_ends, counts_add_up
from datamodules.tasks.grammar.grammar import Grammar, make_grammar
from datamodules.tasks.grammar.local_parts import (
    Letters,
    ends,
    fits_without_stack,
    in_order,
    side_by_side,
    subsequences,
    useful_productions,
    windows,
)
from datamodules.tasks.grammar.puzzle import Puzzle
from datamodules.tasks.grammar.search import Limits

NESTED = make_grammar([("S", "aSb"), ("S", "T"), ("T", "cd")])


def language(grammar: Grammar) -> set[Letters]:
    """Return all strings of a grammar without recursion."""

    def strings(symbol: str) -> set[Letters]:
        if symbol in grammar.terminals:
            return {(symbol,)}
        sides = [grammar.productions[index].rhs for index in grammar.alternatives[symbol]]
        return {sum(parts, ()) for rhs in sides for parts in product(*map(strings, rhs))}

    return strings(grammar.start)


def finite_grammar(rng: random.Random) -> Grammar:
    """Draw a grammar whose rules have later nonterminals only; X has no rule, and not every one is reached."""
    names = "SABX"
    rules = [
        (name, rng.choices("abc" + names[at + 1 :], k=rng.randint(1, 4)))
        for at, name in enumerate(names[:-1])
        for _ in range(rng.randint(1, 3))
    ]
    return make_grammar(rules, "abc")


def puzzle(grammar: Grammar, text: str) -> Puzzle:
    return Puzzle("", "", 0, "", grammar, tuple(text), Limits(9), accept=True)


def test_parts_by_hand() -> None:
    at_ends = ends(NESTED, 2)["S"]
    assert at_ends == {(tuple(a), tuple(b)) for a, b in (("cd", "cd"), ("ac", "db"), ("aa", "bb"))}
    assert side_by_side(NESTED, 2) == set(map(tuple, ("aa", "ac", "bb", "db", "cd")))
    assert side_by_side(NESTED, 3) == set(map(tuple, ("aaa", "aac", "acd", "cdb", "dbb", "bbb")))
    assert subsequences(NESTED, 1) == {(), ("a",), ("b",), ("c",), ("d",)}
    assert windows(tuple("abcd"), 3) == {tuple("abc"), tuple("bcd")}
    assert windows(tuple("ab"), 3) == set()
    assert in_order(tuple("aba"), 2) == set(map(tuple, ("", "a", "b", "aa", "ab", "ba")))


def test_rules_that_end_nowhere_or_are_never_reached_tell_nothing() -> None:
    grammar = make_grammar([("S", "aXd"), ("S", "bc"), ("Y", "dd"), ("S", "bZ"), ("Z", "aZ")], "abcd")
    assert [production.rhs for production in useful_productions(grammar)] == [("b", "c")]
    assert ends(grammar, 1)["S"] == {(("b",), ("c",))}
    assert side_by_side(grammar, 2) == {("b", "c")}
    assert ends(make_grammar([("S", "X")], "a"), 2)["S"] == frozenset()


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_parts_are_exactly_those_of_the_strings(length: int) -> None:
    for seed in range(120):
        grammar = finite_grammar(random.Random(seed))
        strings = language(grammar)
        assert ends(grammar, length)[grammar.start] == {(text[:length], text[-length:]) for text in strings}, seed
        assert side_by_side(grammar, length + 1) == set().union(*(windows(t, length + 1) for t in strings)), seed
        assert subsequences(grammar, length) == set().union(*(in_order(text, length) for text in strings)), seed
        assert all(fits_without_stack(grammar, text) for text in strings), seed


def test_in_order_are_the_combinations() -> None:
    text = tuple("abcabb")
    assert in_order(text, 3) == set().union(*(combinations(text, length) for length in range(4)))


def test_without_a_stack_a_rule_may_end_elsewhere() -> None:
    grammar = make_grammar([("S", "aAb"), ("S", "cAd"), ("A", "xA"), ("A", "x")], "abcdxy")
    read = {text: fits_without_stack(grammar, tuple(text)) for text in ("axb", "axxd", "cxb", "ax", "xb", "ab", "ayb")}
    assert read == {"axb": True, "axxd": True, "cxb": True, "ax": False, "xb": False, "ab": False, "ayb": False}


def test_both_ends_of_one_string() -> None:
    palindromes = make_grammar([("S", "aSa"), ("S", "bSb"), ("S", "c")])
    assert both_ends(puzzle(palindromes, "abcba"), 2)
    assert not both_ends(puzzle(palindromes, "abcab"), 2)
    assert both_ends(puzzle(palindromes, "abacbba"), 2)
    assert not both_ends(puzzle(palindromes, "abacbba"), 3)
    assert both_ends(puzzle(palindromes, "c"), 3)


def test_counts_that_add_up() -> None:
    assert {text: counts_add_up(puzzle(NESTED, text)) for text in ("acdb", "cdab", "cd", "acd", "abab")} == {
        "acdb": True,
        "cdab": True,  # the order plays no part
        "cd": True,
        "acd": False,
        "abab": False,
    }
