"""A pretrained (or from-scratch) decoder, split into prelude P, recurrent block R and coda C.

The Hugging Face model stays whole: its layer list is indexed, never taken apart, so that peft's layer numbers, state
dict names and `save_pretrained` keep meaning what they mean elsewhere.

Shape legend: B batch, S sequence, D hidden, K labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask

from loopformer.tokenizer import check_words, load_tokenizer, tiny_tokenizer, tiny_words

TINY = "tiny"
"""Name of the embedded tokenizer where a tokenizer's id or path is asked for."""


@dataclass(frozen=True)
class Split:
    """Numbers of layers of the prelude, the recurrent block and the coda; their sum is the model's depth."""

    prelude: int = 6
    recurrent: int = 12
    coda: int = 6

    def __post_init__(self) -> None:
        if self.prelude < 0 or self.recurrent < 1 or self.coda < 0:
            raise ValueError(f"backbone.split: needs prelude >= 0, recurrent >= 1, coda >= 0, got {self}")


@dataclass
class Geometry:
    """What every layer is told about the positions of a batch: the same at every loop.

    Attributes:
        mask: attention mask as the layers take it; None stands for plain causal attention.
        rotary: cosines and sines of the position embedding, [B or 1, S, head_dim] each.
        answer_positions: [B] index of the token whose state is read out.
        cells: [B, C] indices of the task's cells, NO_CELL after the last; None where it has none.
    """

    mask: Tensor | None
    rotary: tuple[Tensor, Tensor]
    answer_positions: Tensor
    cells: Tensor | None = None


class Backbone(nn.Module):
    """A causal language model of the Qwen2/Qwen3/Llama kind with its tokenizer and its split into P, R and C."""

    def __init__(self, lm: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, split: Split) -> None:
        super().__init__()
        layers, depth = lm.model.layers, split.prelude + split.recurrent + split.coda
        if depth != len(layers):
            raise ValueError(f"backbone.split: {split} covers {depth} layers, but the model has {len(layers)}")
        if getattr(lm.model, "has_sliding_layers", False):
            raise ValueError("backbone: sliding-window layers are not supported; set use_sliding_window to false")
        self.lm = lm
        self.tokenizer = tokenizer
        self.split = split

    @property
    def reference(self) -> dict[str, str | None] | None:
        """Where the base weights come from, or None if they exist nowhere else and checkpoints must hold them all."""
        return None

    @property
    def config(self) -> PreTrainedConfig:
        """The Hugging Face configuration of the decoder."""
        return self.lm.config

    @property
    def hidden_size(self) -> int:
        """Width D of the residual stream."""
        return int(self.config.hidden_size)

    @property
    def prelude(self) -> list[nn.Module]:
        """The layers of P, applied once."""
        return list(self.lm.model.layers[: self.split.prelude])

    @property
    def recurrent(self) -> list[nn.Module]:
        """The layers of R, applied at every loop."""
        return list(self.lm.model.layers[self.split.prelude : self.split.prelude + self.split.recurrent])

    @property
    def coda(self) -> list[nn.Module]:
        """The layers of C, applied after every loop for reading only."""
        return list(self.lm.model.layers[self.split.prelude + self.split.recurrent :])

    def geometry(self, hidden: Tensor, attention_mask: Tensor | None, answer_positions: Tensor) -> Geometry:
        """Compute masks and position embeddings of a batch.

        Args:
            hidden: [B, S, D] embeddings.
            attention_mask: [B, S] of 0 and 1 for padding anywhere. None means right padding or none: a causal model
                never looks to the right, so the padding needs no mask and the plain causal kernel serves.
            answer_positions: [B].
        """
        if attention_mask is None:
            position_ids = torch.arange(hidden.shape[1], device=hidden.device)[None]
        else:
            position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=hidden,
            attention_mask=attention_mask,
            cache=None,
            position_ids=position_ids,
        )
        return Geometry(cast("Tensor | None", mask), self.lm.model.rotary_emb(hidden, position_ids), answer_positions)

    def embed(self, input_ids: Tensor) -> Tensor:
        """Return token embeddings [B, S, D]; under autocast in float32, so that the residual stream stays exact."""
        hidden = cast("Tensor", self.lm.model.embed_tokens(input_ids))
        return hidden.float() if torch.is_autocast_enabled(hidden.device.type) else hidden

    def prelude_answer_state(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        """Run P on right-padded prompts and return its state at the last token, [B, D]."""
        hidden = self.embed(input_ids)
        geometry = self.geometry(hidden, None, lengths - 1)
        return take_positions(run_layers(self.prelude, hidden, geometry), geometry.answer_positions)

    def label_ids(self, texts: list[str]) -> list[int]:
        """Return the token id of each label text.

        Raises:
            ValueError: a text is not exactly one token, or two texts share one.
        """
        ids = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        for text, tokens in zip(texts, ids, strict=True):
            if len(tokens) != 1 or tokens[0] == self.tokenizer.unk_token_id:
                raise ValueError(f"labels: {text!r} is {len(tokens)} token(s) {tokens} here; a label must be one token")
        flat = [tokens[0] for tokens in ids]
        if len(set(flat)) != len(flat):
            raise ValueError(f"labels: two of {texts} share a token")
        return flat

    def label_logits(self, hidden: Tensor, label_ids: Tensor) -> Tensor:
        """Final norm and the LM head's rows of the labels, in float32: [..., D] -> [..., K]."""
        with torch.autocast(hidden.device.type, enabled=False):
            rows = self.lm.lm_head.weight[label_ids].float()
            return F.linear(self.lm.model.norm(hidden).float(), rows)


class PretrainedBackbone(Backbone):
    """A decoder from the Hub or from a local folder.

    Args:
        model: Hub id or path of a folder written by `save_pretrained`.
        revision: commit of the Hub repository, so that a checkpoint's base never changes under it.
        split: layers of P, R and C.
        dtype: type of the weights that stay frozen; trained ones are float32 (see `loopformer.adaptation`).
        words: names of word lists (`loopformer.tokenizer.WORD_LISTS`) whose words must be one token each.

    Raises:
        ValueError: a word is not, or `model` is written as a path (it starts with a dot or a slash) but is no folder.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        split: Split = Split(),
        dtype: str = "bfloat16",
        words: Sequence[str] = (),
    ) -> None:
        check_local_folder("backbone.model", model)
        lm = AutoModelForCausalLM.from_pretrained(
            model, revision=revision, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
        super().__init__(lm, load_tokenizer(model, revision), split)
        check_words(self.tokenizer, words)
        self._reference = {"model": model, "revision": revision}

    @property
    def reference(self) -> dict[str, str | None]:
        """Id and revision of the base."""
        return self._reference


class ScratchBackbone(Backbone):
    """A decoder with fresh random weights, from a configuration alone.

    Args:
        model_type: Hugging Face model type, such as "qwen2", "qwen3" or "llama".
        config: fields of that type's configuration. `vocab_size` may be left out; it is then the tokenizer's.
        tokenizer: "tiny" for the embedded one, otherwise a Hub id or path.
        split: layers of P, R and C.
        words: names of word lists (`loopformer.tokenizer.WORD_LISTS`) whose words must be one token each; the embedded
            tokenizer learns them.

    Raises:
        ValueError: a word is not.
    """

    def __init__(
        self,
        config: dict[str, Any],
        model_type: str = "qwen2",
        tokenizer: str = TINY,
        split: Split = Split(1, 1, 1),
        words: Sequence[str] = (),
    ) -> None:
        loaded = tiny_tokenizer(tiny_words(words)) if tokenizer == TINY else load_tokenizer(tokenizer)
        check_words(loaded, words)
        fields = {"vocab_size": len(loaded), "pad_token_id": loaded.pad_token_id, **config}
        hf_config = AutoConfig.for_model(model_type, **fields)
        lm = AutoModelForCausalLM.from_config(hf_config, attn_implementation="sdpa", dtype=torch.float32)
        super().__init__(lm, loaded, split)


def check_local_folder(field: str, model: str) -> None:
    """Refuse a path that is no folder, which the Hugging Face library would otherwise look up on the Hub.

    Args:
        field: name of the option, for the message.
        model: Hub id or path; a path is one that starts with "." or "/".

    Raises:
        ValueError: it is written as a path but is no folder.
    """
    if model.startswith((".", "/")) and not Path(model).is_dir():
        raise ValueError(f"{field}: {model} is not a folder; give an exported language model, or a Hub id")


def apply_layer(layer: nn.Module, hidden: Tensor, geometry: Geometry, cache: Cache | None = None) -> Tensor:
    """Call one Hugging Face decoder layer: [B, S, D] -> [B, S, D]. The only place that knows its signature."""
    return cast(
        "Tensor",
        layer(
            hidden,
            attention_mask=geometry.mask,
            position_embeddings=geometry.rotary,
            cache=cache,
            use_cache=cache is not None,
        ),
    )


def run_layers(layers: list[nn.Module], hidden: Tensor, geometry: Geometry, cache: Cache | None = None) -> Tensor:
    """Apply layers in turn: [B, S, D] -> [B, S, D]."""
    for layer in layers:
        hidden = apply_layer(layer, hidden, geometry, cache)
    return hidden


def take_positions(hidden: Tensor, positions: Tensor) -> Tensor:
    """Pick one position of each row: hidden [B, S, D], positions [B] -> [B, D]; positions [B, L] -> [B, L, D]."""
    index = positions if positions.dim() == 2 else positions[:, None]
    picked = hidden.gather(1, index[..., None].expand(-1, -1, hidden.shape[-1]))
    return picked if positions.dim() == 2 else picked[:, 0]
