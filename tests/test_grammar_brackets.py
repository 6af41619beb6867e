"""The bracket machine, its suite of 92 and the training strings."""

from collections import Counter

import pytest

from datamodules.tasks.grammar.brackets import (
    ALPHABETS,
    DEPTHS,
    TRAINING_ALPHABET,
    Alphabet,
    BracketMachine,
    bracket_suite,
    opening_patterns,
    training_puzzles,
)
from datamodules.tasks.grammar.grammar import GrammarError
from datamodules.tasks.grammar.moves import Move, count_kinds

TOTALS = {"PUSH": 536, "POP": 268, "CENTER": 92, "ACCEPT": 46, "REJECT": 46}


def test_counts_of_the_suite():
    puzzles = bracket_suite()
    assert len(puzzles) == len({puzzle.string for puzzle in puzzles}) == len({puzzle.name for puzzle in puzzles}) == 92
    assert [len(opening_patterns(depth)) for depth in DEPTHS] == [1, 2, 4, 4, 4, 4, 4]
    for alphabet in ALPHABETS:
        labels = Counter(puzzle.accept for puzzle in puzzles if puzzle.alphabet == alphabet)
        assert labels == {True: 23, False: 23}


def test_moves_of_the_suite():
    puzzles = bracket_suite()
    kinds: Counter[str] = Counter()
    for puzzle in puzzles:
        machine = BracketMachine(puzzle.alphabet, puzzle.string)
        moves = machine.run()
        assert (machine.verdict == "accept") == puzzle.accept
        assert set(moves) <= set(puzzle.alphabet.moves())
        kinds += count_kinds(moves)
    assert kinds == TOTALS
    assert kinds.total() == 988


def test_contrasts_of_the_suite():
    puzzles = bracket_suite()
    for yes, no in zip(puzzles[::2], puzzles[1::2], strict=True):
        assert (yes.accept, no.accept) == (True, False)
        closers = set(yes.string[yes.depth + 1 :])
        if len(closers) == 2:
            assert Counter(yes.string) == Counter(no.string)
        differing = sum(a != b for a, b in zip(yes.string, no.string, strict=False))
        assert (differing, len(no.string) - len(yes.string)) == (len(closers), 0 if closers else 1)


@pytest.mark.parametrize(
    ("string", "labels"),
    [
        ("([#])", "PUSH ), PUSH ], CENTER, POP, POP, ACCEPT"),
        ("(#", "PUSH ), CENTER, REJECT"),
        ("(#]", "PUSH ), CENTER, REJECT"),
        ("#)", "CENTER, REJECT"),
        ("##", "CENTER, REJECT"),
        ("#(", "CENTER, REJECT"),
        ("()#", "PUSH ), REJECT"),
        ("(", "PUSH ), REJECT"),
        ("", "REJECT"),
    ],
)
def test_runs_by_hand(string, labels):
    moves = BracketMachine(ALPHABETS[1], list(string)).run()
    assert ", ".join(move.label for move in moves) == labels
    assert [Move.from_json(move.to_json()) for move in moves] == moves


def test_training_strings():
    puzzles = training_puzzles()
    assert len({puzzle.string for puzzle in puzzles}) == len(puzzles)
    assert sum(puzzle.name.startswith("train") for puzzle in puzzles) == sum(4**depth for depth in range(5))
    assert {symbol for puzzle in puzzles for symbol in puzzle.string} == set(TRAINING_ALPHABET.symbols)
    for puzzle in puzzles:
        assert (puzzle.run()[-1].op == "ACCEPT") == puzzle.accept


def test_mistakes_are_named():
    with pytest.raises(GrammarError, match="five different symbols"):
        Alphabet(*"aabcd")
    with pytest.raises(GrammarError, match="unknown symbol 'z'"):
        BracketMachine(ALPHABETS[0], ["z"])
    machine = BracketMachine(ALPHABETS[0], ["e"])
    machine.run()
    with pytest.raises(GrammarError, match="has ended"):
        machine.step()
