"""Saved models: a folder of safetensors, YAML and a model card, from which evaluation rebuilds everything.

    DIR/model.safetensors   the tensors that the base does not have (all of them, for a from-scratch backbone)
    DIR/config.yaml         format version, the network's composition, label texts and token ids, provenance
    DIR/metrics.json        the numbers in the card, if any
    DIR/README.md           model card
    DIR/adapter/            the LoRA adapter as peft writes it, for models that have one

Nothing in it is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentParser
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from loopformer import parts  # noqa: F401  (imports every part, so that configs may use short class names)
from loopformer.looped import LoopedTransformer
from loopformer.model_card import model_card

FORMAT = 1
CONFIG, WEIGHTS, METRICS, CARD = "config.yaml", "model.safetensors", "metrics.json", "README.md"
LOOPED, LANGUAGE_MODEL = "looped transformer", "language model"
HINTS = {
    LOOPED: "evaluate it with --benchmark graph",
    LANGUAGE_MODEL: "evaluate it with --benchmark traces",
}
"""Kinds of model that a folder may hold, and what to do with one that turns up in the wrong place."""


class CheckpointError(ValueError):
    """A checkpoint folder that cannot be used; the message names the file or tensor and the fix."""


@dataclass
class Checkpoint:
    """A loaded checkpoint.

    Attributes:
        network: the model, in eval mode, frozen.
        config: contents of config.yaml.
        directory: where it came from.
    """

    network: LoopedTransformer
    config: dict[str, Any]
    directory: Path

    def digests(self) -> dict[str, str]:
        """SHA-256 of weights and config.yaml."""
        found = {}
        for name, file in (("model", WEIGHTS), ("config", CONFIG)):
            with (self.directory / file).open("rb") as content:
                found[name] = hashlib.file_digest(content, "sha256").hexdigest()
        return found


def build_network(config: dict[str, Any]) -> LoopedTransformer:
    """Instantiate a network from its composition, as in the `network` section of an experiment's YAML.

    Raises:
        CheckpointError: the composition has an unknown part or field.
    """
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(LoopedTransformer, "network", required=True)
    try:
        namespace = parser.parse_object({"network": config})
    except Exception as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{CONFIG}: network section does not parse: {reason}") from error
    return parser.instantiate(namespace).network


def save(
    directory: Path,
    network: LoopedTransformer,
    network_config: dict[str, Any],
    provenance: dict[str, Any] | None = None,
    metrics: dict[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a checkpoint folder atomically: it appears complete or not at all.

    Args:
        directory: the folder to create.
        network: the model.
        network_config: its composition as parsed from YAML.
        provenance: how it was made (command, seed, stage reached, ...), JSON types.
        metrics: numbers for the card, JSON types.
        overwrite: replace an existing folder; it is removed only once the new one is complete.

    Raises:
        FileExistsError: `directory` exists and `overwrite` is False.
    """
    config = {
        "format": FORMAT,
        "network": network_config,
        "labels": network.labels,
        "label_ids": network.label_ids.tolist(),
        "base": network.backbone.reference,
        "provenance": provenance or {},
        "versions": versions(),
    }
    with atomic_folder(directory, overwrite) as scratch:
        names = network.own_tensor_names()
        tensors = {k: v.detach().cpu().contiguous() for k, v in network.state_dict().items() if k in names}
        save_file(tensors, scratch / WEIGHTS, metadata={"format": "pt"})
        (scratch / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False))
        if metrics is not None:
            (scratch / METRICS).write_text(json.dumps(metrics, indent=2))
        (scratch / CARD).write_text(_card(Path(directory).name, config, tensors, metrics))
        network.adaptation.export(network.backbone, scratch)


def versions() -> dict[str, str]:
    """Versions of what a checkpoint depends on; "not installed" for a package that runs from its source folder.

    An export comes after hours of training, so a missing number must not end it.
    """

    def found(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "not installed"

    return {name: found(name) for name in ("loopformer", "torch", "transformers", "lightning")}


@contextmanager
def atomic_folder(directory: Path | str, overwrite: bool = False) -> Iterator[Path]:
    """Give an empty folder beside `directory` that takes its place when the block ends without an error.

    Raises:
        FileExistsError: `directory` exists and `overwrite` is False.
    """
    directory = Path(directory)
    if directory.exists() and not overwrite:
        raise FileExistsError(f"{directory} exists: choose another folder or pass overwrite")
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        yield scratch
        scratch.chmod(0o755)
        for weights in scratch.rglob("*.safetensors"):
            weights.chmod(0o644)  # readable like the other files; safetensors keeps it private
        if directory.exists():
            old = directory.with_name(f".{directory.name}-replaced-{os.getpid()}")
            directory.rename(old)
            scratch.rename(directory)
            shutil.rmtree(old)
        else:
            scratch.rename(directory)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def load(directory: str | Path, device: str = "cpu") -> Checkpoint:
    """Rebuild a model from its folder alone.

    Raises:
        CheckpointError: a file is missing or corrupt, a tensor is missing, unexpected or of the wrong shape, or the
            tokenizer gives the labels other ids than the checkpoint was trained with.
    """
    directory = Path(directory)
    config = read_config(directory, ("network", "labels", "label_ids"))
    tensors = _read_tensors(directory / WEIGHTS)
    network = build_network(config["network"])
    if network.label_ids.tolist() != config["label_ids"]:
        raise CheckpointError(
            f"{directory / CONFIG}: label_ids differ from this tokenizer's; it is not the trained one"
        )
    expected, found = network.own_tensor_names(), set(tensors)
    if expected != found:
        raise CheckpointError(
            f"{directory / WEIGHTS}: missing tensors {sorted(expected - found)[:5]}, "
            f"unexpected {sorted(found - expected)[:5]}; the file does not belong to {CONFIG}"
        )
    for name, value in network.state_dict().items():
        if name in tensors and tensors[name].shape != value.shape:
            raise CheckpointError(
                f"{directory / WEIGHTS}: {name} has shape {list(tensors[name].shape)}, config says {list(value.shape)}"
            )
    network.load_state_dict(tensors, strict=False)
    network.requires_grad_(False)
    return Checkpoint(network.eval().to(device), config, directory)


def kind_of(directory: Path) -> str:
    """Return the kind of model that config.yaml of a checkpoint folder names.

    Raises:
        CheckpointError: the file is unreadable.
    """
    return _kind(_read_yaml(directory / CONFIG))


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise CheckpointError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from error


def _kind(config: Any) -> str:
    return str(config.get("kind", LOOPED)) if isinstance(config, dict) else LOOPED


def read_config(directory: Path, keys: tuple[str, ...], kind: str = LOOPED) -> dict[str, Any]:
    """Read config.yaml of a checkpoint folder.

    Args:
        directory: the folder.
        keys: fields that it must have.
        kind: what the folder must hold.

    Raises:
        CheckpointError: the file is missing or unreadable, of another format, or of another kind of model.
    """
    if not directory.is_dir():
        raise CheckpointError(f"checkpoint: {directory} is not a folder; give the folder that train.py exported")
    path = directory / CONFIG
    if not path.is_file():
        raise CheckpointError(f"checkpoint: {path} is missing; the folder is incomplete, export it again")
    config = _read_yaml(path)
    found = _kind(config)
    if found != kind:
        raise CheckpointError(f"{path}: holds a {found}, not a {kind}; {HINTS.get(found, 'use another folder')}")
    for key in ("format", *keys):
        if not isinstance(config, dict) or key not in config:
            raise CheckpointError(f"{path}: field {key!r} is missing; export the checkpoint again")
    if config["format"] != FORMAT:
        raise CheckpointError(f"{path}: format {config['format']} is not {FORMAT}, which this version reads")
    return config


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise CheckpointError(f"checkpoint: {path} is missing; the folder is incomplete, export it again")
    try:
        with safe_open(path, framework="pt"):
            pass
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: truncated or corrupt safetensors file ({error}); copy it again") from error


def _card(name: str, config: dict[str, Any], tensors: dict[str, torch.Tensor], metrics: dict[str, Any] | None) -> str:
    base, size = config["base"], sum(t.numel() for t in tensors.values())
    rest = f", on top of `{base['model']}` at revision `{base['revision']}`." if base else " (the whole model)."
    what = f"A looped transformer trained with loopformer: {size:,} parameters in this folder{rest}"
    front = {"library_name": "loopformer", "tags": ["looped-transformer"]}
    return model_card(name, what, front, config, metrics, otherwise="graph")
