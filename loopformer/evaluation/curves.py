"""One figure of several evaluations for a paper or a page: a share by the length of the run, with 95% intervals.

    python evaluate.py curves --runs "seed 0=results/fsm0" "seed 1=results/fsm1" --output fsm.svg

Reads nothing but the summaries of evaluations on graphs, written paths, machines, strings (of an ordinary model: one
lane and suite) or execution traces (`--metric accuracy`), and puts them in one figure even if they answered different
questions. For differences on the same queries there is `compare`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from datamodules.tasks.grammar.lane_suites import BRACKETS
from loopformer.evaluation.bootstrap import wider
from loopformer.evaluation.compare import named_paths
from loopformer.evaluation.grammar_questions import BRACKET_DEPTHS
from loopformer.files import SUMMARY, atomic_path

FORMATS = (".svg", ".png", ".pdf")
LENGTHS = ("unseen_rules", "held_out_lengths", "longer_runs")
"""Splits of the machine benchmark that differ in nothing but the length of the run."""

MARKED = 20
"""Up to so many points carry a marker and are named on the axis."""

LOOPS, DEPTH, LEVEL = "loops asked for", "depth of the string", "level of the puzzle"
"""What the lengths of a curve are, as the axis says it; those of execution traces are events."""

Points = list[tuple[int, float, float, float]]
STYLES = {"": "-", "yes": "-", "no": "--"}


@dataclass(frozen=True)
class Curve:
    """A share by the length of the run.

    Attributes:
        run: what the run is called.
        part: "yes" or "no" where the benchmark tells them apart, otherwise empty.
        points: (length, share, low, high) each, by length; the ends are those of the 95% interval.
        trained: the longest run of the training, in the unit of the lengths; None if the summary does not tell.
        unit: what the lengths are.
    """

    run: str
    part: str
    points: tuple[tuple[int, float, float, float], ...]
    trained: int | None = None
    unit: str = LOOPS


def read_curves(arguments: Sequence[str], metric: str = "complete") -> list[Curve]:
    """Read the curves of several evaluations.

    Args:
        arguments: PATH or NAME=PATH each, PATH being the folder that an evaluation wrote or its summary.json.
        metric: a share that the summaries hold, such as complete, strict or exact_stop.

    Raises:
        ValueError: a name twice, lengths in different units, a summary that is none or has no such share by length.
        FileNotFoundError: there is no summary.
    """
    names, paths = named_paths(arguments)
    curves: list[Curve] = []
    for name, path in zip(names, paths, strict=True):
        file = path if path.suffix == ".json" else path / SUMMARY
        if not file.is_file():
            raise FileNotFoundError(f"runs: there is no {file}; give the folder that evaluate.py wrote")
        try:
            summary = json.loads(file.read_text(encoding="utf-8"))
            curves += _read(name, summary, metric)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"runs: {file} is no summary of an evaluation ({error!r}); evaluate again") from error
        if not curves or curves[-1].run != name:
            raise ValueError(
                f"metric: {file} has no {metric!r} by the length of the run (there: {_shares(summary)}); use another "
                "share, or an evaluation of graphs, written paths, machines, strings (in one lane and suite) or traces"
            )
    if len(units := dict.fromkeys(curve.unit for curve in curves)) > 1:
        raise ValueError(f"runs: the lengths of some are {', of others '.join(units)}; draw them apart")
    return curves


def _read(name: str, summary: Any, metric: str) -> list[Curve]:
    """The curves of one summary, without the parts that have no points."""
    steps = summary.get("trained_steps")
    trained = int(max(steps)) if steps else None
    unit = _unit(summary)
    found = _parts(summary, metric).items()
    points = [(part, tuple(sorted(map(_point, points)))) for part, points in found]
    return [Curve(name, part, some, None if unit in (DEPTH, LEVEL) else trained, unit) for part, some in points if some]


def _unit(summary: dict[str, Any]) -> str:
    """What the lengths of a summary are."""
    if "by_run_length" in summary:
        return f"{summary['level']} events of the run"
    if "lanes" in summary:
        suites = {name for lane in summary["lanes"].values() for name in lane}
        return DEPTH if suites <= {BRACKETS, BRACKET_DEPTHS} else LEVEL
    if "by_depth" in summary and "machine" not in summary:
        return LEVEL if "by_family" in summary else DEPTH  # strings of brackets have no families
    return LOOPS


def _shares(summary: dict[str, Any]) -> str:
    """Names of shares that a summary has by length, to choose from."""
    known = (
        "answer", "final", "complete", "exact_stop", "end_to_end", "strict", "last_letter", "forced_final",
        "accuracy", "state_accuracy",
    )  # fmt: skip
    return ", ".join(name for name in known if any(_parts(summary, name).values())) or "none"


def _point(row: Sequence[float]) -> tuple[int, float, float, float]:
    length, share, low, high = row
    return int(length), float(share), float(low), float(high)


def _parts(summary: dict[str, Any], metric: str) -> dict[str, Points]:
    """The points of each part of a summary of any benchmark."""
    if "machine" in summary:
        return {"": _machine_points(summary["machine"], metric)}
    if "by_run_length" in summary:
        return {"": _trace_points(summary["by_run_length"], metric)}
    if "by_depth" in summary:
        return _grammar_points(summary["by_depth"], metric)
    if "lanes" in summary:
        suites = [suite for lane in summary["lanes"].values() for suite in lane.values()]
        # Depth is the stack's in the summary of an ordinary model; the level of a bracket string is its openers.
        found = [_grammar_points(suite["by_level"], metric) for suite in suites if "by_level" in suite]
        told = [points for points in found if any(points.values())]
        return told[0] if len(told) == 1 else {}
    table = summary.get("by_steps", {})
    if metric not in table.get("intervals", {}):
        return {}
    ends = table["intervals"][metric]
    rows = zip(table["steps"], table[metric], ends["low"], ends["high"], strict=True)
    return {"": [row for row in rows if None not in row]}


def _machine_points(splits: dict[str, Any], metric: str) -> Points:
    """Points of the splits that differ in length alone."""
    counted = [pair for name in LENGTHS for pair in splits.get(name, {}).get("by_count", {}).items()]
    cells = [(int(count), cell[metric]) for count, cell in counted if isinstance(cell.get(metric), dict)]
    return [(n, cell["share"], cell["low"], cell["high"]) for n, cell in cells if cell["share"] is not None]


def _trace_points(groups: list[dict[str, Any]], metric: str) -> Points:
    """Points of the ranges of run lengths, each at its mean length."""
    known = [group for group in groups if metric in group["intervals"]]
    return [(round(group["steps"]), group[metric], *group["intervals"][metric]) for group in known]


def _grammar_points(depths: dict[str, Any], metric: str) -> dict[str, Points]:
    """Points of the strings that are in the language ("yes") and of those that are not, by depth."""
    found: dict[str, Points] = {}
    for part in ("yes", "no"):
        cells = [(int(depth), both[part]) for depth, both in depths.items() if part in both]
        found[part] = [(n, cell[metric], *ends) for n, cell in cells if (ends := _ends(cell, metric))]
    return found


def _ends(cell: dict[str, Any], metric: str) -> list[float] | None:
    """The wider of both intervals: strings of one structure are not independent."""
    return wider(*(cell.get(kind, {}).get(metric) for kind in ("intervals", "structures")))


def draw(curves: Sequence[Curve], metric: str = "complete", title: str | None = None) -> Figure:
    """Draw the curves over a logarithmic axis; a dotted line ends what was trained, if all runs share it."""
    figure = Figure(figsize=(7.6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    names = list(dict.fromkeys(curve.run for curve in curves))
    drawn = []
    for curve in curves:
        x, share, low, high = ([100 * v if i else v for v in values] for i, values in enumerate(zip(*curve.points)))  # noqa: B905
        label = f"{curve.run}, {curve.part}" if curve.part else curve.run
        colour = f"C{names.index(curve.run) % 10}"
        axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
        marker = "o" if len(x) <= MARKED else None
        drawn += [(line, label) for line in axes.plot(x, share, STYLES[curve.part], c=colour, marker=marker, ms=3.5)]
    lengths = sorted({point[0] for curve in curves for point in curve.points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(_ticks(lengths), labels=[str(n) for n in _ticks(lengths)])
    axes.minorticks_off()
    axes.set_ylim(-3, 103)
    axes.set_xlabel(curves[0].unit)
    axes.set_ylabel(f"{metric.replace('_', ' ')} (%)")
    axes.grid(alpha=0.25)
    ends = {curve.trained for curve in curves}
    if len(ends) == 1 and (end := ends.pop()) is not None:
        axes.axvline(end, color="0.4", linestyle=":", linewidth=1)
        place: dict[str, Any] = {"ha": "right", "va": "bottom", "rotation": 90, "fontsize": 8, "color": "0.4"}
        axes.text(end, 0.03, "trained", transform=axes.get_xaxis_transform(), **place)
    if title:
        axes.set_title(title, fontsize=10, parse_math=False)
    legend = figure.legend(
        [line for line, _ in drawn], [label for _, label in drawn], fontsize=8, frameon=False, loc="outside right upper"
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def _ticks(lengths: list[int]) -> list[int]:
    """Lengths to name on the axis: powers of two if there are many; otherwise all that leave room for the next."""
    if len(lengths) > MARKED:
        return sorted({lengths[0], lengths[-1], *(2**k for k in range(lengths[-1].bit_length()) if 2**k > lengths[0])})
    kept: list[int] = []
    for length in reversed(lengths):  # the longest is always named
        if not kept or length * 2**0.4 <= kept[-1]:
            kept.append(length)
    return kept[::-1]


def write_curves(
    output: Path, curves: Sequence[Curve], metric: str = "complete", title: str | None = None, overwrite: bool = False
) -> None:
    """Draw the curves into a file; the same curves give the same bytes.

    Raises:
        ValueError: the file's ending names no known format.
        FileExistsError: the file exists and `overwrite` is false.
    """
    if output.suffix not in FORMATS:
        raise ValueError(f"output: {output} should end in {', '.join(FORMATS)}")
    held = io.BytesIO()
    with rc_context({"svg.hashsalt": "loopformer", "svg.fonttype": "none"}):
        dated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(output.suffix)
        draw(curves, metric, title).savefig(held, format=output.suffix[1:], dpi=150, metadata=dated)
    with atomic_path(output, overwrite) as temporary:
        temporary.write_bytes(held.getvalue())
