"""Files of outputs: strict about their form, complete, summarized by seed with intervals."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from scipy.stats import t

from datamodules.tasks.office.arms import ARMS, target
from datamodules.tasks.office.items import FAMILIES
from datamodules.tasks.office.sandbox import PythonSandbox
from datamodules.tasks.office.splits import evaluation
from loopformer.evaluation.bootstrap import wilson
from loopformer.evaluation.office_outputs import check_complete, read_outputs, run, score_outputs
from loopformer.evaluation.office_summary import markdown, mean_over_seeds, rate, summarize

ROOT = Path(__file__).parents[1]
SPLIT = "composition"


def lines(seeds=(0, 1), arms=("stack", "answer"), wrong=4) -> list[dict]:
    """Right outputs, but for the first `wrong` string items of seed 1."""
    found = []
    for arm in arms:
        for seed in seeds:
            for row, item in enumerate(evaluation(SPLIT)):
                output = "I do not know." if seed == 1 and row % 4 == 0 and row < 4 * wrong else target(item, ARMS[arm])
                found.append({"item": item.name, "arm": arm, "seed": seed, "output": output, "new_tokens": row})
    return found


def write(path: Path, rows: list) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def scored(rows: list, tmp_path: Path):
    with PythonSandbox() as sandbox:
        return score_outputs(read_outputs(write(tmp_path / "outputs.jsonl", rows)), sandbox)


def test_summary_by_hand(tmp_path: Path) -> None:
    summary = summarize(scored(lines(), tmp_path))
    assert list(summary["arms"]) == ["stack", "answer"]
    seeds = summary["arms"]["stack"][SPLIT]["seeds"]
    assert list(seeds) == ["0", "1"]
    first, second = seeds["0"], seeds["1"]
    assert first["primary"]["share"] == 1.0
    assert (second["primary"]["successes"], second["primary"]["outputs"]) == (92, 96)
    low, high = wilson(92, 96)
    assert (second["primary"]["low"], second["primary"]["high"]) == pytest.approx((float(low), float(high)))
    assert second["reasons"] == {"unknown_opcode": 4}
    assert second["no_final"]["share"] == 1.0
    assert second["provenance"]["outputs"] == 92
    assert second["new_tokens"] == {"mean": 47.5, "largest": 95, "outputs": 96}
    by = second["by"]["family"]
    assert {name: by[name]["primary"]["successes"] for name in FAMILIES} == {
        "string": 20, "unit": 24, "table": 24, "date": 24
    }  # fmt: skip
    assert list(second["by"]["operations"]) == ["2"]
    over = summary["arms"]["stack"][SPLIT]["over_seeds"]
    assert over["primary"]["mean"] == pytest.approx((1 + 92 / 96) / 2)
    assert over["family"]["string"]["shares"] == [1.0, pytest.approx(20 / 24)]
    answer = summary["arms"]["answer"][SPLIT]["seeds"]["1"]
    assert "executed" not in answer
    assert answer["primary"]["successes"] == 92
    assert answer["no_final"]["successes"] == 4
    assert markdown(summary).count("\n") == 2 + 4
    assert "95.8 [" in markdown(summary)


def test_interval_over_seeds() -> None:
    found = mean_over_seeds([0.2, 0.4, 0.9])
    ends = t.interval(0.95, 2, loc=0.5, scale=math.sqrt(0.13 / 3))
    assert (found["low"], found["high"]) == pytest.approx((max(0, ends[0]), min(1, ends[1])))
    found = mean_over_seeds([0.50, 0.52, 0.54])
    assert (found["low"], found["high"]) == pytest.approx(t.interval(0.95, 2, loc=0.52, scale=0.02 / math.sqrt(3)))
    assert mean_over_seeds([0.5])["low"] is None


def test_rates_leave_out_what_does_not_apply() -> None:
    assert rate([True, None, False, True])["share"] == pytest.approx(2 / 3)
    empty = rate([None])
    assert (empty["share"], empty["low"], empty["outputs"]) == (None, None, 0)


def test_outputs_of_any_shape_are_scored(tmp_path: Path) -> None:
    outputs = [math.nan, None, [], {}, 3, "x" * 10_000_000, "\ud800\x00", "FINAL: 1"]
    names = [item.name for item in evaluation(SPLIT)]
    rows = [{"item": name, "arm": "python", "seed": 0, "output": o} for name, o in zip(names, outputs, strict=False)]
    found = scored(rows, tmp_path)
    assert not any(one.score.primary or one.score.valid for one in found)
    assert all(json.dumps(one.record(), allow_nan=False) for one in found)


def test_a_number_of_thousands_of_digits_is_one_wrong_output(tmp_path: Path) -> None:
    """Python refuses to read it; the lines beside it are scored all the same."""
    names = [item.name for item in evaluation(SPLIT)]
    texts = [json.dumps({**GOOD, "item": name, "output": "HUGE"}) for name in names[:2]]
    path = tmp_path / "outputs.jsonl"
    path.write_text("\n".join(text.replace('"HUGE"', digits * 5_000) for text, digits in zip(texts, "17", strict=True)))
    with PythonSandbox() as sandbox:
        found = score_outputs(read_outputs(path), sandbox)
    assert [one.score.valid for one in found] == [False, False]
    path.write_text(texts[0].replace('"seed": 0', f'"seed": {"1" * 5_000}'))
    with pytest.raises(ValueError, match="line 1: seed=inf"):
        list(read_outputs(path))


GOOD = {"item": "composition-date-05", "arm": "stack", "seed": 0, "output": ""}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["{"], "line 1: it is no JSON"),
        (["[" * 100_000], "line 1: it is no JSON"),
        (["[]"], "got a list"),
        ([GOOD, {**GOOD, "item": "composition-date-06", "colour": 1}], "line 2: unknown field colour"),
        ([{"item": "x", "arm": "stack", "seed": 0}], "output is missing"),
        ([{**GOOD, "seed": "0"}], "seed='0'"),
        ([{**GOOD, "seed": True}], "seed=True"),
        ([{**GOOD, "new_tokens": -1}], "new_tokens=-1"),
        ([{**GOOD, "item": "composition-date-99"}], "item: got"),
        ([{**GOOD, "item": ["composition-date-05"]}], "item=\\['composition-date-05'\\]"),
        ([{**GOOD, "arm": "oracle"}], "arm: got 'oracle'"),
        ([{**GOOD, "arm": 7}], "arm=7"),
        ([GOOD, GOOD], "two outputs"),
    ],
)
def test_bad_files_name_line_and_field(rows: list, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        scored(rows, tmp_path)


def test_incomplete_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="95 of the 96"):
        check_complete(scored(lines(seeds=(0,), arms=("stack",))[1:], tmp_path))
    with pytest.raises(ValueError, match="none"):
        check_complete([])


def test_command_line(tmp_path: Path) -> None:
    path = write(tmp_path / "outputs.jsonl", lines())
    command = [sys.executable, "-m", "loopformer.evaluation.office_outputs", "score", "--outputs", str(path)]
    command += ["--output", str(tmp_path / "r")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "| stack | composition | 1 | 96 | 95.8" in done.stdout
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["outputs"] == 384
    assert len((tmp_path / "r" / "scores.jsonl").read_text().splitlines()) == 384
    with pytest.raises(FileExistsError, match="overwrite"):
        run(path, tmp_path / "r")
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1


def test_partial_files(tmp_path: Path) -> None:
    path = write(tmp_path / "outputs.jsonl", lines()[:10])
    with pytest.raises(ValueError, match="partial"):
        run(path, tmp_path / "r")
    run(path, tmp_path / "r", partial=True)
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["outputs"] == 10
