"""Lanes: prompts, notations, and hand-made replies with known scores in each lane."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from datamodules.tasks.grammar.bracket_task import MOVE_LABELS, BracketTask
from datamodules.tasks.grammar.lane_items import LaneItem, form_of
from datamodules.tasks.grammar.lane_scores import (
    can_ask,
    planted_history,
    prompts,
    reference,
    score_moves,
    score_reply,
    stated_answer,
)
from datamodules.tasks.grammar.lane_suites import SUITES, first_pairs, suite_items
from datamodules.tasks.grammar.lanes import LANES, PLANTED, JsonNotation, LabelNotation, Prompt
from datamodules.tasks.grammar.model_text import read_array
from datamodules.tasks.grammar.moves import Move, run_text
from datamodules.tasks.grammar.search_task import SearchTask
from datamodules.tasks.grammar.suites import cue_free_suite
from loopformer.evaluation.lane_outputs import (
    LaneOutput,
    read_outputs,
    score_outputs,
)
from loopformer.evaluation.lane_summary import markdown, summarize_lanes
from loopformer.files import write_json_lines

JSON = JsonNotation()
SEARCH = {item.name: item for item in suite_items("cue_free")}
BRACKETS = {item.name: item for item in suite_items("brackets")}
ITEM = SEARCH["nesting-2-0-no"]
YES = SEARCH["nesting-2-0-yes"]


def written(text: object, item: LaneItem = ITEM, ended: bool = True):
    return score_reply(item, "written", JSON, Prompt(""), text, ended)


def perfect(items: list[LaneItem], lanes=LANES) -> list[LaneOutput]:
    """What a model writes that makes no mistake."""
    outputs = []
    for lane in lanes:
        for item in items:
            if not can_ask(item, lane, JSON):
                continue
            for prompt in prompts(item, lane, JSON, False) if lane not in ("gym", "states") else [None]:
                reply = [m.text() for m in item.moves] if prompt is None else reference(item, lane, JSON, prompt)
                planted = None if prompt is None else prompt.planted
                outputs.append(LaneOutput(item.suite, item.name, lane, reply, planted, new_tokens=3))
    return outputs


def test_a_perfect_model_scores_in_full_in_every_lane() -> None:
    items = [*first_pairs([*SEARCH.values()], 1), *BRACKETS.values()]
    summary = summarize_lanes(score_outputs(perfect(items), items))
    assert list(summary["lanes"]) == list(LANES)
    for lane, suites in summary["lanes"].items():
        for suite, group in suites.items():
            for cell in (group, group["yes"], group["no"], *group.get("planted", {}).values()):
                assert cell["errors"] == cell["first_errors"] == {}
                assert cell["answer"] == (None if lane in ("gym", "states") else 1.0), (lane, suite)
                assert cell["complete"] == cell["prefix"] == (None if lane == "answer" else 1.0)
            assert all(kind["right"] == 1.0 for kind in group["moves"].values())
            both = group["moves_by_answer"]
            for kind, cell in group["moves"].items():
                assert cell["n"] == sum(both[answer].get(kind, {"n": 0})["n"] for answer in ("yes", "no"))
    assert list(summary["lanes"]["planted"]["cue_free"]["planted"]) == [str(wrong) for wrong in PLANTED]
    for lane in ("written", "gym"):
        table = summary["answer_by_run"][lane]["brackets"]
        assert table["answer_right_run_complete"] == 92
        assert table["yes"]["answer_right_run_complete"] == 46
    json.dumps(summary, allow_nan=False)
    assert "| gym | brackets (92) | - | - | 100.0" in markdown(summary)


@pytest.mark.parametrize(
    ("text", "right", "error", "answer"),
    [
        (run_text(ITEM.moves), len(ITEM.moves), None, True),
        (run_text([*ITEM.moves[:3], Move("ACC")]), 3, "wrong_move", False),
        (run_text(ITEM.moves[:7]), 7, "missing_move", False),
        (run_text(ITEM.moves[:7])[:-1], 7, "missing_move", False),
        (run_text([*ITEM.moves, Move("BT")]), len(ITEM.moves), "wrong_move", False),
        (run_text([*ITEM.moves, Move("DONE")]), len(ITEM.moves), "wrong_move", True),
        (run_text(ITEM.moves) + " So the answer is no.", len(ITEM.moves), "malformed", False),
        ("The string is not generated.", 0, "malformed", False),
        (run_text(ITEM.moves[:4])[:-1] + ', {"op": "BT"}' * 60, 4, "capped_loop", False),
        ("", 0, "malformed", False),
    ],
)
def test_written_runs(text: str, right: int, error: str | None, answer: bool) -> None:
    """The no puzzle: a concluded run that does not end in ACC says no."""
    score = written(text, ended=error != "capped_loop")
    assert (score.right, score.error, score.answer) == (right, error, answer)
    assert score.complete == (error is None)
    assert not score.complete or score.exact_stop
    assert score.first_error == (None if error is None else right)


def test_runs_in_the_gym_stop_at_the_first_error_and_states_do_not() -> None:
    texts = [move.text() for move in ITEM.moves]
    wrong = [*texts]
    wrong[2], wrong[5] = '{"op": "DONE"}', "I think so"
    gym, states = score_moves(ITEM, "gym", wrong), score_moves(ITEM, "states", wrong)
    assert (gym.right, gym.first_error, gym.error, sum(gym.judged.values())) == (2, 2, "wrong_move", 3)
    assert (states.right, states.first_error, states.error) == (len(texts) - 2, 2, "wrong_move")
    assert sum(states.judged.values()) == len(texts)
    assert score_moves(ITEM, "gym", texts[:4]).error == "missing_move"
    assert score_moves(ITEM, "states", texts[:4]).first_error == 4
    assert score_moves(ITEM, "gym", texts[0]).right == 1, "one text is one reply"
    assert score_moves(ITEM, "states", {"0": texts[0]}).right == 0


@pytest.mark.parametrize(
    ("text", "answer", "error"),
    [
        ('{"accept": false}', True, None),
        ('{"accept": true}', False, "wrong_move"),
        ('{"accept": NaN}', False, "malformed"),
        ('{"accept": false, "sure": 1}', False, "malformed"),
        ("no", False, "malformed"),
        ("no " * 60, False, "capped_loop"),
    ],
)
def test_answers(text: str, answer: bool, error: str | None) -> None:
    score = score_reply(ITEM, "answer", JSON, Prompt(""), text, error != "capped_loop")
    assert (score.answer, score.error, score.complete, score.exact_stop, score.length) == (answer, error, None, None, 0)


@pytest.mark.parametrize(
    ("moves", "closed", "stops"),
    [
        (ITEM.moves, True, True),
        (ITEM.moves, False, False),
        ((Move("ACC"),) * len(ITEM.moves), True, True),
        (ITEM.moves[:-1], True, False),
        ((*ITEM.moves, Move("BT")), True, False),
        ((), True, False),
    ],
    ids=["right", "not closed", "wrong moves", "early", "late", "none"],
)
def test_an_exact_stop_asks_for_the_number_of_moves_alone(moves: tuple[Move, ...], closed: bool, stops: bool) -> None:
    """As of looped models: the stop loop is the last move's, whatever the moves are."""
    text = run_text(moves) if closed else run_text(moves)[:-1]
    assert written(text).exact_stop is stops
    assert written(text + " Done.").exact_stop is False
    assert written(None).exact_stop is False
    letters, item = LabelNotation(SearchTask()), ITEM
    reply = letters.run(item, moves)
    assert score_reply(item, "written", letters, Prompt(""), reply, closed).exact_stop is stops
    assert score_reply(item, "written", letters, Prompt(""), reply + " !", True).exact_stop is False
    late = prompts(item, "planted", JSON, False)[2]
    assert score_reply(item, "planted", JSON, late, run_text(item.moves[4:])[1:], True).exact_stop


def notation_run(item: LaneItem, prompt: Prompt, indent: int | None = None) -> str:
    """The whole run behind a planted history, in one array."""
    history = json.loads(prompt.begun[:-1] + "]")
    return json.dumps([*history, *(move.to_json() for move in item.moves[4:])], indent=indent)


@pytest.mark.parametrize("item", [ITEM, YES, BRACKETS["brackets-1-4-2-no"], BRACKETS["brackets-0-16-0-yes"]])
def test_planted_histories(item: LaneItem) -> None:
    asked = prompts(item, "planted", JSON, False)
    assert [prompt.planted for prompt in asked] == list(PLANTED)
    for prompt in asked:
        history = json.loads(prompt.begun[:-1] + "]")
        assert prompt.begun.endswith("},")
        flags = [move != item.moves[at].to_json() for at, move in enumerate(history)]
        assert flags == [True] * prompt.planted + [False] * (4 - prompt.planted)
        assert [Move.from_json(move) for move in history] == planted_history(item, prompt.planted)
        right = score_reply(item, "planted", JSON, prompt, reference(item, "planted", JSON, prompt), True)
        assert (right.complete, right.length, right.right) == (True, len(item.moves) - 4, len(item.moves) - 4)
        late = [*item.moves[4:6], Move("PRN", "reason", "long")]
        for text in (notation_run(item, prompt), notation_run(item, prompt, indent=2)):
            again = score_reply(item, "planted", JSON, prompt, text, True)
            assert again == right, "a reply may write the beginning itself"
        other = run_text([*[Move("TRY", "production", "p99")] * 4, *item.moves[4:]])
        assert score_reply(item, "planted", JSON, prompt, other, True).error == "malformed", "that is no beginning"
        bad = score_reply(item, "planted", JSON, prompt, run_text(late)[1:], True)
        assert (bad.first_error, bad.right, bad.error) == (6, 2, "wrong_move")
        assert score_reply(item, "planted", JSON, prompt, "", True).error == "missing_move"
    assert not can_ask(SEARCH["terminal_length-1-0-no"], "planted", JSON)


BIG = 10_000_000
HOSTILE = {
    "prose": "The grammar generates the string, since p0 leads there. " * 20 + "Thus yes.",
    "broken JSON": '[{"op": "TRY", "production": "p0"}, {"op": ',
    "10 MB of brackets": "[" * BIG,
    "10 MB of moves": "[" + '{"op": "BT"}, ' * (BIG // 14),
    "10 MB of one key": '{"accept": true, "' + "k" * BIG,
    "10 MB of letters": " A" * (BIG // 2),
    "unknown keys": '[{"op": "BT", "why": 1}]',
    "NaN": "NaN",
    "NaN inside": '[{"op": NaN}]',
    "nested 100k": "[" * 100_000 + "]" * 100_000,
    "surrogates": "\ud800\udfff [",
    "null bytes": "\x00" * 100,
    "digits": "1" * 100_000,
    "nothing": "",
    "none": None,
    "number": float("nan"),
    "bytes": b'{"op": "BT"}',
    "object": {"op": "BT"},
    "list": ["[", None, 3, [[]]],
}


NOTATIONS = {"json": JSON, "letters": LabelNotation(BracketTask())}
CASES = [
    pytest.param(name, notation, marks=pytest.mark.slow if name == "10 MB of moves" else ())
    for name in HOSTILE
    for notation in NOTATIONS
]


@pytest.mark.parametrize(("name", "notation"), CASES)
def test_replies_of_any_shape_have_a_score(name: str, notation: str, tmp_path: Path) -> None:
    text, item, written = HOSTILE[name], BRACKETS["brackets-0-3-2-yes"], NOTATIONS[notation]
    planted = Prompt("", written.begin(item, planted_history(item, 1)), 1)
    begin = time.process_time()
    scores = [
        score_reply(item, "answer", written, Prompt(""), text, True),
        score_reply(item, "written", written, Prompt(""), text, False),
        score_reply(item, "planted", written, planted, text, True),
        score_moves(item, "gym", text),
        score_moves(item, "states", [text, None]),
    ]
    assert time.process_time() - begin < 10
    assert all(score.error is not None and not score.complete and not score.answer for score in scores)
    json.dumps([score.record() for score in scores], allow_nan=False)
    if len(str(text)) < 1_000 and type(text) is not bytes:
        output = LaneOutput(item.suite, item.name, "gym", text)
        write_json_lines(tmp_path / "o.jsonl", [output.record()])
        assert score_outputs(read_outputs(tmp_path / "o.jsonl"), [item])[0].score.error is not None


def test_a_number_of_thousands_of_digits_is_one_wrong_reply(tmp_path: Path) -> None:
    """Python refuses to read it; it is malformed like any other number, alone or in a list of replies."""
    line = json.dumps({"suite": ITEM.suite, "item": ITEM.name, "lane": "LANE", "output": "HUGE"})
    path, digits = tmp_path / "outputs.jsonl", "1" * 5_000
    lanes = {"answer": digits, "written": "-" + digits, "gym": f"[{digits}]", "states": digits}
    path.write_text("\n".join(line.replace("LANE", lane).replace('"HUGE"', text) for lane, text in lanes.items()))
    assert {row.score.error for row in score_outputs(read_outputs(path), [ITEM])} == {"malformed"}


def test_letters_are_read_as_the_moves_they_stand_for() -> None:
    item, letters = BRACKETS["brackets-1-2-2-yes"], LabelNotation(BracketTask())
    text = letters.run(item, item.moves)
    assert text == " A B C D D E"
    assert letters.ask(item, "written", False) == "String: u v y x w.\nMove:"
    cases = {
        (text, True): (6, None),
        (text, False): (6, "malformed"),
        (text[:-2], True): (5, "missing_move"),
        (text[:-2] + " F", True): (5, "wrong_move"),
        (text + " D", True): (6, "wrong_move"),
        (text + " G", True): (6, "malformed"),
        ("A B C", True): (0, "malformed"),
        (text + "\n", True): (6, "malformed"),
        ("", True): (0, "missing_move"),
        (" ", True): (0, "missing_move"),
        (run_text(item.moves)[1:], True): (0, "malformed"),
        (text[:4] + " " + run_text(item.moves[2:])[1:], True): (2, "malformed"),
        (text[:4] + run_text(item.moves[2:])[1:], True): (2, "malformed"),
        (text + "]", True): (6, "malformed"),
        (text + ",]", False): (6, "malformed"),
        (" A B" + "\u2028no" * 900, False): (2, "capped_loop"),
        (" A B" + "\u2028no" * 900, True): (2, "malformed"),
        (" A B" + "\n" * 900, False): (2, "capped_loop"),
        (" A B" + " C" * 9000, False): (3, "capped_loop"),
        (" A B" + " C" * 9000, True): (3, "wrong_move"),
        (" A B" + " C" * 900, False): (3, "capped_loop"),
    }
    for (reply, ended), (right, error) in cases.items():
        score = score_reply(item, "written", letters, Prompt(""), reply, ended)
        assert (score.right, score.error) == (right, error), reply
    search = LabelNotation(SearchTask())
    assert score_reply(YES, "written", search, Prompt(""), search.run(YES, YES.moves), True).complete
    with pytest.raises(ValueError, match="brackets is not for a model trained on SearchTask"):
        search.ask(item, "written", False)
    assert len(MOVE_LABELS) == len(letters._moves(item))


def test_prompts_hold_the_puzzle_and_nothing_of_its_answer() -> None:
    for name in SUITES[:3]:
        items = suite_items(name)[::17]
        for item in items:
            for listing in (False, True):
                texts = [prompt.text for prompt in prompts(item, "written", JSON, listing)]
                assert item.question() in texts[0]
                assert ("Rules of the search" in texts[0]) == listing
                assert json.dumps(item.puzzle.grammar.to_json()) in texts[0]
            assert len(prompts(item, "states", JSON, False)) == len(item.moves)
    state = prompts(ITEM, "gym", JSON, False)[3].text
    assert '"phase": "await_bt"' in state or '"phase": "entered"' in state
    assert "Rules" not in prompts(ITEM, "answer", JSON, True)[0].text


def test_structure_of_items() -> None:
    puzzles = cue_free_suite()
    forms = {puzzle.family: form_of(puzzle.grammar) for puzzle in puzzles if puzzle.level == 4}
    assert forms == {
        "terminal_length": "terminals",
        "chain_depth": "regular",
        "alternatives": "terminals",
        "sequence": "branching",
        "recursion": "regular",
        "nesting": "linear",
    }
    assert len({item.structure for item in SEARCH.values()}) == 30
    assert ITEM.depth == max(len(stack) for stack in ITEM.states()) - 1
    assert BRACKETS["brackets-0-8-0-yes"].depth == 8
    assert len({item.key for name in SUITES[:4] for item in suite_items(name)}) == 960


def test_a_run_says_yes_only_by_its_last_move() -> None:
    assert stated_answer(read_array(run_text(YES.moves), 99)) is True
    assert stated_answer(read_array(run_text(ITEM.moves), 99)) is False
    for text in ("[]", run_text(YES.moves)[:-1], '[{"op": "ACC", "x": 1}]', "ACC", None):
        assert stated_answer(read_array(text, 99)) is None


def test_every_reply_to_a_single_move_was_ended_or_not() -> None:
    loop, right = "=" * 64, [move.text() for move in ITEM.moves]
    for lane in ("gym", "states"):
        for ended, error in ((True, "malformed"), (False, "capped_loop"), ([True, False], "capped_loop")):
            assert score_moves(ITEM, lane, [right[0], loop, *right[2:]], ended).error == error
        for ended in ([False, True], [False], []):
            assert score_moves(ITEM, lane, [right[0], loop, *right[2:]], ended).error == "malformed"
