"""The published suites of 240 puzzles: original, cue-free and count-preserving A.

Six families at levels 1, 2, 4, 8, 16, in four letterings, each as a yes puzzle and its contrast. Every suite repairs a
weakness of the one before:

- original: in every no puzzle the last letter of the last rule is missing from the string, a giveaway;
- cue_free: no such letter, yet "accept if no rule has more terminals than the string" still scores 172 of 240;
- count_a: yes and no have equal counts of every symbol, in the grammar and in the string.

The labels are fixed by the construction; the tests compare every one of them with the recogniser.

Source: specification of the grammar task, section "Suites".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise
from math import comb
from typing import TypeAlias

from datamodules.tasks.grammar.arrangements import arrangements
from datamodules.tasks.grammar.grammar import make_grammar
from datamodules.tasks.grammar.puzzle import Puzzle
from datamodules.tasks.grammar.search import Limits

LEVELS = (1, 2, 4, 8, 16)
FAMILIES = ("terminal_length", "chain_depth", "alternatives", "sequence", "recursion", "nesting")
LETTERINGS = ("dabc", "bdca", "badc", "cbda")
"""What a, b, c, d are replaced by."""

LETTERINGS_A = ("daebc", "bdcea", "baedc", "ecbda")
"""The same for a to e. The specification does not give these; the moves do not depend on them."""

Rules: TypeAlias = list[tuple[str, Iterable[str]]]
Question: TypeAlias = tuple[Rules, str]
"""Rules and string, before lettering."""


def chain(level: int, leaf: str) -> Rules:
    """Return S -> N1, N1 -> N2, ..., Nn -> leaf."""
    names = ["S", *(f"N{index}" for index in range(1, level + 1))]
    return [*((lhs, [rhs]) for lhs, rhs in pairwise(names)), (names[-1], leaf)]


def original(family: str, n: int, accept: bool) -> Question:
    """Return the question of the original suite."""
    a_or_d = "a" if accept else "d"
    questions: dict[str, Question] = {
        "terminal_length": ([("S", "a" * (n - 1) + a_or_d)], "a" * n),
        "chain_depth": (chain(n, a_or_d), "a"),
        "alternatives": ([*(("S", "b" * k) for k in range(1, n)), ("S", a_or_d)], "a"),
        "sequence": ([("S", "A" * n), ("A", a_or_d)], "a" * n),
        "recursion": ([("S", "aS"), ("S", "c" if accept else "d")], "a" * (n - 1) + "c"),
        "nesting": ([("S", "aSb"), ("S", "c" if accept else "d")], "a" * n + "c" + "b" * n),
    }
    return questions[family]


def cue_free(family: str, n: int, accept: bool) -> Question:
    """Return the question of the cue-free suite; the yes puzzles are those of the original one."""
    rules, string = original(family, n, True)
    if accept:
        return rules, string
    contrasts: dict[str, Rules] = {
        "terminal_length": [("S", "a" * (n + 1))],
        "chain_depth": chain(n, "aa"),
        "alternatives": [*rules[:-1], ("S", "aa")],
        "sequence": [("S", "A" * (n + 1)), ("A", "a")],
        "recursion": [("S", "aaS"), ("S", "c" if (n - 1) % 2 else "ac")],
        "nesting": [("S", "aSbb"), ("S", "c")],
    }
    return contrasts[family], string


def count_a(family: str, n: int, accept: bool) -> Question:
    """Return the question of the count-preserving suite A."""
    if family == "alternatives":
        k = next(k for k in range(1, n + 2) if comb(2 * k, k) > n)
        right = "a" * k + "b" * k
        wrong = islice(arrangements(right), 1, None)
        rules: Rules = [("S", text) for text in islice(wrong, n - 1)]
        return [*rules, ("S", right if accept else next(wrong))], right
    if family == "nesting":
        # The openers are (ac)^n, so the closers come in reverse, (db)^n; the contrast swaps the last two.
        string = "ac" * n + "e" + ("db" * n if accept else "db" * (n - 1) + "bd")
        return [("S", "aSb"), ("S", "cSd"), ("S", "e")], string
    first = "ab" if accept else "ba"
    questions: dict[str, Question] = {
        "terminal_length": ([("S", first + "ab" * (n - 1))], "ab" * n),
        "chain_depth": (chain(n, first), "ab"),
        "sequence": ([("S", first.upper() + "AB" * (n - 1)), ("A", "a"), ("B", "b")], "ab" * n),
        "recursion": ([("S", [*first, "S"]), ("S", "c")], "ab" * n + "c"),
    }
    return questions[family]


def _suite(
    question: Callable[[str, int, bool], Question], letterings: tuple[str, ...], by_length: bool
) -> Iterator[Puzzle]:
    letters = "abcde"[: len(letterings[0])]
    for family in FAMILIES:
        for level in LEVELS:
            for number, lettering in enumerate(letterings):
                letter = dict(zip(letters, lettering, strict=True))
                for accept in (True, False):
                    rules, text = question(family, level, accept)
                    grammar = make_grammar(
                        [(lhs, [letter.get(symbol, symbol) for symbol in rhs]) for lhs, rhs in rules], letters
                    )
                    string = tuple(letter[symbol] for symbol in text)
                    pair = f"{family}-{level}-{number}"
                    depth = max(level + 4, len(string) + 2) if by_length else level + 4
                    name = f"{pair}-{'yes' if accept else 'no'}"
                    yield Puzzle(name, family, level, pair, grammar, string, Limits(depth), accept)


def original_suite() -> list[Puzzle]:
    """Return the 240 puzzles of the original suite."""
    return list(_suite(original, LETTERINGS, by_length=False))


def cue_free_suite() -> list[Puzzle]:
    """Return the 240 puzzles of the cue-free suite."""
    return list(_suite(cue_free, LETTERINGS, by_length=False))


def count_a_suite() -> list[Puzzle]:
    """Return the 240 puzzles of the count-preserving suite A."""
    return list(_suite(count_a, LETTERINGS_A, by_length=True))
