"""Comparison of looped grammar evaluations: yes and no apart, in words of moves; evaluations in lanes are refused."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest
from test_grammar_summary import perfect

from loopformer.evaluation.bootstrap import paired_difference, resampling_counts
from loopformer.evaluation.compare import compare, load_runs, write_comparison
from loopformer.evaluation.figures import Run
from loopformer.evaluation.grammar_questions import GrammarOptions, bracket_questions
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.evaluation.summary import summarize
from loopformer.evaluation.words import in_words_of


def write(folder: Path, store: OutcomeStore, instances: str = "ab" * 32) -> str:
    digests = {"model": "cd" * 32, "instances": instances}
    replace(store, metadata=replace(store.metadata, digests=digests)).save(folder / "outcomes.safetensors")
    return str(folder)


def questions(**options) -> OutcomeStore:
    return perfect(bracket_questions(GrammarOptions(**{"depths": "1,4", "per_depth": 8, "suite": False, **options})))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """A model that is always right, and one that never gets the first move of the no strings of depth 4."""
    folder, weak = tmp_path_factory.mktemp("grammar"), questions()
    wrong = (weak.facts["accept"] == 0) & (weak.facts["depth"] == 4)
    weak.letters[wrong, 0] = 5
    weak.stops[wrong] = 1
    return load_runs([write(folder / "right", questions()), write(folder / "weak", weak)])


def test_yes_and_no_are_compared_apart(runs: list[Run]) -> None:
    comparison = compare(runs, "right")
    assert comparison["benchmark"] == "grammar"
    cells = comparison["differences"]["weak"]
    assert list(cells) == ["all", "yes", "no", "1-6, yes", "1-6, no", "7-12, yes", "7-12, no"]
    found = {label: (cell["complete"]["difference"], cell["strict"]["difference"]) for label, cell in cells.items()}
    share = runs[1].store.steps[runs[1].store.stops == 1] > 6
    assert found["all"] == (-8 / 32, -8 / 32)
    assert found["yes"] == found["1-6, yes"] == found["7-12, yes"] == (0, 0)
    assert found["no"] == (-8 / 16, -8 / 16)
    assert found["7-12, no"] == (-1, -1)
    assert found["1-6, no"] == (-round(int((~share).sum()) / (8 + int((~share).sum())), 8),) * 2
    assert runs[1].summary["by_accept"]["no"]["complete"] == 8 / 16
    assert list(runs[1].summary["by_accept"]) == ["no", "yes"]
    assert "by_structure" not in runs[1].summary


def test_intervals_draw_whole_structures() -> None:
    """At depth 1 two structures each make all yes and all no strings: a difference on one of them is very uncertain."""
    right, weak = questions(depths="1", per_depth=32), questions(depths="1", per_depth=32)
    wrong = weak.facts["structure"] == weak.facts["structure"][0]
    weak.stops[wrong] = 0
    cells = compare([Run("a", right, summarize(right)), Run("b", weak, summarize(weak))], "a")["differences"]["b"]
    assert (cells["yes"]["strict"]["low"], cells["yes"]["strict"]["high"]) == (-1, 0)
    assert cells["no"]["strict"] == {"difference": 0, "low": 0, "high": 0}
    draws = resampling_counts(right.stratum.numpy(), groups=right.facts["structure"].numpy())
    lost, once = -wrong.double().numpy()[:, None], [[1.0]] * len(wrong)
    _, (low, high) = paired_difference(draws, (lost, once), (0 * lost, once))
    assert (cells["all"]["strict"]["low"], cells["all"]["strict"]["high"]) == pytest.approx((low[0], high[0]))
    old = replace(weak, facts={name: values for name, values in weak.facts.items() if name != "structure"})
    assert summarize(old)["by_accept"]["yes"]["intervals"]["strict"] != summarize(weak)["intervals"]["strict"]


def test_the_page_has_the_words_of_the_machine(runs: list[Run], tmp_path: Path) -> None:
    write_comparison(tmp_path, runs, "right")
    page = (tmp_path / "report.html").read_text()
    body = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    assert "<h2>Success by run length</h2>" in body
    assert "Strict by run length and answer: difference to right." in body
    assert "32 queries on 32 puzzles" in body
    assert '"text":"Run length N"' in page
    for words in ("<h3>Answer</h3>", "<h3>Run length</h3>", '<th scope="row">7-12, no</th>'):
        assert words in body, words
    for words in ("equested count", "Count sensitivity", "graphs", "letter"):
        assert words not in body, words
    table = (tmp_path / "table.md").read_text()
    assert "| Strict, yes | +0.00 [+0.00, +0.00] |" in table
    assert "| Strict, no | -50.00 [" in table
    rows = list(csv.DictReader((tmp_path / "comparison.csv").open()))
    strict = {r["group"]: float(r["value"]) for r in rows if r["metric"] == "strict" and r["breakdown"] == "accept"}
    assert [r["run"] for r in rows if r["breakdown"] == "accept" and r["metric"] == "strict"][-2:] == ["weak", "weak"]
    assert strict == {"no": 0.5, "yes": 1.0}


def test_words_of_graphs_stay() -> None:
    assert in_words_of("graph", "Requested count, letters, graphs") == "Requested count, letters, graphs"
    assert in_words_of("grammar", "Requested count, letters, graphs") == "Run length, moves, puzzles"


def test_other_puzzles_and_lanes_are_refused(tmp_path: Path) -> None:
    first = write(tmp_path / "first", questions())
    with pytest.raises(ValueError, match=r"other was evaluated on other puzzles than first .*000000000000, against"):
        load_runs([first, write(tmp_path / "other", questions(), "00" * 32)])
    (tmp_path / "lanes").mkdir()
    (tmp_path / "lanes" / "scores.jsonl").write_text("")
    with pytest.raises(
        ValueError, match=r"^runs: .*lanes is an evaluation of an ordinary model in lanes, which has no"
    ):
        load_runs([first, str(tmp_path / "lanes")])
