"""Random grammars with everything a search can meet, and random strings of their languages."""

from __future__ import annotations

import random

from datamodules.tasks.grammar.grammar import Grammar, make_grammar

LETTERS = "abcd"
NAMES = "SABC"
DEAD = "D"


def draw_branching(rng: random.Random) -> Grammar:
    """Draw a grammar with a chain of unit rules, forms of several nonterminals and a dead symbol.

    A rule begins with a terminal or with a later nonterminal, so there is no left recursion. Every nonterminal but the
    dead one has a leaf, so every derivation can end.
    """
    names = NAMES[: rng.randint(3, len(NAMES))]
    letters = _letters(rng)
    sides = {name: [rng.choices(letters, k=rng.randint(1, 2))] for name in names}
    first, second, third = sorted(rng.sample(range(len(names)), 3))
    sides[names[first]].append([names[second]])
    sides[names[second]].append([names[third]])
    for kind in ("pair", "dead"):
        at = rng.randrange(len(names) - 1)
        sides[names[at]].append(_side(kind, at, names, letters, rng))
    for at, name in enumerate(names):
        for _ in range(rng.randint(1, 2)):
            kind = rng.choice(("pair", "around", "around", "around")) if at < len(names) - 1 else "around"
            sides[name].append(_side(kind, at, names, letters, rng))
        rng.shuffle(sides[name])
    return make_grammar([(name, side) for name in names for side in sides[name]], LETTERS)


def redraw_letters(grammar: Grammar, rng: random.Random) -> Grammar:
    """Return a grammar of the same shape with other letters, which costs far less than to draw a shape anew."""
    letters = _letters(rng)
    sides = [[s if s in grammar.alternatives else rng.choice(letters) for s in p.rhs] for p in grammar.productions]
    return make_grammar(list(zip((p.lhs for p in grammar.productions), sides, strict=True)), LETTERS)


def _letters(rng: random.Random) -> str:
    # Few letters and many rules: almost anything is possible in a small part, and only the whole decides.
    return "".join(rng.sample(LETTERS, rng.choice((2, 2, 3))))


def _side(kind: str, at: int, names: str, letters: str, rng: random.Random) -> list[str]:
    """Draw a right-hand side of one kind for the nonterminal at this position; all but "around" need a later one."""
    later, inner, letter = names[at + 1 :], rng.choice(names), rng.choice(letters)
    if kind == "unit":
        return [rng.choice(later)]
    if kind == "pair":
        return [rng.choice(later), inner] if rng.random() < 0.5 else [letter, rng.choice(names), inner]
    if kind == "dead":
        # Terminals or a nonterminal may come first: the search meets the dead symbol only if those fit.
        return [*rng.choice([[], [letter], [rng.choice(later)]]), DEAD]
    # Terminals behind a nonterminal are what makes a form too long before it is wrong (PRN long).
    return [letter, inner, *rng.choices(letters, k=rng.choice((0, 1, 1, 2)))]


def draw_string(grammar: Grammar, rng: random.Random, longest: int) -> tuple[str, ...] | None:
    """Return the string of a random derivation, None if it has more letters than that or meets a dead symbol."""
    form: tuple[str, ...] = (grammar.start,)
    for _ in range(4 * longest):
        at = next((index for index, symbol in enumerate(form) if symbol in grammar.alternatives), None)
        if len(form) > longest or (at is not None and not grammar.alternatives[form[at]]):
            return None
        if at is None:
            return form
        form = (*form[:at], *grammar.productions[rng.choice(grammar.alternatives[form[at]])].rhs, *form[at + 1 :])
    return None
