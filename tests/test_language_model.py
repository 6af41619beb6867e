"""Ordinary language models: loss by hand, padding, greedy generation, exports that other libraries load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from peft import PeftModel
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from callbacks.curriculum import Curriculum
from callbacks.generation import GenerationMetrics
from datamodules.graph_evaluation import EvaluationSplit
from datamodules.graph_sources import GraphStream
from datamodules.graph_text import GraphTextBatcher, GraphTextDataModule
from datamodules.tasks.graph_splits import published
from datamodules.tasks.graph_stream import Stage
from datamodules.tasks.graph_text import GraphTexts
from datamodules.tasks.procedure import TextExample
from datamodules.text import TextBatch, TextEncoder
from loopformer import checkpoint, language_checkpoint
from loopformer.adaptation import Everything, LoRA
from loopformer.backbone import PretrainedBackbone, ScratchBackbone, Split
from loopformer.causal_lm import CausalLMModule, answered
from loopformer.checkpoint import CheckpointError
from loopformer.generation import end_token_ids, generate_greedy
from loopformer.language_model import LanguageModel
from loopformer.looped import LoopedTransformer
from loopformer.losses import token_loss
from loopformer.optim import Optimizer
from loopformer.recurrence import FullSequence
from loopformer.tokenizer import tiny_tokenizer

CONFIG: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
}
NETWORK = {
    "class_path": "LanguageModel",
    "init_args": {"backbone": {"class_path": "ScratchBackbone", "init_args": {"config": CONFIG}}},
}
PROVENANCE = {"text_style": "trace", "trained_counts": [1, 2]}


def make_model(seed: int = 0, **config: Any) -> LanguageModel:
    torch.manual_seed(seed)
    return LanguageModel(ScratchBackbone({**CONFIG, **config}), Everything())


def graph_text(counts: int | None = None, size: int = 6, **options: Any) -> TextBatch:
    graphs = published("cyclic", "train")[:size]
    return GraphTextBatcher(tiny_tokenizer(), GraphTexts("trace"), **options).batch(graphs, counts)


def export(folder: Path) -> tuple[Path, LanguageModel]:
    model = make_model(3).eval()
    language_checkpoint.save(folder, model, NETWORK, PROVENANCE, {"val/loss": 0.5})
    return folder, model


@pytest.fixture
def exported(tmp_path: Path) -> tuple[Path, LanguageModel]:
    return export(tmp_path / "model")


@pytest.mark.parametrize("objective", ["response", "all"])
@pytest.mark.parametrize("weighting", ["example", "token"])
def test_loss_by_hand(objective: str, weighting: str) -> None:
    """One example at a time through the stock model, one target at a time."""
    model, batch = make_model(), graph_text(objective=objective)
    found = model.predict(batch.input_ids, batch.loss_mask)
    loss = token_loss(found.logits, batch.input_ids, batch.loss_mask, weighting)
    per_example = []
    for row in range(len(batch)):
        ids = batch.input_ids[row, : batch.lengths[row]]
        logits = model.backbone.lm(ids[None]).logits[0]
        first = 1 if objective == "all" else int(batch.prompt_lengths[row])
        targets = range(first, len(ids))
        per_example.append([F.cross_entropy(logits[t - 1], ids[t]) for t in targets])
    assert len({len(losses) for losses in per_example}) > 1, "weightings must differ here"
    if weighting == "example":
        expected = torch.stack([torch.stack(losses).mean() for losses in per_example]).mean()
    else:
        expected = torch.stack([loss for losses in per_example for loss in losses]).mean()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)


def test_prompt_tokens_get_no_gradient_as_targets() -> None:
    model, batch = make_model(), graph_text()
    found = model.predict(batch.input_ids, batch.loss_mask)
    assert len(found.targets) == int(batch.answer_lengths.sum())
    with pytest.raises(ValueError, match="weighting"):
        token_loss(found.logits, batch.input_ids, batch.loss_mask, "both")


def test_padding_changes_nothing() -> None:
    model, batch = make_model().eval(), graph_text()
    wide = batch.select(torch.arange(len(batch)))
    wide.input_ids = F.pad(batch.input_ids, (0, 7), value=5)
    wide.loss_mask = F.pad(batch.loss_mask, (0, 7))
    narrow, padded = (model.predict(b.input_ids, b.loss_mask) for b in (batch, wide))
    torch.testing.assert_close(narrow.logits, padded.logits, atol=1e-5, rtol=1e-5)
    assert torch.equal(narrow.targets, padded.targets)


def test_answered_wants_every_answer_token() -> None:
    batch = TextEncoder(tiny_tokenizer()).batch([[TextExample("ab", " K Q")], [TextExample("a", " Q")]], "all")
    model = make_model()
    found = model.predict(batch.input_ids, batch.loss_mask)
    logits = F.one_hot(found.targets, found.logits.shape[1]).float()
    perfect = found._replace(logits=logits)
    assert answered(perfect, batch).tolist() == [True, True]
    # Row 0 has targets b, K, Q, end; a wrong prompt token does not matter, a wrong answer token does.
    for target, expected in ((0, [True, True]), (2, [False, True]), (3, [False, True]), (4, [True, False])):
        wrong = logits.clone()
        wrong[target] = wrong[target].roll(1)
        assert answered(perfect._replace(logits=wrong), batch).tolist() == expected, target


def test_generation_equals_greedy_steps_without_a_cache() -> None:
    model = make_model(1).eval()
    prompts = [graph_text(size=3).prompts()[0], [40, 50, 60], [7], *graph_text(3, size=2).prompts()]
    ends = [30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 2]  # many, so that random weights end now and then
    responses = generate_greedy(model.backbone.lm, prompts, 24, ends)
    for prompt, response in zip(prompts, responses, strict=True):
        ids: list[int] = []
        ended = False
        while len(ids) < 24 and not ended:
            token = int(model.backbone.lm(torch.tensor([prompt + ids]), use_cache=False).logits[0, -1].argmax())
            ended = token in ends
            ids += [] if ended else [token]
        assert (response.ids, response.ended, response.tokens) == (ids, ended, len(ids) + ended)
    assert {response.ended for response in responses} == {True, False}, "both ways to stop must occur"


def test_greedy_means_greedy_whatever_the_model_came_with() -> None:
    lm = make_model(1).eval().backbone.lm
    prompts = graph_text(size=4).prompts()
    plain = generate_greedy(lm, prompts, 12, [2])
    own = GenerationConfig(
        repetition_penalty=5.0, do_sample=True, temperature=9.0, min_new_tokens=4, no_repeat_ngram_size=1
    )
    lm.generation_config = own
    assert generate_greedy(lm, prompts, 12, [2]) == plain
    assert lm.generation_config is own
    lm.generation_config.eos_token_id = [7, 9]
    assert end_token_ids(lm, tiny_tokenizer()) == [2, 7, 9]


def test_generation_refuses_nothing_to_do() -> None:
    lm = make_model().backbone.lm
    assert generate_greedy(lm, [], 3, [2]) == []
    with pytest.raises(ValueError, match="max_new_tokens: got 0"):
        generate_greedy(lm, [[5]], 0, [2])
    with pytest.raises(ValueError, match="nothing to continue"):
        generate_greedy(lm, [[5], []], 3, [2])


def test_an_export_is_a_hugging_face_model(exported: tuple[Path, LanguageModel]) -> None:
    folder, model = exported
    batch = graph_text(size=2)
    expected = model.backbone.lm(batch.input_ids).logits
    stock = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert torch.equal(stock(batch.input_ids).logits, expected)
    assert stock.generation_config.eos_token_id == [2]
    loaded = language_checkpoint.load(folder)
    assert torch.equal(loaded.lm(batch.input_ids).logits, expected)
    text = "Rules: ( K, Q) ( B, K)\nStart: K\nSteps: 12\nAnswer: Q<end>"
    for tokenizer in (loaded.tokenizer, PreTrainedTokenizerFast.from_pretrained(folder)):
        ids = tokenizer.encode(text)
        assert ids == tiny_tokenizer().encode(text)
        assert tokenizer.decode(ids) == text
    assert loaded.provenance == PROVENANCE
    card = (folder / "README.md").read_text()
    assert "--benchmark traces" in card
    assert "| val/loss | 0.5 |" in card
    with pytest.raises(FileExistsError):
        language_checkpoint.save(folder, model, NETWORK)


def test_a_looped_model_starts_from_an_exported_base(exported: tuple[Path, LanguageModel]) -> None:
    folder, model = exported
    backbone = PretrainedBackbone(str(folder), split=Split(1, 1, 1), dtype="float32")
    network = LoopedTransformer(backbone, FullSequence(), adaptation=LoRA(rank=2, alpha=4)).eval()
    batch = graph_text(1, size=4)
    view = torch.tensor(batch.prompts())  # of equal length at one count
    start = network.start_from(view, batch.prompt_lengths)
    logits = network.read([start.state], start)[:, 0]
    expected = model.backbone.lm(view).logits[:, -1, network.label_ids]
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-5)
    assert {name.split(".")[4] for name in network.own_tensor_names()} == {"1"}, "adapters of R's layer alone"
    assert backbone.reference == {"model": str(folder), "revision": None}
    with pytest.raises(ValueError, match=r"backbone.model: \./nowhere is not a folder"):
        PretrainedBackbone("./nowhere")


def test_lora_on_a_base_exports_a_peft_adapter(exported: tuple[Path, LanguageModel], tmp_path: Path) -> None:
    base, _ = exported
    backbone = PretrainedBackbone(str(base), split=Split(0, 3, 0), dtype="float32")
    model = LanguageModel(backbone, LoRA(rank=2, alpha=4)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    batch = graph_text(size=2)
    expected = backbone.lm(batch.input_ids).logits
    language_checkpoint.save(tmp_path / "lora", model, NETWORK, PROVENANCE)
    assert not (tmp_path / "lora" / "model.safetensors").exists()
    assert torch.equal(language_checkpoint.load(tmp_path / "lora").lm(batch.input_ids).logits, expected)
    stock = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "lora" / "adapter")
    torch.testing.assert_close(stock(batch.input_ids).logits, expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="LoRA needs a pretrained backbone"):
        LanguageModel(ScratchBackbone(CONFIG), LoRA())


def test_wrong_folders_are_told(exported: tuple[Path, LanguageModel], tmp_path: Path) -> None:
    folder, _ = exported
    with pytest.raises(CheckpointError, match=r"holds a language model, not a looped transformer.*--benchmark traces"):
        checkpoint.load(folder)
    looped = {
        "class_path": "LoopedTransformer",
        "init_args": {
            "backbone": NETWORK["init_args"]["backbone"],  # type: ignore[index]
            "recurrence": {"class_path": "FixedPrompt"},
            "adaptation": {"class_path": "Everything"},
        },
    }
    checkpoint.save(tmp_path / "looped", checkpoint.build_network(looped), looped)
    with pytest.raises(CheckpointError, match=r"holds a looped transformer, not a language model.*--benchmark graph"):
        language_checkpoint.load(tmp_path / "looped")
    with pytest.raises(ValueError, match="checkpoint: /nowhere is not a folder"):
        language_checkpoint.load("/nowhere")
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match="does not load as a Hugging Face model"):
        language_checkpoint.load(folder)


def fit(model: LanguageModel, steps: int, **options: Any) -> tuple[CausalLMModule, L.Trainer]:
    """Train on two-node graphs, where a letter leads to the other one or to itself."""
    torch.manual_seed(0)
    data = GraphTextDataModule(
        model.backbone.tokenizer,
        train=GraphStream([Stage(2, [1], 32), Stage(2, [1, 2], 32)], 50),
        validation=EvaluationSplit(per_depth=3, depths=[1, 2, 3], batch_size=2),
        generated=1,
        **options,
    )
    module = CausalLMModule(model, Optimizer(lr=5e-3, schedule="triggered", decay_steps=5, warmup=5))
    trainer = L.Trainer(
        accelerator="cpu", max_steps=steps, val_check_interval=50, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        callbacks=[GenerationMetrics(), Curriculum(gate=0.05)],
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    return module, trainer


@pytest.mark.filterwarnings("ignore:the run ended in curriculum stage")
def test_training_lowers_the_loss_and_validates_by_generation() -> None:
    model = make_model(initializer_range=0.05)
    batch = GraphTextBatcher(tiny_tokenizer(), GraphTexts("trace")).batch(published("cyclic", "train")[:8], 1)
    with torch.no_grad():
        before = model.predict(batch.input_ids, batch.loss_mask)
    module, trainer = fit(model, 100)
    with torch.no_grad():
        after = model.predict(batch.input_ids, batch.loss_mask)
    losses = [float(token_loss(f.logits, batch.input_ids, batch.loss_mask)) for f in (before, after)]
    assert losses[1] < 0.6 * losses[0], losses
    logged = trainer.callback_metrics
    for name in ("val/loss", "val/answered", "val/generated", "val/loss/beyond", "val/trace/strict/beyond"):
        assert float(logged[name]) >= 0, name
    ways = ("exact_stop", "early", "late", "malformed", "budget")
    assert sum(float(logged[f"val/trace/{way}"]) for way in ways) == pytest.approx(1)
    assert module.provenance == {"text_style": "trace"}


@pytest.mark.filterwarnings("ignore:the run ended in curriculum stage")
def test_validation_loss_is_the_mean_over_a_cohort() -> None:
    """Batches of 2 and 1 examples: a mean over batches would differ."""
    model = make_model()
    module, trainer = fit(model, 50)
    batches = list(trainer.datamodule.val_dataloader())  # type: ignore[attr-defined]
    assert {len(batch) for batch in batches} == {1, 2}
    total = [
        token_loss(model.predict(row.input_ids, row.loss_mask).logits, row.input_ids, row.loss_mask)
        for batch in batches
        for row in (batch.select(torch.tensor([i])) for i in range(len(batch)))
        if int(row.steps) <= 2
    ]
    assert float(trainer.callback_metrics["val/loss"]) == pytest.approx(float(torch.stack(total).mean()), rel=1e-4)
    assert module.network is model
