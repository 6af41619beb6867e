"""Count-preserving suite B: random linear grammars; the no string is the yes string with two neighbours swapped.

Every puzzle has its own seed, the first 8 bytes of the SHA-256 of `grammar-b:{seed}:{index}:{attempt}`; an attempt is
dropped unless the yes run and the no run both end within the budget and the recogniser rejects the no string. The
published grammars are not known, only how they were drawn, so this suite has their recipe and not their puzzles.

Source: specification of the grammar task, section "Suites" (B).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count

from datamodules.tasks.grammar.grammar import Grammar, make_grammar
from datamodules.tasks.grammar.puzzle import Puzzle
from datamodules.tasks.grammar.recogniser import recognises
from datamodules.tasks.grammar.search import Limits
from datamodules.tasks.grammar.seeds import seeded
from datamodules.tasks.grammar.suites import LEVELS

GRAMMARS = 120
NAMES = "SABCDE"
LETTERS = "abcd"


def draw_grammar(rng: random.Random) -> Grammar:
    """Draw 3-6 nonterminals over 3-4 letters with 2-3 rules each: one leaf, the others around one nonterminal."""
    names = NAMES[: rng.randint(3, 6)]
    letters = LETTERS[: rng.randint(3, 4)]
    rules: list[tuple[str, Sequence[str]]] = []
    for name in names:
        sides: list[list[str]] = [rng.choices(letters, k=rng.randint(2, 4))]
        for _ in range(rng.randint(1, 2)):
            before, after = rng.choices(letters, k=rng.randint(1, 2)), rng.choices(letters, k=rng.randint(0, 1))
            sides.append([*before, rng.choice(names), *after])
        rng.shuffle(sides)
        rules.extend((name, side) for side in sides)
    # Nonterminals that S never reaches stay in: they are part of what has to be ignored.
    return make_grammar(rules, letters)


def derive(grammar: Grammar, steps: int, rng: random.Random) -> tuple[str, ...]:
    """Return the string of a random derivation of exactly this many productions (the last one is a leaf)."""
    form = [grammar.start]
    for step in range(steps):
        at = next(index for index, symbol in enumerate(form) if symbol in grammar.alternatives)
        sides = [grammar.productions[index].rhs for index in grammar.alternatives[form[at]]]
        last = step == steps - 1
        side = rng.choice([side for side in sides if last != any(symbol in grammar.alternatives for symbol in side)])
        form[at : at + 1] = side
    return tuple(form)


def _draw_pair(level: int, name: str, rng: random.Random) -> tuple[Puzzle, Puzzle] | None:
    grammar = draw_grammar(rng)
    string = derive(grammar, level, rng)
    unequal = [at for at in range(len(string) - 1) if string[at] != string[at + 1]]
    if not unequal:
        return None
    at = rng.choice(unequal)
    swapped = (*string[:at], string[at + 1], string[at], *string[at + 2 :])
    if recognises(grammar, swapped):
        return None
    limits = Limits(max(level + 4, len(string) + 2))
    yes = Puzzle(f"{name}-yes", "deep_random", level, name, grammar, string, limits, recognises(grammar, string))
    no = Puzzle(f"{name}-no", "deep_random", level, name, grammar, swapped, limits, False)
    # A run that ends in unknown (only a used-up budget can do that here) decides nothing.
    return None if "unknown" in (yes.run().verdict, no.run().verdict) else (yes, no)


def count_b_suite(seed: int = 0) -> list[Puzzle]:
    """Return the 240 puzzles of the count-preserving suite B: 24 grammars at each of the levels 1, 2, 4, 8, 16."""
    puzzles: list[Puzzle] = []
    for index in range(GRAMMARS):
        level = LEVELS[index * len(LEVELS) // GRAMMARS]
        pairs = (_draw_pair(level, f"b-{index}", seeded("grammar-b", seed, index, attempt)) for attempt in count())
        puzzles.extend(next(pair for pair in pairs if pair is not None))
    return puzzles
