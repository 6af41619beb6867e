"""Training text of the grammar task: pool, arms, datamodules, and runs of every configuration."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from datamodules.grammar import GrammarDataModule
from datamodules.grammar_sources import BracketDepths, BracketStream, SearchRuns, SearchStream
from datamodules.grammar_text import BracketPool, BracketStrings, GrammarTextDataModule, SearchPool
from datamodules.procedure_text import ProcedureTextDataModule
from datamodules.tasks.grammar.arms import ARMS, EVALUATED, LETTER_TASKS, TrainedLanes, chosen_states, examples
from datamodules.tasks.grammar.balanced import balanced_suite
from datamodules.tasks.grammar.brackets import TRAINING_ALPHABET
from datamodules.tasks.grammar.grammar import Grammar
from datamodules.tasks.grammar.lane_items import search_item
from datamodules.tasks.grammar.lane_scores import score_moves, score_reply
from datamodules.tasks.grammar.lane_suites import SEARCH_SUITES, suite_items
from datamodules.tasks.grammar.lanes import JsonNotation, Prompt
from datamodules.tasks.grammar.moves import count_kinds
from datamodules.tasks.grammar.pool import FAMILIES, training_pool
from datamodules.tasks.grammar.puzzle import Puzzle
from datamodules.tasks.grammar.recogniser import recognises
from datamodules.tasks.grammar.shapes import shape_of, split_of
from loopformer import language_checkpoint
from loopformer.backbone import ScratchBackbone
from loopformer.cli import LoopformerCLI
from loopformer.evaluation.grammar_questions import GrammarOptions
from loopformer.evaluation.lane_benchmark import find_asked
from loopformer.language_model import LanguageModel
from loopformer.tokenizer import tiny_tokenizer, tiny_words

ROOT = Path(__file__).resolve().parents[1]
POOL = training_pool("train", 9)
TOKENIZER = tiny_tokenizer(tiny_words(["moves"]))


def renamed(puzzle: Puzzle) -> str:
    """Grammar and string with every symbol called by its first place, so that letters do not matter."""
    names: dict[str, str] = {}

    def name(symbol: str) -> str:
        kind = "N" if symbol in puzzle.grammar.nonterminals else "t"
        return names.setdefault(symbol, f"{kind}{len(names)}")

    rules = [[name(p.lhs), [name(s) for s in p.rhs]] for p in puzzle.grammar.productions]
    return json.dumps([name(puzzle.grammar.start), rules, [name(s) for s in puzzle.string]])


def test_pool_is_made_of_contrast_pairs() -> None:
    assert Counter(puzzle.family for puzzle in POOL) == dict.fromkeys(FAMILIES, 6)
    assert len({puzzle.name for puzzle in POOL}) == len({renamed(puzzle) for puzzle in POOL}) == 18
    for yes, no in zip(POOL[::2], POOL[1::2], strict=True):
        assert (yes.accept, no.accept, yes.pair, yes.grammar) == (True, False, no.pair, no.grammar)
        assert Counter(yes.string) == Counter(no.string)
        lengths = [len(puzzle.run().moves) for puzzle in (yes, no)]
        assert abs(lengths[0] - lengths[1]) <= max(3, lengths[0] // 10)
        for puzzle in (yes, no):
            assert recognises(puzzle.grammar, puzzle.string) == puzzle.accept
    for family in ("regular", "nested"):
        for puzzle in POOL:
            if puzzle.family == family:
                first = {p.lhs: index for index, p in reversed(list(enumerate(puzzle.grammar.productions)))}
                endless = [i for i, p in enumerate(puzzle.grammar.productions) if "E" in p.rhs and p.lhs != "E"]
                assert all(
                    all("E" in puzzle.grammar.productions[j].rhs for j in range(first[lhs], i))
                    for i in endless
                    for lhs in [puzzle.grammar.productions[i].lhs]
                ), "endless rules stand first"
    assert training_pool("train", 9) == POOL


@pytest.mark.slow
def test_pool_is_long_and_shows_every_move() -> None:
    puzzles = training_pool("train", 90)
    runs = [puzzle.run().moves for puzzle in puzzles]
    assert 110 < np.mean([len(moves) for moves in runs]) < 230
    yes, no = (np.mean([len(moves) for moves in some]) for some in (runs[::2], runs[1::2]))
    assert abs(yes - no) < 3
    kinds = sum((count_kinds(moves) for moves in runs), Counter())
    assert min(kinds[kind] for kind in ("REJ term", "REJ no_prod", "PRN long", "CUT", "ACC")) >= 60
    assert len({shape_of(puzzle.grammar) for puzzle in puzzles}) > 60


def test_pool_has_no_grammar_of_the_published_suites() -> None:
    """Whatever the letters; the slow test below has all suites."""
    evaluated = [item.puzzle for name in ("original", "cue_free", "count_a") for item in suite_items(name)]
    assert not {renamed(p) for p in POOL} & {renamed(p) for p in evaluated}
    assert not {shape_of(p.grammar) for p in POOL} & {shape_of(p.grammar) for p in evaluated}


@pytest.mark.slow
def test_pool_shares_nothing_with_what_is_evaluated() -> None:
    """Neither a puzzle, whatever its letters, nor even the shape of a grammar; nor do train and validation."""
    evaluated = [puzzle for name in SEARCH_SUITES if name != "balanced" for puzzle in SEARCH_SUITES[name]()]
    evaluated += balanced_suite("test", 3)
    validation = training_pool("validation", 3)
    for pool, split in ((POOL, "train"), (validation, "validation")):
        assert not {renamed(p) for p in pool} & {renamed(p) for p in evaluated}
        assert not {shape_of(p.grammar) for p in pool} & {shape_of(p.grammar) for p in evaluated}
        assert {split_of(p.grammar) for p in pool} == {split}
    swapped = POOL[0].grammar.to_json()
    swapped = json.loads(json.dumps(swapped).replace('"a"', '"_"').replace('"b"', '"a"').replace('"_"', '"b"'))
    string = tuple({"a": "b", "b": "a"}.get(s, s) for s in POOL[0].string)
    other = Puzzle("", "", 0, "", Grammar.from_json(swapped), string, POOL[0].limits, True)
    assert renamed(other) == renamed(POOL[0]), "the comparison sees through letters"
    letters = {symbol for item in suite_items("brackets") for symbol in item.puzzle.string}
    assert not letters & set(TRAINING_ALPHABET.symbols)
    trained = {item.puzzle.string for item in BracketPool().items()}
    assert not trained & {item.puzzle.string for item in BracketStrings().items()}


def test_pool_mistakes_are_named() -> None:
    for arguments, field in (
        (("test", 3), "split"),
        (("train", 0), "pairs"),
        (("train", 3, ("loops",)), "families"),
        (("train", 3, ()), "families"),
    ):
        with pytest.raises(ValueError, match=field):
            training_pool(*arguments)


@pytest.mark.parametrize("arm", ARMS)
def test_examples_are_what_the_lanes_ask(arm: str) -> None:
    items = [search_item(puzzle, "train") for puzzle in POOL[:4]]
    found = examples(items, arm, listing=False, moves=5)
    sizes = {"answers": 4, "moves": 20, "runs": 4, "mixed": 28}
    assert len(found) == sizes[arm]
    asked = JsonNotation()
    lane = EVALUATED[arm]
    prompts = {example.prompt: example.completion for example in found}
    for item in items:
        if lane == "gym":
            right = [prompts.get(asked.ask(item, lane, False, state)) for state in item.states()]
            assert score_moves(item, "states", right).right >= 5
        else:
            text = prompts[asked.ask(item, lane, False)]
            assert score_reply(item, lane, asked, Prompt(""), text, True).error is None
    for machine in ("search", "brackets"):
        told = TrainedLanes(arm, False, machine)
        assert TrainedLanes.parse(told.text) == told
    assert TrainedLanes.parse(f"grammar/{arm}/listed") == TrainedLanes(arm, True, "search"), "of an older model"
    for text in (
        f"office/{arm}/listed",
        f"grammar/{arm}",
        f"grammar/{arm}/listed/chess",
        f"grammar/{arm}/listed/search/",
    ):
        assert TrainedLanes.parse(text) is None


def test_single_moves_show_every_kind() -> None:
    for puzzle in POOL:
        item = search_item(puzzle, "train")
        places = chosen_states(item, 12, seed=0)
        assert len(places) == 12
        assert all(a < b for a, b in pairwise(places))
        assert {item.moves[at].kind for at in places} == {move.kind for move in item.moves}
    assert chosen_states(item, 10_000, seed=0) == list(range(len(item.moves)))


def test_batches_hold_prompt_completion_and_end() -> None:
    data = GrammarTextDataModule(TOKENIZER, "mixed", BracketPool(2), BracketStrings([3], 2), moves=2, batch_size=8)
    source, seen = data.train_batches(0, 1), []
    for position in range(len(source)):
        batch = source.batch(0, position)
        for row in range(len(batch)):
            text = data.texts("train")[int(batch.instance[row])]
            ids, real = batch.input_ids[row], int(batch.lengths[row])
            assert TOKENIZER.decode(ids[: real - 1]) == text.prompt + text.completion
            assert TOKENIZER.decode(ids[batch.loss_mask[row]][:-1]) == text.completion
            seen.append(int(batch.instance[row]))
    assert sorted(seen) == list(range(len(data.texts("train"))))
    answers = Counter(text.completion for text in data.texts("train") if "accept" in text.completion)
    assert len(set(answers.values())) == 1, "as many yes as no"
    assert sum(int(batch.generated.sum()) for batch in data.val_dataloader()) == 8
    assert data.style == "grammar/mixed/unlisted/brackets"
    assert data.benchmarks == ("grammar --grammar.puzzles brackets",)
    searched = GrammarTextDataModule(TOKENIZER, "moves", SearchPool(3))
    assert searched.style == "grammar/moves/unlisted/search"
    assert searched.benchmarks == ("grammar --grammar.puzzles cue_free",)
    with pytest.raises(ValueError, match="longest: all"):
        GrammarTextDataModule(TOKENIZER, "runs", BracketPool(1), longest=10).texts("train")


@pytest.mark.parametrize("field", ["moves", "batch_size", "longest", "generated", "seed", "arm"])
def test_bad_options_name_the_field(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        GrammarTextDataModule(TOKENIZER, train=BracketPool(), **{field: "oracle" if field == "arm" else -1})


@pytest.mark.parametrize("stream", [BracketStream(), BracketStream(permuted=True), SearchStream()])
def test_written_runs_are_those_of_the_looped_models_data(stream) -> None:
    """The very same instances, batch by batch; each label is one token, and the end token closes the run."""
    permuted = isinstance(stream, BracketStream) and stream.procedure.permuted
    validation = (
        BracketDepths([2], 2, permuted=permuted) if isinstance(stream, BracketStream) else SearchRuns(longest=9)
    )
    text = ProcedureTextDataModule(TOKENIZER, stream, validation)
    looped = GrammarDataModule(TOKENIZER, stream, validation)
    for position in range(3):
        written = text.train_batches(0, 1).batch(0, position)
        batch = looped.train_batches(0, 1).batch(0, position)
        assert written.steps.tolist() == batch.steps.tolist()
        for row, answer in enumerate(written.answers()):
            labels = batch.labels[row][: int(batch.steps[row])]
            assert answer[:-1] == looped.label_ids[labels].tolist()
            assert answer[-1] == TOKENIZER.eos_token_id
            view = batch.views["executor"]
            prompt = view.input_ids[row, : int(view.lengths[row])].tolist()
            assert written.prompts()[row] == prompt
    assert text.stages == stream.stages
    assert text.style == f"procedure/{stream.procedure.task_name}/steps"
    assert vars(LETTER_TASKS[text.style]).get("permuted") == vars(stream.procedure).get("permuted")
    assert sum(len(batch) for batch in text.val_dataloader()) == len(validation.instances())
    assert text.benchmarks == ("grammar",)
    for style in ("answer", "trace"):
        assert ProcedureTextDataModule(TOKENIZER, stream, validation, style=style).benchmarks == (), "nothing asks it"
    if permuted:
        with pytest.raises(ValueError, match=r"validation\.permuted: got False"):
            ProcedureTextDataModule(TOKENIZER, stream, BracketDepths([2], 2))
    with pytest.raises(ValueError, match="validation: its task is"):
        ProcedureTextDataModule(
            TOKENIZER, stream, SearchRuns(longest=9) if isinstance(stream, BracketStream) else BracketDepths([2], 2)
        )


RUNS = {
    "runs": ["grammar_sft"],
    "answers": ["grammar_sft", "recipe/grammar_sft_answers"],
    "moves": ["grammar_sft", "recipe/grammar_sft_moves"],
    "mixed": ["grammar_sft", "recipe/grammar_sft_mixed"],
    "brackets_from_scratch": ["grammar_sft", "recipe/grammar_sft_brackets"],
    "brackets_written": ["grammar_brackets_written"],
    "search_written": ["grammar_search_written"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_every_configuration_trains_two_steps(name: str, tmp_path: Path) -> None:
    files = [*RUNS[name], "backbone/tiny"]
    files += ["recipe/grammar_sft_from_scratch"] if "written" not in name else []
    given = [word for file in files for word in ("--config", str(ROOT / f"configs/{file}.yaml"))]
    given += ["--trainer.max_steps", "2", "--trainer.limit_val_batches", "0", "--wandb.mode", "disabled"]
    if "grammar_sft" in files[0]:
        pairs = ["--data.init_args.train.init_args.pairs", "3"] if "brackets" not in name else []
        given += [*pairs, "--data.init_args.batch_size", "2"]
    cli = LoopformerCLI([*given, "--output", str(tmp_path / "run")])
    before = {name: p.detach().clone() for name, p in cli.model.network.named_parameters()}
    cli.fit()
    assert cli.trainer.global_step == 2
    assert any(not torch.equal(p, before[name]) for name, p in cli.model.network.named_parameters())
    model = language_checkpoint.load(tmp_path / "run" / "model")
    assert model.provenance["text_style"].startswith("procedure/" if "written" in name else "grammar/")
    if "written" not in name:
        suite = "brackets" if "brackets" in name else "cue_free"
        assert find_asked(model, GrammarOptions()).suites == (suite,)
        card = (tmp_path / "run" / "model" / "README.md").read_text()
        assert f"--benchmark grammar --grammar.puzzles {suite} --output" in card


@pytest.mark.slow
def test_lora_on_a_pretrained_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    backbone = ScratchBackbone(
        {
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "tie_word_embeddings": False,
        }
    )
    language_checkpoint.save(tmp_path / "base", LanguageModel(backbone), {})
    given = ["--config", "configs/grammar_sft.yaml", "--config", "configs/recipe/grammar_sft_brackets.yaml"]
    given += ["--config", "configs/backbone/tiny_pretrained.yaml", "--trainer.max_steps", "2"]
    given += ["--model.init_args.network.init_args.backbone.init_args.model", str(tmp_path / "base")]
    given += ["--trainer.limit_val_batches", "0", "--wandb.mode", "disabled", "--output", str(tmp_path / "run")]
    cli = LoopformerCLI(given)
    trained = [name for name, p in cli.model.network.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora" in name for name in trained)
    cli.fit()
    assert (tmp_path / "run" / "model" / "adapter" / "adapter_model.safetensors").is_file()


def test_moves_are_single_tokens_of_the_tokenizer_from_scratch() -> None:
    for name in ("cue_free", "brackets"):
        for item in suite_items(name)[::7]:
            text = JsonNotation().run(item, item.moves)
            ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
            assert len(ids) == 2 * len(item.moves) + 1
            assert TOKENIZER.decode(ids) == text


def test_pool_of_the_command_line_is_checked_at_once() -> None:
    with pytest.raises(ValueError, match="families"):
        SearchPool(families=["loops"])
    for depth in (-1, 8, 10**9):
        with pytest.raises(ValueError, match=rf"max_depth: got {depth}; use 0 to 7"):
            BracketPool(depth)
    assert {item.accept for item in BracketPool(0).items()} == {True, False}
