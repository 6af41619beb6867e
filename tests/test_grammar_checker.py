"""The checker: every text has a score, and a changed move is caught where it stands."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.tasks.grammar.checker import KindTally, check_answer, check_move, check_moves, check_run
from datamodules.tasks.grammar.model_text import read_value
from datamodules.tasks.grammar.moves import BT, PRN_LONG, Move, count_kinds, run_text, try_production
from datamodules.tasks.grammar.suites import count_a_suite, cue_free_suite

MOVES = next(puzzle for puzzle in cue_free_suite() if puzzle.name == "nesting-2-0-no").run().moves
RUN = run_text(MOVES)
OTHERS = [BT, PRN_LONG, try_production("p0"), try_production("p1"), try_production("p9"), Move("ACC")]


def cut(moves: int) -> str:
    """The text of the first moves, without bracket."""
    return run_text(MOVES[:moves])[:-1]


def test_a_complete_run():
    for puzzle in count_a_suite()[::7]:
        moves = puzzle.run().moves
        score = check_run(run_text(moves), moves, True)
        assert score.complete
        assert score == check_run(run_text(moves), moves, False)
        assert (score.right, score.prefix, score.first_error, score.error) == (len(moves), 1.0, None, None)
        assert score.judged == score.correct == count_kinds(moves)
        assert check_moves([move.text() for move in moves], moves, [True] * len(moves)) == score
    assert check_run("\n " + json.dumps(json.loads(RUN), indent=3) + "\n", MOVES, True).complete


@given(st.integers(0, len(MOVES) - 1), st.sampled_from(OTHERS))
def test_a_changed_move_is_caught_at_its_index(at, other):
    if other == MOVES[at]:
        return
    changed = [*MOVES[:at], other, *MOVES[at + 1 :]]
    score = check_run(run_text(changed), MOVES, True)
    assert (score.first_error, score.right, score.error) == (at, at, "wrong_move")
    assert score.prefix == at / len(MOVES)
    assert check_moves([move.text() for move in changed], MOVES, [True] * len(MOVES)) == score
    assert sum(score.judged.values()) == at + 1
    assert sum(score.correct.values()) == at
    assert score.judged[MOVES[at].kind] == score.correct[MOVES[at].kind] + 1


def test_every_changed_move_of_every_family_is_caught():
    for puzzle in cue_free_suite()[:: 8 * 2 + 1]:
        moves = puzzle.run().moves
        for at, move in enumerate(moves):
            other = BT if move != BT else PRN_LONG
            assert check_run(run_text([*moves[:at], other, *moves[at + 1 :]]), moves, True).first_error == at


@pytest.mark.parametrize(
    ("text", "right", "error"),
    [
        ("", 0, "malformed"),
        ("   ", 0, "malformed"),
        ("The grammar does not generate the string.", 0, "malformed"),
        (f"```json\n{RUN}\n```", 0, "malformed"),
        (RUN + " done", len(MOVES), "malformed"),
        (RUN + RUN, len(MOVES), "malformed"),
        (RUN[:-1], len(MOVES), "malformed"),
        (RUN[:-1] + ",", len(MOVES), "malformed"),
        (RUN[:-1] + ",]", len(MOVES), "malformed"),
        (RUN[:-1] + ', {"op": "BT"}]', len(MOVES), "wrong_move"),
        (RUN[:-1] + ", 7]", len(MOVES), "malformed"),
        ("[]", 0, "missing_move"),
        ("[", 0, "missing_move"),
        (cut(5) + "]", 5, "missing_move"),
        (cut(5), 5, "missing_move"),
        (cut(5) + ",", 5, "missing_move"),
        (cut(5) + ', {"op": "T', 5, "malformed"),
        (cut(5) + " and so on]", 5, "malformed"),
        (cut(5) + ", null]", 5, "malformed"),
        (cut(5) + ", NaN]", 5, "malformed"),
        (cut(5) + ", -Infinity]", 5, "malformed"),
        (cut(5) + ', {"op": "BT", "why": NaN}]', 5, "malformed"),
        (cut(5) + ', {"op": "BT", "why": 1}]', 5, "malformed"),
        (cut(5) + ', {"op": "BT", "op": "BT"}]', 5, "malformed"),
        (cut(5) + ', {"op": "bt"}]', 5, "malformed"),
        (cut(5) + ', {"op": ["BT"]}]', 5, "malformed"),
        (cut(5) + ', {"op": "TRY"}]', 5, "malformed"),
        (cut(5) + ', {"op": "TRY", "production": 0}]', 5, "malformed"),
        (cut(5) + ', {"op": "PRN", "reason": "bored"}]', 5, "malformed"),
        (cut(5) + ', {"op": "TRY", "production": "p77"}]', 5, "wrong_move"),
        (cut(5) + ', {"op": "CUT", "reason": "max_depth"}]', 5, "wrong_move"),
        (cut(5) + ', {"op": "CUT", "reason": "max_depth"}' * 30, 5, "capped_loop"),
        (cut(5) + ', {"op": "CUT", "reason": "max_depth"}' * 30 + ', {"op": "C', 5, "capped_loop"),
        (cut(5) + ', {"op": "CUT", "reason": "max_depth"}' * 30 + "]", 5, "wrong_move"),
        (RUN[:-1] + ', {"op": "DONE"}' * 30, len(MOVES), "capped_loop"),
        (cut(5) + "\n" * 500, 5, "capped_loop"),
        ("I will try p0. " * 40, 0, "capped_loop"),
        (json.dumps({"moves": json.loads(RUN)}), 0, "malformed"),
        (json.dumps(RUN), 0, "malformed"),
        ("\x00\ud800\U0001f600", 0, "malformed"),
        (None, 0, "malformed"),
        (b"[]", 0, "malformed"),
    ],
)
def test_first_error_and_its_class(text, right, error):
    score = check_run(text, MOVES, False)
    assert (score.right, score.first_error, score.error) == (right, right, error)
    assert not score.complete
    ended = check_run(text, MOVES, True)
    assert (ended.right, ended.first_error) == (right, right)
    assert ended.error != "capped_loop", "a model that ended its reply was not stopped in a loop"
    assert ended.error == error or error == "capped_loop"


BIG = 10_000_000


@pytest.mark.parametrize(
    "text",
    [
        "[" * BIG,
        '{"a":' * (BIG // 5),
        "x" * BIG,
        "1" * BIG,
        " " * BIG,
        "[" + "9" * BIG,
        '["' + "a" * BIG,
        "[" + '{"op": "BT"},' * (BIG // 13),
        cut(5) + "," + '{"op": "BT"},' * (BIG // 13) + "]",
        cut(5) + ', {"' + "k" * BIG + '": 1}]',
        cut(5) + ", " + "[" * BIG,
        RUN + " " * BIG + ".",
    ],
    ids=range(12),
)
def test_ten_megabytes_of_anything(text):
    begin = time.process_time()
    assert not check_run(text, MOVES, False).complete
    assert check_move(text, MOVES[0], False) is not None
    assert check_answer(text, True, False) is not None
    assert time.process_time() - begin < 10


@settings(max_examples=300)
@given(
    st.one_of(
        st.text(),
        st.text(alphabet='[]{},:" \n\\opBTNaMLnul01.eE-'),
        st.integers(0, len(RUN)).map(lambda at: RUN[:at]),
        st.tuples(st.integers(0, len(RUN)), st.text(max_size=3)).map(lambda x: RUN[: x[0]] + x[1] + RUN[x[0] + 1 :]),
    )
)
def test_any_text_has_a_score(text):
    score = check_run(text, MOVES, False)
    try:
        equal = json.loads(text) == json.loads(RUN)
    except ValueError:
        equal = False
    assert score.complete == equal
    assert score.right == (len(MOVES) if score.first_error is None else score.first_error)
    assert (score.error is None) == score.complete
    assert check_move(text, MOVES[0], False) in (None, "wrong_move", "malformed", "capped_loop")


def test_planted_moves_are_not_scored():
    planted = [PRN_LONG, PRN_LONG, *MOVES[2:]]
    assert check_run(run_text(planted), MOVES, True, start=4).complete
    score = check_run(run_text([*planted[:6], Move("ACC")]), MOVES, True, start=4)
    assert (score.length, score.right, score.first_error, score.error) == (len(MOVES) - 4, 2, 6, "wrong_move")
    assert check_run(run_text(planted[:3]), MOVES, True, start=4).error == "missing_move"


def test_runs_made_move_by_move():
    texts = [move.text() for move in MOVES]
    assert check_moves([*texts, "anything"], MOVES, [True] * (len(texts) + 1)).complete
    assert check_moves(texts[:3], MOVES, [True] * 3).error == "missing_move"
    score = check_moves([*texts[:3], f"I think {texts[3]}"], MOVES, [True] * 4)
    assert (score.right, score.error) == (3, "malformed")


def test_tally_by_kind():
    tally = KindTally()
    tally.add(check_run(run_text([*MOVES[:5], Move("ACC")]), MOVES, True))
    tally.add_move(BT, right=True)
    tally.add_move(BT, right=False)
    assert tally.judged.total() == 8
    assert tally.correct.total() == 6
    assert 0 < tally.accuracy()["BT"] < 1


def test_values_are_read_as_the_standard_has_them():
    assert read_value(' {"a": [1, null]} ') == (True, {"a": [1, None]})
    for text in ("NaN", "[Infinity]", '{"a": 1, "a": 1}', "1 2", "", None):
        assert read_value(text) == (False, None)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"accept": true}', None),
        (' {"accept":true}\n', None),
        ('{"accept": false}', "wrong_move"),
        ('{"accept": 1}', "malformed"),
        ('{"accept": "true"}', "malformed"),
        ('{"accept": true, "why": 1}', "malformed"),
        ('{"accept": true} Yes.', "malformed"),
        ("true", "malformed"),
        ("yes " * 100, "capped_loop"),
        (None, "malformed"),
    ],
)
def test_answers(text, error):
    assert check_answer(text, True, False) == error
    assert check_answer(text, True, True) == ("malformed" if error == "capped_loop" else error)


def test_a_loop_is_capped_only_if_the_model_did_not_end_it():
    """Right up to move 2, then BT over and over: whoever ends the reply has written wrong moves, or stopped early."""
    cases = {
        cut(2) + ', {"op": "BT"}' * 30: "wrong_move",
        cut(2) + "\n" * 100: "missing_move",
        cut(2) + ", no" * 100: "malformed",
        "=" * 64: "malformed",
    }
    for text, ended in cases.items():
        assert check_run(text, MOVES, False).error == "capped_loop"
        assert check_run(text, MOVES, True).error == ended
    assert check_move("=" * 64, MOVES[0], False) == "capped_loop"
    assert check_move("=" * 64, MOVES[0], True) == "malformed"
    texts = [MOVES[0].text(), "=" * 64]
    assert check_moves(texts, MOVES, [True, False]).error == "capped_loop"
    assert check_moves(texts, MOVES, [False, True]).error == "malformed", "each reply for itself"
