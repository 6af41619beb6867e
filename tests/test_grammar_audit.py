"""The audit of what looped models are asked: their answers can be guessed, so only complete runs count."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

pytest.importorskip("lark", reason="labels come from Lark's Earley parser: pip install lark")

from datamodules.grammar_audit import DEPTHS, LETTERINGS, LONGEST_RUN, PER_DEPTH, SEED, depth_puzzles, evened
from datamodules.grammar_sources import BracketDepths, SearchRuns
from datamodules.tasks.grammar.audit import audit, bracket_questions
from datamodules.tasks.grammar.puzzle import Puzzle
from datamodules.tasks.grammar.recogniser import recognises
from loopformer.evaluation.grammar_questions import (
    BRACKET_DEPTHS,
    SEARCH_RUNS,
    GrammarOptions,
    search_questions,
    suite_puzzles,
)


def depths() -> list[Puzzle]:
    return bracket_questions(depth_puzzles(BracketDepths(list(DEPTHS), PER_DEPTH, SEED).instances()))


def runs() -> list[Puzzle]:
    return SearchRuns(longest=LONGEST_RUN, letterings=LETTERINGS, seed=SEED).instances()


def test_what_is_audited_is_what_is_asked() -> None:
    asked = suite_puzzles(BRACKET_DEPTHS, GrammarOptions())
    assert [(p.string, p.accept) for p in depths()] == [(item.puzzle.string, item.puzzle.accept) for item in asked]
    assert runs() == list(search_questions(GrammarOptions()).instances)
    assert len(runs()) == len(suite_puzzles(SEARCH_RUNS, GrammarOptions()))


def test_a_count_answers_every_string_of_brackets() -> None:
    puzzles = depths()
    assert len(puzzles) == 1152
    assert all(a.pair == b.pair and a.accept and not b.accept for a, b in list(pairwise(puzzles))[::2])
    for puzzle in puzzles[:200]:
        assert recognises(puzzle.grammar, puzzle.string) == puzzle.accept
    scores = {guess.name: guess for guess in audit(puzzles)}
    assert scores["letter counts add up"].correct == 1152
    assert scores["fits the rules without a stack"].correct == 576
    # A sum of counts, each with its own weight, cannot say that two of them are equal.
    assert 0.45 < scores["classifier: bag of symbols"].accuracy < 0.55
    assert 0.45 < scores["classifier: and of neighbours"].accuracy < 0.55


def test_the_runs_of_the_search_can_be_guessed() -> None:
    puzzles = runs()
    assert Counter(puzzle.accept for puzzle in puzzles) == {True: 360, False: 248}
    even = evened(puzzles)
    assert Counter(puzzle.accept for puzzle in even) == {True: 248, False: 248}
    assert evened(puzzles) == even
    assert {puzzle.pair for puzzle in even} == {f"{puzzle.family}-{puzzle.level}" for puzzle in even}
    assert {puzzle.content() for puzzle in even} <= {puzzle.content() for puzzle in puzzles}
    scores = {guess.name: guess for guess in audit(even)}
    assert scores["made of the rules' blocks"].correct == scores["fits the rules without a stack"].correct == 464
    assert scores["letter counts add up"].accuracy > 0.75
    assert scores["classifier: bag of symbols"].accuracy > 0.75
