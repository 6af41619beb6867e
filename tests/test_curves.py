"""The figure of several evaluations: its points are those of their summaries, whatever the benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from outcome_cases import synthetic_store

import evaluate
from datamodules.tasks.traces.scoring import Answer
from loopformer.evaluation.curves import Curve, draw, read_curves, write_curves
from loopformer.evaluation.execution_summary import summarize_traces
from loopformer.evaluation.summary import summarize, write_summary


def share(value: float, n: int = 10) -> dict[str, Any]:
    return {"n": n, "share": value, "low": value - 0.1, "high": value + 0.1}


def written(folder: Path, summary: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    splits = {
        "longer_runs": {
            "by_count": {"12": {"complete": share(0.5), "first_error": 3.0}, "256": {"complete": share(0.2)}}
        },
        "unseen_rules": {"by_count": {"1": {"complete": share(1.0)}, "6": {"complete": share(0.8)}}},
        "unseen_names": {"by_count": {"6": {"complete": share(0.1)}}},
        "ending": {"by_count": {"own": {"complete": share(0.3)}}},
    }
    return written(tmp_path / "machine", {"trained_steps": [1, 6], "machine": splits})


@pytest.fixture
def brackets(tmp_path: Path) -> Path:
    cell = {"n": 4, "complete": 0.5, "intervals": {"complete": [0.4, 0.6]}}
    empty = {"n": 0, "complete": None, "intervals": {"complete": None}}
    depths = {"2": {"yes": cell, "no": empty}, "4": {"yes": cell, "no": cell}}
    return written(tmp_path / "brackets", {"trained_steps": [14], "by_depth": depths, "by_steps": {"1-6": {}}})


def test_graph_points_are_those_of_the_summary(tmp_path: Path) -> None:
    summary = summarize(synthetic_store(hazard=0.1))
    write_summary(tmp_path / "run" / "summary.json", summary)
    (curve,) = read_curves([f"a name={tmp_path / 'run'}"], "strict")
    assert (curve.run, curve.part) == ("a name", "")
    table = summary["by_steps"]
    assert [point[0] for point in curve.points] == table["steps"]
    assert [point[1] for point in curve.points] == table["strict"]
    assert all(low <= value <= high for _, value, low, high in curve.points)


def test_machine_splits_of_one_size_make_one_curve(machine: Path) -> None:
    (curve,) = read_curves([str(machine)])
    assert curve == Curve(
        "machine", "", tuple((n, s, s - 0.1, s + 0.1) for n, s in ((1, 1.0), (6, 0.8), (12, 0.5), (256, 0.2))), 6
    )


def test_yes_and_no_are_two_curves(brackets: Path) -> None:
    yes, no = read_curves([str(brackets / "summary.json")])
    assert (yes.part, no.part) == ("yes", "no")
    assert yes.points == ((2, 0.5, 0.4, 0.6), (4, 0.5, 0.4, 0.6))
    assert no.points == ((4, 0.5, 0.4, 0.6),)
    assert yes.trained is None, "moves are no depths"


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    answers = [Answer(3, True, 1, 4, 4), Answer(5, False, 1, 4, 2), Answer(120, True, 1, 9, 8)]
    summary = {"level": "line", "trained_steps": [2, 40], **summarize_traces(answers, [1, 10, 100])}
    return written(tmp_path / "traces", summary)


def test_traces_stand_at_their_mean_length(traces: Path, tmp_path: Path) -> None:
    (curve,) = read_curves([str(traces)], "accuracy")
    assert [point[:2] for point in curve.points] == [(4, 0.5), (120, 1.0)]
    assert (curve.trained, curve.unit) == (40, "line events of the run")
    assert draw([curve], "accuracy").axes[0].get_xlabel() == "line events of the run"
    (states,) = read_curves([str(traces)], "state_accuracy")
    assert [point[:2] for point in states.points] == [(4, 0.75)], "one program has no interval of its states"
    with pytest.raises(ValueError, match=r"has no 'complete'.*there: accuracy, state_accuracy"):
        read_curves([str(traces)])
    loops = {"machine": {"longer_runs": {"by_count": {"2": {"accuracy": share(1)}}}}}
    other = written(tmp_path / "more", loops)
    with pytest.raises(ValueError, match="line events of the run, of others loops asked for; draw them apart"):
        read_curves([str(traces), str(other)], "accuracy")


def lines(figure: Figure) -> dict[str, list[list[float]]]:
    """Points of each curve by its name in the legend."""
    (axes,), (legend,) = figure.axes, figure.legends
    curves = [line for line in axes.get_lines() if line.get_linestyle() != ":"]
    names = [text.get_text() for text in legend.get_texts()]
    return {name: line.get_xydata().tolist() for name, line in zip(names, curves, strict=True)}


def test_the_figure_draws_every_curve_in_percent(machine: Path, brackets: Path) -> None:
    figure = draw(read_curves([f"$a_$={machine}", f"_b={machine}"]), title="$both")
    points = [[1.0, 100.0], [6.0, 80.0], [12.0, 50.0], [256.0, 20.0]]
    assert lines(figure) == {"$a_$": points, "_b": points}
    (axes,) = figure.axes
    assert len(axes.collections) == 2, "an interval each"
    assert axes.get_title() == "$both"
    assert "trained" in [text.get_text() for text in axes.texts]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "6", "12", "256"]
    assert len({line.get_color() for line in axes.get_lines()}) == 3, "two curves and the end of the training"
    strings = draw(read_curves([str(brackets)]))
    assert lines(strings)["brackets, no"] == [[4.0, 50.0]]
    assert strings.axes[0].get_xlabel() == "depth of the string"
    with pytest.raises(ValueError, match="draw them apart"):
        read_curves([str(machine), str(brackets)])


def test_one_lane_of_an_ordinary_model(tmp_path: Path, brackets: Path) -> None:
    depths = {"by_level": json.loads((brackets / "summary.json").read_text())["by_depth"], "by_depth": {}}
    run = written(tmp_path / "written", {"lanes": {"written": {"bracket_depths": depths}}})
    assert [curve.points for curve in read_curves([str(run)])] == [c.points for c in read_curves([str(brackets)])]
    search = written(tmp_path / "search", {"lanes": {"written": {"search_runs": depths}}})
    looped = written(tmp_path / "looped", {"by_depth": depths["by_level"], "by_family": {}})
    assert {curve.unit for curve in read_curves([str(search), str(looped)])} == {"level of the puzzle"}
    with pytest.raises(ValueError, match="draw them apart"):
        read_curves([str(search), str(brackets)])
    two = written(tmp_path / "two", {"lanes": {"written": {"a": depths, "b": depths}}})
    with pytest.raises(ValueError, match="in one lane and suite"):
        read_curves([str(two)])


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    splits = {"unseen_rules": {"by_count": {"1": {"complete": share(1.0)}}}}
    folders = [written(tmp_path / name / "evaluation", {"machine": splits}) for name in ("lr=0.1", "lr=0.2")]
    assert [curve.run for curve in read_curves(list(map(str, folders)))] == ["lr=0.1/evaluation", "lr=0.2/evaluation"]
    assert [curve.run for curve in read_curves([f"a=b={folders[0]}", f"x={folders[1]}"])] == ["a=b", "x"]
    with pytest.raises(ValueError, match="two are called 'a'"):
        read_curves([f"a={folder}" for folder in folders])
    with pytest.raises(ValueError, match="a name is empty"):
        read_curves([f"={folders[0]}"])


def test_many_lengths_have_ticks(tmp_path: Path) -> None:
    counts = {str(n): {"complete": share(0.5)} for n in range(33, 61)}
    run = written(tmp_path / "run", {"machine": {"unseen_rules": {"by_count": counts}}})
    (axes,) = draw(read_curves([str(run)])).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["33", "60"]


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_the_same_curves_give_the_same_bytes(machine: Path, tmp_path: Path, ending: str) -> None:
    files = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for file in files:
        evaluate.main(["curves", "--runs", str(machine), "--output", str(file)])
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(files[0].read_bytes()) > 1_000


def test_mistakes_are_named(machine: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"runs: there is no .*nowhere"):
        read_curves([str(tmp_path / "nowhere")])
    with pytest.raises(ValueError, match=r"metric: .* has no 'bogus'"):
        read_curves([str(machine)], "bogus")
    for number, text in enumerate(("{", "[1]", '{"by_steps": null}', '{"machine": []}', '{"trained_steps": 5}')):
        (tmp_path / f"{number}.json").write_text(text)
        with pytest.raises(ValueError, match=r"runs: .* is no summary of an evaluation"):
            read_curves([str(tmp_path / f"{number}.json")])
    with pytest.raises(ValueError, match=r"has no 'strict' by the length of the run \(there: complete\)"):
        read_curves([str(machine)], "strict")
    curves = read_curves([str(machine)])
    with pytest.raises(ValueError, match=r"output: .* should end in \.svg"):
        write_curves(tmp_path / "figure.gif", curves)
    write_curves(tmp_path / "figure.svg", curves)
    with pytest.raises(FileExistsError):
        write_curves(tmp_path / "figure.svg", curves)
