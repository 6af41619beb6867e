"""Ordinary language models in the benchmark of written paths, and the commands from training to numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from test_language_model import export
from test_training import ROOT, train
from torch.nn import functional as F

from loopformer import checkpoint, language_checkpoint
from loopformer.evaluation.generated_benchmark import TraceOptions, evaluate_traces
from loopformer.language_model import LanguageModel
from loopformer.tokenizer import load_tokenizer, tiny_tokenizer


@pytest.fixture
def exported(tmp_path: Path) -> tuple[Path, LanguageModel]:
    return export(tmp_path / "model")


def test_evaluation_of_a_folder_equals_that_of_the_model(exported: tuple[Path, LanguageModel], tmp_path: Path) -> None:
    """The numbers of a fresh process, from the folder alone."""
    folder, _ = exported
    options = TraceOptions(counts="1-3", graphs=1, max_new_tokens=12, batch_size=10)
    store, seconds = evaluate_traces(language_checkpoint.load(folder), options, lambda _: None, lambda _: None)
    assert seconds > 0
    run = subprocess.run(
        [
            sys.executable, "evaluate.py", "--checkpoint", str(folder), "--benchmark", "traces", "--output",
            str(tmp_path / "out"), "--traces.counts=1-3", "--traces.graphs=1", "--traces.max_new_tokens=12",
            "--traces.batch_size=7",
        ],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    fresh = type(store).load(tmp_path / "out" / "outcomes.safetensors")
    assert fresh.texts() == store.texts()
    assert fresh.metadata == store.metadata
    assert all(torch.equal(value, fresh.tensors()[name]) for name, value in store.tensors().items())
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["queries"] == 27
    assert summary["style"] == "trace"
    assert (tmp_path / "out" / "table.md").read_text().startswith("| N | queries | last letter % |")


def test_styles_and_options_of_the_benchmark(exported: tuple[Path, LanguageModel]) -> None:
    model = language_checkpoint.load(exported[0])
    options = TraceOptions(style="direct", counts="2", graphs=1)
    store, _ = evaluate_traces(model, options, lambda _: None, lambda _: None)
    assert store.metadata.style == "direct"
    assert store.metadata.max_new_tokens == 8
    assert int(store.tokens.max()) <= 8
    model.config["provenance"] = {}
    with pytest.raises(ValueError, match=r"does not tell how it was trained; choose --traces.style"):
        evaluate_traces(model, TraceOptions(counts="2", graphs=1), lambda _: None, lambda _: None)
    for options, message in (
        ({"style": "x"}, "style"),
        ({"batch_size": 0}, "batch_size"),
        ({"max_new_tokens": 0}, "max"),
    ):
        with pytest.raises(ValueError, match=message):
            TraceOptions(**options)  # type: ignore[arg-type]


def test_without_a_chat_template_a_response_ends_with_its_line(exported: tuple[Path, LanguageModel]) -> None:
    """Worked examples in plain text teach lines, not end tokens; a fine-tuned or chat model gets no such help."""
    model = language_checkpoint.load(exported[0])
    a, newline = model.tokenizer.encode("A\n")
    head = model.lm.lm_head.weight

    def constant(token: int) -> None:
        """Make the model write one token for ever, whatever it reads."""
        with torch.no_grad():
            model.lm.model.norm.weight.zero_()
            head.zero_()
        model.lm.lm_head.bias = torch.nn.Parameter(F.one_hot(torch.tensor(token), head.shape[0]).float())

    def ask(style: str) -> tuple[list[str], list[int]]:
        options = TraceOptions(style=style, counts="1", graphs=1, max_new_tokens=4)
        store, _ = evaluate_traces(model, options, lambda _: None, lambda _: None)
        return store.texts(), store.ended.tolist()

    constant(newline)
    assert ask("steps") == ([""] * 9, [1] * 9)
    assert ask("trace") == (["\n\n\n\n"] * 9, [0] * 9)
    model.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert ask("steps") == (["\n\n\n\n"] * 9, [0] * 9)
    constant(a)
    assert ask("direct") == (["AAAA"] * 9, [0] * 9)


@pytest.mark.slow
def test_commands_from_training_to_numbers(tmp_path: Path) -> None:
    tiny = ("--config", "configs/sft_trace.yaml", "--config", "configs/backbone/tiny.yaml")
    small = (
        "--data.init_args.style=trace", "--data.init_args.validation.init_args.per_depth=2",
        "--trainer.val_check_interval=3", "--trainer.log_every_n_steps=1", "--checkpoint.every_n_train_steps=2",
        "--checkpoint.monitor=null",
    )  # fmt: skip
    whole = train(*tiny, *small, "--trainer.max_steps=6", "--output", str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.output  # type: ignore[attr-defined]
    config = yaml.safe_load((tmp_path / "whole" / "model" / "config.yaml").read_text())
    assert config["provenance"]["text_style"] == "trace"
    assert config["provenance"]["trained_counts"] == [1, 2, 3, 4, 5, 6, 8, 10, 12]
    half = train(*tiny, *small, "--trainer.max_steps=4", "--output", str(tmp_path / "half"))
    assert half.returncode == 0, half.output  # type: ignore[attr-defined]
    (tmp_path / "half" / "model").rename(tmp_path / "half" / "earlier")
    rest = train(*tiny, *small, "--trainer.max_steps=6", "--output", str(tmp_path / "half"), "--resume=true")
    assert rest.returncode == 0, rest.output  # type: ignore[attr-defined]
    models = [language_checkpoint.load(tmp_path / run / "model").lm.state_dict() for run in ("whole", "half")]
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items()), "resumed as uninterrupted"


@pytest.mark.slow
def test_lora_rows_start_from_a_pretrained_tiny_base(tmp_path: Path) -> None:
    first = train(
        "--config", "configs/arch4_executor.yaml", "--config", "configs/backbone/tiny.yaml",
        "--config", "configs/recipe/curriculum.yaml", "--config", "configs/recipe/one_step.yaml",
        "--trainer.max_steps=1", "--trainer.limit_val_batches=0", "--output", str(tmp_path / "one_step"),
    )  # fmt: skip
    assert first.returncode == 0, first.output  # type: ignore[attr-defined]
    base = train(
        "--config", "configs/base_lm.yaml", "--trainer.max_steps=3", "--trainer.limit_val_batches=0",
        f"--model.init_args.initial.init_args.source={tmp_path / 'one_step' / 'model'}",
        "--output", str(tmp_path / "base"),
    )  # fmt: skip
    assert base.returncode == 0, base.output  # type: ignore[attr-defined]
    folder = tmp_path / "base" / "model"
    assert load_tokenizer(str(folder)).encode(" K") == tiny_tokenizer().encode(" K")
    run = train(
        "--config", "configs/arch3a.yaml", "--config", "configs/backbone/tiny_pretrained.yaml",
        f"--model.init_args.network.init_args.backbone.init_args.model={folder}", "--trainer.max_steps=2",
        "--data.init_args.validation.init_args.per_depth=1", "--output", str(tmp_path / "lora"),
    )  # fmt: skip
    assert run.returncode == 0, run.output  # type: ignore[attr-defined]
    loaded = checkpoint.load(tmp_path / "lora" / "model")
    assert loaded.config["base"]["model"] == str(folder)
    assert (tmp_path / "lora" / "model" / "adapter").is_dir()
    missing = train("--config", "configs/arch3a.yaml", "--config", "configs/backbone/tiny_pretrained.yaml",
                    "--model.init_args.network.init_args.backbone.init_args.model=./nowhere",
                    "--output", str(tmp_path / "no"))  # fmt: skip
    assert missing.returncode == 2
    assert "backbone.model: ./nowhere is not a folder" in missing.output  # type: ignore[attr-defined]
