"""Published collections of functions: files and the Hub are read, and what is wrong with them is said in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest

from datamodules.tasks.traces.client import Tracer
from datamodules.tasks.traces.programs import Program, Refused, Traced, trace_each
from datamodules.tasks.traces.published import read, read_rows, split_assertion

CRUXEVAL_ROW = {"code": "def f(a, b):\n    return a + b", "input": "1, 2", "output": "3", "id": "sample_0"}
MBPP_ROW = {
    "task_id": 7,
    "code": "import math\r\ndef area(r):\r\n    return math.floor(math.pi * r * r)\r\n",
    "test_list": ["assert area(2) == 12", "assert area( 1 )==3", "assert not area(0)", "assert area(1) == 4"],
}


def test_reading_by_path(tmp_path):
    (tmp_path / "c.jsonl").write_text(json.dumps(CRUXEVAL_ROW) + "\n\n")
    assert read("cruxeval", str(tmp_path / "c.jsonl")) == [Program("sample_0", CRUXEVAL_ROW["code"], "f(1, 2)", "3")]
    (tmp_path / "m.json").write_text(json.dumps([MBPP_ROW]))
    found = read("mbpp", str(tmp_path / "m.json"))
    assert [one.name for one in found] == ["mbpp_7_0", "mbpp_7_1", "mbpp_7_2", "mbpp_7_3"]
    assert isinstance(found[2], Refused)
    with Tracer() as tracer:
        traced = list(trace_each([one for one in found if isinstance(one, Program)], tracer))
    assert isinstance(traced[0], Traced)
    assert isinstance(traced[1], Traced)
    assert traced[2] == Refused("mbpp_7_3", "it returned 3, recorded is 4")


def test_reading_from_the_hub(tmp_path, monkeypatch):
    (tmp_path / "test.jsonl").write_text(json.dumps(CRUXEVAL_ROW))
    asked = []

    class Api:
        def list_repo_files(self, repository, repo_type):
            asked.append((repository, repo_type))
            return ["README.md", "test.jsonl", "test.parquet"]

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda _, name, repo_type: str(tmp_path / name))
    assert len(read("cruxeval")) == 1
    assert asked == [("cruxeval-org/cruxeval", "dataset")]
    with pytest.raises(ValueError, match="no file of the split 'train'"):
        read("cruxeval", "cruxeval-org/cruxeval", split="train")


def test_reading_is_checked(tmp_path):
    with pytest.raises(ValueError, match="collection: got 'humaneval'"):
        read("humaneval")
    with pytest.raises(ValueError, match=r"nowhere\.jsonl does not exist"):
        read_rows(str(tmp_path / "nowhere.jsonl"))
    with pytest.raises(ValueError, match=r"source: .* cannot be read"):
        read_rows(str(tmp_path))


@pytest.mark.parametrize(
    ("collection", "name", "text", "message"),
    [
        ("cruxeval", "c.jsonl", "{", r"c\.jsonl line 1 is no JSON \(.*; give a file with one JSON object per line"),
        ("cruxeval", "c.jsonl", json.dumps(CRUXEVAL_ROW) + "\n\noops\n", r"c\.jsonl line 3 is no JSON"),
        ("cruxeval", "c.jsonl", "[1]", r"c\.jsonl line 1 is a list; every row is a JSON object"),
        ("cruxeval", "c.json", "{}", r"c\.json holds a dict; give a list of objects"),
        ("cruxeval", "c.json", "[{}, 3]", r"c\.json row 2 is a int; every row"),
        ("cruxeval", "c.jsonl", '{"code": "x"}', "CRUXEval row 1: it lacks the field 'input'; it has code"),
        ("cruxeval", "c.jsonl", json.dumps(CRUXEVAL_ROW | {"code": 3}), "row 1: code is a int; it should be a str"),
        (
            "mbpp",
            "m.jsonl",
            json.dumps(MBPP_ROW | {"test_list": "assert 1"}),
            "test_list is a str; it should be a list",
        ),
        ("mbpp", "m.jsonl", json.dumps(MBPP_ROW | {"test_list": [1]}), "MBPP row 1: test_list holds a int"),
    ],
)
def test_files_are_checked(collection, name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read(collection, str(tmp_path / name))


def test_lines_end_at_newlines_alone(tmp_path):
    row = CRUXEVAL_ROW | {"output": "'a\u2028b'"}
    (tmp_path / "c.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\r\n", encoding="utf-8")
    assert read_rows(str(tmp_path / "c.jsonl")) == [row]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--source", "nowhere.jsonl"], "error: source: nowhere.jsonl does not exist"),
        (["--source", "nobody/nothing"], "error: source: nobody/nothing cannot be read from the Hub"),
        (["--states", "foo"], "argument --states: invalid choice: 'foo'"),
    ],
)
def test_mistakes_of_the_report_are_no_tracebacks(options, message):
    command = [sys.executable, "-m", "datamodules.tasks.traces.published", *options]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("assert f(1) == [2]", ("f(1)", "[2]")),
        ("assert f(1) == g(2)", ("f(1)", "g(2)")),
        ("assert f(1) != 2", None),
        ("assert (f(1) == 2) == True", None),
        ("assert f(1)[0] == 2", None),
        ("f(1) == 2", None),
        ("assert f(", None),
    ],
)
def test_assertions(test, found):
    assert split_assertion(test) == found


def test_the_report(tmp_path):
    (tmp_path / "c.jsonl").write_text(json.dumps(CRUXEVAL_ROW) + "\n" + json.dumps(CRUXEVAL_ROW | {"output": "4"}))
    command = [sys.executable, "-m", "datamodules.tasks.traces.published", "--source", str(tmp_path / "c.jsonl")]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "sample_0: it returned 3, recorded is 4",
        "1 of 2 traced at line level, 1 events, 1 refused",
    ]
