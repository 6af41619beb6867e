"""Brackets: strings of the grammar S -> o1 S c1 | o2 S c2 | centre, read by a machine of six moves.

The machine reads the string once, from left to right, with a stack of the closers it expects. PUSH (one move for each
of the two closers) reads an opener, CENTER the centre, POP the expected closer; ACCEPT ends a run whose string is used
up with nothing left to expect, REJECT every other one. Nothing is ever tried twice.

Source: specification of the grammar task, section "Suites" (brackets).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from datamodules.tasks.grammar.grammar import Grammar, GrammarError, make_grammar
from datamodules.tasks.grammar.moves import Move, Verdict

CENTER = Move("CENTER")
POP = Move("POP")
ACCEPT = Move("ACCEPT")
REJECT = Move("REJECT")

BRACKET_KINDS = ("PUSH", "CENTER", "POP", "ACCEPT", "REJECT")
"""Kinds of the moves of the machine; PUSH is one for each closer, six moves in all."""

DEPTHS = (0, 1, 2, 3, 4, 8, 16)


def push(closer: str) -> Move:
    """Return the move that reads an opener and expects its closer."""
    return Move("PUSH", "expected", closer)


@dataclass(frozen=True)
class Alphabet:
    """Five symbols: two openers, their closers and the centre.

    Raises:
        GrammarError: a symbol occurs twice.
    """

    open1: str
    open2: str
    close1: str
    close2: str
    centre: str

    def __post_init__(self) -> None:
        if len(set(self.symbols)) != len(self.symbols):
            raise GrammarError(f"alphabet: got {' '.join(self.symbols)}; use five different symbols")

    @property
    def symbols(self) -> tuple[str, ...]:
        """All five symbols, in the order of the attributes."""
        return (self.open1, self.open2, self.close1, self.close2, self.centre)

    @property
    def closer_of(self) -> Mapping[str, str]:
        """The closer of each opener."""
        return {self.open1: self.close1, self.open2: self.close2}

    def grammar(self) -> Grammar:
        """Return the grammar of the correct strings."""
        rules = [("S", (self.open1, "S", self.close1)), ("S", (self.open2, "S", self.close2)), ("S", (self.centre,))]
        return make_grammar(rules, self.symbols)

    def moves(self) -> tuple[Move, ...]:
        """Return the six moves."""
        return (push(self.close1), push(self.close2), CENTER, POP, ACCEPT, REJECT)


ALPHABETS = (Alphabet(*"abcde"), Alphabet(*"([)]#"))
"""The alphabets of the suite."""

TRAINING_ALPHABET = Alphabet(*"uvwxy")


class BracketMachine:
    """The machine: `step` makes one move, `run` all of them.

    Attributes:
        position: symbols read so far.
        expected: closers expected, the next one last.
        centred: whether the centre has been read.
        verdict: how the run ended, None while it goes on.

    Raises:
        GrammarError: the string holds a symbol outside the alphabet.
    """

    def __init__(self, alphabet: Alphabet, string: Sequence[str]) -> None:
        self.alphabet = alphabet
        self.string = alphabet.grammar().check_string(string)
        self.position = 0
        self.expected: list[str] = []
        self.centred = False
        self.verdict: Verdict | None = None
        self._closer_of = alphabet.closer_of

    def next_move(self) -> Move:
        """Return the move that `step` would make.

        Raises:
            GrammarError: the run has ended.
        """
        if self.verdict is not None:
            raise GrammarError(f"brackets: the run has ended ({self.verdict}); there is no next move")
        if self.position == len(self.string):
            return ACCEPT if self.centred and not self.expected else REJECT
        symbol = self.string[self.position]
        if not self.centred and symbol in self._closer_of:
            return push(self._closer_of[symbol])
        if not self.centred and symbol == self.alphabet.centre:
            return CENTER
        return POP if self.centred and self.expected and symbol == self.expected[-1] else REJECT

    def step(self) -> Move:
        """Make one move and return it."""
        move = self.next_move()
        if move in (ACCEPT, REJECT):
            self.verdict = "accept" if move == ACCEPT else "reject"
            return move
        self.position += 1
        if move == POP:
            self.expected.pop()
        elif move == CENTER:
            self.centred = True
        else:
            self.expected.append(move.value)
        return move

    def run(self) -> list[Move]:
        """Make all moves up to the end and return them."""
        moves = []
        while self.verdict is None:
            moves.append(self.step())
        return moves

    def to_json(self) -> dict[str, Any]:
        """Return what a model is shown of the state."""
        return {"position": self.position, "expected": list(self.expected), "centred": self.centred}


@dataclass(frozen=True)
class BracketPuzzle:
    """A string of brackets and whether it is correct.

    Attributes:
        name: unique within its set.
        depth: number of openers.
        alphabet: the symbols.
        string: the string.
        accept: whether the grammar generates it. Follows from how the string is made; compared with the recogniser.
    """

    name: str
    depth: int
    alphabet: Alphabet
    string: tuple[str, ...]
    accept: bool

    def run(self) -> list[Move]:
        """Run the machine to its end."""
        return BracketMachine(self.alphabet, self.string).run()


def opening_patterns(depth: int) -> list[tuple[int, ...]]:
    """Return the opening patterns of the suite: all first, all second, both alternations; 0 is the first type."""
    alternation = tuple(index % 2 for index in range(depth))
    patterns = [(0,) * depth, (1,) * depth, alternation, tuple(1 - kind for kind in alternation)]
    return list(dict.fromkeys(patterns))


def bracket_suite() -> list[BracketPuzzle]:
    """Return the 92 puzzles: both alphabets, all depths and patterns, yes and no."""
    puzzles = []
    for number, alphabet in enumerate(ALPHABETS):
        for depth in DEPTHS:
            for index, pattern in enumerate(opening_patterns(depth)):
                closers = [alphabet.symbols[2 + kind] for kind in reversed(pattern)]
                head = [alphabet.symbols[kind] for kind in pattern] + [alphabet.centre]
                name = f"brackets-{number}-{depth}-{index}"
                puzzles.append(BracketPuzzle(f"{name}-yes", depth, alphabet, (*head, *closers), True))
                wrong = _wrong_closers(alphabet, closers)
                puzzles.append(BracketPuzzle(f"{name}-no", depth, alphabet, (*head, *wrong), False))
    return puzzles


def _wrong_closers(alphabet: Alphabet, closers: list[str]) -> list[str]:
    """Spoil the closers: swap the first with the first different one, else flip it; without any, add one."""
    if not closers:
        return [alphabet.close1]
    wrong = list(closers)
    other = next((at for at, closer in enumerate(closers) if closer != closers[0]), None)
    if other is None:
        wrong[0] = alphabet.close2 if closers[0] == alphabet.close1 else alphabet.close1
    else:
        wrong[0], wrong[other] = wrong[other], wrong[0]
    return wrong


def training_puzzles(max_depth: int = 4, alphabet: Alphabet = TRAINING_ALPHABET) -> list[BracketPuzzle]:
    """Return the training strings: all openings x all closings to a depth, then coverage strings.

    The coverage strings show the rejects that equally many openers and closers never do: a string that is empty, that
    ends early (before or behind its centre), has a closer before or instead of the centre, or a closer, an opener or
    a second centre too many.
    """
    puzzles = []
    o1, o2, c1, c2, centre = alphabet.symbols
    for depth in range(max_depth + 1):
        for openers in product((o1, o2), repeat=depth):
            right = tuple(alphabet.closer_of[opener] for opener in reversed(openers))
            for closers in product((c1, c2), repeat=depth):
                string = (*openers, centre, *closers)
                puzzles.append(BracketPuzzle(f"train-{''.join(string)}", depth, alphabet, string, closers == right))
    short = [(), (c1,), (c2,), (centre, c2), (centre, centre), (centre, o1), (centre, o2)]
    around = [
        string
        for opener, closer in ((o1, c1), (o2, c2))
        for string in (
            (opener,),
            (opener, closer),
            (opener, centre),
            (opener, opener, centre, closer),
            (opener, centre, closer, closer),
            (opener, centre, closer, centre),
            (opener, centre, closer, opener),
            (opener, centre, centre, closer),
            (opener, centre, opener, closer),
            (opener, closer, centre),
        )
    ]
    for string in ((centre, c1), *short, *around):
        openers_read = sum(symbol in (o1, o2) for symbol in string)
        puzzles.append(BracketPuzzle(f"cover-{''.join(string) or 'empty'}", openers_read, alphabet, string, False))
    return puzzles
