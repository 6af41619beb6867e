"""What of the backbone is trained: a part of the composition, not a flag.

Trained weights are float32 whatever the frozen ones are: an AdamW step of 1e-3 on a bfloat16 weight of 1.0 is lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from torch import nn

from loopformer.backbone import Backbone


class Adaptation(ABC):
    """Marks the backbone's trainable parameters."""

    def prepare(self, backbone: Backbone) -> None:  # noqa: B027  (most need nothing)
        """Add whatever modules the adaptation needs; called once, before anything is frozen."""

    @abstractmethod
    def trained_modules(self, backbone: Backbone) -> list[nn.Module]:
        """Return the modules whose parameters are trained."""

    def apply(self, backbone: Backbone) -> None:
        """Freeze everything (in eval mode) except the trained modules (float32, in train mode)."""
        self.prepare(backbone)
        backbone.requires_grad_(False)
        backbone.eval()
        for module in self.trained_modules(backbone):
            module.requires_grad_(True)
            module.float()
            module.train()

    def export(self, backbone: Backbone, folder: Path) -> None:  # noqa: B027  (most have nothing to add)
        """Write files beside a checkpoint's own, in formats that other libraries read."""


class Frozen(Adaptation):
    """Nothing of the backbone is trained."""

    def trained_modules(self, backbone: Backbone) -> list[nn.Module]:
        """See `Adaptation.trained_modules`."""
        del backbone
        return []


class RecurrentBlock(Adaptation):
    """All of R is trained (architecture 4); embeddings, P, C, the final norm and the LM head stay as they are."""

    def trained_modules(self, backbone: Backbone) -> list[nn.Module]:
        """See `Adaptation.trained_modules`."""
        return backbone.recurrent


class Everything(Adaptation):
    """The whole decoder is trained, embeddings included: for from-scratch backbones."""

    def trained_modules(self, backbone: Backbone) -> list[nn.Module]:
        """See `Adaptation.trained_modules`."""
        return [backbone.lm]


class LoRA(Adaptation):
    """Low-rank adapters on projections of R's layers (architectures 1 to 3), through peft.

    The Hugging Face model gets the adapter injected in place, so layer numbers and names stay those of the base, and a
    checkpoint carries a peft adapter that `peft` itself loads onto the base.

    Args:
        rank: rank of the update.
        alpha: its scale is alpha / rank.
        dropout: on the adapter's input, in training.
        targets: projections of every R layer that are adapted.
    """

    def __init__(
        self,
        rank: int = 8,
        alpha: int = 16,
        dropout: float = 0.0,
        targets: list[str] = ["q_proj", "v_proj"],  # noqa: B006
    ) -> None:
        if rank < 1:
            raise ValueError(f"adaptation.rank: needs at least 1, got {rank}")
        self.rank, self.alpha, self.dropout, self.targets = rank, alpha, dropout, list(targets)

    def prepare(self, backbone: Backbone) -> None:
        """Inject the adapter.

        Raises:
            ValueError: there is one already; a second would silently start the first anew.
        """
        if self._layers(backbone):
            raise ValueError("adaptation: the backbone has a LoRA adapter already")
        first = backbone.split.prelude
        reference = backbone.reference or {}
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            bias="none",
            target_modules=self.targets,
            layers_to_transform=list(range(first, first + backbone.split.recurrent)),
            base_model_name_or_path=reference.get("model"),
            revision=reference.get("revision"),
            task_type="CAUSAL_LM",
        )
        inject_adapter_in_model(config, backbone.lm)

    def trained_modules(self, backbone: Backbone) -> list[nn.Module]:
        """See `Adaptation.trained_modules`: the adapters' own matrices."""
        return [part for layer in self._layers(backbone) for part in (layer.lora_A, layer.lora_B)]

    def export(self, backbone: Backbone, folder: Path) -> None:
        """Write `adapter/`, a peft adapter."""
        adapter = folder / "adapter"
        adapter.mkdir()
        config = backbone.lm.peft_config["default"]
        config.save_pretrained(adapter)
        weights = get_peft_model_state_dict(backbone.lm, adapter_name="default")
        prefixed = {f"base_model.model.{name}": value.detach().cpu().contiguous() for name, value in weights.items()}
        save_file(prefixed, adapter / "adapter_model.safetensors", metadata={"format": "pt"})

    @torch.no_grad()
    def merge(self, backbone: Backbone) -> None:
        """Fold the adapters into the base's weights; the model then computes the same without them."""
        for layer in self._layers(backbone):
            layer.merge(safe_merge=True)

    @staticmethod
    def _layers(backbone: Backbone) -> list[LoraLayer]:
        return [module for module in backbone.lm.modules() if isinstance(module, LoraLayer)]
