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
from datamodules.procedure_text import ProcedureTextDataModule
from datamodules.tasks.grammar.bracket_task import (
    LETTERS,
    MOVE_NAMES,
    SPOILT_BY,
    BracketStage,
    BracketString,
    BracketTask,
    draw_strings,
    growing_depths,
    own_alphabet,
    strings_of,
    wrong_closer,
)
from datamodules.tasks.grammar.brackets import TRAINING_ALPHABET, Alphabet, bracket_suite
from datamodules.tasks.grammar.recogniser import recognises
from datamodules.tasks.procedure import UNDEFINED
from evaluate import evaluate
from loopformer import checkpoint
from loopformer.evaluation.curves import read_curves
from loopformer.evaluation.grammar_benchmark import evaluate_grammar, trained_machine
from loopformer.evaluation.grammar_questions import GrammarOptions, bracket_questions, search_questions
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
    drawn = [string for _ in range(60) for string in draw_strings(TASK, BracketStage(5, 32, junk=3), rng)]
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
    with pytest.raises(ValueError, match=r"grammar\.longest: no run of recursion has at most 1 moves"):
        search_questions(GrammarOptions(families="recursion", longest=1))
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
        assert {name: int(values[row]) for name, values in store.facts.items()} == {**TASK.facts(string), "suite": 0,
            "structure": int(store.facts["structure"][row]),
        }  # fmt: skip


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
    for name in ("answer", "forced_answer", "complete", "exact_stop", "strict"):
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
    assert spoilt["moves_by_answer"]["no"]["REJECT"]["right"] == 1 - 4 / spoilt["moves"]["REJECT"]["n"]
    assert "ACCEPT" not in spoilt["moves_by_answer"]["no"]
    assert all(cell["right"] == 1.0 for cell in spoilt["moves_by_answer"]["yes"].values())
    assert spoilt["answer_by_run"]["answer_wrong_run_wrong"] == 4
    assert spoilt["answer_by_run"]["no"]["answer_wrong_run_wrong"] == 4
    assert spoilt["answer_by_run"]["yes"]["answer_wrong_run_wrong"] == 0
    lengths = sorted(int(store.steps[row]) for row in wrong)
    assert sorted(map(int, spoilt["by_depth"]["2"]["no"]["first_errors"])) == sorted(set(lengths))
    assert spoilt["survival"]["yes"]["survival"][0] == 1.0
    assert "| depth 2, yes | 3 of 4 | 100.0 [43.9, 100.0] | 100.0 [" in grammar_markdown(spoilt)
    assert "| depth 2, no | 3 of 4 | 0.0 [0.0, 56.1] | 0.0 [" in grammar_markdown(spoilt)
    assert "| ACCEPT | 31 | 0 | 100.00 | - |" in grammar_markdown(spoilt)
    json.dumps(spoilt, allow_nan=False)


def test_command_line(saved: Path, tmp_path: Path) -> None:
    options = GrammarOptions(depths="1", per_depth=2, suite=False)
    evaluate([saved], tmp_path / "out", benchmark="grammar", grammar=options)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["instances"] == 4
    assert [(curve.part, curve.points[0][0]) for curve in read_curves([str(tmp_path / "out")])] == [
        ("yes", 1),
        ("no", 1),
    ]
    assert summarize_grammar(OutcomeStore.load(tmp_path / "out" / "outcomes.safetensors")) == summary
    assert (tmp_path / "out" / "table.md").read_text().startswith("| strings |")
    with pytest.raises(FileExistsError):
        evaluate([saved], tmp_path / "out", benchmark="grammar", grammar=options)


def test_graph_model_is_refused(tmp_path: Path) -> None:
    from test_checkpoint import NETWORK

    checkpoint.save(tmp_path / "graph", checkpoint.build_network(NETWORK), NETWORK)
    with pytest.raises(ValueError, match="26 labels are not the moves of a grammar machine"):
        evaluate_grammar(checkpoint.load(tmp_path / "graph"), GrammarOptions())


def test_permuted_alphabets_by_hand() -> None:
    task = BracketTask(permuted=True)
    plain = BracketString(tuple("uvyxx"), ("v",))
    string = own_alphabet(plain, Alphabet("k", "t", "p", "d", "h"))
    assert task.prompt(string, "executor") == "Rules: A k p, B t d, C h.\nString: k t h d d. t\nMove:"
    assert task.states(string) == TASK.states(plain)
    assert task.field_states(string) == TASK.field_states(plain)
    assert task.facts(string) == TASK.facts(plain)
    view = ProcedureBatcher(task, TOKENIZER).batch([string]).views["executor"]
    assert view.cells is not None
    found = TOKENIZER.convert_ids_to_tokens(view.input_ids[0, view.cells[0]].tolist())
    assert found == [":", " k", " t", " h", " d", " d", ".", " t"]


def test_permuted_streams_draw_an_alphabet_for_every_string() -> None:
    stream = BracketStream([BracketStage(1, letters=5), BracketStage(2, letters=8), BracketStage(3)], permuted=True)
    rng = random.Random(0)
    for stage, letters in ((0, 5), (1, 8), (2, 26)):
        drawn = [string for _ in range(8) for string in stream.draw(rng, stage)]
        used = {symbol for string in drawn for symbol in string.alphabet.symbols}  # type: ignore[union-attr]
        assert used == set(LETTERS[:letters])
        assert len({string.alphabet for string in drawn}) > 50
        assert all(set(string.symbols) <= set(string.alphabet.symbols) for string in drawn)  # type: ignore[union-attr]
    assert all(string.alphabet is None for string in BracketStream().draw(rng, 3))
    with pytest.raises(ValueError, match=r"letters must lie between 5 and 26, got 4"):
        BracketStage(1, letters=4)


def test_the_benchmark_asks_the_same_strings_in_alphabets_of_their_own() -> None:
    options = GrammarOptions(depths="2,9", per_depth=4)
    plain, permuted = bracket_questions(options), bracket_questions(options, permuted=True)
    assert permuted.task.permuted  # type: ignore[attr-defined]
    assert len(plain.instances) == len(permuted.instances) == 16 + 46
    for ours, theirs in zip(permuted.instances, plain.instances, strict=True):
        assert permuted.task.states(ours) == plain.task.states(theirs)
        assert permuted.task.facts(ours) == plain.task.facts(theirs)
    assert len({string.alphabet for string in permuted.instances}) == 62


@pytest.mark.parametrize("kind", [GrammarDataModule, ProcedureTextDataModule])
def test_both_sources_have_alphabets_of_their_own_or_neither(kind: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^validation\.permuted: got False, but train\.permuted is True; set .* to True"
    ):
        kind(TOKENIZER, BracketStream(permuted=True), BracketDepths())
    with pytest.raises(ValueError, match=r"^validation\.permuted: got True, but train\.permuted is False"):
        kind(TOKENIZER, BracketStream(), BracketDepths(permuted=True))


@pytest.mark.parametrize("machine", ["brackets", "permuted_brackets", "search"])
def test_a_trained_model_tells_its_machine(machine: str, saved: Path) -> None:
    sources: Any = {
        "brackets": (BracketStream(), BracketDepths()),
        "permuted_brackets": (BracketStream(permuted=True), BracketDepths(permuted=True)),
        "search": (SearchStream(), SearchRuns()),
    }[machine]
    model = checkpoint.load(saved)
    model.config["provenance"] = {"benchmarks": list(GrammarDataModule(TOKENIZER, *sources).benchmarks)}
    assert trained_machine(model) == machine
    model.config["provenance"] = {}
    assert trained_machine(model) == "brackets", "by its labels"


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
    with pytest.raises(ValueError, match=r"8 labels are not the moves of search; say which .* or permuted_brackets$"):
        evaluate_grammar(model, GrammarOptions(machine="search", **options))
    with pytest.raises(
        ValueError, match=r"grammar\.machine: 'stack' is unknown; use trained, brackets or permuted_brackets or search"
    ):
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
