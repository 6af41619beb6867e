"""The training pool of ordinary models: contrast pairs of three families, apart from everything that is evaluated.

- regular: right-linear grammars; nested: one nonterminal between two terminals. In both, rules that can never end stand
  before all others, so the search goes astray first and runs are long;
- branching: the training split of our own suite (`balanced`), with every kind of move by quota, forms of several
  nonterminals and chains of unit rules.

In every pair, grammar, budgets and letter counts are equal and the two runs have nearly one length. No grammar has the
shape of an evaluated one, whatever its letters; train and validation share no shape either (`shapes`).

    puzzles = training_pool("train", pairs=300)     # 600 puzzles, the yes of each pair first

Source: specification of the grammar task, section "Suites" (training pool).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import count

from datamodules.tasks.grammar.balanced import balanced_suite
from datamodules.tasks.grammar.brackets import ALPHABETS
from datamodules.tasks.grammar.cheap_rules import SHORT_RULES
from datamodules.tasks.grammar.deep_random import count_b_suite
from datamodules.tasks.grammar.grammar import Grammar, make_grammar
from datamodules.tasks.grammar.pairs import Pair, matched_pairs
from datamodules.tasks.grammar.puzzle import Puzzle
from datamodules.tasks.grammar.seeds import seeded
from datamodules.tasks.grammar.shapes import Shape, Split, shape_of, split_of
from datamodules.tasks.grammar.suites import count_a_suite, cue_free_suite, original_suite

LETTERS = "abcd"
NAMES = "SABC"
ASTRAY = "E"
"""The nonterminal of the rules that never end."""

RUN = (80, 400)
"""Fewest and most moves of a run."""

LETTERS_OF_STRING = (4, 12)
"""Fewest and most letters of a string of the families drawn here."""

BRANCHING = "branching"
DRIFT = 20
"""Moves that all yes runs of a family may be longer, or shorter, than all its no runs together."""


def draw_regular(rng: random.Random) -> Grammar:
    """Draw a right-linear grammar, its endless rules first."""
    return _draw(rng, lambda inner, letters: [rng.choice(letters), inner])


def draw_nested(rng: random.Random) -> Grammar:
    """Draw a grammar whose rules have their nonterminal between two terminals, its endless rules first."""
    return _draw(rng, lambda inner, letters: [rng.choice(letters), inner, rng.choice(letters)])


DRAWS: Mapping[str, Callable[[random.Random], Grammar]] = {"regular": draw_regular, "nested": draw_nested}
FAMILIES = (*DRAWS, BRANCHING)


def _draw(rng: random.Random, wrap: Callable[[str, str], list[str]]) -> Grammar:
    names = NAMES[: rng.randint(2, len(NAMES))]
    letters = LETTERS[: rng.randint(2, len(LETTERS))]
    rules: list[tuple[str, list[str]]] = []
    for name in names:
        sides = [wrap(rng.choice(names), letters) for _ in range(rng.randint(1, 3))]
        sides.append(rng.choices(letters, k=rng.randint(1, 2)))
        rng.shuffle(sides)
        endless = [wrap(ASTRAY, letters) for _ in range(rng.randint(0, 2))]
        rules += [(name, side) for side in (*endless, *sides)]
    rules += [(ASTRAY, wrap(ASTRAY, letters)) for _ in range(rng.randint(1, 3))]
    return make_grammar(rules, LETTERS)


@cache
def evaluated_shapes() -> frozenset[Shape]:
    """Return the shapes of all evaluated grammars that the splits by shape do not keep apart."""
    suites = (original_suite(), cue_free_suite(), count_a_suite(), count_b_suite())
    grammars = [*(puzzle.grammar for suite in suites for puzzle in suite), *(a.grammar() for a in ALPHABETS)]
    return frozenset(map(shape_of, grammars))


def training_pool(split: Split, pairs: int, families: tuple[str, ...] = FAMILIES, seed: int = 0) -> list[Puzzle]:
    """Return that many pairs, families equally often.

    Args:
        split: "train" or "validation"; decides the shapes.
        pairs: number of pairs; of the branching family, multiples of 12 fill every quota equally.
        families: some of `FAMILIES`.
        seed: master seed; every attempt at a grammar has its own generator.

    Raises:
        ValueError: no pair, an unknown family, or the split of the evaluation.
    """
    check_pool(split, pairs, families)
    puzzles: list[Puzzle] = []
    for number, family in enumerate(families):
        share = pairs // len(families) + (number < pairs % len(families))
        puzzles += _branching(split, share, seed) if family == BRANCHING else _family(family, split, share, seed)
    return puzzles


def check_pool(split: Split, pairs: int, families: Sequence[str]) -> None:
    """Check what `training_pool` is asked for.

    Raises:
        ValueError: see there.
    """
    if split == "test":
        raise ValueError("split: got 'test', whose shapes are evaluated; use train or validation")
    unknown = [family for family in families if family not in FAMILIES]
    if unknown or not families:
        raise ValueError(f"families: got {list(families)}; use some of {', '.join(FAMILIES)}")
    if pairs < 1:
        raise ValueError(f"pairs: got {pairs}; use 1 or more")


def _branching(split: Split, pairs: int, seed: int) -> list[Puzzle]:
    found = balanced_suite(split, pairs, seed) if pairs else []
    assert not any(shape_of(puzzle.grammar) in evaluated_shapes() for puzzle in found), (
        "no evaluated rule is a unit rule"
    )
    return [replace(puzzle, family=BRANCHING, name=f"{BRANCHING}-{puzzle.name}") for puzzle in found]


def _family(family: str, split: Split, pairs: int, seed: int) -> list[Puzzle]:
    puzzles: list[Puzzle] = []
    longer = 0  # moves the yes runs are longer than the no runs, in sum
    found = _grammar_pairs(family, split, seed)
    while len(puzzles) < 2 * pairs:
        pair = next(
            (
                pair
                for pair in next(found)
                # The sum of the differences in length must stay near zero, or come nearer to it.
                if abs(longer + pair.lengths[0] - pair.lengths[1]) <= max(DRIFT, abs(longer) - 1)
            ),
            None,
        )
        if pair is None:
            continue
        longer += pair.lengths[0] - pair.lengths[1]
        name = f"{family}-{split}-{len(puzzles) // 2}"
        puzzles += [
            replace(puzzle, family=family, name=f"{name}-{answer}", pair=name)
            for puzzle, answer in ((pair.yes, "yes"), (pair.no, "no"))
        ]
    return puzzles


def _grammar_pairs(family: str, split: Split, seed: int) -> Iterator[Iterator[Pair]]:
    """Yield the pairs of every grammar of the split, one grammar after the other, none twice."""
    seen: set[str] = set()
    for attempt in count():
        rng = seeded("pool", seed, family, split, attempt)
        grammar = DRAWS[family](rng)
        known = repr(grammar.productions)
        if known in seen or split_of(grammar) != split or shape_of(grammar) in evaluated_shapes():
            continue
        seen.add(known)
        # Not `LOCAL_RULES`: three letters tell nearly every wrong string of a regular language.
        yield matched_pairs(grammar, RUN, LETTERS_OF_STRING, tuple(SHORT_RULES.values()), rng)
