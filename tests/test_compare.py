"""Comparison of runs: paired differences against a plain re-computation, refusals, tables and the page."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from outcome_cases import synthetic_store
from test_report import BROWSER, browse

from loopformer.evaluation.compare import compare, load_runs, run_names, write_comparison
from loopformer.evaluation.figures import Run
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.evaluation.summary import summarize


def saved(folder: Path, **options) -> Path:
    synthetic_store(**options).save(folder / "outcomes.safetensors")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    good = saved(folder / "good" / "eval")
    weak = saved(folder / "weak" / "eval", seed=1, hazard=0.08, wrong_stop=0.3)
    return load_runs([str(good), f"mine={weak}"])


def test_runs_are_named_and_summarized(runs: list[Run]) -> None:
    assert [run.name for run in runs] == ["good/eval", "mine"]
    assert set(runs[0].summary["stop_rules"]) >= {"forced", "learned", "oracle", "repeat"}
    assert run_names([Path("/a/x"), Path("/b/y")]) == ["x", "y"]
    assert run_names([Path("/a/m/outcomes.safetensors"), Path("/b/m/outcomes.safetensors")]) == ["a/m", "b/m"]


def plain_difference(first: OutcomeStore, second: OutcomeStore) -> tuple[float, float, float]:
    """Strict success of one run minus the other's, and a bootstrap written out graph by graph."""

    def strict(store: OutcomeStore) -> np.ndarray:
        wins = np.zeros((len(store.stratum), 2))
        for q in range(len(store.steps)):
            n, row = int(store.steps[q]), int(store.row[q])
            right = bool((store.letters[row, :n] == store.reference[row, :n]).all()) and int(store.stops[q]) == n
            wins[int(store.instance[q])] += (right, 1)
        return wins

    tables = [strict(store) for store in (first, second)]
    rng, strata, draws = np.random.default_rng(239), first.stratum.numpy(), 2000
    weights = np.zeros((draws, len(strata)))
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        for draw, picks in enumerate(rng.integers(len(members), size=(draws, len(members)))):
            for pick in picks:
                weights[draw, members[pick]] += 1
    rates = [(weights @ t[:, 0]) / (weights @ t[:, 1]) for t in tables]
    low, high = np.percentile(rates[0] - rates[1], [2.5, 97.5])
    return tables[0][:, 0].sum() / tables[0][:, 1].sum() - tables[1][:, 0].sum() / tables[1][:, 1].sum(), low, high


def test_differences_equal_a_plain_bootstrap(runs: list[Run]) -> None:
    comparison = compare(runs, "good/eval")
    assert list(comparison["differences"]) == ["mine"]
    expected = plain_difference(runs[1].store, runs[0].store)
    found = comparison["differences"]["mine"]["all"]["strict"]
    assert (found["difference"], found["low"], found["high"]) == pytest.approx(expected, abs=1e-7)
    assert found["high"] < 0
    assert set(comparison["differences"]["mine"]) == {"all", "1-6", "7-12", "13-32"}
    total = sum(
        comparison["differences"]["mine"][group]["complete"]["difference"] * n
        for group, n in (("1-6", 6), ("7-12", 6), ("13-32", 2))
    )
    assert total / 14 == pytest.approx(comparison["differences"]["mine"]["all"]["complete"]["difference"], abs=1e-6)


def test_a_run_compared_with_its_twin_does_not_differ(runs: list[Run]) -> None:
    twin = Run("twin", runs[0].store, runs[0].summary)
    cells = compare([runs[0], twin], "twin")["differences"]["good/eval"]["all"]
    assert all(cell == {"difference": 0.0, "low": 0.0, "high": 0.0} for cell in cells.values())


def test_a_run_without_a_stop_rule_has_no_stop_to_compare(runs: list[Run]) -> None:
    store = synthetic_store(seed=1, hazard=0.08, loops=14)  # no loop beyond the largest count
    store = replace(store, stops=torch.zeros_like(store.stops))
    mute = Run("mute", store, summarize(store))
    cells = compare([runs[0], mute], "good/eval")["differences"]["mute"]["all"]
    assert cells["strict"]["difference"] is None
    assert cells["complete"]["difference"] < 0


def test_other_graphs_or_counts_are_refused(tmp_path: Path) -> None:
    first = str(saved(tmp_path / "first"))
    store = synthetic_store(counts=range(1, 12))
    store.save(tmp_path / "counts" / "outcomes.safetensors")
    other = replace(store.metadata, digests={**store.metadata.digests, "graphs": "00" * 32})
    replace(synthetic_store(), metadata=other).save(tmp_path / "graphs" / "outcomes.safetensors")
    with pytest.raises(ValueError, match=r"graphs was evaluated on other graphs than first .*000000000000, against"):
        load_runs([first, str(tmp_path / "graphs")])
    with pytest.raises(ValueError, match=r"counts was asked other counts \(1 to 11, .*than first \(1 to 14"):
        load_runs([first, str(tmp_path / "counts")])
    with pytest.raises(ValueError, match="at least two"):
        load_runs([first])
    with pytest.raises(ValueError, match="two are called 'a'"):
        load_runs([f"a={first}", f"a={first}"])
    with pytest.raises(FileNotFoundError, match="none"):
        load_runs([first, str(tmp_path / "none")])


def test_files_of_a_comparison(tmp_path: Path, runs: list[Run]) -> None:
    comparison = write_comparison(tmp_path, runs, "mine")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "comparison.csv", "comparison.json", "report.html", "table.md",
    ]  # fmt: skip
    assert json.loads((tmp_path / "comparison.json").read_text()) == comparison
    rows = list(csv.DictReader((tmp_path / "comparison.csv").open()))
    strict = [r for r in rows if r["metric"] == "strict" and r["breakdown"] == "all"]
    assert [(r["run"], float(r["value"])) for r in strict] == [(r.name, r.summary["strict"]) for r in runs]
    assert {r["breakdown"] for r in rows} >= {"all", "range", "training", "kind", "seed", "period", "tail"}
    tables = (tmp_path / "table.md").read_text().split("\n\n")
    assert len(tables) == 2
    assert all(len({line.count("|") for line in table.strip().splitlines()}) == 1 for table in tables)
    page = (tmp_path / "report.html").read_text()
    for title in ("Differences to mine", "Stop rules side by side", "Distribution of stops", "Breakdowns"):
        assert f"<h2>{title}</h2>" in page
    with pytest.raises(FileExistsError):
        write_comparison(tmp_path, runs, "mine")
    with pytest.raises(ValueError, match="no run is called 'x'; use one of good/eval, mine"):
        compare(runs, "x")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine")
@pytest.mark.parametrize(("scheme", "width"), [(1, 1200), (0, 500)])
def test_a_browser_draws_the_comparison(tmp_path: Path, runs: list[Run], scheme: int, width: int) -> None:
    write_comparison(tmp_path, runs, "good/eval")
    title = browse((tmp_path / "report.html").read_text(), tmp_path, scheme, width)
    plots = len(re.findall(r'class="plotly-graph-div', (tmp_path / "report.html").read_text()))
    assert title.startswith(f"plots {plots} drawn {plots} hovered {plots} ")
    assert title.endswith("wide false remote 0")
