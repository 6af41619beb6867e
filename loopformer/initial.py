"""Where training starts: the weights of an exported looped model, as far as they fit the network at hand.

The network may be an ordinary language model too; it then takes the backbone.

    model:
      init_args:
        initial: {class_path: ExportedWeights, init_args: {source: ./checkpoints/tiny-executor-timer}}

It belongs to the training, not to the network: the exported composition does not name it, so a model is evaluated, and
a run resumed, without the source. The source is read as every checkpoint is: safetensors alone, nothing is unpickled.

Shape legend: V tokens, K labels, D hidden.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopformer import checkpoint
from loopformer.checkpoint import WEIGHTS, CheckpointError
from loopformer.language_model import LanguageModel
from loopformer.looped import LoopedTransformer

log = logging.getLogger(__name__)

Network = LoopedTransformer | LanguageModel

PARTS = ("backbone", "bridge", "carry", "direct_head", "halting", "state_heads")
"""Parts of a network that have weights, by their names in it."""

TOKEN_ROWS = ("backbone.lm.model.embed_tokens.weight", "backbone.lm.lm_head.weight")
"""[V, D] a row for every token."""

LABEL_ROWS = ("direct_head.linear.weight", "direct_head.linear.bias")
"""[K, ...] a row for every label."""

SIZES_APART = frozenset(
    {"vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "max_position_embeddings", "initializer_range"}
)
"""Fields of a decoder's configuration that do not change what its shared weights compute."""

NOTES = frozenset({"_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "use_cache"})


class ExportedWeights:
    """The weights of an exported looped model.

    The backbones must be alike: one configuration and split, and one pretrained base, if there is any. Every tensor of
    the source's backbone is then loaded by name and shape; of the embeddings and the LM head the rows of the tokens
    that both tokenizers know, by the token's text; of the direct head the rows of the labels that both have. Other
    parts are loaded where both have one of the same class, tensor by tensor where name and shape are the same. All else
    stays as it was initialised.

    Args:
        source: folder of the exported model.
        parts: which parts to load: some of "backbone", "bridge", "carry", "direct_head",
            "halting" and "state_heads".

    Raises:
        ValueError: there is no such part, or none.
    """

    def __init__(self, source: str, parts: Sequence[str] = PARTS) -> None:
        unknown = sorted(set(parts) - set(PARTS))
        if unknown or not parts:
            raise ValueError(f"initial.parts: got {list(parts)}; use some of {', '.join(PARTS)}")
        self.source, self.parts = source, tuple(parts)

    def load_into(self, network: Network) -> dict[str, Any]:
        """Load the weights, in place; no random number is drawn.

        Returns:
            what was done, as plain types for the provenance: `source`, `weights` (SHA-256 of its file), `loaded`
            (names of tensors), `rows` (how many rows of a tensor were loaded), `initial` (own tensors of the network
            that stay as they were initialised), `left_out` (tensors of the source that the network has no place for)
            and `made` (the source's own provenance).

        Raises:
            ValueError: the source cannot be read, or its backbone is not like the network's; names field and fix.
        """
        try:
            with torch.random.fork_rng(devices=[]):  # building the source draws numbers that are not this run's
                found = checkpoint.load(self.source)
        except CheckpointError as error:
            raise ValueError(f"initial.source: {error}") from error
        given = _own(found.network, self.parts)
        target = network.state_dict()
        if "backbone" in self.parts:
            _check_alike(found.network, network)
            _check_backbone(given, target, _own(network, ("backbone",)), found.network)
        record: dict[str, Any] = {"source": self.source, "weights": _digest(Path(self.source) / WEIGHTS)}
        loaded, rows, left_out = [], {}, []
        with torch.no_grad():
            for name, value in given.items():
                if name not in target or not _same_kind(name.partition(".")[0], found.network, network):
                    left_out.append(name)
                elif (pairs := _row_pairs(name, found.network, network)) is not None:
                    ours, theirs = pairs
                    target[name][ours] = value[theirs].to(target[name])
                    rows[name] = f"{len(ours)} of {len(target[name])}"
                elif target[name].shape == value.shape:
                    target[name].copy_(value)
                    loaded.append(name)
                else:
                    left_out.append(name)
        initial = sorted(network.own_tensor_names() - set(loaded) - set(rows))
        record |= {"loaded": loaded, "rows": rows, "initial": initial, "left_out": left_out}
        record["made"] = found.config.get("provenance", {})
        log.info(
            "initial weights from %s: %d tensors loaded, rows %s; as initialised: %s; left out: %s",
            self.source, len(loaded), rows or "none", ", ".join(initial) or "none", ", ".join(left_out) or "none",
        )  # fmt: skip
        return record


def _own(network: Network, parts: Sequence[str]) -> dict[str, Tensor]:
    """Own tensors of some parts, by name: what a pretrained base does not have."""
    names = network.own_tensor_names()
    return {n: value for n, value in network.state_dict().items() if n in names and n.partition(".")[0] in parts}


def _check_alike(source: LoopedTransformer, network: Network) -> None:
    """Compare base, split and configuration of the backbones.

    Raises:
        ValueError: they differ.
    """
    theirs, ours = source.backbone, network.backbone
    for field, wanted, got in (
        ("its base", theirs.reference, ours.reference),
        ("its split", theirs.split, ours.split),
        *_differences(theirs.config.to_dict(), ours.config.to_dict()),
    ):
        if wanted != got:
            raise ValueError(
                f"initial.source: {field} is {wanted}, that of network.backbone {got}; give both the same backbone"
            )


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Fields of the decoders' configurations that change what the same weights compute."""
    names = sorted((set(theirs) | set(ours)) - SIZES_APART - NOTES)
    return [(f"its backbone's {name}", theirs.get(name), ours.get(name)) for name in names]


def _check_backbone(
    given: Mapping[str, Tensor], target: Mapping[str, Tensor], own: Mapping[str, Tensor], source: LoopedTransformer
) -> None:
    """Make sure that every backbone tensor of the source has a place, and that every own one of the network is given.

    Raises:
        ValueError: one is not, or has another shape.
    """
    mine = {name: value for name, value in given.items() if name.startswith("backbone.")}
    for name, value in mine.items():
        if name not in target:
            raise ValueError(
                f"initial.source: network has no tensor {name}; give both the same backbone and adaptation, or merge "
                "the source's adapters"
            )
        wanted, got = list(value.shape), list(target[name].shape)
        if name in TOKEN_ROWS:
            wanted, got = wanted[1:], got[1:]
        if wanted != got:
            raise ValueError(f"initial.source: {name} has shape {wanted}, the network's {got}; use the same sizes")
    missing = sorted(set(own) - set(mine))
    if missing and source.backbone.reference is None:
        raise ValueError(f"initial.source: it has no tensor {missing[0]}; give both the same backbone and adaptation")


def _row_pairs(name: str, source: LoopedTransformer, network: Network) -> tuple[list[int], list[int]] | None:
    """Rows of a tensor here and in the source that mean the same; None where the tensor is one whole."""
    if name in TOKEN_ROWS:
        theirs, ours = (model.backbone.tokenizer.get_vocab() for model in (source, network))
        sizes = [model.backbone.config.vocab_size for model in (source, network)]
    elif name in LABEL_ROWS and isinstance(network, LoopedTransformer):
        theirs, ours = ({text: row for row, text in enumerate(model.labels)} for model in (source, network))
        sizes = [len(source.labels), len(network.labels)]
    else:
        return None
    if theirs == ours and sizes[0] == sizes[1]:
        return None  # rows beyond the vocabulary included
    shared = sorted((row, theirs[text]) for text, row in ours.items() if text in theirs)
    return [row for row, _ in shared], [row for _, row in shared]


def _same_kind(part: str, source: LoopedTransformer, network: Network) -> bool:
    """Whether both have this part in one class: another kind of bridge may have tensors of the same names and sizes."""
    return part == "backbone" or type(getattr(source, part)) is type(getattr(network, part, None))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
