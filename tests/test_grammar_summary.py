"""Numbers of the looped grammar benchmark by hand: answers at the model's own stop, intervals over structures."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from datamodules.batch import IGNORE
from datamodules.tasks.grammar.bracket_task import MOVE_NAMES
from datamodules.tasks.grammar.search_task import SEARCH_LABELS
from loopformer.evaluation.bootstrap import grouped_interval, wider, wilson
from loopformer.evaluation.curves import read_curves
from loopformer.evaluation.grammar_questions import GrammarOptions, Questions, bracket_questions, search_questions
from loopformer.evaluation.grammar_summary import grammar_markdown, own_verdicts, summarize_grammar
from loopformer.evaluation.outcomes import OutcomeMetadata, OutcomeStore

SLACK = 3
YES, NO, NONE = 1, 0, -1


def perfect(questions: Questions) -> OutcomeStore:
    """The store of a model that makes every move and stops at the last, which it then repeats."""
    runs = [list(questions.task.states(instance)) for instance in questions.instances]
    loops = max(map(len, runs)) + SLACK
    letters = torch.tensor([[*run, *run[-1:] * (loops - len(run))] for run in runs], dtype=torch.int16)
    steps = torch.tensor([len(run) for run in runs], dtype=torch.int32)
    told = [questions.task.facts(instance) for instance in questions.instances]
    facts = {name: torch.tensor([one[name] for one in told], dtype=torch.int32) for name in told[0]}
    facts |= {name: torch.tensor(values, dtype=torch.int32) for name, values in questions.facts.items()}
    each = torch.arange(len(runs), dtype=torch.int32)
    return OutcomeStore(
        metadata=OutcomeMetadata(
            "grammar", tuple(questions.task.labels.names), loops, loops, fact_values=questions.fact_values
        ),
        letters=letters,
        reference=torch.where(torch.arange(loops) < steps[:, None], letters, torch.tensor(IGNORE, dtype=torch.int16)),
        row=each,
        instance=each.clone(),
        steps=steps,
        stops=steps.clone(),
        stratum=(2 * facts["depth"] + facts["accept"]).to(torch.int16),
        facts=facts,
    )


def changed(store: OutcomeStore, row: int, stop: int, said: dict[int, int]) -> None:
    """Let a run stop elsewhere (0 for never), and make other moves (by loop, from 1)."""
    store.stops[row] = stop
    for loop, move in said.items():
        store.letters[row, loop - 1] = move


def test_the_answer_is_the_move_at_the_models_own_stop() -> None:
    """Strings of depth 1, yes and no in turn; a yes has the moves PUSH, CENTER, POP, ACCEPT."""
    store = perfect(bracket_questions(GrammarOptions(depths="1", per_depth=4, suite=False)))
    push, accept, reject = (MOVE_NAMES.index(name) for name in ("PUSH 1", "ACCEPT", "REJECT"))
    assert store.steps.tolist() == [4, 3] * 4
    changed(store, 0, 1, {1: reject})  # refuses too early what it would have accepted: it is told when to stop
    changed(store, 2, 0, {})  # a complete run that never stops
    changed(store, 4, 6, {6: reject})  # a complete run that goes on to another verdict
    changed(store, 6, 2, {})  # stops at CENTER
    changed(store, 1, 5, {3: push, 5: reject})  # refuses late what it let pass
    changed(store, 3, 3, {3: accept})
    changed(store, 5, 2, {2: reject})  # refuses rightly, too early, after which its last move is right as well
    assert own_verdicts(store).tolist() == [NO, NO, NONE, YES, NO, NO, NONE, NO]
    summary = summarize_grammar(store)
    assert (summary["yes"]["answer"], summary["no"]["answer"]) == (0, 3 / 4)
    assert (summary["yes"]["forced_answer"], summary["no"]["forced_answer"]) == (1, 2 / 4)
    assert summary["answer_by_run"]["yes"] == {
        "answer_right_run_complete": 0,
        "answer_right_run_wrong": 0,
        "answer_wrong_run_complete": 3,
        "answer_wrong_run_wrong": 1,
    }
    assert summary["answer_by_run"]["no"] == {
        "answer_right_run_complete": 1,
        "answer_right_run_wrong": 2,
        "answer_wrong_run_complete": 0,
        "answer_wrong_run_wrong": 1,
    }
    assert summary["answer"] == 3 / 8
    json.dumps(summary, allow_nan=False)


def test_a_refusal_may_end_in_any_move_that_ends_a_run() -> None:
    questions = search_questions(GrammarOptions(families="recursion", longest=7, letterings=1))
    store, names = perfect(questions), SEARCH_LABELS.names
    ends = [names[int(store.letters[row, n - 1])] for row, n in enumerate(store.steps.tolist())]
    row = ends.index("DONE")
    expected = {
        "PRN pref": NO, "PRN long": NO, "REJ term": NO, "REJ no_prod": NO, "CUT": NO, "DONE": NO, "BT": NONE,
        "ACC": YES, "TRY p0": NONE,
    }  # fmt: skip
    for move, verdict in expected.items():
        changed(store, row, int(store.steps[row]), {int(store.steps[row]): names.index(move)})
        assert int(own_verdicts(store)[row]) == verdict, move
    changed(store, row, int(store.steps[row]), {int(store.steps[row]): names.index("PRN pref")})
    summary = summarize_grammar(store)
    assert summary["no"]["answer"] == 1
    assert summary["no"]["forced_answer"] == 1 - 1 / summary["no"]["n"]


@pytest.mark.parametrize("permuted", [False, True])
def test_equal_strings_are_one_structure(permuted: bool) -> None:
    questions = bracket_questions(GrammarOptions(depths="2,4,16"), permuted)
    facts = questions.facts
    found = {
        depth: {
            number
            for string, number, suite in zip(questions.instances, facts["structure"], facts["suite"], strict=True)
            if string.depth == depth and not suite
        }
        for depth in (2, 4, 16)
    }
    assert {depth: len(numbers) for depth, numbers in found.items()} == {2: 12, 4: 53, 16: 128}
    in_suite = facts["structure"][-46:]
    assert len(set(in_suite)) == 46
    # Four yes strings of the suite are among those of depth 2, and the two no strings with one wrong closer.
    assert len(set(in_suite) & found[2]) == 6
    assert facts["structure"] == bracket_questions(GrammarOptions(depths="2,4,16")).facts["structure"]


def test_letterings_are_one_structure_in_every_evaluation() -> None:
    few, many = (search_questions(GrammarOptions(longest=20, letterings=n)) for n in (1, 4))
    assert len(set(few.facts["structure"])) == len(few.instances)
    assert set(few.facts["structure"]) == set(many.facts["structure"])
    assert len(many.instances) > 3 * len(few.instances)
    assert all(0 <= number < 2**31 for number in many.facts["structure"])


def test_intervals_count_a_structure_once() -> None:
    """Depth 1: 64 yes strings are two. A model that is right on one of them alone is right on half, or all, or none."""
    store = perfect(bracket_questions(GrammarOptions(depths="1,16", suite=False)))
    summary = summarize_grammar(store)
    small, large = (summary["by_depth"][depth]["yes"] for depth in ("1", "16"))
    assert (small["n"], small["n_structures"], large["n_structures"]) == (64, 2, 64)
    assert small["intervals"]["answer"] == pytest.approx([float(end) for end in wilson(64, 64)])
    assert small["structures"]["answer"] == pytest.approx([float(end) for end in wilson(2, 2)])
    assert large["structures"]["answer"] == large["intervals"]["answer"]
    of_depth = (store.facts["depth"] == 1) & store.facts["accept"].bool()
    first = store.facts["structure"][of_depth][0]
    wrong = of_depth & (store.facts["structure"] == first)
    store.stops[wrong] = 0
    cell = summarize_grammar(store)["by_depth"]["1"]["yes"]
    assert cell["answer"] == 1 - int(wrong.sum()) / 64
    assert cell["structures"]["answer"] == [0.0, 1.0]
    rows = [(str(one), float(one != first), 1) for one in store.facts["structure"][of_depth].tolist()]
    assert cell["structures"]["answer"] == grouped_interval(rows)
    row = f"| depth 1, yes | 2 of 64 | {100 * cell['answer']:.1f} [0.0, 100.0] |"
    assert row in grammar_markdown(summarize_grammar(store))
    assert cell["structures"]["complete"] == pytest.approx([float(end) for end in wilson(2, 2)])


def test_intervals_of_a_kind_of_move_count_a_structure_once() -> None:
    store = perfect(bracket_questions(GrammarOptions(depths="1", suite=False)))
    accept = summarize_grammar(store)["moves_by_answer"]["yes"]["ACCEPT"]
    assert (accept["n"], accept["right"]) == (64, 1)
    assert accept["structures"] == pytest.approx([float(end) for end in wilson(2, 2)])
    assert accept["interval"] == pytest.approx([float(end) for end in wilson(64, 64)])


def test_a_store_of_before_has_no_structures() -> None:
    store = perfect(bracket_questions(GrammarOptions(depths="1", suite=False)))
    old = replace(store, facts={name: values for name, values in store.facts.items() if name != "structure"})
    summary = summarize_grammar(old)
    assert summary["n_structures"] is None
    assert set(summary["yes"]["structures"].values()) == {None}
    assert summary["yes"]["answer"] == 1
    assert summary["moves"]["ACCEPT"]["structures"] is None
    assert "| depth 1, yes | - of 64 | 100.0 [94.3, 100.0] |" in grammar_markdown(summary)


def test_curves_draw_the_wider_interval(tmp_path) -> None:
    summary = summarize_grammar(perfect(bracket_questions(GrammarOptions(depths="1", suite=False))))
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    curve = read_curves([str(tmp_path)])[0]
    assert curve.points[0] == pytest.approx((1, 1.0, float(wilson(2, 2).low), 1.0))
    assert wider([0.2, 0.5], None, [0.1, 0.4]) == [0.1, 0.5]
    assert wider(None) is None
    assert np.isfinite(curve.points[0]).all()
