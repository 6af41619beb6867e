"""What docs/grammar.md shows works: own puzzles are made and asked, lines of outputs are scored."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_lane_benchmark import evaluate, perfect_script, scripted

from datamodules.tasks.grammar.suites import cue_free_suite
from loopformer.evaluation.grammar_questions import GrammarOptions
from loopformer.evaluation.lane_outputs import run, show
from loopformer.evaluation.puzzle_file import read_puzzles

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs" / "grammar.md").read_text(encoding="utf-8"), re.DOTALL)


def block(language: str) -> str:
    (text,) = [body for name, body in BLOCKS if name == language]
    return text


def test_the_example_of_own_puzzles_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", block("python")]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    assert [item.accept for item in read_puzzles("mine.jsonl")] == [True, False]
    options = GrammarOptions(lane="answer,written,gym", puzzles="mine.jsonl,brackets", pairs=1)
    replies: dict[str, str] = {}
    model = scripted(replies.__getitem__)
    replies |= perfect_script(model, options)
    group = evaluate(model, options)["lanes"]["written"]["mine.jsonl"]
    assert (group["n"], group["complete"]) == (2, 1.0)


def test_the_example_lines_of_outputs_are_scored(tmp_path: Path) -> None:
    (tmp_path / "outputs.jsonl").write_text(block("json"), encoding="utf-8")
    run(tmp_path / "outputs.jsonl", tmp_path / "r", partial=True)
    rows = [json.loads(line) for line in (tmp_path / "r" / "scores.jsonl").read_text().splitlines()]
    assert [(row["lane"], row["error"]) for row in rows] == [
        ("written", None),
        ("answer", None),
        ("states", "wrong_move"),
        ("planted", "capped_loop"),
        ("written", None),
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"suite": "bracket_depths", "lane": "planted", "depths": [2, 3], "per_depth": 1},
        {"suite": "search_runs", "lane": "written", "longest": 8, "letterings": 1, "families": "nesting"},
        {"suite": "cue_free", "lane": "planted", "listing": False},
    ],
    ids=["brackets", "search", "fixed"],
)
def test_prompts_with_outputs_added_are_scored(options, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(**options)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows
    path = tmp_path / "outputs.jsonl"
    path.write_text("\n".join(json.dumps({**row, "output": row["begun"] + "no"}) for row in rows))
    run(path, tmp_path / "r")
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["replies"] == len(rows)


def test_options_that_decide_nothing_are_refused() -> None:
    for options, field in (({"depths": "2"}, "depths"), ({"suite": "bracket_depths", "longest": 9}, "longest")):
        with pytest.raises(ValueError, match=f"{field}: decides nothing of .*; leave it out"):
            show(**options)
    with pytest.raises(ValueError, match=r"suite: got 'chess'; use one of .*FILE\.jsonl"):
        show("chess")


def test_files_of_puzzles_are_strict(tmp_path: Path) -> None:
    yes, no = (puzzle.to_json() for puzzle in cue_free_suite()[:2])
    path = tmp_path / "mine.jsonl"
    for second, message in (
        ("{", "line 2: it is no JSON"),
        ([1], "line 2: got a list"),
        ({**no, "level": "1"}, "line 2: puzzle.level: got '1'"),
        ({**no, "string": ["z"]}, "line 2: string: unknown symbol 'z'"),
        ({**no, "max_steps": 0}, "line 2: limits: got"),
        ({**no, "name": yes["name"]}, "line 2: puzzle.name: .* is there already"),
        ({**no, "accept": True}, "line 2: puzzle.accept: got True, but the search ends in reject"),
    ):
        path.write_text(json.dumps(yes) + "\n" + (second if isinstance(second, str) else json.dumps(second)))
        with pytest.raises(ValueError, match=message):
            read_puzzles(str(path))
    path.write_text(json.dumps({**no, "accept": True, "max_steps": 1}))
    assert read_puzzles(str(path))[0].verdict == "unknown", "a run that was cut off contradicts nothing"
    path.write_text("\n")
    with pytest.raises(ValueError, match="holds no puzzle"):
        read_puzzles(str(path))
    with pytest.raises(FileNotFoundError, match=r"grammar\.puzzles: there is no"):
        read_puzzles(str(tmp_path / "none.jsonl"))
