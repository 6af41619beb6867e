"""Training from an exported model's weights: equal tensor by tensor and word by word, named mistakes, exact resume."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from test_configs import ROOT
from test_language_model import make_model
from test_training import train

import evaluate
from loopformer import checkpoint, language_checkpoint
from loopformer.adaptation import Everything
from loopformer.backbone import ScratchBackbone
from loopformer.causal_lm import CausalLMModule
from loopformer.executor import ExecutorModule
from loopformer.initial import PARTS, ExportedWeights
from loopformer.language_model import LanguageModel
from loopformer.looped import LoopedTransformer

SHIPPED = ROOT / "checkpoints" / "tiny-executor-timer"
EMBEDDING, HEAD = "backbone.lm.model.embed_tokens.weight", "backbone.lm.lm_head.weight"


def section(*files: str) -> dict[str, Any]:
    """The network section of an experiment and its overlays."""

    def merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
        same = "class_path" not in over or over["class_path"] == under.get("class_path")
        kept = under if same else {}
        new = {k: merged(kept.get(k, {}), v) if isinstance(v, dict) else v for k, v in over.items()}
        return {**kept, **new}

    found: dict[str, Any] = {}
    for file in files:
        found = merged(found, yaml.safe_load((ROOT / file).read_text())["model"]["init_args"]["network"])
    backbone = found["init_args"]["backbone"]["init_args"]
    backbone["words"] = ["machines"]  # the command line keeps it when the overlay changes the class
    found["init_args"].pop("look_back", None)  # it needs the biases of Qwen2, and one of the backbones here is Qwen3
    return found


FSM = section("configs/program_fsm.yaml", "configs/backbone/tiny.yaml")


def build(config: dict[str, Any] | None = None, seed: int = 0) -> LoopedTransformer:
    torch.manual_seed(seed)
    return checkpoint.build_network(FSM if config is None else config)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The machine's network with one field changed."""
    config = copy.deepcopy(FSM)
    at = config["init_args"]
    *parents, last = path.split(".")
    for name in parents:
        at = at[name]
    at[last] = value
    return config


def test_shared_tensors_are_equal_and_rows_follow_the_words() -> None:
    fresh, network = build(), build()
    source = checkpoint.load(SHIPPED).network
    generator = torch.get_rng_state()
    record = ExportedWeights(str(SHIPPED)).load_into(network)
    assert torch.equal(torch.get_rng_state(), generator), "the run draws the numbers of one from scratch"
    before, after, given = fresh.state_dict(), network.state_dict(), source.state_dict()

    assert len(record["loaded"]) == 41
    assert all(torch.equal(after[name], given[name]) for name in record["loaded"])
    assert {name.partition(".")[0] for name in record["loaded"]} == {"backbone", "bridge", "direct_head"}
    assert {name.partition(".")[0] for name in record["initial"]} == {"state_heads"}
    assert all(torch.equal(after[name], before[name]) for name in record["initial"])
    assert {name.partition(".")[0] for name in record["left_out"]} == {"halting"}
    assert set(record["loaded"]) | set(record["rows"]) | set(record["initial"]) == network.own_tensor_names()

    theirs, ours = source.backbone.tokenizer.get_vocab(), network.backbone.tokenizer.get_vocab()
    assert 0 < len(theirs) < len(ours)
    for name in (EMBEDDING, HEAD):
        assert record["rows"][name] == f"{len(set(ours) & set(theirs))} of {len(ours)}"
        for word, row in ours.items():
            expected = given[name][theirs[word]] if word in theirs else before[name][row]
            assert torch.equal(after[name][row], expected), word
    assert record["made"]["executor"]["optimizer_steps"] == 2053
    assert len(record["weights"]) == 64
    json.dumps(record)


def test_the_model_executes_graphs_as_its_source_does() -> None:
    """Word rows, layers, bridge and heads together: on graph prompts the loaded network says what the source says."""
    from datamodules.graph_batcher import GraphBatcher
    from datamodules.tasks.graph_splits import benchmark

    network = build().eval()
    ExportedWeights(str(SHIPPED)).load_into(network)
    source = checkpoint.load(SHIPPED).network
    graphs = benchmark()[:6]
    said = [
        model.rollout(GraphBatcher(model.backbone.tokenizer).batch(graphs, 9), 9).letter_logits.argmax(-1)
        for model in (network, source)
    ]
    assert torch.equal(*said)


def test_an_ordinary_language_model_takes_the_backbone() -> None:
    source = checkpoint.load(SHIPPED).network
    config = {
        name: source.backbone.config.to_dict()[name]
        for name in (
            "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "max_position_embeddings", "tie_word_embeddings",
        )
    }  # fmt: skip
    network = LanguageModel(ScratchBackbone(config, "qwen2", split=source.backbone.split), Everything())
    module = CausalLMModule(network, initial=ExportedWeights(str(SHIPPED)))
    module.load_initial()
    saved: dict[str, Any] = {"state_dict": {f"network.{k}": v for k, v in network.state_dict().items()}}
    module.on_save_checkpoint(saved)
    record = saved["initial"]
    given = load_file(SHIPPED / "model.safetensors")
    assert set(record["loaded"]) == network.own_tensor_names()
    assert all(torch.equal(network.state_dict()[name], given[name]) for name in record["loaded"])
    assert record["initial"] == []
    assert {name.partition(".")[0] for name in record["left_out"]} == {"bridge", "direct_head", "halting"}


def test_labels_by_their_texts_and_parts_by_their_names() -> None:
    labels = [" Z", " A", " s", " C"]
    config = changed("labels", labels)
    fresh, network = build(config), build(config)
    record = ExportedWeights(str(SHIPPED), ["direct_head"]).load_into(network)
    given = load_file(SHIPPED / "model.safetensors")
    assert record["rows"] == {"direct_head.linear.weight": "3 of 4", "direct_head.linear.bias": "3 of 4"}
    for name in record["rows"]:
        expected = fresh.state_dict()[name].clone()
        for row, source in ((0, 25), (1, 0), (3, 2)):
            expected[row] = given[name][source]
        assert torch.equal(network.state_dict()[name], expected)
    others = [n for n in network.own_tensor_names() if n not in record["rows"]]
    assert all(torch.equal(network.state_dict()[name], fresh.state_dict()[name]) for name in others)


def test_parts_of_another_class_or_size_stay_as_they_were() -> None:
    network = build(changed("bridge.class_path", "ReinjectionBridge"))
    record = ExportedWeights(str(SHIPPED)).load_into(network)
    assert not any(name.startswith("bridge.") for name in record["loaded"])
    assert any(name.startswith("bridge.") for name in record["left_out"])
    assert any(name.startswith("bridge.") for name in record["initial"])
    without = build(changed("direct_head", None))
    record = ExportedWeights(str(SHIPPED)).load_into(without)
    assert {"direct_head.linear.weight", "direct_head.linear.bias"} <= set(record["left_out"])


def test_equal_tokenizers_are_loaded_whole(tmp_path: Path) -> None:
    source = build(seed=7)
    checkpoint.save(tmp_path / "source", source, FSM)
    network = build()
    record = ExportedWeights(str(tmp_path / "source")).load_into(network)
    assert record["rows"] == {}
    assert record["initial"] == record["left_out"] == []
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in network.state_dict().items())


SIZES = "backbone.init_args.config."


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (SIZES + "hidden_size", 32, r"its backbone's hidden_size is 64, that of network.backbone 32"),
        (SIZES + "num_attention_heads", 2, "num_attention_heads is 4"),  # with equal shapes
        (SIZES + "tie_word_embeddings", True, "tie_word_embeddings is False"),
        ("backbone.init_args.split", {"prelude": 0, "recurrent": 2, "coda": 1}, "its split is Split"),
        ("backbone.init_args.model_type", "qwen3", "its backbone's"),
    ],
)
def test_unlike_backbones_are_told(path: str, value: Any, message: str) -> None:
    network = build(changed(path, value))
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(ValueError, match=message) as error:
        ExportedWeights(str(SHIPPED)).load_into(network)
    assert "give both the same backbone" in str(error.value)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items()), "nothing half loaded"


def test_unreadable_sources_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"initial.parts: got \['brain'\]; use some of backbone"):
        ExportedWeights("x", ["brain"])
    with pytest.raises(ValueError, match=r"initial.parts: got \[\]"):
        ExportedWeights("x", [])
    with pytest.raises(ValueError, match=r"initial.source: .*nowhere is not a folder; give the folder that train.py"):
        ExportedWeights(str(tmp_path / "nowhere")).load_into(build())
    language_checkpoint.save(tmp_path / "text", make_model(), {})
    with pytest.raises(ValueError, match=r"initial.source: .*holds a language model"):
        ExportedWeights(str(tmp_path / "text")).load_into(build())
    shutil.copytree(SHIPPED, tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"\x80\x04cposix\nsystem\n")
    with pytest.raises(ValueError, match=r"initial.source: .*truncated or corrupt safetensors"):
        ExportedWeights(str(tmp_path / "cut")).load_into(build())


def test_the_record_goes_with_the_run() -> None:
    first = ExecutorModule(build(), initial=ExportedWeights(str(SHIPPED)))
    assert first.provenance == {}
    first.load_initial()
    assert first.provenance["initial"]["source"] == str(SHIPPED)
    saved: dict[str, Any] = {"state_dict": {f"network.{k}": v for k, v in first.network.state_dict().items()}}
    first.on_save_checkpoint(saved)
    again = ExecutorModule(build(), initial=ExportedWeights("./gone"))
    again.on_load_checkpoint(saved)
    assert again.provenance == first.provenance
    plain = ExecutorModule(build())
    plain.load_initial()
    assert plain.provenance == {}
    assert set(PARTS) >= {name.partition(".")[0] for name in first.network.own_tensor_names()}


@pytest.mark.slow
def test_resume_and_evaluation_need_no_source(tmp_path: Path) -> None:
    """A run that was cut, and goes on after its source is deleted, ends with the weights of an uninterrupted one."""
    shutil.copytree(SHIPPED, tmp_path / "source")
    common = (
        "--config", "configs/program_fsm.yaml", "--config", "configs/backbone/tiny.yaml",
        "--config", "configs/recipe/from_graph_executor.yaml",
        f"--model.init_args.initial.init_args.source={tmp_path / 'source'}",
        "--data.init_args.validation.init_args.per_depth=2", "--trainer.val_check_interval=10",
        "--trainer.log_every_n_steps=1", "--checkpoint.every_n_train_steps=1", "--trainer.max_time=null",
    )  # fmt: skip
    whole = train(*common, "--trainer.max_steps=3", "--output", str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.output  # type: ignore[attr-defined]
    assert "initial weights from" in whole.output  # type: ignore[attr-defined]
    half = train(*common, "--trainer.max_steps=2", "--output", str(tmp_path / "half"))
    assert half.returncode == 0, half.output  # type: ignore[attr-defined]
    (tmp_path / "half" / "model").rename(tmp_path / "half" / "earlier")
    shutil.rmtree(tmp_path / "source")
    rest = train(*common, "--trainer.max_steps=3", "--output", str(tmp_path / "half"), "--resume=true")
    assert rest.returncode == 0, rest.output  # type: ignore[attr-defined]
    assert "initial weights from" not in rest.output  # type: ignore[attr-defined]
    models = [load_file(tmp_path / run / "model" / "model.safetensors") for run in ("whole", "half")]
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())
    made = [yaml.safe_load((tmp_path / run / "model" / "config.yaml").read_text()) for run in ("whole", "half")]
    assert made[0]["provenance"]["initial"] == made[1]["provenance"]["initial"]
    assert len(made[0]["provenance"]["initial"]["loaded"]) == 41
    assert "initial" not in made[0]["network"]["init_args"]
    anew = train(*common, "--trainer.max_steps=1", "--output", str(tmp_path / "anew"))
    assert anew.returncode == 2
    assert "error: initial.source:" in anew.output  # type: ignore[attr-defined]
    evaluate.main(
        [
            "--checkpoint", str(tmp_path / "half" / "model"), "--output", str(tmp_path / "out"),
            "--benchmark", "program", "--program.part", "machine", "--program.machine.machines", "2",
            "--program.machine.longest", "2", "--program.machine.splits", "[trained]",
        ]
    )  # fmt: skip
    assert (tmp_path / "out" / "summary.json").is_file()
