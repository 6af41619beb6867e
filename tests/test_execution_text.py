"""Execution traces as training text, a short training, and the evaluation of what a model writes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_checkpoint import NETWORK

import evaluate
from datamodules.execution_text import ExecutionTextDataModule
from datamodules.tasks.traces.client import Tracer
from datamodules.tasks.traces.long_runs import LONG_RUNS
from datamodules.tasks.traces.outcome import LEVELS
from datamodules.tasks.traces.renderings import CompactScratchpad, DynamicScratchpad, OutputOnly, Scratchpad, TraceStyle
from datamodules.tasks.traces.scoring import Answer
from datamodules.tasks.traces.sources import GeneratedPrograms, JoinedPrograms, LongPrograms, PublishedPrograms
from loopformer import language_checkpoint
from loopformer.backbone import ScratchBackbone
from loopformer.evaluation import execution, writer
from loopformer.evaluation.bootstrap import wilson
from loopformer.evaluation.execution_summary import summarize_traces
from loopformer.generation import Response
from loopformer.language_model import LanguageModel
from loopformer.tokenizer import tiny_tokenizer

ROOT = Path(__file__).parents[1]

TINY = tiny_tokenizer()


def module(**options) -> ExecutionTextDataModule:
    given = {
        "train": GeneratedPrograms(12, seed=0),
        "validation": GeneratedPrograms(5, seed=1),
        "batch_size": 4,
        "longest": 4_000,
    }
    return ExecutionTextDataModule(TINY, **(given | options))


def decoded(batch) -> list[str]:
    return [TINY.decode(row[:n].tolist()) for row, n in zip(batch.input_ids, batch.lengths, strict=True)]


@pytest.mark.parametrize("rendering", [OutputOnly(), Scratchpad(), CompactScratchpad(2), DynamicScratchpad()])
def test_batches_hold_the_rendered_traces(rendering):
    data = module(rendering=rendering)
    texts = data.texts("train")
    written = {f"{example.prompt}{example.completion}<end>" for example in texts.examples}
    seen = [text for batch in data.train_dataloader() for text in decoded(batch)]
    assert len(seen) == len(texts.examples)
    assert set(seen) == written
    if isinstance(rendering, DynamicScratchpad):
        assert len(texts.examples) > 3 * 12
    else:
        assert len(texts.examples) == 12 - len(texts.refused)


def test_only_the_completion_counts():
    batch = next(iter(module().train_dataloader()))
    for row in range(len(batch)):
        target = TINY.decode(batch.input_ids[row][batch.loss_mask[row]].tolist())
        assert target.endswith("<end>")
        assert "Result: " in target
        assert "def f" not in target


def test_validation_marks_what_is_generated():
    data = module(generated=2)
    batches = list(data.val_dataloader())
    assert sum(int(batch.generated.sum()) for batch in batches) == 2
    assert torch.cat([batch.instance for batch in batches]).tolist() == list(range(5))
    assert int(batches[0].steps[0]) == data.texts("validation").steps[0]


def test_long_examples_are_left_out_by_name(caplog):
    data = module(train=LongPrograms([5, 500], ["nested_loops"]), longest=2_000)
    texts = data.texts("train")
    assert len(texts.examples) == 1
    assert [one.name for one in texts.refused] == ["nested_loops_500_0"]
    assert "1 of its examples are longer than 2000 tokens" in caplog.text
    with pytest.raises(ValueError, match="none of 2 programs gave an example; the first: nested_loops_5_0"):
        module(train=LongPrograms([5, 500], ["nested_loops"]), longest=10).texts("train")


def test_two_processes_share_the_work():
    data = module()
    whole = [row for batch in data.train_dataloader() for row in batch.instance.tolist()]
    parts = [data.train_batches(rank, 2) for rank in range(2)]
    assert len(parts[0]) == len(parts[1])
    found = [row for part in parts for n in range(len(part)) for row in part.batch(0, n).instance.tolist()]
    assert set(found) == set(whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size: got 0"),
        ({"longest": 1}, "longest: got 1"),
        ({"generated": -1}, "generated: got -1"),
        ({"seed": -1}, "seed: got -1"),
        ({"level": "word"}, "level: got 'word'"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        module(**options)


def test_sources(tmp_path):
    row = {"code": "def f(a):\n    return a", "input": "1", "output": "1", "id": "sample_0"}
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps(row | {"id": f"sample_{n}"}) for n in range(5)))
    published = PublishedPrograms("cruxeval", str(tmp_path / "c.jsonl"), first=3)
    long = LongPrograms([10, 100], per_length=2)
    joined = JoinedPrograms([published, long, GeneratedPrograms(2)])
    names = [one.name for one in joined.programs()]
    assert names[:3] == ["sample_0", "sample_1", "sample_2"]
    assert names[-2:] == ["generated_0_0", "generated_0_1"]
    assert 6 < len(names) - 5 <= 4 * len(LONG_RUNS)
    for wrong, message in (
        (lambda: GeneratedPrograms(0), "count: got 0"),
        (lambda: GeneratedPrograms(1, features=["goto"]), "features: 'goto'"),
        (lambda: LongPrograms([]), "steps: got"),
        (lambda: LongPrograms([5], ["x"]), "family: got 'x'"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rendering", [OutputOnly(), Scratchpad(), CompactScratchpad(3), DynamicScratchpad(2)])
def test_a_style_is_one_word(rendering, level):
    word = module(rendering=rendering, level=level).style
    assert word == f"traces/{type(rendering).__name__}/{rendering.steps}/{level}"
    found = TraceStyle.parse(word)
    assert found is not None
    assert (type(found.rendering), found.rendering.steps, found.level) == (type(rendering), rendering.steps, level)


@pytest.mark.parametrize(
    "word",
    [
        None,
        "trace",
        "machine/fsm/MachineScratchpad",
        "traces/Scratchpad/0/line",
        "traces/Scratchpad/x/line",
        "traces/Scratchpad/1/word",
        "traces/Rendering/1/line",
    ],
)
def test_other_words_are_no_style(word):
    assert TraceStyle.parse(word) is None


# Evaluation


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("lm") / "model"
    config = NETWORK["init_args"]["backbone"]["init_args"]["config"]
    language_checkpoint.save(folder, LanguageModel(ScratchBackbone(config)), {})
    return folder


def options(**given) -> execution.ExecutionOptions:
    return execution.ExecutionOptions(
        **({"programs": GeneratedPrograms(6, seed=2), "edges": [1, 10], "batch_size": 4} | given)
    )


def styled(checkpoint: Path, word: str | None) -> language_checkpoint.LanguageCheckpoint:
    """The model, as if it had been trained in this style."""
    found = language_checkpoint.load(checkpoint)
    found.config["provenance"] = {} if word is None else {"text_style": word}
    return found


@pytest.mark.parametrize(
    ("word", "given", "style"),
    [
        (None, {}, "traces/CompactScratchpad/1/line"),
        ("office/stack/listed", {}, "traces/CompactScratchpad/1/line"),
        ("traces/DynamicScratchpad/2/instruction", {}, "traces/DynamicScratchpad/2/instruction"),
        ("traces/DynamicScratchpad/2/line", {"level": "instruction"}, "traces/DynamicScratchpad/2/instruction"),
        ("traces/Scratchpad/2/instruction", {"rendering": OutputOnly()}, "traces/OutputOnly/1/instruction"),
        ("traces/Scratchpad/2/instruction", {"rendering": Scratchpad(), "level": "line"}, "traces/Scratchpad/1/line"),
    ],
)
def test_a_model_is_asked_as_it_was_trained(word, given, style, checkpoint):
    assert execution.find_style(styled(checkpoint, word), options(**given)).text == style


def test_single_steps_need_the_dynamic_scratchpad(checkpoint):
    asked = options(true_states=True)
    assert execution.find_style(styled(checkpoint, "traces/DynamicScratchpad/1/line"), asked).text
    with pytest.raises(ValueError, match="true_states: only the dynamic"):
        execution.evaluate_execution(styled(checkpoint, None), asked)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"edges": [5, 3]}, r"edges: got \[5, 3\]; give ascending lengths"),
        ({"edges": []}, "edges: got"),
        ({"edges": [-1, 3]}, "edges: got"),
        ({"max_new_tokens": 0}, "max_new_tokens: got 0"),
        ({"calls": 0}, "calls: got 0"),
    ],
)
def test_evaluation_options_are_checked_at_once(given, message):
    with pytest.raises(ValueError, match=message):
        options(**given)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("programs.count=2", "program.traces.programs: name a class before its options, as --program.traces.programs"),
        ("rendering.steps=0", "use one of CompactScratchpad, DynamicScratchpad, OutputOnly, Scratchpad"),
    ],
)
def test_an_option_without_its_class_is_told_the_classes(option, message, capsys):
    given = ["--checkpoint", "x", "--output", "y", "--benchmark", "program", f"--program.traces.{option}"]
    with pytest.raises(SystemExit):
        evaluate.main(given)
    assert message in capsys.readouterr().err


def teach(monkeypatch, rendering, level, spoil=lambda text: text) -> None:
    """Stand in for the model: it knows every prompt's right completion."""
    data = module(rendering=rendering, level=level, train=GeneratedPrograms(6, seed=2), longest=10**7)
    table = {example.prompt: example.completion for example in data.texts("train").examples}

    def generate(_lm, prompts, _budget, _ends):
        texts = [spoil(table.get(TINY.decode(ids), "lost")) for ids in prompts]
        return [Response(TINY(text, add_special_tokens=False)["input_ids"], True, len(text)) for text in texts]

    monkeypatch.setattr(writer, "generate_greedy", generate)


def spoiled(text: str) -> str:
    return text.replace("Result: ", "Result: [").replace("f(", "f (", 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("true_states", [False, True])
@pytest.mark.parametrize("rendering", [OutputOnly(), Scratchpad(), CompactScratchpad(3), DynamicScratchpad(2)])
def test_a_perfect_model_has_perfect_scores(rendering, true_states, level, checkpoint, monkeypatch):
    if true_states and not isinstance(rendering, DynamicScratchpad):
        with pytest.raises(ValueError, match="true_states: only the dynamic"):
            options(rendering=rendering, true_states=true_states)
        return
    teach(monkeypatch, rendering, level)
    model = language_checkpoint.load(checkpoint)
    asked = options(rendering=rendering, true_states=true_states, level=level)
    summary = execution.evaluate_execution(model, asked).summary
    assert summary["all"]["count"] == 6
    assert summary["all"]["accuracy"] == 1.0
    assert sum(row["count"] for row in summary["by_run_length"]) == 6
    if isinstance(rendering, OutputOnly):
        assert "state_accuracy" not in summary["all"]
    else:
        assert summary["all"]["state_accuracy"] == 1.0
    wrong = summary["all"]["tokens"]
    teach(monkeypatch, rendering, level, spoil=spoiled)
    summary = execution.evaluate_execution(model, asked).summary
    if not isinstance(rendering, OutputOnly):
        assert summary["all"]["accuracy"] == 0.0
        assert summary["all"]["state_accuracy"] < 1.0
        assert summary["all"]["tokens"] != wrong


def test_refusals_are_in_the_summary(checkpoint, monkeypatch, tmp_path):
    rows = [
        {"code": "def f(a):\n    return a", "input": "1", "output": "1", "id": "fine"},
        {"code": "def f(a):\n    return a", "input": "1", "output": "2", "id": "wrong"},
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def generate(_lm, prompts, *_):
        return [Response(TINY(" 1")["input_ids"], True, 2)] * len(prompts)

    monkeypatch.setattr(writer, "generate_greedy", generate)
    asked = options(programs=PublishedPrograms(source=str(tmp_path / "c.jsonl")), rendering=OutputOnly())
    summary = execution.evaluate_execution(language_checkpoint.load(checkpoint), asked).summary
    low, high = summary["all"].pop("intervals")["accuracy"]
    assert (0 < low < 0.5, high) == (True, 1.0)
    assert summary["all"] == {"low": 0, "high": 1, "count": 1, "steps": 1.0, "accuracy": 1.0, "tokens": 2.0}
    told = {"collection": "cruxeval", "source": str(tmp_path / "c.jsonl"), "split": "test", "first": None}
    assert summary["programs"] == {"class_path": "PublishedPrograms", "init_args": told}
    assert summary["refused"] == [{"name": "wrong", "reason": "it returned 1, recorded is 2"}]


@pytest.mark.parametrize("rendering", [CompactScratchpad(), DynamicScratchpad(3)])
def test_what_was_written_is_kept(rendering, checkpoint, monkeypatch, tmp_path):
    teach(monkeypatch, rendering, "line", spoil=lambda text: text.replace("Result: ", "Result: ["))
    model = styled(checkpoint, TraceStyle(rendering, "line").text)
    model.config["provenance"]["trained_counts"] = [2, 5]
    execution.run_execution(model, options(), tmp_path, "a model", overwrite=False)
    summary = json.loads((tmp_path / "summary.json").read_text())
    outputs, scores = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("outputs.jsonl", "scores.jsonl")
    )
    assert (summary["name"], summary["trained_steps"]) == ("a model", [2, 5])
    assert set(summary["digests"]) == {"model", "items"}
    assert summary["programs"]["init_args"]["seed"] == 2
    items = [f"generated_2_{number}" for number in range(6)]
    assert [row["item"] for row in outputs] == [row["item"] for row in scores] == items
    with Tracer() as tracer:
        for program, output, score in zip(GeneratedPrograms(6, seed=2).programs(), outputs, scores, strict=True):
            trace = tracer.trace(program.source, program.call, states=True)
            wanted = [one.completion.replace("Result: ", "Result: [") for one in rendering.examples(trace)]
            assert output["output"] == (wanted if isinstance(rendering, DynamicScratchpad) else wanted[0])
            assert output["ended"]
            assert output["new_tokens"] == score["new_tokens"] == sum(map(len, wanted))
            assert (score["steps"], score["correct"]) == (len(trace.events), False)
            assert (score["result"], score["right_states"]) == (trace.result, score["states"])
    table = (tmp_path / "table.md").read_text().splitlines()
    assert table[0] == "| Events | Programs | Result % | States % | Tokens |"
    assert table[-1].startswith("| all | 6 | 0.00 [0.00, ")
    with pytest.raises(FileExistsError, match="holds results already"):
        execution.run_execution(model, options(), tmp_path, "a model", overwrite=False)


def test_run_lengths_of_another_training_are_not_told(checkpoint):
    for word in (None, "trace", "traces/OutputOnly/1/instruction"):
        model = styled(checkpoint, word)
        model.config["provenance"]["trained_counts"] = [1, 2]
        asked = options(programs=LongPrograms([5], ["nested_loops"]), rendering=OutputOnly(), level="line")
        summary = execution.evaluate_execution(model, replace(asked, max_new_tokens=1)).summary
        assert (summary["trained_style"], summary["trained_steps"]) == (word, [])


def test_the_digest_is_that_of_the_items(checkpoint):
    style = TraceStyle(OutputOnly(), "line")
    first, second = (
        execution.items_digest(execution.trace_programs(options(programs=GeneratedPrograms(3, seed=seed)), style)[0])
        for seed in (2, 3)
    )
    again, _ = execution.trace_programs(options(programs=GeneratedPrograms(3, seed=2)), style)
    assert execution.items_digest(again) == first != second


def test_summary_by_run_length():
    answers = [Answer(3, True, 10, 4, 4), Answer(9, False, 30, 4, 1), Answer(10, True, 50), Answer(500, False, 70)]
    found = summarize_traces(answers, [1, 10, 100, 1_000])
    rows = found["by_run_length"]
    assert [(row["low"], row["high"], row["count"], row["accuracy"], row["tokens"], row["steps"]) for row in rows] == [
        (1, 9, 2, 0.5, 20.0, 6.0),
        (10, 99, 1, 1.0, 50.0, 10.0),
        (100, 999, 1, 0.0, 70.0, 500.0),
    ]
    assert rows[0]["state_accuracy"] == 5 / 8
    assert rows[0]["intervals"]["accuracy"] == pytest.approx([float(end) for end in wilson(1, 2)])
    assert rows[0]["intervals"]["state_accuracy"] == pytest.approx([0.25, 1.0])
    assert "state_accuracy" not in rows[1]
    assert summarize_traces(answers, [1])["by_run_length"][0]["high"] == found["all"]["high"] == 500
    with pytest.raises(ValueError, match="edges: got"):
        summarize_traces(answers, [10, 1])


@pytest.mark.slow
def test_train_and_evaluate(tmp_path):
    """The commands of configs/program_traces.yaml, on the tiny backbone, with few programs."""
    run = tmp_path / "run"
    configs = ["--config", "configs/program_traces.yaml", "--config", "configs/backbone/tiny.yaml"]
    train = [sys.executable, "train.py", *configs]
    train += ["--data.init_args.train.init_args.count", "8", "--data.init_args.validation.init_args.count", "3"]
    train += [
        "--data.init_args.rendering",
        "DynamicScratchpad",
        "--data.init_args.generated",
        "1",
        "--trainer.max_epochs",
        "1",
        "--output",
        str(run),
    ]
    subprocess.run(train, cwd=ROOT, check=True, capture_output=True, timeout=280)
    command = [sys.executable, "evaluate.py", "--benchmark", "program", "--program.part", "traces"]
    command += ["--checkpoint", str(run / "model")]
    command += ["--output", str(tmp_path / "out"), "--program.traces.max_new_tokens", "40"]
    command += ["--program.traces.programs", "GeneratedPrograms", "--program.traces.programs.count", "3"]
    command += ["--program.traces.calls", "2"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=280)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["all"]["count"] == 3
    assert summary["rendering"] == "DynamicScratchpad"
    assert 0 < summary["all"]["tokens"] <= 80
