"""Options of the grammar benchmark that would do nothing are refused, for every kind of model."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from test_lane_benchmark import scripted

from evaluate import evaluate
from loopformer import checkpoint
from loopformer.evaluation.grammar_benchmark import choose_questions
from loopformer.evaluation.grammar_questions import GrammarOptions
from loopformer.evaluation.idle_options import (
    OF_BRACKETS,
    OF_LOOPED,
    OF_SEARCH,
    OF_WRITERS,
    refuse_idle_options,
    refuse_other_machines_options,
)
from loopformer.evaluation.lane_benchmark import ask_lanes

BRACKETS_MODEL = Path(__file__).resolve().parents[1] / "checkpoints" / "tiny-brackets"
OTHER: dict[str, Any] = {
    "machine": "search", "depths": "7", "per_depth": 3, "suite": False, "families": "recursion", "suites": "count_a",
    "longest": 7, "letterings": 1, "slack": 2, "lane": "written", "puzzles": "cue_free", "pairs": 1, "listing": True,
    "max_new_tokens": 9, "thinking_tokens": 10, "batch_size": 3,
}  # fmt: skip
"""Every option of the benchmark with a value that is not the usual one."""


def refused(check: Any, *more: Any) -> set[str]:
    """Options that a check refuses, each given alone."""
    found = {}
    for name, value in OTHER.items():
        try:
            check(GrammarOptions(**{name: value}), *more)
        except ValueError as error:
            found[name] = str(error)
    assert all(said.startswith(f"grammar.{name}: is for ") for name, said in found.items())
    assert all(said.endswith(", leave it out") for said in found.values())
    return set(found)


def test_every_option_has_somebody_to_use_it() -> None:
    assert set(OTHER) == {field.name for field in fields(GrammarOptions)}
    machines = [refused(refuse_other_machines_options, machine) for machine in ("brackets", "search")]
    assert machines == [set(OF_SEARCH), set(OF_BRACKETS)]
    assert refused(refuse_other_machines_options, "permuted_brackets") == set(OF_SEARCH)
    fixed, both = ["cue_free"], ["bracket_depths", "search_runs"]
    puzzles = {"depths", "per_depth", "families", "suites", "longest", "letterings"}
    assert refused(refuse_idle_options, fixed, False, "m") == {*OF_LOOPED, *puzzles}
    assert refused(refuse_idle_options, both, False, "m") == set(OF_LOOPED)
    assert refused(refuse_idle_options, both[:1], True, "m") == {*OF_LOOPED, "listing", "thinking_tokens", *OF_SEARCH}


def test_a_looped_model_says_whose_option_it_is(tmp_path: Path) -> None:
    for name in OF_WRITERS:
        with pytest.raises(ValueError, match=rf"^grammar\.{name}: is for models that write; .* is looped, leave"):
            evaluate([BRACKETS_MODEL], tmp_path, benchmark="grammar", grammar=GrammarOptions(**{name: OTHER[name]}))
    with pytest.raises(
        ValueError, match=r"^grammar\.families: is for machine search; this model runs permuted_brackets, leave it out$"
    ):
        choose_questions(
            checkpoint.load(BRACKETS_MODEL), GrammarOptions(families="recursion", machine="permuted_brackets")
        )


@pytest.mark.parametrize(
    ("style", "options", "message"),
    [
        (None, {"lane": "answer", "depths": "7"}, "depths: is for the puzzles bracket_depths; .* is asked cue_free"),
        (None, {"lane": "answer", "machine": "search"}, "machine: is for looped models; .* writes"),
        ("procedure/SearchTask/steps", {"listing": True}, "listing: is for models that write JSON; .* writes letters"),
        ("procedure/SearchTask/steps", {"thinking_tokens": 10}, "thinking_tokens: is for models that write JSON"),
        (
            "procedure/BracketTask/steps",
            {"families": "nesting"},
            "families: is for the puzzles search_runs",
        ),
    ],
)
def test_a_model_that_writes_says_whose_option_it_is(style: str | None, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^grammar\.{message}.*leave it out$"):
        ask_lanes(scripted(str, style), GrammarOptions(**options), print, print)
