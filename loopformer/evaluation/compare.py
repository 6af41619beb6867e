"""Comparison of several evaluations on the same queries: differences with intervals, tables and one page.

    python evaluate.py compare --runs results/a results/b --reference a --output results/a-b

Reads nothing but the runs' outcome stores; needs no model. Every difference is paired: both runs answer the same
graphs, and their bootstrap draws are the same. Puzzles of yes and no are compared apart as well.

Legend: I graphs, C requested counts, W columns of a tally.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopformer.evaluation.bootstrap import paired_difference
from loopformer.evaluation.figures import Run, stops
from loopformer.evaluation.grammar_summary import ANSWERS
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.evaluation.report import report_html
from loopformer.evaluation.stop_rules import stop_rules
from loopformer.evaluation.summary import summarize
from loopformer.evaluation.tables import COLUMNS, STOPPING, difference_table, overall_table, tidy_csv
from loopformer.evaluation.tally import Tally, count_store
from loopformer.evaluation.words import in_words_of
from loopformer.files import SCORES, TABLE, refuse_finished, write_text

STORE = "outcomes.safetensors"
COMPARISON = "comparison.json"
"""Written last: it marks a comparison as complete."""

ASKED = ("graphs", "instances", "machines")
"""What the benchmarks call the digest of their questions."""

METRICS = (*COLUMNS, "correct_prefix")
FORMAT = 1


def load_runs(arguments: Sequence[str]) -> list[Run]:
    """Read runs from their folders.

    Args:
        arguments: PATH or NAME=PATH each, PATH being the folder that an evaluation wrote, or its outcome store. The
            default name is the folder's, with its parents as far as needed to tell runs apart.

    Raises:
        ValueError: fewer than two runs, a name twice, an evaluation in lanes, or a store that is not sound.
        FileNotFoundError: there is no outcome store.
    """
    if len(arguments) < 2:
        raise ValueError(f"runs: a comparison needs at least two, got {len(arguments)}")
    names, paths = named_paths(arguments)
    for path in paths:
        if (path / SCORES).is_file() and not (path / STORE).is_file():
            raise ValueError(
                f"runs: {path} is an evaluation of an ordinary model in lanes, which has no outcome store to pair; set "
                f"its {TABLE} beside the other's, or draw both with evaluate.py curves"
            )
    stores = [OutcomeStore.load(path if path.is_file() else path / STORE) for path in paths]
    check_comparable(names, stores)
    return [
        Run(name, store, {**summarize(store), "stop_rules": stop_rules(store)})
        for name, store in zip(names, stores, strict=True)
    ]


def check_comparable(names: Sequence[str], stores: Sequence[OutcomeStore]) -> None:
    """Refuse runs that did not answer the same queries.

    Raises:
        ValueError: naming the run, what differs, and the fix.
    """
    first, name = stores[0], names[0]
    for other, called in zip(stores[1:], names[1:], strict=True):
        asked = [_asked(store) for store in (first, other)]
        if first.metadata.benchmark != other.metadata.benchmark or asked[0] != asked[1]:
            what = in_words_of(other.metadata.benchmark, "graphs")
            raise ValueError(
                f"runs: {called} was evaluated on other {what} than {name} (benchmark {other.metadata.benchmark}, "
                f"{what} {asked[1][:12]}, against {first.metadata.benchmark}, {asked[0][:12]}); evaluate both with "
                "the same benchmark and options"
            )
        same = len(first.steps) == len(other.steps) and bool(
            (first.steps == other.steps).all() and (first.instance == other.instance).all()
        )
        if not same:
            counts = [f"{int(s.steps.min())} to {int(s.steps.max())}, {len(s.steps):,} queries" for s in (first, other)]
            raise ValueError(
                f"runs: {called} was asked other counts ({counts[1]}) than {name} ({counts[0]}); evaluate both with "
                "the same counts"
            )


def _asked(store: OutcomeStore) -> str:
    """SHA-256 of what a store's model was asked, "unknown" if it does not tell."""
    return next((store.metadata.digests[name] for name in ASKED if name in store.metadata.digests), "unknown")


def compare(runs: Sequence[Run], reference: str) -> dict[str, Any]:
    """Compare runs with one of them.

    Args:
        runs: at least two, on the same queries.
        reference: name of the run that the others are compared with.

    Returns:
        plain JSON types: `runs`, `reference`, `benchmark`, and `differences` by run and group ("all", and ranges of
        requested counts; of a benchmark of yes and no these two, and the ranges of each, such as "7-12, no"): each
        metric's `difference` to the reference, with the `low` and `high` end of its 95% interval (fractions, the
        correct prefix in loops; None where one of the two is undefined).

    Raises:
        ValueError: no run is called so.
    """
    names = [run.name for run in runs]
    if reference not in names:
        raise ValueError(f"reference: no run is called {reference!r}; use one of {', '.join(names)}")
    tallies = {run.name: count_store(run.store, []) for run in runs}
    base = tallies[reference]
    ranges = next(run for run in runs if run.name == reference).summary["by_range"]
    with_rule = {run.name: stops(run) for run in runs}
    both_stop = {name: with_rule[name] and with_rule[reference] for name in names}
    spans = {label: _within(base.present, label) for label in ranges}
    groups = _groups(next(run.store for run in runs if run.name == reference), base, spans)
    return {
        "format": FORMAT,
        "benchmark": runs[0].store.metadata.benchmark,
        "runs": names,
        "reference": reference,
        "differences": {
            name: {label: _differences(tally, base, group, both_stop[name]) for label, group in groups.items()}
            for name, tally in tallies.items()
            if name != reference
        },
    }


def write_comparison(output: Path, runs: Sequence[Run], reference: str, overwrite: bool = False) -> dict[str, Any]:
    """Write report.html, comparison.csv, table.md and, last, comparison.json into a folder, each atomically.

    Returns:
        what `compare` returns.

    Raises:
        FileExistsError: the folder holds a comparison and `overwrite` is false.
    """
    refuse_finished(output, overwrite, COMPARISON)
    comparison = compare(runs, reference)
    write_text(output / "report.html", report_html(runs, comparison), overwrite=True)
    write_text(output / "comparison.csv", tidy_csv(runs), overwrite=True)
    write_text(output / "table.md", markdown(runs, comparison), overwrite=True)
    write_text(output / COMPARISON, json.dumps(comparison, allow_nan=False) + "\n", overwrite=True)
    return comparison


def markdown(runs: Sequence[Run], comparison: dict[str, Any]) -> str:
    """The table of all runs and the differences to the reference."""
    return overall_table(runs).markdown() + "\n" + difference_table(comparison).markdown()


_Group = tuple[Tensor, Sequence[int]]
"""[I] bool graphs, and requested counts."""


def _groups(store: OutcomeStore, base: Tally, spans: Mapping[str, Sequence[int]]) -> dict[str, _Group]:
    """What is compared apart, by label; groups without a query are left out."""
    everything = torch.ones(len(store.stratum), dtype=torch.bool)
    groups: dict[str, _Group] = {"all": (everything, base.present)}
    if "accept" not in store.facts:
        groups |= {label: (everything, steps) for label, steps in spans.items()}
    else:
        answers = {name: store.facts["accept"].bool() == value for name, value in ANSWERS.items()}
        groups |= {name: (graphs, base.present) for name, graphs in answers.items()}
        groups |= {f"{span}, {name}": (answers[name], steps) for span, steps in spans.items() for name in answers}
    return {label: group for label, group in groups.items() if _queries(base, group).any()}


def _queries(tally: Tally, group: _Group) -> Tensor:
    """[Q] bool, the queries of a group."""
    graphs, steps = group
    return graphs[tally.instance] & torch.isin(torch.tensor(tally.present)[tally.column], torch.tensor(list(steps)))


def _differences(tally: Tally, base: Tally, group: _Group, both_stop: bool) -> dict[str, Any]:
    graphs, steps = group
    chosen = torch.isin(torch.tensor(base.present), torch.tensor(list(steps)))
    sums = [each.sums[graphs][:, chosen].sum(dim=1).numpy() for each in (tally, base)]
    columns = [[each.pairs[name] for name in METRICS] for each in (tally, base)]
    sides = [
        (rows[:, [above for above, _ in pairs]], rows[:, [below for _, below in pairs]])
        for rows, pairs in zip(sums, columns, strict=True)
    ]
    estimate, (low, high) = paired_difference(base.draws[:, graphs.numpy()], sides[0], sides[1])
    values = np.round(np.stack([estimate, low, high], axis=1), 8)
    found = {}
    for name, row in zip(METRICS, values, strict=True):
        known = both_stop or name not in STOPPING  # a run without a stop rule does not stop wrongly
        ends = [float(value) if known and np.isfinite(value) else None for value in row]
        found[name] = dict(zip(("difference", "low", "high"), ends, strict=True))
    return found


def _within(counts: Sequence[int], label: str) -> list[int]:
    """The counts of a range that the summary calls "7-12", "7" or "257+"."""
    low, _, high = label.removesuffix("+").partition("-")
    largest = float("inf") if label.endswith("+") else int(high or low)
    return [n for n in counts if int(low) <= n <= largest]


def named_paths(arguments: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Read PATH or NAME=PATH each; both may hold further '=', as long as the path exists.

    Returns:
        names and paths; the default name is what tells the path from the others (`run_names`).

    Raises:
        ValueError: a name twice, or an empty one.
    """
    given, paths = zip(*map(_split, arguments), strict=True)
    names = [name if name is not None else found for name, found in zip(given, run_names(paths), strict=True)]
    if "" in names:
        raise ValueError("runs: a name is empty; write NAME=PATH, or the path alone")
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        raise ValueError(f"runs: two are called {twice[0]!r}; name them, as in --runs first=DIR second=DIR")
    return names, list(paths)


def _split(argument: str) -> tuple[str | None, Path]:
    """Name (None if there is none) and path of an argument."""
    if "=" not in argument or Path(argument).exists():
        return None, Path(argument)
    places = [at for at, letter in enumerate(argument) if letter == "="]
    at = next((at for at in places if Path(argument[at + 1 :]).exists()), places[0])
    return argument[:at], Path(argument[at + 1 :])


def run_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of each path that tell it from the others."""
    parts = [(path.parent if path.suffix else path).resolve().parts for path in paths]
    for length in range(1, max(len(p) for p in parts) + 1):
        names = ["/".join(p[-length:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return names
