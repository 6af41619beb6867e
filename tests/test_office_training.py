"""Office programs for language models: batches, training, export, and an evaluation that a model can pass."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from datamodules.office import OfficeDataModule
from datamodules.tasks.office.arms import ARMS, FINAL, RESULT, examples, prompt, target
from datamodules.tasks.office.items import FAMILIES
from datamodules.tasks.office.sandbox import PythonSandbox
from datamodules.tasks.office.splits import evaluation, training
from datamodules.text import TextEncoder
from loopformer import language_checkpoint
from loopformer.backbone import ScratchBackbone, Split
from loopformer.cli import LoopformerCLI
from loopformer.evaluation.office_benchmark import OfficeOptions, evaluate_office, find_prompt
from loopformer.evaluation.office_outputs import read_outputs, score_outputs
from loopformer.evaluation.office_summary import summarize
from loopformer.evaluation.program_benchmark import ProgramOptions
from loopformer.language_checkpoint import LanguageCheckpoint
from loopformer.language_model import LanguageModel
from loopformer.tokenizer import tiny_tokenizer

ROOT = Path(__file__).parents[1]
CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
FILES = ("program_office.yaml", "backbone/tiny.yaml", "recipe/office_from_scratch.yaml")
CONFIGS = [word for name in FILES for word in ("--config", str(ROOT / "configs" / name))]


def checkpoint(provenance: dict | None = None) -> LanguageCheckpoint:
    torch.manual_seed(0)
    backbone = ScratchBackbone(CONFIG, split=Split(0, 2, 0))
    return LanguageCheckpoint(backbone.lm.eval(), backbone.tokenizer, {"provenance": provenance or {}}, "tiny")


def memorize(model: LanguageCheckpoint, texts: list, steps: int) -> None:
    """Fit a few examples by heart."""
    batch = TextEncoder(model.tokenizer).batch([[text] for text in texts])
    optimizer = torch.optim.AdamW(model.lm.parameters(), lr=3e-3)
    for _ in range(steps):
        logits = model.lm(batch.input_ids).logits[:, :-1][batch.loss_mask[:, 1:]]
        loss = F.cross_entropy(logits, batch.input_ids[batch.loss_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.lm.requires_grad_(False)


def ignore(done: int) -> None:
    """Progress that nobody watches."""


@pytest.mark.parametrize("arm", ["answer", "stack", "python", "executed_answer"])
def test_batches_hold_prompt_completion_and_end(arm: str) -> None:
    tokenizer = tiny_tokenizer()
    data = OfficeDataModule(tokenizer, arm=arm, listing=False, items=8, batch_size=4, seed=2)
    texts = examples(training(8, 2), ARMS[arm], listing=False)
    source = data.train_batches(0, 1)
    seen = []
    for position in range(len(source)):
        batch = source.batch(0, position)
        for row in range(len(batch)):
            ids, real = batch.input_ids[row], int(batch.lengths[row])
            text = texts[int(batch.instance[row])]
            assert tokenizer.decode(ids[: real - 1]) == text.prompt + text.completion
            assert int(ids[real - 1]) == tokenizer.eos_token_id
            assert tokenizer.decode(ids[batch.loss_mask[row]][:-1]) == text.completion
            seen.append(int(batch.instance[row]))
    assert sorted(seen) == list(range(len(texts)))


def test_ranks_share_the_examples() -> None:
    data = OfficeDataModule(tiny_tokenizer(), listing=False, items=16, batch_size=2)
    whole = OfficeDataModule(tiny_tokenizer(), listing=False, items=16, batch_size=4)
    for position in range(4):
        parts = [data.train_batches(rank, 2).batch(1, position).instance.tolist() for rank in range(2)]
        assert sorted(parts[0] + parts[1]) == sorted(whole.train_batches(0, 1).batch(1, position).instance.tolist())


def test_nothing_of_an_evaluation_prompt_is_trained_or_validated() -> None:
    data = OfficeDataModule(tiny_tokenizer(), items=2_000, wordings=["standard", "notes", "mail"])
    asked = {
        prompt(item, ARMS["stack"])
        for split in ("in-distribution", "shift", "composition")
        for item in evaluation(split)
    }
    assert not asked & {text.prompt for text in (*data.train_texts, *data.validation_texts)}
    assert not {t.prompt for t in data.train_texts} & {t.prompt for t in data.validation_texts}


def test_validation_marks_what_is_generated() -> None:
    data = OfficeDataModule(tiny_tokenizer(), items=4, validation_per_family=2, validation_batch_size=3, generated=5)
    batches = list(data.val_dataloader())
    assert [len(batch) for batch in batches] == [3, 3, 2]
    assert torch.cat([batch.generated for batch in batches]).tolist() == [True] * 5 + [False] * 3


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"arm": "oracle"}, "arm"),
        ({"arm": "few_shot_stack"}, "arm"),
        ({"items": 0}, "count"),
        ({"batch_size": 0}, "batch_size"),
        ({"seed": -1}, "seed"),
        ({"generated": -1}, "generated"),
        ({"wordings": []}, "wordings"),
        ({"validation_per_family": 0}, "per_family"),
    ],
)
def test_bad_options_name_the_field(options: dict, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        OfficeDataModule(tiny_tokenizer(), **options)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"arm": "oracle"}, "arm"),
        ({"splits": "train"}, "splits"),
        ({"splits": ""}, "splits"),
        ({"splits": "shift,shift"}, "splits: shift is given twice"),
        ({"batch_size": 0}, "batch_size"),
        ({"per_family": 0}, "per_family"),
    ],
)
def test_bad_evaluation_options_name_the_field(options: dict, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        OfficeOptions(**options)
    with pytest.raises(ValueError, match="part"):
        ProgramOptions(part="chess")


def test_the_trained_arm_is_asked_as_it_was_trained() -> None:
    trained = checkpoint({"text_style": "office/python/unlisted"})
    assert vars(find_prompt(trained, OfficeOptions())) == {"arm": "python", "listing": False}
    assert vars(find_prompt(trained, OfficeOptions(arm="stack", listing=True))) == {"arm": "stack", "listing": True}
    assert vars(find_prompt(checkpoint(), OfficeOptions(arm="stack"))) == {"arm": "stack", "listing": True}
    with pytest.raises(ValueError, match=r"program\.office\.arm"):
        find_prompt(checkpoint(), OfficeOptions())


def test_an_untrained_model_is_scored(tmp_path: Path) -> None:
    """Whatever random weights write; two calls for an arm that has two, and the second shows what the first came to."""
    for name in ("zero_shot_answer", "few_shot_python", "executed_answer"):
        options = OfficeOptions(
            arm=name, splits="composition", per_family=1, max_new_tokens=12, listing=False, batch_size=3
        )
        calls = []
        summary = evaluate_office(checkpoint(), options, tmp_path / name, calls.append, calls.append)
        turns = ARMS[name].turns
        assert (calls[0], sum(calls[1:])) == (4 * turns, 4 * turns)
        group = summary["arms"][name]["composition"]["seeds"]["0"]
        assert group["outputs"] == 4
        assert group["primary"]["successes"] == 0
        assert 0 < group["new_tokens"]["largest"] <= 12 * turns
        outputs = list(read_outputs(tmp_path / name / "outputs.jsonl"))
        assert all((one.second is None) == (turns == 1) for one in outputs)


@pytest.mark.parametrize("name", ["stack", pytest.param("executed_answer", marks=pytest.mark.slow)])
def test_a_model_that_knows_the_programs_passes(name: str, tmp_path: Path) -> None:
    arm = ARMS[name]
    items = evaluation("composition")[: len(FAMILIES)]
    model = checkpoint({"text_style": f"office/{name}/unlisted", "seed": 7})
    memorize(model, examples(items, arm, listing=False), steps=150)
    options = OfficeOptions(splits="composition", per_family=1, max_new_tokens=96)
    summary = evaluate_office(model, options, tmp_path / "r", ignore, ignore)
    group = summary["arms"][name]["composition"]["seeds"]["7"]
    for rate in ("primary", "executed", "valid", "provenance"):
        assert group[rate]["share"] == 1.0, rate
    assert group["no_final"]["share"] == (0.0 if arm.executed else 1.0)
    outputs = list(read_outputs(tmp_path / "r" / "outputs.jsonl"))
    assert [one.output for one in outputs] == [target(item, arm) for item in items]
    if arm.executed:
        assert [one.second for one in outputs] == [FINAL + item.answer().text for item in items]
    lengths = [len(model.tokenizer(one.output)["input_ids"]) + 1 for one in outputs]
    if not arm.executed:
        assert [one.new_tokens for one in outputs] == lengths
    with pytest.raises(FileExistsError, match="overwrite"):
        evaluate_office(model, options, tmp_path / "r", ignore, pytest.fail)
    with PythonSandbox() as sandbox:
        again = summarize(score_outputs(outputs, sandbox))
    assert again["arms"] == summary["arms"]
    assert RESULT.strip() not in outputs[0].output


SMALL = {
    "data.init_args.items": 16,
    "data.init_args.batch_size": 4,
    "data.init_args.generated": 2,
    "data.init_args.validation_per_family": 1,
    "trainer.val_check_interval": 4,
    "wandb.mode": "disabled",
}


def small(**more: object) -> list[str]:
    return [f"--{name}={value}" for name, value in {**SMALL, **more}.items()]


@pytest.mark.slow
def test_lora_on_a_pretrained_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The experiment as it is, on a base small enough: an adapter is trained, exported, loaded again and asked."""
    monkeypatch.chdir(ROOT)
    torch.manual_seed(0)
    base = LanguageModel(ScratchBackbone({**CONFIG, "num_hidden_layers": 3}))
    language_checkpoint.save(tmp_path / "base", base, {})
    files = [word for name in (FILES[0], "backbone/tiny_pretrained.yaml") for word in ("--config", f"configs/{name}")]
    model = f"--model.init_args.network.init_args.backbone.init_args.model={tmp_path / 'base'}"
    options = small(**{"data.init_args.listing": "false", "data.init_args.arm": "python"})
    cli = LoopformerCLI([*files, model, *options, "--output", str(tmp_path / "run")])
    trained = [name for name, parameter in cli.model.network.named_parameters() if parameter.requires_grad]
    assert trained
    assert all("lora" in name for name in trained)
    cli.fit()
    assert (tmp_path / "run" / "model" / "adapter" / "adapter_model.safetensors").is_file()
    loaded = language_checkpoint.load(tmp_path / "run" / "model")
    asked = OfficeOptions(splits="shift", per_family=1, max_new_tokens=8)
    summary = evaluate_office(loaded, asked, tmp_path / "r", ignore, ignore)
    assert summary["arms"]["python"]["shift"]["seeds"]["0"]["outputs"] == 4


@pytest.mark.slow
def test_train_and_evaluate_from_the_command_line(tmp_path: Path) -> None:
    options = small(**{"trainer.max_time": "null"})
    cli = LoopformerCLI([*CONFIGS, *options, "--output", str(tmp_path / "run")])
    cli.fit()
    model = tmp_path / "run" / "model"
    assert language_checkpoint.load(model).provenance["text_style"] == "office/stack/unlisted"
    assert "--benchmark program" in (model / "README.md").read_text()
    command = [sys.executable, "evaluate.py", "--checkpoint", str(model), "--benchmark", "program"]
    command += ["--program.part", "office", "--program.office.per_family", "1", "--program.office.max_new_tokens", "8"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "r")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "| stack | shift | 0 | 4 |" in done.stdout
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert (summary["benchmark"], summary["part"], summary["outputs"]) == ("program", "office", 12)
    again = subprocess.run(
        [*command, "--output", str(tmp_path / "r")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert again.returncode == 2
    assert "overwrite" in again.stderr
