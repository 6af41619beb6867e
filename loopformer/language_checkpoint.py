"""Saved ordinary language models: folders that the Hugging Face library reads too.

    DIR/config.json, model.safetensors, generation_config.json, tokenizer files    the whole model (no LoRA)
    DIR/adapter/            the peft adapter alone, for a model trained with LoRA: its base is loaded from its source
    DIR/config.yaml         format version, kind, composition, base, provenance
    DIR/metrics.json        the numbers in the card, if any
    DIR/README.md           model card

A folder of the whole model serves `AutoModelForCausalLM.from_pretrained` and, as `PretrainedBackbone(model: DIR)`, a
looped transformer. Nothing in it is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from peft import PeftModel
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from loopformer.adaptation import LoRA
from loopformer.backbone import check_local_folder
from loopformer.checkpoint import (
    CARD,
    CONFIG,
    FORMAT,
    LANGUAGE_MODEL,
    METRICS,
    CheckpointError,
    atomic_folder,
    kind_of,
    read_config,
    versions,
)
from loopformer.generation import end_token_ids
from loopformer.language_model import LanguageModel
from loopformer.model_card import model_card
from loopformer.tokenizer import load_tokenizer

ADAPTER = "adapter"


@dataclass
class LanguageCheckpoint:
    """A loaded language model.

    Attributes:
        lm: the model, in eval mode, frozen.
        tokenizer: its tokenizer.
        config: contents of config.yaml; empty for a model that this project did not export.
        source: folder or Hub id.
    """

    lm: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    config: dict[str, Any]
    source: str

    @property
    def provenance(self) -> dict[str, Any]:
        """How the model was made, as far as its folder tells."""
        return dict(self.config.get("provenance", {}))

    def digests(self) -> dict[str, str]:
        """SHA-256 of the weight files in the folder, or the commit of a Hub model."""
        folder = Path(self.source)
        if not folder.is_dir():
            return {"model": str(getattr(self.lm.config, "_commit_hash", None))}
        sha = hashlib.sha256()
        for path in sorted(path for kind in ("*.safetensors", "*.bin") for path in folder.rglob(kind)):
            with path.open("rb") as file:
                sha.update(hashlib.file_digest(file, "sha256").digest())
        return {"model": sha.hexdigest()}

    def identity(self) -> list[Any]:
        """All that what it writes depends on, as plain JSON types: weights, base, architecture."""
        where = None if Path(self.source).is_dir() else self.source
        return [where, self.digests(), self.config.get("base"), self.lm.config.to_json_string()]


def save(
    directory: Path,
    model: LanguageModel,
    network_config: dict[str, Any],
    provenance: dict[str, Any] | None = None,
    metrics: dict[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a checkpoint folder atomically: it appears complete or not at all.

    Args:
        directory: the folder to create.
        model: the model.
        network_config: its composition as parsed from YAML.
        provenance: how it was made (command, seed, style of text, ...), JSON types.
        metrics: numbers for the card, JSON types.
        overwrite: replace an existing folder; it is removed only once the new one is complete.

    Raises:
        FileExistsError: `directory` exists and `overwrite` is False.
    """
    backbone = model.backbone
    adapted = isinstance(model.adaptation, LoRA)
    config = {
        "format": FORMAT,
        "kind": LANGUAGE_MODEL,
        "network": network_config,
        "base": backbone.reference,
        # A whole model holds trained float32 weights; an adapter needs its base in the type it was trained on.
        "dtype": str(backbone.lm.dtype).removeprefix("torch.") if adapted else "float32",
        "provenance": provenance or {},
        "versions": versions(),
    }
    with atomic_folder(directory, overwrite) as scratch:
        if adapted:
            model.adaptation.export(backbone, scratch)
        else:
            _save_whole(backbone.lm, backbone.tokenizer, scratch)
        (scratch / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False))
        if metrics is not None:
            (scratch / METRICS).write_text(json.dumps(metrics, indent=2))
        (scratch / CARD).write_text(_card(Path(directory).name, config, metrics, adapted))


def _save_whole(lm: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    own = lm.generation_config
    lm.generation_config = GenerationConfig(
        eos_token_id=end_token_ids(lm, tokenizer), pad_token_id=tokenizer.pad_token_id
    )
    try:
        lm.save_pretrained(folder)
    finally:
        lm.generation_config = own
    tokenizer.save_pretrained(folder)


def load(source: str | Path, device: str = "cpu") -> LanguageCheckpoint:
    """Load a model from a folder that `save` wrote, any other Hugging Face folder, or the Hub.

    A model with LoRA comes as it was trained: the adapter beside its base, not merged. A folder without config.yaml and
    a model from the Hub are loaded in float32.

    Raises:
        CheckpointError: the folder is incomplete, or holds a looped transformer.
        ValueError: `source` looks like a path but is no folder.
    """
    source = str(source)
    folder = Path(source)
    check_local_folder("checkpoint", source)
    config: dict[str, Any] = {}
    if folder.is_dir() and (folder / CONFIG).is_file():
        config = read_config(folder, ("network", "base", "dtype"), LANGUAGE_MODEL)
    if (folder / ADAPTER).is_dir():
        base = config["base"]
        lm, tokenizer = _load_whole(base["model"], base["revision"], config["dtype"])
        lm = PeftModel.from_pretrained(lm, str(folder / ADAPTER)).get_base_model()
    else:
        lm, tokenizer = _load_whole(source, None, config.get("dtype", "float32"))
    lm.requires_grad_(False)
    return LanguageCheckpoint(lm.eval().to(device), tokenizer, config, source)


def is_language_model(source: str | Path) -> bool:
    """Tell whether a folder or Hub id is a language model: any Hugging Face folder, unless it was exported as looped.

    Raises:
        CheckpointError: the folder's config.yaml is unreadable.
        ValueError: `source` looks like a path but is no folder.
    """
    check_local_folder("checkpoint", str(source))
    folder = Path(source)
    if not folder.is_dir():
        return (
            str(source).count("/") <= 1
        )  # OWNER/NAME may be on the Hub, a longer path is only a folder that is missing
    return not (folder / CONFIG).is_file() or kind_of(folder) == LANGUAGE_MODEL


def _load_whole(source: str, revision: str | None, dtype: str) -> tuple[Any, PreTrainedTokenizerBase]:
    try:
        lm = AutoModelForCausalLM.from_pretrained(
            source, revision=revision, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
        return lm, load_tokenizer(source, revision)
    except (OSError, ValueError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"checkpoint: {source} does not load as a Hugging Face model: {reason}") from error


def _card(name: str, config: dict[str, Any], metrics: dict[str, Any] | None, adapted: bool) -> str:
    base = config["base"]
    start = f", from `{base['model']}` at revision `{base['revision']}`." if base else " from scratch."
    what = ("A LoRA adapter" if adapted else "An ordinary language model") + f" trained with loopformer{start}"
    front = {"library_name": "peft" if adapted else "transformers", "pipeline_tag": "text-generation"}
    return model_card(name, what, front, config, metrics, otherwise="traces")
