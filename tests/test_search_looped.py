"""The prescribed search as looped batches: moves and fields by hand, streams, a model that trains and is measured."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
import yaml
from test_grammar_looped import network_config

from datamodules.grammar import GrammarDataModule, SearchRuns, SearchStream
from datamodules.procedure_batcher import ProcedureBatcher
from datamodules.tasks.grammar.recogniser import recognises
from datamodules.tasks.grammar.search_recipes import Recipe, SearchStage
from datamodules.tasks.grammar.search_task import AHEAD, PHASES, SearchTask
from datamodules.tasks.grammar.suites import FAMILIES
from datamodules.tasks.procedure import UNDEFINED
from loopformer import checkpoint
from loopformer.evaluation.grammar_benchmark import GrammarOptions, evaluate_grammar
from loopformer.evaluation.grammar_questions import search_questions
from loopformer.evaluation.grammar_summary import summarize_grammar
from loopformer.evaluation.native import check_alone
from loopformer.tokenizer import tiny_tokenizer

ROOT = Path(__file__).resolve().parents[1]
TOKENIZER = tiny_tokenizer()
SEARCH = SearchTask()


def test_search_moves_and_fields_by_hand() -> None:
    puzzle = Recipe("cue_free", "nesting", 1, accept=True, backwards=False).puzzle("bacde")
    assert SEARCH.prompt(puzzle, "executor") == "Rules: A s> b s a; B s> c.\nString: b c a.\nMove:"
    moves = [SEARCH.labels.names[move] for move in SEARCH.states(puzzle)]
    assert moves == ["TRY p0", "TRY p0", "PRN pref", "BT", "TRY p1", "ACC"]
    fields = SEARCH.field_states(puzzle)
    assert fields["left"] == [1, 2, 3, 2, 2, 4, UNDEFINED]
    assert fields["right"] == [4, 3, 2, 3, 3, 4, UNDEFINED]
    assert fields["clash"] == [0, 0, 2, 0, 0, 0, UNDEFINED]
    assert [AHEAD[rule] for rule in fields["ahead"][:-1]] == ["p0", "p1", "p0", "p1", "p1", "end"]
    assert fields["depth"] == [0, 1, 2, 1, 1, 2, UNDEFINED]
    assert [PHASES[phase] for phase in fields["phase"][:-1]] == [
        "entered", "entered", "entered", "await_bt", "expanding", "entered",
    ]  # fmt: skip
    assert fields["tried"] == [0, 0, 0, 1, 1, 0, UNDEFINED]
    assert fields["root"] == [1, 0, 0, 0, 0, 0, UNDEFINED]
    batch = ProcedureBatcher(SEARCH, TOKENIZER).batch([puzzle])
    view = batch.views["executor"]
    assert view.cells is not None
    assert TOKENIZER.convert_ids_to_tokens(view.input_ids[0, view.cells[0]].tolist()) == [":", " b", " c", " a", "."]


def test_a_clash_is_what_prunes_by_prefix() -> None:
    pruned, seen = SEARCH.labels.names.index("PRN pref"), 0
    for puzzle in SearchRuns(["recursion", "nesting", "sequence"], longest=14).instances():
        fields, moves = SEARCH.field_states(puzzle), SEARCH.states(puzzle)
        for move, clash, phase, left in zip(moves, fields["clash"], fields["phase"], fields["left"], strict=False):
            if PHASES[phase] == "entered":
                assert (clash > 0) == (move == pruned)
            assert clash <= left, "the form's own terminals clash, none behind them"
            seen += clash > 0
    assert seen > 100


@pytest.mark.parametrize("suite", ["original", "cue_free", "count_a"])
def test_search_runs_keep_the_moves_of_the_suites(suite: str) -> None:
    """The labels are the engine's moves whatever the letters, and the answers are the recogniser's."""
    lengths = {"original": 3_860, "cue_free": 3_632, "count_a": 5_484}
    total = 0
    for family in FAMILIES:
        for level in (1, 2, 4, 8, 16):
            for accept in (True, False):
                puzzle = Recipe(suite, family, level, accept, backwards=False).puzzle("cbaed")
                assert recognises(puzzle.grammar, puzzle.string) == accept
                total += 4 * len(puzzle.run().moves)
    assert total == lengths[suite]


def test_backwards_recipes_keep_the_answer_and_the_start() -> None:
    for family in ("recursion", "nesting", "chain_depth", "sequence"):
        for accept in (True, False):
            puzzle = Recipe("cue_free", family, 3, accept, backwards=True).puzzle()
            assert recognises(puzzle.grammar, puzzle.string) == accept
            assert puzzle.grammar.start == "S"


def test_search_stream_draws_like_lengths_without_cut() -> None:
    stream = SearchStream()
    task = stream.procedure
    assert [stage.moves for stage in stream.stages] == [7, 10, 13, 16, 19, 21]
    for stage in (0, 5):
        for seed in range(8):
            puzzles = stream.draw(random.Random(seed), stage)
            steps = [task.steps(puzzle) for puzzle in puzzles]
            assert max(steps) - min(steps) <= 3
            assert max(steps) <= stream.stages[stage].moves
            cut = SEARCH.labels.names.index("CUT")
            assert not any(cut in task.states(puzzle) for puzzle in puzzles)
    assert stream.counts()[0] == 2
    assert stream.counts()[-1] == 21


def test_a_stage_may_have_suites_of_its_own() -> None:
    """In the original suite alone a refused string has a letter that no rule names."""
    stream = SearchStream(stages=[SearchStage(10, suites=("original",)), SearchStage(10)])
    for stage, expected in ((0, {True}), (1, {True, False})):
        puzzles = [p for seed in range(20) for p in stream.draw(random.Random(seed), stage) if not p.accept]
        named = [{symbol for rule in p.grammar.productions for symbol in rule.rhs} for p in puzzles]
        assert {bool(set(p.string) - symbols) for p, symbols in zip(puzzles, named, strict=True)} == expected
    assert stream.counts() == SearchStream(stages=[SearchStage(10)]).counts()
    with pytest.raises(ValueError, match="suites is empty"):
        SearchStage(7, suites=())
    with pytest.raises(ValueError, match="got \\['foo'\\]"):
        SearchStream(stages=[SearchStage(7, suites=("foo",))])


def test_no_run_is_ended_by_a_budget() -> None:
    """A run of 512 moves is one that the budget of moves has ended: no puzzle without a verdict is asked."""
    deep = Recipe("original", "recursion", 257, accept=True, backwards=False).puzzle().run()
    assert (deep.verdict, len(deep.moves)) == ("unknown", 512)
    puzzles = SearchRuns(["recursion"], ["original"], longest=512).instances()
    assert (len(puzzles), max(puzzle.level for puzzle in puzzles)) == (554, 256)
    for puzzle in puzzles:
        run = puzzle.run()
        assert run.verdict == ("accept" if puzzle.accept else "reject")
        assert not any(move.op == "CUT" for move in run.moves)


def test_search_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"families: got \['loops'\]"):
        SearchStream(["loops"])
    with pytest.raises(ValueError, match="at most 1 moves"):
        SearchStream(stages=[SearchStage(1)])
    for longest in (0, -1):
        with pytest.raises(ValueError, match=rf"^validation\.longest: no run of nesting has at most {longest} moves; "):
            SearchRuns(["nesting"], longest=longest)
    for source in (SearchStream, SearchRuns):
        with pytest.raises(ValueError, match=r"^families: nesting is given twice; name it once$"):
            source(["nesting", "recursion", "nesting"])
        with pytest.raises(ValueError, match=r"^suites: original is given twice; name it once$"):
            source(suites=["original", "original"])
    deep = Recipe("original", "chain_depth", 16, accept=True, backwards=False).puzzle()
    with pytest.raises(ValueError, match="17 nonterminals"):
        SEARCH.prompt(deep, "executor")


def test_search_model_trains_and_is_measured(tmp_path: Path) -> None:
    from loopformer.executor import ExecutorModule

    torch.manual_seed(0)
    config = network_config("configs/grammar_search.yaml")
    network = checkpoint.build_network(config)
    module = ExecutorModule(network)
    batch = GrammarDataModule(TOKENIZER, SearchStream(), SearchRuns()).train_batches(0, 1).batch(0, 0)
    before = module.total(module.loss_terms(network.rollout(batch, batch.labels.shape[1]), batch))
    before.backward()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-0.01)
    assert module.total(module.loss_terms(network.rollout(batch, batch.labels.shape[1]), batch)) < before
    checkpoint.save(tmp_path / "model", network, config, {"trained_counts": [2, 5]})
    store = evaluate_grammar(checkpoint.load(tmp_path / "model"), GrammarOptions(longest=9, letterings=1))
    summary = summarize_grammar(store)
    assert set(summary["by_family"]) == {"recursion", "nesting"}
    assert summary["by_family"]["recursion"]["trained"]["yes"]["n"] > 0
    json.dumps(summary, allow_nan=False)
    alone = ProcedureBatcher(SEARCH, TOKENIZER).batch(SearchRuns(longest=9).instances()[:1])
    said = network.eval().rollout(alone, 9).letter_logits[0].argmax(-1)
    check_alone(network, alone, said)
    said[4] = (said[4] + 1) % len(network.labels)
    with pytest.raises(RuntimeError, match="another letter at loop 5 than in its batch"):
        check_alone(network, alone, said)


def test_the_search_is_asked_in_the_suites_named() -> None:
    """count_a keeps the counts of every symbol: none of its no puzzles is one of the suites before."""
    contents = {
        suites: {puzzle.content() for puzzle in search_questions(GrammarOptions(suites=suites, longest=20)).instances}
        for suites in ("original,cue_free", "count_a", "original, cue_free, count_a")
    }
    assert contents["count_a"]
    assert not contents["count_a"] & contents["original,cue_free"]
    assert len(contents["original, cue_free, count_a"]) > len(contents["original,cue_free"])
    assert GrammarOptions().suites == "original,cue_free"


def test_local_and_global_layers_of_the_search_recipe() -> None:
    overlay = yaml.safe_load((ROOT / "configs/recipe/local_global.yaml").read_text())
    init = overlay["model"]["init_args"]["network"]["init_args"]
    reach, split = init["recurrence"]["init_args"]["recurrent"], init["backbone"]["init_args"]["split"]
    assert len(reach) == split["recurrent"]
    assert sum(split.values()) == init["backbone"]["init_args"]["config"]["num_hidden_layers"]
