"""Labels against the recogniser: every suite, and random grammars."""

import pytest
from hypothesis import HealthCheck, given, settings
from test_grammar import grammars, limits, strings

from datamodules.tasks.grammar.brackets import bracket_suite, training_puzzles
from datamodules.tasks.grammar.grammar import GrammarError, make_grammar
from datamodules.tasks.grammar.search import Search
from datamodules.tasks.grammar.suites import count_a_suite, cue_free_suite, original_suite

pytest.importorskip("lark", reason="labels come from Lark's Earley parser: pip install lark")

from datamodules.tasks.grammar.recogniser import recognises


@pytest.mark.parametrize("make", [original_suite, cue_free_suite, count_a_suite])
def test_labels_of_the_suites(make):
    for puzzle in make():
        assert recognises(puzzle.grammar, puzzle.string) == puzzle.accept, puzzle.name


@pytest.mark.parametrize("make", [bracket_suite, training_puzzles])
def test_labels_of_the_brackets(make):
    for puzzle in make():
        assert recognises(puzzle.alphabet.grammar(), puzzle.string) == puzzle.accept, puzzle.name


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(grammars(), strings, limits)
def test_search_and_recogniser_agree_unless_the_search_gave_up(grammar, string, budget):
    search = Search(grammar, string, budget)
    search.run()
    if search.verdict == "unknown":
        assert search.cut or search.steps == budget.max_steps
    else:
        assert (search.verdict == "accept") == recognises(grammar, string)


def test_grammars_lark_would_refuse():
    # S -> a D with D without a rule, the same rule twice, a start symbol that generates nothing.
    twice = make_grammar([("S", "aD"), ("S", "ab"), ("S", "ab")])
    assert recognises(twice, ["a", "b"])
    assert not recognises(twice, ["a"])
    assert not recognises(make_grammar([("S", "aD"), ("D", "E")]), ["a"])
    assert not recognises(make_grammar([("S", "a")]), [])
    with pytest.raises(GrammarError, match="unknown symbol"):
        recognises(twice, ["z"])
