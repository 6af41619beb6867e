"""Ordinary models that write runs in the looped models' letters, and the puzzles that looped models are asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_lane_benchmark import evaluate, perfect_script, saved, scripted

from datamodules.tasks.grammar.arms import LETTER_TASKS
from loopformer.evaluation.grammar_questions import MADE_WITH, GrammarOptions, bracket_questions
from loopformer.evaluation.lane_benchmark import ask_lanes, find_asked, find_items
from loopformer.evaluation.lane_outputs import LETTERS, left_out, run, score_outputs
from loopformer.evaluation.lane_summary import markdown, summarize_lanes
from loopformer.files import write_json_lines


@pytest.mark.parametrize("task", ["BracketTask", "PermutedBracketTask", "SearchTask"])
def test_a_model_of_letters_is_asked_what_looped_ones_are(task: str) -> None:
    made = {"longest": 9, "letterings": 1} if task == "SearchTask" else {"depths": "2,4", "per_depth": 4}
    options = GrammarOptions(**made)  # type: ignore[arg-type]
    replies: dict[str, str] = {}
    model = scripted(replies.__getitem__, f"procedure/{task}/steps")
    replies |= perfect_script(model, options)
    summary = evaluate(model, options)
    suite = "search_runs" if task == "SearchTask" else "bracket_depths"
    group = summary["lanes"]["written"][suite]
    assert (group["complete"], group["answer"], group["errors"]) == (1.0, 1.0, {})
    permuted = task == "PermutedBracketTask"
    assert all(text.startswith("Rules: ") == (permuted or task == "SearchTask") for text in model.lm.asked)
    if task != "SearchTask":
        looped = bracket_questions(options, permuted)
        assert {looped.task.prompt(one, "executor") for one in looped.instances} >= set(model.lm.asked)
        assert {depth: cell["yes"]["n"] for depth, cell in group["by_level"].items()} == {"2": 4, "4": 4}
        more = GrammarOptions(lane="written,planted", puzzles="brackets,bracket_depths", depths="3", per_depth=2)
        replies |= perfect_script(model, more)
        both = evaluate(model, more)["lanes"]
        assert both["written"]["brackets"]["n"] == 46
        assert both["planted"]["bracket_depths"]["complete"] == 1.0
        asked = find_asked(model, more)
        suite = [item for item in find_items(asked, more) if item.suite == "brackets" and asked.notation.asks(item)]
        texts = [asked.notation.ask(item, "written", False) for item in suite]
        assert texts == [looped.task.prompt(one, "executor") for one in looped.instances[-46:]]
    with pytest.raises(ValueError, match="answer is not for a model that writes letters"):
        ask_lanes(model, GrammarOptions(lane="answer"), print, print)


@pytest.mark.parametrize("style", [None, *LETTER_TASKS])
def test_what_looped_models_are_asked_is_scored_again_from_its_file(style: str | None, tmp_path: Path) -> None:
    """The file alone tells which puzzles they were; a perfect model but for its every seventh reply."""
    suites = ["bracket_depths", "search_runs"]
    puzzles = ",".join(suites) if style is None else suites["SearchTask" in style]
    lane = "answer,written,planted" if style is None else "written,planted"
    made = {
        "depths": "2,3",
        "per_depth": 3,
        "longest": 8,
        "letterings": 1,
        "suites": "count_a",
        "families": "recursion",
    }
    made = {name: value for suite in puzzles.split(",") for name, value in made.items() if name in MADE_WITH[suite]}
    options = GrammarOptions(lane=lane, puzzles=puzzles, listing=False if style is None else None, **made)
    replies: dict[str, str] = {}
    model = scripted(replies.__getitem__, style)
    replies |= perfect_script(model, options)
    replies |= dict.fromkeys(list(replies)[::7], "no")
    outputs, items, _ = ask_lanes(model, options, lambda _: None, lambda _: None)
    write_json_lines(tmp_path / "outputs.jsonl", [one.record() for one in outputs])
    run(tmp_path / "outputs.jsonl", tmp_path / "again")
    rows = [json.loads(line) for line in (tmp_path / "again" / "scores.jsonl").read_text().splitlines()]
    assert rows == [json.loads(json.dumps(row.record())) for row in score_outputs(outputs, items)]
    other = [replace(one, made={**one.made, "longest" if "longest" in one.made else "per_depth": 7}) for one in outputs]
    write_json_lines(tmp_path / "both.jsonl", [one.record() for one in [*outputs, *other]])
    with pytest.raises(ValueError, match=r"made with .* and with .*; score these files apart"):
        run(tmp_path / "both.jsonl", tmp_path / "more")


@pytest.mark.parametrize("style", ["answer", "trace"])
def test_a_style_that_no_lane_asks_is_told(style: str, tmp_path: Path) -> None:
    told = f"procedure/BracketTask/{style}"
    with pytest.raises(
        ValueError, match=rf"trained to write {told}, which no benchmark asks; train it with style: steps"
    ):
        find_asked(scripted(str, told), GrammarOptions())
    assert find_asked(scripted(str, told), GrammarOptions(lane="answer")).lanes == ("answer",)
    card = (saved(tmp_path / "m", told, []) / "README.md").read_text()
    assert "No benchmark asks a model of this kind." in card
    assert "evaluate.py" not in card
    assert "--benchmark grammar" in (saved(tmp_path / "n", told) / "README.md").read_text()


def test_puzzles_that_letters_cannot_write_are_left_out_and_counted(tmp_path: Path) -> None:
    """Chains of 9 and 17 nonterminals are too long for the letters s to z."""
    model = scripted(lambda _: " S", "procedure/SearchTask/steps")
    options = GrammarOptions(puzzles="cue_free")
    outputs, items, asked = ask_lanes(model, options, lambda _: None, lambda _: None)
    unwritten = {item.name for item in items if not asked.notation.asks(item)}
    assert len(unwritten) == 16
    assert all(name.startswith(("chain_depth-8", "chain_depth-16")) for name in unwritten)
    assert {one.item for one in outputs} == {item.name for item in items} - unwritten
    counted = left_out([("written", "cue_free", LETTERS)], items)
    assert counted == {"written": {"cue_free": 16}}
    summary = {**summarize_lanes(score_outputs(outputs, items)), "left_out": counted}
    assert "Puzzles not asked, written: cue_free 16 (letters cannot write them or write them twice)" in markdown(
        summary
    )
    with pytest.raises(ValueError, match=r"grammar\.puzzles: brackets is not for .* use suites of the search"):
        ask_lanes(model, GrammarOptions(puzzles="brackets"), print, print)
