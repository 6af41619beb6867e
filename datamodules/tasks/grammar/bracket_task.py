"""The bracket machine as a `Procedure`: one step is one move, and a string's symbols are the cells.

    String: u v y x w. v u
    Move:

The cells are the ":" (the bottom of the stack), the symbols, the "." that ends the string, and whatever stands behind
it, which the machine never reads. Four named fields say what the state has to carry: the cell under the head, the cell
of the innermost opener still open, the symbol under the head and the closer expected. They are undefined behind the
last move: a run that is over has no next step.

With permuted alphabets every string has five letters of its own, and the prompt says which: a move's letter, then what
it reads, then the closer it expects.

    Rules: A k p, B t d, C h.
    String: k t h d p.
    Move:

Source: feasibility study of looped executors, brackets.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from datamodules.tasks.grammar.brackets import (
    TRAINING_ALPHABET,
    Alphabet,
    BracketMachine,
    BracketPuzzle,
    training_puzzles,
)
from datamodules.tasks.procedure import CELLS, UNDEFINED, LabelSet, Procedure

MOVE_NAMES = ("PUSH 1", "PUSH 2", "CENTER", "POP", "ACCEPT", "REJECT")
"""The six moves; PUSH is one for the closer of each type."""

MOVE_LABELS = LabelSet(MOVE_NAMES, (" A", " B", " C", " D", " E", " F"))
"""Every move is written as one letter, which is one token for every tokenizer."""

BEGIN = "String:"
"""What stands before the string; its colon is the bottom of the stack."""

LETTERS = "uvwxyzabcdefghijklmnopqrst"
"""Letters of the permuted alphabets: the first five are the training alphabet."""

SPOILT_BY = ("nothing", "a wrong closer", "a closer too few", "a symbol too many", "another symbol", "coverage")
"""What makes a string incorrect; the positions are the values of the fact `spoilt`."""


SHARES = (40, 40, 5, 5, 6, 4)
"""Percent of the training strings. A model that pops whatever comes stays below a gate of 65% complete runs."""


@dataclass(frozen=True)
class BracketString:
    """A string and what stands behind its end.

    Attributes:
        symbols: the string.
        junk: symbols behind the end.
        depth: openers it was made with.
        spoilt: position in `SPOILT_BY`.
        alphabet: of this string, where every string has one of its own; otherwise the task's.
    """

    symbols: tuple[str, ...]
    junk: tuple[str, ...] = ()
    depth: int = 0
    spoilt: int = 0
    alphabet: Alphabet | None = None


class BracketTask(Procedure[BracketString]):
    """Reads a string of one alphabet, or of an alphabet of its own.

    Args:
        alphabet: the symbols.
        permuted: every string has an alphabet of its own, which the prompt tells.
    """

    views: ClassVar[tuple[str, ...]] = ("executor",)

    def __init__(self, alphabet: Alphabet = TRAINING_ALPHABET, permuted: bool = False) -> None:
        self.alphabet = alphabet
        self.permuted = permuted
        self.labels = MOVE_LABELS
        symbols = (*alphabet.symbols, ".")
        expected = ("none", alphabet.close1, alphabet.close2)
        self.fields: Mapping[str, LabelSet | None] = {
            "head": CELLS,
            "top": CELLS,
            "symbol": LabelSet(symbols, tuple(f" {symbol}" for symbol in symbols)),
            "expected": LabelSet(expected, tuple(f" {symbol}" for symbol in expected)),
        }

    @property
    def task_name(self) -> str:
        """Name in a checkpoint's provenance: permuted strings are asked in another way."""
        return "PermutedBracketTask" if self.permuted else "BracketTask"

    def prompt(self, instance: BracketString, view: str) -> str:
        """Return the prompt; there is one view, in which the number of moves does not occur.

        Raises:
            ValueError: unknown view.
        """
        if view not in self.views:
            raise ValueError(f"view: got {view!r}; use one of {', '.join(self.views)}")
        text = "".join(f" {symbol}" for symbol in instance.symbols)
        junk = "".join(f" {symbol}" for symbol in instance.junk)
        return f"{self._rules(instance)}{BEGIN}{text}.{junk}\nMove:"

    def _rules(self, instance: BracketString) -> str:
        if not self.permuted:
            return ""
        a = self._alphabet(instance)
        first, second, centre = MOVE_LABELS.texts[:3]
        return f"Rules:{first} {a.open1} {a.close1},{second} {a.open2} {a.close2},{centre} {a.centre}.\n"

    def cells(self, instance: BracketString, view: str) -> list[int]:  # noqa: ARG002
        """Return the bottom, the symbols, the end and the junk."""
        begin = len(self._rules(instance)) + len(BEGIN)
        end = begin + 2 * len(instance.symbols)
        junk = range(end + 2, end + 2 + 2 * len(instance.junk), 2)
        return [begin - 1, *range(begin + 1, end + 1, 2), end, *junk]

    def steps(self, instance: BracketString) -> int:
        """Return the number of moves."""
        return len(self._run(instance))

    def initial(self, instance: BracketString) -> None:
        """Return no label: there is no move before the first."""
        del instance

    def states(self, instance: BracketString) -> list[int]:
        """Return the moves."""
        return self._run(instance)

    def field_states(self, instance: BracketString) -> dict[str, list[int]]:
        """Follow the machine and note its state before every move."""
        alphabet = self._alphabet(instance)
        machine = BracketMachine(alphabet, instance.symbols)
        symbols = {symbol: index for index, symbol in enumerate(alphabet.symbols)}
        closers = {alphabet.close1: 1, alphabet.close2: 2}
        openers = [0]  # cells of the open openers above the bottom
        fields: dict[str, list[int]] = {name: [] for name in self.fields}
        while machine.verdict is None:
            at = machine.position
            fields["head"].append(at + 1)
            fields["top"].append(openers[-1])
            fields["symbol"].append(symbols[machine.string[at]] if at < len(machine.string) else len(symbols))
            fields["expected"].append(closers[machine.expected[-1]] if machine.expected else 0)
            move = machine.step()
            if move.op == "PUSH":
                openers.append(at + 1)
            elif move.op == "POP":
                openers.pop()
        return {name: [*values, UNDEFINED] for name, values in fields.items()}

    def facts(self, instance: BracketString) -> dict[str, int]:
        """Return the depth, what is wrong with the string, and whether it is accepted."""
        accept = self._run(instance)[-1] == MOVE_NAMES.index("ACCEPT")
        return {"depth": instance.depth, "spoilt": instance.spoilt, "accept": int(accept)}

    def _alphabet(self, instance: BracketString) -> Alphabet:
        return self.alphabet if instance.alphabet is None else instance.alphabet

    def _run(self, instance: BracketString) -> list[int]:
        alphabet = self._alphabet(instance)
        moves = alphabet.moves()
        return [moves.index(move) for move in BracketMachine(alphabet, instance.symbols).run()]


def balanced_string(alphabet: Alphabet, openers: Sequence[int]) -> tuple[str, ...]:
    """Return the correct string with openers of these types (0 or 1), outermost first."""
    opening, closing = alphabet.symbols[:2], alphabet.symbols[2:4]
    heads = [opening[kind] for kind in openers]
    return (*heads, alphabet.centre, *(closing[kind] for kind in reversed(openers)))


def wrong_closer(alphabet: Alphabet, depth: int, rng: random.Random) -> BracketString:
    """Return a string in which one closer, any of them with equal chance, is of the other type.

    A model that pops whatever comes reads such a string as correct, and so does one that looks at the first closer only
    wherever another one is wrong.
    """
    openers = rng.choices((0, 1), k=depth)
    symbols = list(balanced_string(alphabet, openers))
    at = depth + 1 + rng.randrange(depth)
    symbols[at] = alphabet.close2 if symbols[at] == alphabet.close1 else alphabet.close1
    return BracketString(tuple(symbols), depth=depth, spoilt=1)


@dataclass(frozen=True)
class BracketStage:
    """One stage of the curriculum.

    Attributes:
        depth: most openers of a correct string.
        batch_size: strings of a batch on one rank.
        junk: most symbols behind the end.
        deepest: share of the batches that have the stage's greatest depth; the others have any up to it. The strings
            of a batch have one depth, so that none is padded much.
        letters: how many letters the alphabets are drawn from, where every string has its own.

    Raises:
        ValueError: a value is out of range.
    """

    depth: int
    batch_size: int = 32
    junk: int = 0
    deepest: float = 0.25
    letters: int = len(LETTERS)

    def __post_init__(self) -> None:
        if self.depth < 1 or self.batch_size < 1:
            raise ValueError(f"stages: depth and batch_size must be 1 or more, got {self.depth} and {self.batch_size}")
        if self.junk < 0 or not 0 <= self.deepest <= 1:
            raise ValueError(f"stages: junk must be 0 or more, deepest between 0 and 1, got {self}")
        if not 5 <= self.letters <= len(LETTERS):
            raise ValueError(f"stages: letters must lie between 5 and {len(LETTERS)}, got {self.letters}")


def growing_depths(depth: int = 6, junk: int = 4, batch_size: int = 32) -> list[BracketStage]:
    """Return the curriculum: depth 1, 2, 4, ... up to `depth`, then junk behind the end as well.

    Source: feasibility study of looped executors, brackets (trained to depth 6, junk at the last stage).
    """
    depths = sorted({1, 2, *range(4, depth, 2), depth} - set(range(depth + 1, 5)))
    return [*(BracketStage(d, batch_size) for d in depths), BracketStage(depth, batch_size, junk)]


def draw_alphabet(letters: int, rng: random.Random) -> Alphabet:
    """Draw five of the first `letters` letters, in any order."""
    return Alphabet(*rng.sample(LETTERS[:letters], 5))


def own_alphabet(string: BracketString, alphabet: Alphabet) -> BracketString:
    """Write a string of the training alphabet in an alphabet of its own, symbol for symbol."""
    names = dict(zip(TRAINING_ALPHABET.symbols, alphabet.symbols, strict=True))
    symbols, junk = (tuple(names[symbol] for symbol in part) for part in (string.symbols, string.junk))
    return replace(string, symbols=symbols, junk=junk, alphabet=alphabet)


def string_structure(string: BracketString) -> str:
    """Return a string and its junk in the training alphabet: strings with equal results differ in letters alone.

    A string without an alphabet of its own is taken to be in the training alphabet.
    """
    alphabet = string.alphabet or TRAINING_ALPHABET
    names = dict(zip(alphabet.symbols, TRAINING_ALPHABET.symbols, strict=True))
    return ".".join(" ".join(names[symbol] for symbol in part) for part in (string.symbols, string.junk))


def draw_strings(task: BracketTask, stage: BracketStage, rng: random.Random) -> list[BracketString]:
    """Draw a batch of a stage."""
    depth = stage.depth if rng.random() < stage.deepest else rng.randint(0, stage.depth)
    alphabet = TRAINING_ALPHABET if task.permuted else task.alphabet
    strings = [draw_string(alphabet, depth, stage.junk, rng) for _ in range(stage.batch_size)]
    return [own_alphabet(s, draw_alphabet(stage.letters, rng)) for s in strings] if task.permuted else strings


def draw_string(alphabet: Alphabet, depth: int, most_junk: int, rng: random.Random) -> BracketString:
    """Draw a string made with so many openers: correct, or spoilt in one of five ways."""
    junk = tuple(rng.choices(alphabet.symbols, k=rng.randint(0, most_junk)))
    spoilt = rng.choices(range(len(SPOILT_BY)), weights=SHARES)[0]
    if spoilt == SPOILT_BY.index("coverage"):
        covering = rng.choice(_COVERAGE)
        # The coverage strings are written in the training alphabet.
        names = dict(zip(TRAINING_ALPHABET.symbols, alphabet.symbols, strict=True))
        return BracketString(tuple(names[symbol] for symbol in covering), junk, depth=len(covering) // 2, spoilt=spoilt)
    if spoilt == 1 and depth:
        string = wrong_closer(alphabet, depth, rng)
        return BracketString(string.symbols, junk, depth, spoilt)
    symbols = list(balanced_string(alphabet, rng.choices((0, 1), k=depth)))
    if spoilt == SPOILT_BY.index("a closer too few") and depth:
        del symbols[-rng.randint(1, depth) :]
    elif spoilt == SPOILT_BY.index("a symbol too many"):
        symbols += rng.choices(alphabet.symbols, k=rng.randint(1, 2))
    elif spoilt == SPOILT_BY.index("another symbol"):
        symbols[rng.randrange(len(symbols))] = rng.choice(alphabet.symbols)
    else:
        spoilt = 0
    return BracketString(tuple(symbols), junk, depth, spoilt)


_COVERAGE = [puzzle.string for puzzle in training_puzzles(max_depth=0) if puzzle.name.startswith("cover-")]


def strings_of(puzzles: Sequence[BracketPuzzle], alphabet: Alphabet = TRAINING_ALPHABET) -> list[BracketString]:
    """Write puzzles in another alphabet, symbol for symbol: the moves stay what they are."""
    strings = []
    for puzzle in puzzles:
        names = dict(zip(puzzle.alphabet.symbols, alphabet.symbols, strict=True))
        strings.append(BracketString(tuple(names[s] for s in puzzle.string), (), puzzle.depth, int(not puzzle.accept)))
    return strings
