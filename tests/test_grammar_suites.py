"""Suite B, our own suite and the shortcut audit."""

import hashlib
from collections import Counter
from itertools import pairwise

import pytest

from datamodules.tasks.grammar.audit import Guess, audit, bag_of_symbols, bracket_questions, classify, report
from datamodules.tasks.grammar.brackets import bracket_suite
from datamodules.tasks.grammar.cheap_rules import CHEAP_RULES, HELD_OUT_RULES, LOCAL_RULES, blocks, counts_add_up
from datamodules.tasks.grammar.draws import draw_branching, draw_string, redraw_letters
from datamodules.tasks.grammar.grammar import make_grammar
from datamodules.tasks.grammar.moves import CUT
from datamodules.tasks.grammar.puzzle import Run
from datamodules.tasks.grammar.search import Limits, Search
from datamodules.tasks.grammar.seeds import seeded
from datamodules.tasks.grammar.shapes import shape_of, split_of
from datamodules.tasks.grammar.suites import LEVELS, count_a_suite, cue_free_suite, original_suite

pytest.importorskip("lark", reason="labels come from Lark's Earley parser: pip install lark")

from datamodules.tasks.grammar.balanced import DRIFT, LETTERS, QUOTA_MOVES, RUN_LENGTHS, balanced_suite
from datamodules.tasks.grammar.deep_random import count_b_suite
from datamodules.tasks.grammar.pairs import fatal_depth, tolerance
from datamodules.tasks.grammar.recogniser import recognises

PAIRS = 12
B_DIGEST = "c06f4204838bdf49bdf6a098622b83a354e7da323ea5ed9ccf56fd9ed1b08a21"


@pytest.fixture(scope="module")
def suite_b():
    return count_b_suite()


@pytest.fixture(scope="module")
def balanced():
    return balanced_suite("test", PAIRS)


@pytest.fixture(scope="module")
def full():
    return balanced_suite("test", 120)


def in_pairs(puzzles):
    return list(zip(puzzles[::2], puzzles[1::2], strict=True))


def test_suite_b_is_drawn_as_specified(suite_b):
    assert len(suite_b) == 240
    assert len({puzzle.content() for puzzle in suite_b}) == 240
    assert Counter(puzzle.level for puzzle in suite_b) == dict.fromkeys(LEVELS, 48)
    for yes, no in in_pairs(suite_b):
        grammar = yes.grammar
        assert no.grammar == grammar
        assert 3 <= len(grammar.nonterminals) <= 6
        assert 3 <= len(grammar.terminals) <= 4
        for indices in grammar.alternatives.values():
            sides = [grammar.productions[index].rhs for index in indices]
            leaves = [rhs for rhs in sides if set(rhs) <= set(grammar.terminals)]
            assert 2 <= len(sides) <= 3
            assert len(leaves) == 1
            assert 2 <= len(leaves[0]) <= 4
            for rhs in sides:
                at = [index for index, symbol in enumerate(rhs) if symbol in grammar.alternatives]
                assert rhs in leaves or (len(at) == 1 and 1 <= at[0] <= 2 and len(rhs) - at[0] <= 2)
        differing = [at for at, (a, b) in enumerate(zip(yes.string, no.string, strict=True)) if a != b]
        assert Counter(yes.string) == Counter(no.string)
        assert [b - a for a, b in pairwise(differing)] == [1]


def test_labels_runs_and_digest_of_suite_b(suite_b):
    for puzzle in suite_b:
        assert recognises(puzzle.grammar, puzzle.string) == puzzle.accept
        assert puzzle.limits == Limits(max(puzzle.level + 4, len(puzzle.string) + 2))
        assert puzzle.run().verdict == ("accept" if puzzle.accept else "reject")
    text = "\n".join(puzzle.content() for puzzle in suite_b)
    assert hashlib.sha256(text.encode()).hexdigest() == B_DIGEST


def test_drawn_grammars_have_what_they_promise():
    for index in range(200):
        rng = seeded("test", index)
        grammar = draw_branching(rng)
        inner = [[s for s in p.rhs if s in grammar.alternatives] for p in grammar.productions]
        units = {(p.lhs, p.rhs[0]) for p in grammar.productions if len(p.rhs) == 1 and p.rhs[0] in grammar.alternatives}
        assert any(len(symbols) > 1 for symbols in inner)
        assert any(second == third for _, second in units for third, _ in units)
        assert any(not indices for indices in grammar.alternatives.values())
        string = draw_string(grammar, rng, 12)
        assert string is None or (len(string) <= 12 and recognises(grammar, string))
        other = redraw_letters(grammar, rng)
        assert shape_of(other) == shape_of(grammar)
        assert [p.lhs for p in other.productions] == [p.lhs for p in grammar.productions]
        assert len({symbol for p in other.productions for symbol in p.rhs} & {*other.terminals}) <= 3


def check_balanced(puzzles, pairs):
    assert len(puzzles) == 2 * pairs
    assert len({puzzle.content() for puzzle in puzzles}) == 2 * pairs
    assert len({puzzle.name for puzzle in puzzles}) == 2 * pairs
    longer: Counter[int] = Counter()
    shown: Counter = Counter()
    for yes, no in in_pairs(puzzles):
        assert (yes.accept, no.accept) == (True, False)
        assert (yes.pair, yes.grammar, yes.limits, yes.level) == (no.pair, no.grammar, no.limits, no.level)
        assert Counter(yes.string) == Counter(no.string)
        assert LETTERS[0] <= len(yes.string) <= LETTERS[1]
        assert recognises(yes.grammar, yes.string)
        assert not recognises(no.grammar, no.string)
        assert all(rule(puzzle) for rule in LOCAL_RULES.values() for puzzle in (yes, no))
        yes_run, no_run = yes.run(), no.run()
        assert yes_run.verdict == "accept"
        assert no_run.verdict == ("unknown" if CUT in no_run.moves else "reject")
        assert fatal_depth(yes_run) == fatal_depth(no_run)
        lengths = len(yes_run.moves), len(no_run.moves)
        least, most = RUN_LENGTHS[yes.level]
        assert all(least <= length <= most for length in lengths)
        assert abs(lengths[0] - lengths[1]) <= tolerance(lengths[0])
        longer[yes.level] += lengths[0] - lengths[1]
        shown.update(move for move in QUOTA_MOVES if move in yes_run.moves and move in no_run.moves)
    assert all(abs(moves) <= DRIFT for moves in longer.values())
    assert all(shown[move] >= pairs // len(QUOTA_MOVES) for move in QUOTA_MOVES)


def test_balanced_suite(balanced):
    check_balanced(balanced, PAIRS)
    assert balanced_suite("test", PAIRS) == balanced
    assert balanced_suite("test", 1, seed=1)[0].content() != balanced[0].content()


def test_splits_share_no_shape(balanced):
    suites = {"test": balanced, "train": balanced_suite("train", 6), "validation": balanced_suite("validation", 6)}
    shapes = {split: {shape_of(puzzle.grammar) for puzzle in puzzles} for split, puzzles in suites.items()}
    assert sum(map(len, shapes.values())) == len(set().union(*shapes.values()))
    for split, puzzles in suites.items():
        assert {split_of(puzzle.grammar) for puzzle in puzzles} == {split}


def test_a_shape_forgets_names_and_order():
    one = make_grammar([("S", "aSA"), ("S", "b"), ("A", "B"), ("B", "cd")])
    other = make_grammar([("X", "Y"), ("S", "c"), ("Y", "ab"), ("S", "bSX")])
    assert shape_of(one) == shape_of(make_grammar([("S", "c"), ("S", "bSX"), ("X", "Y"), ("Y", "ab")]))
    assert shape_of(other) == shape_of(one)
    assert shape_of(make_grammar([("S", "aAS"), ("S", "b"), ("A", "B"), ("B", "cd")])) != shape_of(
        make_grammar([("S", "aASb"), ("S", "b"), ("A", "B"), ("B", "cd")])
    )


def test_fatal_depth_by_hand():
    # S -> A a, A -> b | c on "c a": b is given up at depth 2.
    grammar = make_grammar([("S", "Aa"), ("A", "b"), ("A", "c")])
    moves = Search(grammar, ["c", "a"], Limits(5)).run()
    assert fatal_depth(Run(tuple(moves), "accept")) == 2


def test_blocks_by_hand():
    grammar = make_grammar([("S", "aSb"), ("S", "T"), ("T", "cd")])
    assert blocks(grammar) == {("a",), ("b",), ("c", "d")}


def test_sound_rules_hold_in_every_language(suite_b):
    sound = [*LOCAL_RULES.values(), *HELD_OUT_RULES.values(), counts_add_up]
    for puzzle in [*original_suite(), *cue_free_suite(), *count_a_suite(), *suite_b]:
        if puzzle.accept:
            assert all(rule(puzzle) for rule in sound), puzzle.name


def test_audit_finds_the_published_shortcuts():
    scores = {guess.name: guess.correct for guess in audit(original_suite())}
    assert scores["last rule's last symbol in string"] == 240
    scores = {guess.name: guess.correct for guess in audit(cue_free_suite())}
    assert scores["no rule longer than string"] == 172
    assert scores["last rule's last symbol in string"] == 120
    assert scores["classifier: bag of symbols"] > 140
    guesses = audit(count_a_suite())
    assert not all(guess.is_chance for guess in guesses)
    assert {guess.name: guess.correct for guess in guesses}["classifier: bag of symbols"] == 120


def test_audit_of_the_suite_of_brackets():
    """Counts tell nothing; neighbours do: every no string breaks at its first closer, beside the centre."""
    scores = {guess.name: guess.correct for guess in audit(bracket_questions(bracket_suite()))}
    assert scores["classifier: bag of symbols"] == 40
    assert scores["two equal neighbours"] == scores["classifier: and of neighbours"] == 30
    assert scores["all two neighbours possible"] == scores["every letter in some rule"] == 46
    # One no string begins with its centre and has a closer too many: its three symbols stand side by side in no other.
    assert (scores["all three neighbours possible"], scores["letter counts add up"]) == (90, 72)
    for puzzle in bracket_suite():
        at, closer_of = puzzle.string.index(puzzle.alphabet.centre), puzzle.alphabet.closer_of
        around = [*puzzle.string[max(0, at - 1) : at], *puzzle.string[at + 1 : at + 2]]
        assert puzzle.accept == (around == [] or closer_of.get(around[0]) == around[-1])


def test_bag_of_symbols_cannot_tell_a_pair_apart(balanced):
    for yes, no in in_pairs(balanced):
        assert bag_of_symbols(yes) == bag_of_symbols(no)
    assert classify(balanced, bag_of_symbols) == PAIRS


def test_interval():
    assert Guess("", 50, 100).interval() == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert Guess("", 59, 100).is_chance
    assert not Guess("", 60, 100).is_chance
    assert not Guess("", 0, 100).is_chance


def test_report_has_a_row_per_guess(balanced):
    lines = report({"balanced": balanced}).splitlines()
    assert len(lines) == len(CHEAP_RULES) + 4


@pytest.mark.slow
def test_full_balanced_suite(full):
    check_balanced(full, 120)


@pytest.mark.slow
def test_cheap_guesses_are_chance_on_the_full_balanced_suite(full):
    print(report({"balanced": full}))
    for guess in audit(full):
        assert guess.is_chance, guess
