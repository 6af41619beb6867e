"""The grammar benchmark of language models: scripted ones with known scores, real ones, killed ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

import evaluate as evaluate_py
from datamodules.tasks.grammar.lane_scores import can_ask, prompts, reference
from datamodules.tasks.grammar.lanes import HISTORY
from loopformer import language_checkpoint
from loopformer.backbone import ScratchBackbone
from loopformer.evaluation.grammar_questions import GrammarOptions
from loopformer.evaluation.lane_benchmark import ask_lanes, find_asked, find_items
from loopformer.evaluation.lane_outputs import score_outputs
from loopformer.evaluation.lane_summary import summarize_lanes
from loopformer.language_checkpoint import LanguageCheckpoint, is_language_model
from loopformer.language_model import LanguageModel
from loopformer.tokenizer import tiny_tokenizer, tiny_words

ROOT = Path(__file__).resolve().parents[1]
CONFIG = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
CHAT = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "<reply{% if enable_thinking %}ing{% endif %}>"
)


class Scripted:
    """A model that writes what a script says, greedy like any other."""

    device, dtype, config = torch.device("cpu"), torch.float32, SimpleNamespace()

    def __init__(self, tokenizer: Any, script: Callable[[str], str]) -> None:
        self.tokenizer, self.script, self.asked = tokenizer, script, []
        self.generation_config = GenerationConfig()

    def generate(self, ids: torch.Tensor, attention_mask: torch.Tensor, generation_config: Any) -> torch.Tensor:
        replies = []
        for row, mask in zip(ids, attention_mask.bool(), strict=True):
            text = self.tokenizer.decode(row[mask])
            self.asked.append(text)
            reply = [*self.tokenizer(self.script(text))["input_ids"], self.tokenizer.eos_token_id]
            replies.append(reply[: generation_config.max_new_tokens])
        longest = max(map(len, replies))
        written = torch.tensor([reply + [self.tokenizer.eos_token_id] * (longest - len(reply)) for reply in replies])
        return torch.cat([ids, written], dim=1)


def scripted(script: Callable[[str], str], style: str | None = None, chat: str | None = None) -> LanguageCheckpoint:
    tokenizer = tiny_tokenizer(tiny_words(["moves"]))
    tokenizer.chat_template = chat
    return LanguageCheckpoint(Scripted(tokenizer, script), tokenizer, {"provenance": {"text_style": style}}, "scripted")


def perfect_script(model: LanguageCheckpoint, options: GrammarOptions, frame: str = "{}") -> dict[str, str]:
    """The right reply to every call of an evaluation."""
    asked = find_asked(model, options)
    known = {}
    for lane in asked.lanes:
        for item in find_items(asked, options):
            able = can_ask(item, lane, asked.notation)
            calls = prompts(item, lane, asked.notation, asked.listing) if able else []
            for at, prompt in enumerate(calls):
                single = lane in ("gym", "states")
                reply = item.moves[at].text() if single else reference(item, lane, asked.notation, prompt)
                known[frame.format(prompt.text) + prompt.begun] = reply
    return known


def evaluate(model: LanguageCheckpoint, options: GrammarOptions, folder: Path | None = None) -> dict[str, Any]:
    outputs, items, _ = ask_lanes(model, options, lambda _: None, lambda _: None, folder)
    return summarize_lanes(score_outputs(outputs, items))


ALL = "answer,written,gym,states,planted"


@pytest.mark.parametrize("chat", [None, CHAT])
def test_a_perfect_model_passes_every_lane(chat: str | None) -> None:
    options = GrammarOptions(lane=ALL, puzzles="brackets", pairs=1, batch_size=50)
    replies: dict[str, str] = {}
    model = scripted(replies.__getitem__, chat=chat)
    replies |= perfect_script(model, options, "{}" if chat is None else "<user>{}<reply>")
    counts: list[int] = []
    outputs, items, asked = ask_lanes(model, options, counts.append, counts.append)
    assert counts[0] == sum(counts[1:])
    assert asked.listing
    summary = summarize_lanes(score_outputs(outputs, items))
    for lane in ALL.split(","):
        for group in summary["lanes"][lane].values():
            assert group["errors"] == {}
            assert group["complete"] == (None if lane == "answer" else 1.0)
            assert group["exact_stop"] == (1.0 if lane in ("written", "planted") else None)
    moves = {item.name: len(item.moves) for item in items}
    gym = [one for one in outputs if one.lane == "gym"]
    assert all(len(one.output) == len(one.ended) == moves[one.item] for one in gym)
    tokens = len(model.tokenizer(gym[0].output)["input_ids"][0])
    assert gym[0].new_tokens == moves[gym[0].item] * (tokens + 1), "each reply with its end token"


def test_known_mistakes_get_their_class_and_index() -> None:
    """Always BT: right wherever BT is; a fixed run; prose behind a template; a thought before the answer."""
    options = GrammarOptions(lane="gym,states", puzzles="original", pairs=1, listing=False)
    summary = evaluate(scripted(lambda _: '{"op": "BT"}'), options)
    gym, states = (summary["lanes"][lane]["original"] for lane in ("gym", "states"))
    assert gym["first_errors"] == {"0": 60}
    assert gym["errors"] == {"wrong_move": 60}
    assert {kind: cell["right"] for kind, cell in states["moves"].items() if cell["right"]} == {"BT": 1.0}
    planted = evaluate(scripted(lambda _: "]"), GrammarOptions(lane="planted", puzzles="brackets", pairs=1))
    group = planted["lanes"]["planted"]["brackets"]
    assert group["first_errors"] == {str(HISTORY): group["n"]}
    assert set(group["errors"]) == {"malformed"}, "a comma, then the bracket"
    prose = evaluate(
        scripted(lambda _: "Let me think.\n\nGrammar"), GrammarOptions(lane="written", pairs=1, listing=False)
    )
    assert prose["lanes"]["written"]["cue_free"]["no"]["errors"] == {"malformed": 30}
    assert prose["lanes"]["written"]["cue_free"]["new_tokens"]["mean"] > 10


def test_without_a_chat_template_a_reply_ends_at_a_blank_line() -> None:
    replies = '{"accept": true}\n\nGrammar: ...'
    options = GrammarOptions(lane="answer", puzzles="original", pairs=1)
    for chat, trained, right in ((None, None, 1.0), (CHAT, None, 0.0), (None, "grammar/answers/listed", 0.0)):
        summary = evaluate(scripted(lambda _: replies, trained, chat), options)
        assert summary["lanes"]["answer"]["original"]["yes"]["answer"] == right
        assert summary["lanes"]["answer"]["original"]["no"]["answer"] == 0.0


def test_a_thought_has_a_budget_of_its_own() -> None:
    options = GrammarOptions(lane="answer", puzzles="original", pairs=1, thinking_tokens=120)
    model = scripted(lambda _: 'S gives a.</think>\n\n{"accept": true}', chat=CHAT)
    group = evaluate(model, options)["lanes"]["answer"]["original"]
    assert group["yes"]["answer"] == 1.0
    assert group["thought_tokens"] == {"mean": 16.0, "largest": 16}
    assert all(text.endswith("<replying>") for text in model.lm.asked)
    endless = evaluate(scripted(lambda _: "hm " * 500, chat=CHAT), options)["lanes"]["answer"]["original"]
    assert endless["errors"] == {"capped_loop": 60}
    assert endless["thought_tokens"] == endless["new_tokens"] == {"mean": 120.0, "largest": 120}


@pytest.mark.parametrize(
    ("reply", "thought", "new", "output", "tokens"),
    [
        ("S S</think> a b", 10, 4, "a b", (13, 10)),
        ("S S</think> a b c d e", 13, 4, "a b c d", (14, 10)),
        ("S S</think> a b", 9, 4, "<think>S S</think", (9, 9)),
        ('{"accept": true}', 9, 60, '{"accept": true}', (16, 0)),
        ('{"accept": true} S S S S S', 15, 4, '<think>{"accept": true}', (15, 15)),
    ],
    ids=["both within", "reply cut", "thought cut", "no thought", "a thought that reads like a reply"],
)
def test_thought_and_reply_are_cut_each_at_its_own_budget(
    reply: str, thought: int, new: int, output: str, tokens: tuple[int, int]
) -> None:
    asked = {"lane": "answer", "puzzles": "original", "pairs": 1, "batch_size": 7}
    options = GrammarOptions(thinking_tokens=thought, max_new_tokens=new, **asked)
    outputs, items, _ = ask_lanes(scripted(lambda _: reply, chat=CHAT), options, lambda _: None, lambda _: None)
    for one, row in zip(outputs, score_outputs(outputs, items), strict=True):
        assert (one.output, (one.new_tokens, one.thought_tokens)) == (output, tokens)
        assert row.score.answer == (output == '{"accept": true}' and row.item.accept)


def test_a_reply_is_cut_at_its_own_budget_whatever_its_batch() -> None:
    options = {"lane": "written", "puzzles": "brackets", "pairs": 1}
    made = []
    for size in (1, 60):
        model = scripted(lambda _: '[{"op": "BT"}, ' * 900)
        outputs, *_ = ask_lanes(model, GrammarOptions(batch_size=size, **options), lambda _: None, lambda _: None)
        made.append([(one.item, one.output, one.new_tokens, one.ended) for one in outputs])
    assert made[0] == made[1]
    assert not any(ended for *_, ended in made[0])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"lane": "think"}, "lane"),
        ({"lane": "answer,"}, "lane"),
        ({"lane": "trained,answer"}, "lane: trained stands alone"),
        ({"lane": []}, "lane"),
        ({"puzzles": ["original", "trained"]}, "puzzles: trained stands alone"),
        ({"puzzles": "mine.json"}, "puzzles: .*some of .*FILE.jsonl"),
        ({"puzzles": "a.jsonl,a.jsonl"}, "puzzles: a.jsonl is given twice"),
        ({"depths": [2, 0]}, "depths"),
        ({"depths": 0}, "depths"),
        ({"depths": []}, "depths"),
        ({"lane": "states,states"}, "lane"),
        ({"puzzles": "original,brackets, original"}, "puzzles"),
        ({"families": "loops"}, "families"),
        ({"families": "recursion,recursion"}, "families"),
        ({"suites": "count_b"}, "suites"),
        ({"suites": "count_a,count_a"}, "suites"),
        ({"depths": "2,0"}, "depths"),
        ({"depths": "two"}, "depths"),
        ({"depths": "4,501"}, "depths"),
        ({"puzzles": "chess"}, "puzzles"),
        ({"pairs": 0}, "pairs"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"thinking_tokens": -1}, "thinking_tokens"),
        ({"lane": "planted", "thinking_tokens": 5}, "thinking_tokens"),
    ],
)
def test_bad_options_name_the_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=rf"grammar\.{field}"):
        GrammarOptions(**options)


def test_lists_say_the_same_as_commas(tmp_path: Path) -> None:
    commas = {"depths": "8,16", "families": "nesting", "suites": "original,count_a", "lane": "answer,gym"}
    lists = {"depths": [8, 16], "families": ["nesting"], "suites": ["original", "count_a"], "lane": ["answer", "gym"]}
    assert GrammarOptions(**commas) == GrammarOptions(**lists)
    file = tmp_path / "options.yaml"
    for depths, text in ((8, "8"), ([8], "8"), ([8, 16], "8,16"), ("8,16", "8,16")):
        file.write_text(json.dumps({"checkpoint": ["x"], "output": "y", "grammar": {**lists, "depths": depths}}))
        parser = evaluate_py._parser("run")
        read = parser.instantiate(parser.parse_args(["--config", str(file)])).grammar
        assert read == GrammarOptions(**{**commas, "depths": text})
        words = f"--checkpoint x --output y --grammar.depths {text} --grammar.lane answer,gym"
        read = parser.instantiate(parser.parse_args(words.split())).grammar
        assert (read.depths, read.lane) == (text, "answer,gym")


def test_how_a_model_is_asked_follows_its_training() -> None:
    untrained = scripted(str)
    with pytest.raises(ValueError, match=r"choose --grammar\.lane"):
        find_asked(untrained, GrammarOptions())
    for arm, lane in (("answers", "answer"), ("moves", "gym"), ("runs", "written"), ("mixed", "written")):
        asked = find_asked(scripted(str, f"grammar/{arm}/unlisted"), GrammarOptions())
        assert (asked.lanes, asked.suites, asked.listing) == ((lane,), ("cue_free",), False)
        for machine, suite in (("search", "cue_free"), ("brackets", "brackets")):
            told = scripted(str, f"grammar/{arm}/unlisted/{machine}")
            assert find_asked(told, GrammarOptions()).suites == (suite,)
            assert find_asked(told, GrammarOptions(puzzles=["count_a", "brackets"])).suites == ("count_a", "brackets")
    assert find_asked(scripted(str, "grammar/runs/unlisted"), GrammarOptions(listing=True)).listing
    assert find_asked(untrained, GrammarOptions(lane="answer,gym")).listing


def saved(folder: Path, style: str | None = None, benchmarks: Sequence[str] = ("grammar",)) -> Path:
    torch.manual_seed(0)
    network = LanguageModel(ScratchBackbone(CONFIG))
    language_checkpoint.save(
        folder, network, {}, {} if style is None else {"text_style": style, "benchmarks": list(benchmarks)}
    )
    return folder


def test_batches_are_kept_and_never_mixed(tmp_path: Path) -> None:
    model = language_checkpoint.load(saved(tmp_path / "m"))
    options = GrammarOptions(lane="answer,gym", puzzles="brackets", listing=False, max_new_tokens=2, batch_size=32)
    whole = ask_lanes(model, options, lambda _: None, lambda _: None, tmp_path / "p")[0]
    stamps = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "p").iterdir()}
    assert len(stamps) > 2
    lost = sorted(stamps)[1]
    (tmp_path / "p" / lost).unlink()
    again = ask_lanes(model, options, lambda _: None, lambda _: None, tmp_path / "p")[0]
    assert again == whole
    changed = [path.name for path in (tmp_path / "p").iterdir() if path.stat().st_mtime_ns != stamps[path.name]]
    assert changed == [lost]
    other = GrammarOptions(lane="answer,gym", puzzles="brackets", listing=False, max_new_tokens=3, batch_size=32)
    more = ask_lanes(model, other, lambda _: None, lambda _: None, tmp_path / "p")[0]
    assert more == ask_lanes(model, other, lambda _: None, lambda _: None)[0], "a longer budget is another batch"
    assert more != whole
    (tmp_path / "p" / lost).write_text("{")
    assert ask_lanes(model, options, lambda _: None, lambda _: None, tmp_path / "p")[0] == whole


def command(model: Path | str, output: Path, *more: str) -> list[str]:
    start = [sys.executable, "evaluate.py", "--checkpoint", str(model), "--benchmark", "grammar"]
    return [*start, "--output", str(output), *more]


SMALL = (
    "--grammar.lane=answer,written,gym,states,planted",
    "--grammar.puzzles=brackets",
    "--grammar.listing=false",
    "--grammar.pairs=1",
    "--grammar.max_new_tokens=2",
)


def call(words: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240)


@pytest.mark.slow
def test_a_real_model_from_the_command_line(tmp_path: Path) -> None:
    model = saved(tmp_path / "m", "grammar/mixed/unlisted")
    assert "--benchmark grammar" in (model / "README.md").read_text()
    done = call(command(model, tmp_path / "r", *SMALL))
    assert done.returncode == 0, done.stderr
    assert "| gym | brackets (14) |" in done.stdout
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert (summary["benchmark"], summary["notation"], summary["listing"]) == ("grammar", "json", False)
    assert list(summary["lanes"]) == ["answer", "written", "gym", "states", "planted"]
    assert not (tmp_path / "r" / "partial").exists()
    again = call(command(model, tmp_path / "r", *SMALL))
    assert again.returncode == 2
    assert "overwrite" in again.stderr
    untold = call(command(saved(tmp_path / "u"), tmp_path / "x"))
    assert untold.returncode == 2
    assert "--grammar.lane" in untold.stderr


@pytest.mark.slow
def test_a_killed_evaluation_ends_with_the_same_files(tmp_path: Path) -> None:
    model = saved(tmp_path / "m")
    options = (*SMALL, "--grammar.batch_size=4")
    process = subprocess.Popen(
        command(model, tmp_path / "killed", *options), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    parts = tmp_path / "killed" / "partial"
    deadline = time.monotonic() + 200
    while len(list(parts.glob("batch_*"))) < 5 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(list(parts.glob("batch_*"))) >= 5
    assert not (tmp_path / "killed" / "summary.json").exists()
    for name in ("killed", "whole"):
        done = call(command(model, tmp_path / name, *options))
        assert done.returncode == 0, done.stderr
    for file in ("outputs.jsonl", "scores.jsonl", "table.md"):
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("killed", "whole")]
    assert {**summaries[0], "name": ""} == {**summaries[1], "name": ""}


def test_which_folders_are_language_models(tmp_path: Path) -> None:
    assert is_language_model(saved(tmp_path / "m"))
    assert is_language_model("Qwen/Qwen2.5-0.5B-Instruct")
    assert not is_language_model("runs/nothing/model")
    assert not is_language_model(ROOT / "checkpoints" / "tiny-executor-timer")
    with pytest.raises(ValueError, match="is not a folder"):
        is_language_model(tmp_path / "nothing")


def test_items_of_every_suite_can_be_asked() -> None:
    model = scripted(str)
    options = GrammarOptions(lane="planted", puzzles="count_a,count_b,bracket_depths,search_runs", pairs=1)
    asked = find_asked(model, options)
    items = find_items(asked, options)
    assert len({item.key for item in items}) == len(items)
    able = [item for item in items if can_ask(item, "planted", asked.notation)]
    assert all(len(prompts(item, "planted", asked.notation, False)) == 4 for item in able)
