"""Checkpoint folders: what is in them, and what happens when something is wrong with them."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import make_network
from safetensors.torch import load_file, save_file

from datamodules.batch import Batch
from loopformer import checkpoint
from loopformer.adaptation import Frozen
from loopformer.bridge import ReentryBridge
from loopformer.checkpoint import CheckpointError
from loopformer.looped import LoopedTransformer
from loopformer.recurrence import FixedPrompt

CONFIG: dict[str, Any] = {
    "backbone": {
        "class_path": "ScratchBackbone",
        "init_args": {
            "config": {
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "tie_word_embeddings": False,
            },
            "split": {"prelude": 1, "recurrent": 1, "coda": 1},
        },
    },
    "recurrence": {"class_path": "FixedPrompt"},
    "bridge": {"class_path": "ReentryBridge"},
    "direct_head": {"class_path": "DirectHead"},
    "halting": {"class_path": "GRUController"},
    "adaptation": {"class_path": "Everything"},
}
NETWORK = {"class_path": "LoopedTransformer", "init_args": CONFIG}


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, LoopedTransformer]:
    torch.manual_seed(3)
    network = checkpoint.build_network(NETWORK)
    checkpoint.save(tmp_path / "model", network, NETWORK, {"seed": 3}, {"val/complete": 0.5})
    return tmp_path / "model", network


def test_round_trip_in_a_fresh_process(
    saved: tuple[Path, LoopedTransformer], graph_batch: Batch, tmp_path: Path
) -> None:
    folder, network = saved
    code = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from datamodules.graph_batcher import GraphBatcher\n"
        "from datamodules.tasks.graph_splits import published\n"
        "from loopformer import checkpoint\n"
        "network = checkpoint.load(sys.argv[1]).network\n"
        "batch = GraphBatcher(network.backbone.tokenizer).batch(published('cyclic', 'train')[:6], 3)\n"
        "torch.save(network.rollout(batch, 8).letter_logits, sys.argv[2])\n"
    )
    subprocess.run([sys.executable, "-c", code, str(folder), str(tmp_path / "logits.pt")], check=True)
    with torch.no_grad():
        expected = network.eval().rollout(graph_batch, 8).letter_logits
    assert torch.equal(torch.load(tmp_path / "logits.pt", weights_only=True), expected)


def test_contents(saved: tuple[Path, LoopedTransformer]) -> None:
    folder, network = saved
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "config.yaml", "metrics.json", "model.safetensors"]
    card = (folder / "README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert front["library_name"] == "loopformer"
    assert "val/complete | 0.5" in card
    assert set(load_file(folder / "model.safetensors")) == set(network.state_dict())
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["label_ids"] == network.label_ids.tolist()
    assert not list(folder.parent.glob(".model*")), "no temporary folder is left"


def test_nothing_is_overwritten_silently(saved: tuple[Path, LoopedTransformer]) -> None:
    folder, network = saved
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match="exists"):
        checkpoint.save(folder, network, NETWORK)
    assert (folder / "model.safetensors").read_bytes() == before
    checkpoint.save(folder, network, NETWORK, overwrite=True)
    assert checkpoint.load(folder).network


def test_only_what_the_base_lacks_is_saved() -> None:
    network = make_network(FixedPrompt(), bridge=ReentryBridge(), adaptation=Frozen())
    type(network.backbone).reference.fget  # noqa: B018  (a property: the base says where it comes from)
    network.backbone.__class__ = type(
        "FromHub",
        (type(network.backbone),),
        {"reference": property(lambda _: {"model": "some/base", "revision": "abc"})},
    )
    assert network.own_tensor_names() == {"bridge.gain", "bridge.weight"}


def edit_weights(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_errors_name_the_file_and_the_tensor(saved: tuple[Path, LoopedTransformer], tmp_path: Path) -> None:
    folder, _ = saved

    def load_fails(match: str) -> None:
        with pytest.raises(CheckpointError, match=match) as caught:
            checkpoint.load(folder)
        assert "\n" not in str(caught.value)

    with pytest.raises(CheckpointError, match="is not a folder"):
        checkpoint.load(tmp_path / "nowhere")
    good_weights = (folder / "model.safetensors").read_bytes()
    good_config = (folder / "config.yaml").read_text()

    edit_weights(folder, lambda t: t.pop("bridge.gain"))
    load_fails(r"missing tensors \['bridge.gain'\]")
    edit_weights(folder, lambda t: t.update({"bridge.gian": torch.ones(32)}))
    load_fails(r"unexpected \['bridge.gian'\]")
    (folder / "model.safetensors").write_bytes(good_weights)
    edit_weights(folder, lambda t: t.update({"bridge.gain": torch.ones(31)}))
    load_fails(r"bridge.gain has shape \[31\]")
    (folder / "model.safetensors").write_bytes(good_weights[: len(good_weights) // 2])
    load_fails("truncated or corrupt safetensors")
    (folder / "model.safetensors").unlink()
    load_fails("model.safetensors is missing")
    (folder / "model.safetensors").write_bytes(good_weights)

    config = yaml.safe_load(good_config)
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "label_ids": config["label_ids"][::-1]}))
    load_fails("label_ids differ")
    (folder / "config.yaml").write_text(yaml.safe_dump({k: v for k, v in config.items() if k != "network"}))
    load_fails("field 'network' is missing")
    (folder / "config.yaml").write_text(good_config.replace("ReentryBridge", "ReentryBrigde"))
    load_fails("does not parse")
    (folder / "config.yaml").write_text("network: [")
    load_fails("not valid YAML")
    (folder / "config.yaml").unlink()
    load_fails("config.yaml is missing")


def test_a_source_folder_that_is_not_installed_exports_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(checkpoint, "version", missing)
    checkpoint.save(tmp_path / "model", checkpoint.build_network(NETWORK), NETWORK)
    assert set(checkpoint.load(tmp_path / "model").config["versions"].values()) == {"not installed"}
