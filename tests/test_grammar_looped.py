"""Grammar machines as looped batches: moves, fields and cells by hand; streams; the benchmark of looped models."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from test_looped import QWEN_05B, trainable

from callbacks.curriculum import _complete
from datamodules.batch import IGNORE
from datamodules.grammar import BracketDepths, BracketStream, GrammarDataModule, SearchRuns, SearchStream
from datamodules.procedure_batcher import ProcedureBatcher
from datamodules.tasks.grammar.bracket_task import (
    MOVE_NAMES,
    SPOILT_BY,
    BracketStage,
    BracketString,
    BracketTask,
    draw_strings,
    growing_depths,
    strings_of,
    wrong_closer,
)
from datamodules.tasks.grammar.brackets import TRAINING_ALPHABET, bracket_suite
from datamodules.tasks.grammar.recogniser import recognises
from datamodules.tasks.grammar.search_task import PHASES, Recipe, SearchStage, SearchTask
from datamodules.tasks.grammar.suites import FAMILIES
from datamodules.tasks.procedure import UNDEFINED
from evaluate import evaluate
from loopformer import checkpoint
from loopformer.evaluation.grammar_benchmark import GrammarOptions, evaluate_grammar
from loopformer.evaluation.grammar_summary import grammar_markdown, summarize_grammar
from loopformer.evaluation.outcomes import OutcomeStore
from loopformer.tokenizer import tiny_tokenizer

ROOT = Path(__file__).resolve().parents[1]
TOKENIZER = tiny_tokenizer()
TASK = BracketTask()


def test_moves_and_fields_by_hand() -> None:
    string = BracketString(tuple("uvyxx"), ("v",))  # the second closer should have been w
    assert TASK.prompt(string, "executor") == "String: u v y x x. v\nMove:"
    assert [MOVE_NAMES[move] for move in TASK.states(string)] == ["PUSH 1", "PUSH 2", "CENTER", "POP", "REJECT"]
    fields = TASK.field_states(string)
    assert fields["head"] == [1, 2, 3, 4, 5, UNDEFINED]
    assert fields["top"] == [0, 1, 2, 2, 1, UNDEFINED]
    names = {name: ["none" if v < 0 else labels.names[v] for v in fields[name]] for name, labels in TASK.fields.items()
             if labels is not None}  # fmt: skip
    assert names["symbol"] == ["u", "v", "y", "x", "x", "none"]
    assert names["expected"] == ["none", "w", "x", "x", "w", "none"]
    assert TASK.facts(string) == {"depth": 0, "spoilt": 0, "accept": 0}
    empty = TASK.field_states(BracketString(()))
    assert (empty["head"], empty["symbol"]) == ([1, UNDEFINED], [len(TRAINING_ALPHABET.symbols), UNDEFINED])


@pytest.mark.parametrize("junk", [(), ("v", "y")])
def test_every_cell_is_the_token_of_its_symbol(junk: tuple[str, ...]) -> None:
    batch = ProcedureBatcher(TASK, TOKENIZER).batch([BracketString(tuple("uyw"), junk), BracketString(())])
    view = batch.views["executor"]
    assert view.cells is not None
    cells = view.cells[0][view.cells[0] >= 0]
    tokens = TOKENIZER.convert_ids_to_tokens(view.input_ids[0, cells].tolist())
    assert tokens == [":", " u", " y", " w", ".", *(f" {symbol}" for symbol in junk)]
    assert TOKENIZER.convert_ids_to_tokens(view.input_ids[1, view.cells[1, :2]].tolist()) == [":", "."]
    assert batch.labels[1].tolist() == [MOVE_NAMES.index("REJECT"), *[IGNORE] * 3]


def test_curriculum_counts_only_loops_with_a_label() -> None:
    """Runs of a batch differ in length; what a model says behind the end of a shorter one is nobody's concern."""
    labels = torch.tensor([[0, 1, 2], [2, IGNORE, IGNORE], [1, 1, IGNORE]])
    said = torch.tensor([[0, 1, 2], [2, 0, 1], [1, 0, 0]])
    logits = torch.nn.functional.one_hot(said, 3).float()
    assert float(_complete(logits, labels)) == pytest.approx(2 / 3)


def test_drawn_strings_are_what_they_say() -> None:
    grammar, rng = TRAINING_ALPHABET.grammar(), random.Random(0)
    drawn = [string for _ in range(60) for string in draw_strings(TRAINING_ALPHABET, BracketStage(5, 32, junk=3), rng)]
    for string in drawn:
        accept = recognises(grammar, string.symbols) if string.symbols else False
        assert TASK.facts(string)["accept"] == accept
        if SPOILT_BY[string.spoilt] == "nothing":
            assert accept
        elif SPOILT_BY[string.spoilt] != "another symbol":
            assert not accept, string
    assert {string.spoilt for string in drawn} == set(range(len(SPOILT_BY)))
    assert 0.35 < sum(TASK.facts(string)["accept"] for string in drawn) / len(drawn) < 0.6
    assert max(len(string.junk) for string in drawn) == 3


def test_wrong_closers_are_anywhere() -> None:
    rng = random.Random(1)
    first_wrong = [len(TASK.states(wrong_closer(TRAINING_ALPHABET, 8, rng))) - 9 for _ in range(400)]
    assert set(first_wrong) == set(range(1, 9))
    assert max(first_wrong.count(at) for at in range(1, 9)) < 400 / 8 * 1.6


def test_suite_in_the_training_alphabet_keeps_its_moves() -> None:
    puzzles = bracket_suite()
    strings = strings_of(puzzles)
    assert sum(TASK.steps(string) for string in strings) == 988
    assert [TASK.facts(string)["accept"] for string in strings] == [int(puzzle.accept) for puzzle in puzzles]
    assert [s.symbols for s in strings[:46]] == [s.symbols for s in strings[46:]]


def test_stages_and_evaluation_set() -> None:
    assert [(stage.depth, stage.junk) for stage in growing_depths(3, 2)] == [(1, 0), (2, 0), (3, 0), (3, 2)]
    assert [stage.depth for stage in growing_depths(6)] == [1, 2, 4, 6, 6]
    assert [stage.depth for stage in growing_depths(1)] == [1, 1]
    stream = BracketStream()
    assert stream.counts() == list(range(1, 15))
    data = GrammarDataModule(TOKENIZER, validation=BracketDepths([2, 8], per_depth=3))
    data.setup("fit")
    assert set(data.cohorts) == {"trained", "beyond"}
    batches = list(data.val_dataloader())
    depth = torch.cat([batch.facts["depth"] for batch in batches])
    accept = torch.cat([batch.facts["accept"] for batch in batches])
    assert sorted(zip(depth.tolist(), accept.tolist(), strict=True)) == [
        (2, 0), (2, 0), (2, 0), (2, 1), (2, 1), (2, 1), (8, 0), (8, 0), (8, 0), (8, 1), (8, 1), (8, 1),
    ]  # fmt: skip


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="depth and batch_size must be 1 or more"):
        BracketStage(0)
    with pytest.raises(ValueError, match=r"train\.stages: the list is empty"):
        BracketStream([])
    with pytest.raises(ValueError, match=r"validation: got depths \[0\]"):
        BracketDepths([0])
    with pytest.raises(ValueError, match=r"grammar\.slack"):
        GrammarOptions(slack=-1)
    with pytest.raises(ValueError, match="view: got 'full'"):
        TASK.prompt(BracketString(()), "full")


def network_config(path: str) -> dict[str, Any]:
    """The network of a config on the tiny backbone."""
    config = yaml.safe_load((ROOT / path).read_text())["model"]["init_args"]["network"]
    tiny = yaml.safe_load((ROOT / "configs/backbone/tiny.yaml").read_text())["model"]["init_args"]["network"]
    config["init_args"].update(tiny["init_args"])
    return config


def real_network(path: str) -> Any:
    config = yaml.safe_load((ROOT / path).read_text())["model"]["init_args"]["network"]
    split = config["init_args"]["backbone"]["init_args"]["split"]
    config["init_args"]["backbone"] = {
        "class_path": "ScratchBackbone",
        "init_args": {"config": QWEN_05B, "split": split},
    }
    with torch.device("meta"):
        return checkpoint.build_network(config)


def test_real_backbone_builds() -> None:
    """R as in architecture 4, and little more: bridge and heads at width 896."""
    network = real_network("configs/grammar_brackets.yaml")
    assert trainable(network.backbone) == 178_948_608
    assert trainable(network.bridge) == 803_712 + 896
    assert trainable(network.state_heads) == (2 + 6 + 3) * 897
    search = real_network("configs/grammar_search.yaml")
    assert trainable(search.backbone) == 178_948_608
    assert trainable(search.state_heads) == (3 + 3 + 19 + 2) * 897


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained bracket model, saved."""
    torch.manual_seed(0)
    config = network_config("configs/grammar_brackets.yaml")
    folder = tmp_path_factory.mktemp("brackets") / "model"
    checkpoint.save(folder, checkpoint.build_network(config), config, {"trained_counts": list(range(1, 15))})
    return folder


def test_every_trained_part_gets_a_gradient() -> None:
    from loopformer.executor import ExecutorModule

    torch.manual_seed(0)
    network = checkpoint.build_network(network_config("configs/grammar_brackets.yaml"))
    network.train()
    module = ExecutorModule(network)
    batch = GrammarDataModule(TOKENIZER).train_batches(0, 1).batch(0, 3)
    module.total(module.loss_terms(network.rollout(batch, batch.labels.shape[1]), batch)).backward()
    idle = [name for name, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # The head's own rows of C's cells are read by nobody, and softmax ignores a shift of all keys.
    assert [name for name in idle if "k_proj.bias" not in name] == []


def test_checkpoint_round_trip_is_exact(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = network_config("configs/grammar_brackets.yaml")
    network = checkpoint.build_network(config).eval().requires_grad_(False)
    checkpoint.save(tmp_path / "model", network, config)
    batch = ProcedureBatcher(TASK, TOKENIZER).batch(BracketDepths([3], 2).instances())
    ours, loaded = network.rollout(batch, 8), checkpoint.load(tmp_path / "model").network.rollout(batch, 8)
    assert torch.equal(ours.letter_logits, loaded.letter_logits)
    assert all(torch.equal(logits, loaded.field_logits[name]) for name, logits in ours.field_logits.items())


def test_benchmark_tells_what_the_model_says(saved: Path) -> None:
    """An untrained model against the numbers recomputed from its rollouts, one string at a time."""
    model = checkpoint.load(saved)
    options = GrammarOptions(depths="1,5", per_depth=3, suite=False, slack=4, batch_size=5)
    done: list[int] = []
    store = evaluate_grammar(model, options, advance=done.append)
    strings = BracketDepths([1, 5], 3, 11).instances()
    assert sum(done) == len(strings) == len(store.steps) == 12
    batcher = ProcedureBatcher(TASK, TOKENIZER)
    for row, string in enumerate(strings):
        batch = batcher.batch([string])
        n = int(batch.steps)
        rollout = model.network.rollout(batch, n + 4)
        assert store.letters[row, :n].tolist() == rollout.letter_logits.argmax(-1)[0, :n].tolist()
        assert store.reference[row, :n].tolist() == batch.labels[0].tolist()
        fired = (rollout.stop_logits[0] >= 0).nonzero()
        assert int(store.stops[row]) == (int(fired[0]) + 1 if len(fired) else 0) or int(store.stops[row]) > n + 4
        assert {name: int(values[row]) for name, values in store.facts.items()} == {**TASK.facts(string), "suite": 0}


def oracle(store: OutcomeStore, rows: list[int]) -> OutcomeStore:
    """The store of a model that is right everywhere but on the last move of some rows."""
    letters = torch.where(store.reference == IGNORE, 0, store.reference)
    stops = store.steps.clone()
    for row in rows:
        last = int(store.steps[row]) - 1
        letters[row, last] = 9 - letters[row, last]  # ACCEPT for REJECT
        stops[row] = 0
    return OutcomeStore(**{**vars(store), "letters": letters, "stops": stops})


def test_summary_by_hand(saved: Path, tmp_path: Path) -> None:
    options = GrammarOptions(depths="2,4", per_depth=4, suite=True, slack=2)
    store = evaluate_grammar(checkpoint.load(saved), options)
    perfect = summarize_grammar(oracle(store, []))
    for name in ("answer", "complete", "exact_stop", "strict"):
        assert perfect["yes"][name] == perfect["no"][name] == 1.0
    assert perfect["instances"] == 16 + 46
    assert perfect["suite"]["yes"]["n"] == perfect["suite"]["no"]["n"] == 23
    assert perfect["answer_by_run"]["answer_right_run_complete"] == 62
    assert sum(cell["n"] for cell in perfect["moves"].values()) == int(store.steps.sum())
    wrong = [row for row in range(16) if store.facts["depth"][row] == 2 and not store.facts["accept"][row]]
    spoilt = summarize_grammar(oracle(store, wrong))
    assert spoilt["by_depth"]["2"]["no"]["complete"] == 0.0
    assert spoilt["by_depth"]["2"]["yes"]["complete"] == spoilt["by_depth"]["4"]["no"]["complete"] == 1.0
    assert spoilt["by_depth"]["2"]["no"]["exact_stop"] == 0.0
    assert spoilt["moves"]["REJECT"]["instead"] == {"ACCEPT": 4}
    assert spoilt["answer_by_run"]["answer_wrong_run_wrong"] == 4
    lengths = sorted(int(store.steps[row]) for row in wrong)
    assert sorted(map(int, spoilt["by_depth"]["2"]["no"]["first_errors"])) == sorted(set(lengths))
    assert spoilt["survival"]["yes"]["survival"][0] == 1.0
    assert "depth 2 | 100.0 | 0.0" in grammar_markdown(spoilt)
    json.dumps(spoilt, allow_nan=False)


def test_command_line(saved: Path, tmp_path: Path) -> None:
    options = GrammarOptions(depths="1", per_depth=2, suite=False)
    evaluate([saved], tmp_path / "out", benchmark="grammar", grammar=options)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["instances"] == 4
    assert summarize_grammar(OutcomeStore.load(tmp_path / "out" / "outcomes.safetensors")) == summary
    assert (tmp_path / "out" / "table.md").read_text().startswith("| strings |")
    with pytest.raises(FileExistsError):
        evaluate([saved], tmp_path / "out", benchmark="grammar", grammar=options)


def test_graph_model_is_refused(tmp_path: Path) -> None:
    from test_checkpoint import NETWORK

    checkpoint.save(tmp_path / "graph", checkpoint.build_network(NETWORK), NETWORK)
    with pytest.raises(ValueError, match="26 labels are not the moves of a grammar machine"):
        evaluate_grammar(checkpoint.load(tmp_path / "graph"), GrammarOptions())


def test_a_model_of_several_tasks_is_told_which_machine(tmp_path: Path) -> None:
    """It has more labels than moves, in an order of its own: read as moves, what is none is its own number."""
    from test_checkpoint import NETWORK

    texts = ["Q", "C", "F", "A", "B", "E", "D", "Z"]
    recurrence = {"class_path": "loopformer.recurrence.FixedPrompt", "init_args": {"view": "executor"}}
    changes = {"labels": [f" {text}" for text in texts], "recurrence": recurrence, "halting": None}
    config = {**NETWORK, "init_args": {**NETWORK["init_args"], **changes}}
    checkpoint.save(tmp_path / "several", checkpoint.build_network(config), config)
    model = checkpoint.load(tmp_path / "several")
    options = {"depths": "1,2", "per_depth": 4, "suite": False, "slack": 0}
    with pytest.raises(ValueError, match=r"say which with --grammar\.machine, brackets"):
        evaluate_grammar(model, GrammarOptions(**options))
    with pytest.raises(ValueError, match=r"8 labels are not the moves of search; say which .* brackets$"):
        evaluate_grammar(model, GrammarOptions(machine="search", **options))
    with pytest.raises(ValueError, match=r"grammar\.machine: 'stack' is unknown; use trained, brackets or search"):
        GrammarOptions(machine="stack")
    store = evaluate_grammar(model, GrammarOptions(machine="brackets", **options))
    assert store.metadata.labels == (*MOVE_NAMES, "none")
    batcher = ProcedureBatcher(TASK, TOKENIZER)
    read = {}
    for row, string in enumerate(BracketDepths([1, 2], 4, 11).instances()):
        batch = batcher.batch([string])
        n = int(batch.steps)
        said = model.network.rollout(batch, n).letter_logits.argmax(-1)[0].tolist()
        moves = ["ABCDEF".index(texts[k]) if texts[k] in "ABCDEF" else len(MOVE_NAMES) for k in said]
        assert store.letters[row, :n].tolist() == moves
        assert store.reference[row, :n].tolist() == batch.labels[0].tolist()
        read |= dict.fromkeys(said)
    assert len(read) > 1
    json.dumps(summarize_grammar(store), allow_nan=False)


SEARCH = SearchTask()


def test_search_moves_and_fields_by_hand() -> None:
    puzzle = Recipe("cue_free", "nesting", 1, accept=True, backwards=False).puzzle("bacde")
    assert SEARCH.prompt(puzzle, "executor") == "Rules: A s> b s a; B s> c.\nString: b c a.\nMove:"
    moves = [SEARCH.labels.names[move] for move in SEARCH.states(puzzle)]
    assert moves == ["TRY p0", "TRY p0", "PRN pref", "BT", "TRY p1", "ACC"]
    fields = SEARCH.field_states(puzzle)
    assert fields["left"] == [1, 2, 3, 2, 2, 4, UNDEFINED]
    assert fields["right"] == [4, 3, 2, 3, 3, 4, UNDEFINED]
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


def test_search_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"families: got \['loops'\]"):
        SearchStream(["loops"])
    with pytest.raises(ValueError, match="at most 1 moves"):
        SearchStream(stages=[SearchStage(1)])
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


def test_local_and_global_layers_of_the_search_recipe() -> None:
    overlay = yaml.safe_load((ROOT / "configs/recipe/local_global.yaml").read_text())
    init = overlay["model"]["init_args"]["network"]["init_args"]
    reach, split = init["recurrence"]["init_args"]["recurrent"], init["backbone"]["init_args"]["split"]
    assert len(reach) == split["recurrent"]
    assert sum(split.values()) == init["backbone"]["init_args"]["config"]["num_hidden_layers"]
