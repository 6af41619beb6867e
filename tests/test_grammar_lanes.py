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
from datamodules.tasks.grammar.moves import Move, run_text
from datamodules.tasks.grammar.search_task import SearchTask
from datamodules.tasks.grammar.suites import cue_free_suite
from loopformer.evaluation.lane_outputs import (
    LaneOutput,
    check_complete,
    read_outputs,
    run,
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
            if not can_ask(item, lane):
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
    score = written(text)
    assert (score.right, score.error, score.answer) == (right, error, answer)
    assert score.complete == (error is None)
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
    score = score_reply(ITEM, "answer", JSON, Prompt(""), text, True)
    assert (score.answer, score.error, score.complete, score.length) == (answer, error, None, 0)


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
        bad = score_reply(item, "planted", JSON, prompt, run_text(late)[1:], True)
        assert (bad.first_error, bad.right, bad.error) == (6, 2, "wrong_move")
        assert score_reply(item, "planted", JSON, prompt, "", True).error == "missing_move"
    assert not can_ask(SEARCH["terminal_length-1-0-no"], "planted")


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
    assert stated_answer(run_text(YES.moves)) is True
    assert stated_answer(run_text(ITEM.moves)) is False
    for text in ("[]", run_text(YES.moves)[:-1], '[{"op": "ACC", "x": 1}]', "ACC", None):
        assert stated_answer(text) is None


def test_errors_and_intervals_by_hand() -> None:
    """Of 46 strings of one alphabet, the runs of the deepest no strings stop two moves early."""
    items = [item for item in BRACKETS.values() if item.name.startswith("brackets-0")]
    outputs = []
    for one in perfect(items, ("answer", "written")):
        item = BRACKETS[one.item]
        bad = item.level == 16 and not item.accept and one.lane == "written"
        text = run_text(item.moves[:-2]) if bad else one.output
        outputs.append(LaneOutput(one.suite, one.item, one.lane, text))
    summary = summarize_lanes(score_outputs(outputs, items))
    group = summary["lanes"]["written"]["brackets"]
    assert (group["n"], group["complete"], group["no"]["complete"]) == (46, 42 / 46, 19 / 23)
    assert group["no"]["errors"] == {"missing_move": 4}
    assert group["yes"]["errors"] == {}
    assert group["by_level"]["16"]["no"]["complete"] == 0.0
    assert group["by_level"]["16"]["yes"]["complete"] == 1.0
    low, high = group["structures"]["complete"]
    assert low < 42 / 46 < high
    assert group["no"]["answer"] == 19 / 23, "a run that stops behind a POP gives no answer"
    table = summary["answer_by_run"]["written"]["brackets"]
    assert (table["answer_right_run_complete"], table["answer_right_run_wrong"]) == (42, 4)
    assert sum(n for n in table.values() if isinstance(n, int)) == 46
    assert (table["yes"]["answer_right_run_wrong"], table["no"]["answer_right_run_wrong"]) == (0, 4)
    stated = group["stated_answer_by_run"]
    assert (stated["answer_wrong_run_wrong"], stated["yes"]["answer_wrong_run_wrong"]) == (4, 0)
    assert stated["no"]["answer_wrong_run_wrong"] == 4
    kinds = group["moves_by_answer"]
    assert (kinds["yes"]["CENTER"]["right"], kinds["no"]["CENTER"]["right"]) == (1.0, 19 / 23)
    assert "POP" not in kinds["no"], "the first closer is wrong in every no string"
    lengths = [len(item.moves) for item in items if item.level == 16 and not item.accept]
    assert group["by_level"]["16"]["no"]["prefix"] == pytest.approx(sum((n - 2) / n for n in lengths) / 4)


def test_files_of_outputs_are_strict(tmp_path: Path) -> None:
    line = {"suite": "cue_free", "item": "nesting-2-0-no", "lane": "written", "output": "x"}
    bad = {
        "no JSON": "{",
        "output is missing": {"suite": "cue_free", "item": "a", "lane": "gym"},
        "unknown field why": {**line, "why": 1},
        "suite='x'": {**line, "suite": "x"},
        "lane='think'": {**line, "lane": "think"},
        "planted=None": {**line, "lane": "planted"},
        "planted=1": {**line, "planted": 1},
        "planted=True": {**line, "lane": "planted", "planted": True},
        "new_tokens=-1": {**line, "new_tokens": -1},
        "item=3": {**line, "item": 3},
        "got a list": [1],
        "made: got .*cue_free needs null": {**line, "made": {"longest": 9}},
        "made: got None; bracket_depths needs exactly depths, per_depth": {**line, "suite": "bracket_depths"},
        "made.per_depth: got '4'": {**line, "suite": "bracket_depths", "made": {"depths": "2", "per_depth": "4"}},
        "grammar.depths: got 0": {**line, "suite": "bracket_depths", "made": {"depths": "0", "per_depth": 4}},
    }
    path = tmp_path / "outputs.jsonl"
    for message, content in bad.items():
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(ValueError, match=rf"outputs.jsonl line 1: .*{message}"):
            list(read_outputs(path))
    path.write_text(json.dumps(line) + "\n" + json.dumps(line))
    with pytest.raises(ValueError, match="two outputs"):
        score_outputs(read_outputs(path), [ITEM])
    with pytest.raises(ValueError, match="got 'cue_free/nesting-2-0-no'"):
        score_outputs(read_outputs(path), [YES])
    path.write_text(json.dumps(line))
    with pytest.raises(ValueError, match="1 of the 240 replies of cue_free"):
        check_complete(list(read_outputs(path)), [*SEARCH.values()])
    with pytest.raises(ValueError, match="there are none"):
        check_complete([], [])


def test_a_file_is_scored_without_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = perfect([*BRACKETS.values()], ("written", "states"))
    write_json_lines(tmp_path / "outputs.jsonl", [one.record() for one in outputs])
    run(tmp_path / "outputs.jsonl", tmp_path / "r")
    assert "| written | brackets (92) | 100.0" in capsys.readouterr().out
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["lanes"]["states"]["brackets"]["moves_right"] == 1.0
    assert sum(k["n"] for k in summary["lanes"]["states"]["brackets"]["moves"].values()) == 988
    assert len((tmp_path / "r" / "scores.jsonl").read_text().splitlines()) == 184
    with pytest.raises(FileExistsError, match="overwrite"):
        run(tmp_path / "outputs.jsonl", tmp_path / "r")
