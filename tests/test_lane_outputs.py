"""What lanes are summarized to, and files of outputs: strict, scored without the model, counted in full."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_grammar_lanes import BRACKETS, ITEM, SEARCH, YES, perfect, written

from datamodules.batch import IGNORE
from datamodules.tasks.grammar.moves import Move, run_text
from loopformer.evaluation.grammar_summary import survival_curve
from loopformer.evaluation.lane_outputs import (
    LaneOutput,
    check_complete,
    left_out,
    read_outputs,
    run,
    score_outputs,
)
from loopformer.evaluation.lane_summary import ScoredLane, summarize_lanes
from loopformer.files import write_json_lines
from loopformer.metrics.functional import RATES, query_outcome, rate_rows
from loopformer.metrics.functional.outcomes import MISSING


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
    assert group["no"]["exact_stop"] == 19 / 23, "closed, but two moves early"
    curve, runs = group["survival"]["no"], [len(item.moves) for item in items if not item.accept]
    longest = max(len(item.moves) for item in items)
    assert curve["runs"] == [sum(n >= t for n in runs) for t in range(1, longest + 1)]
    wrong = sorted(len(item.moves) - 1 for item in items if item.level == 16 and not item.accept)
    for t, (n, share) in enumerate(zip(curve["runs"], curve["survival"], strict=True), 1):
        lost = sum(first <= t <= first + 1 for first in wrong)
        assert share == (None if n == 0 else pytest.approx(1 - lost / n))
    assert set(group["survival"]["yes"]["survival"]) == {1.0}
    assert summary["lanes"]["answer"]["brackets"]["survival"]["no"] == {"runs": [], "survival": []}
    lengths = [len(item.moves) for item in items if item.level == 16 and not item.accept]
    assert group["by_level"]["16"]["no"]["prefix"] == pytest.approx(sum((n - 2) / n for n in lengths) / 4)


def test_survival_and_exact_stop_mean_what_they_mean_of_looped_models() -> None:
    """The same runs as loops and as text: right, wrong at move 3, one move early, never closed."""
    texts = [
        run_text(ITEM.moves),
        run_text([*ITEM.moves[:2], Move("ACC"), *ITEM.moves[3:]]),
        run_text(YES.moves[:-1]),
        run_text(YES.moves)[:-1],
    ]
    items = [ITEM, ITEM, YES, YES]
    scores = [written(text, item) for text, item in zip(texts, items, strict=True)]
    rows = [ScoredLane(item, "written", score) for item, score in zip(items, scores, strict=True)]
    group = summarize_lanes(rows)["lanes"]["written"]["cue_free"]
    horizon = max(len(ITEM.moves), len(YES.moves))
    steps = torch.tensor([len(item.moves) for item in items])
    reference = torch.arange(horizon).expand(4, -1)
    reference = torch.where(reference < steps[:, None], reference, IGNORE)
    said = reference.clone()
    said[1, 2] += 1
    said[2, len(YES.moves) - 1] += 1
    stop = torch.tensor([len(ITEM.moves), len(ITEM.moves), len(YES.moves) - 1, MISSING])
    outcome = query_outcome(said, reference, steps, stop)
    shares = dict(zip(RATES, rate_rows(outcome)[:, 1:].bool().T.tolist(), strict=True))
    assert [score.exact_stop for score in scores] == shares["exact_stop"] == [True, True, False, False]
    assert [score.complete for score in scores] == shares["strict"] == [True, False, False, False]
    for name, some in (("no", slice(0, 2)), ("yes", slice(2, 4))):
        looped = survival_curve(outcome.steps[some], outcome.first_error[some], horizon)
        assert group["survival"][name] == looped
    assert group["survival"]["no"]["survival"] == [1.0, 1.0] + [0.5] * (len(ITEM.moves) - 2)


def test_puzzles_that_are_not_asked_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = [*SEARCH.values()]
    short = sum(len(item.moves) <= 4 for item in items)
    assert left_out([("planted", "cue_free", "json"), ("written", "cue_free", "json")], items) == {
        "planted": {"cue_free": short}
    }
    write_json_lines(tmp_path / "outputs.jsonl", [one.record() for one in perfect(items, ["planted"])])
    run(tmp_path / "outputs.jsonl", tmp_path / "r")
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["left_out"] == {"planted": {"cue_free": short}}
    assert f"Puzzles not asked, planted: cue_free {short} (runs of at most 4 moves, or" in capsys.readouterr().out


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
        "ended=1": {**line, "ended": 1},
        r"ended=\[True\]; use true or false$": {**line, "ended": [True]},
        r"ended=\[1\]; use true or false, or a list of them": {**line, "lane": "gym", "ended": [1]},
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
