"""Which tensors of a model its base does not have: those alone go into training checkpoints."""

from __future__ import annotations

from typing import Any

from torch import nn

from loopformer.adaptation import Adaptation
from loopformer.backbone import Backbone
from loopformer.clipping import ClippedModule


def own_tensor_names(model: nn.Module, backbone: Backbone, adaptation: Adaptation) -> set[str]:
    """Names in the state of `model` (whose attribute `backbone` is the backbone) that cannot be loaded again.

    A tied LM head is the embedding under another name, and left out.
    """
    state = model.state_dict()
    tied = {"backbone.lm.lm_head.weight"} if backbone.config.tie_word_embeddings else set()
    if backbone.reference is None:
        return set(state) - tied
    trained = {id(p) for module in adaptation.trained_modules(backbone) for p in module.parameters()}
    base = {f"backbone.{name}" for name, p in backbone.named_parameters() if id(p) not in trained}
    return set(state) - base - tied


class OwnTensorsModule(ClippedModule):
    """Keeps only the own tensors of `network` in its training checkpoints; the base is loaded from its source again."""

    network: Any

    def __init__(self) -> None:
        super().__init__()
        self.strict_loading = False  # frozen base weights are not in the training checkpoint; see on_load_checkpoint

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep only what a resumed run cannot load from the base again."""
        own = self.network.own_tensor_names()
        checkpoint["state_dict"] = {
            name: value for name, value in checkpoint["state_dict"].items() if name.removeprefix("network.") in own
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint whose tensors are not exactly the expected ones.

        Raises:
            ValueError: naming the missing and the unexpected tensors.
        """
        if "state_dict" not in checkpoint:  # the sharding strategy has loaded it already
            return
        expected = {f"network.{name}" for name in self.network.own_tensor_names()}
        found = set(checkpoint["state_dict"])
        if expected != found:
            raise ValueError(
                f"checkpoint: missing tensors {sorted(expected - found)[:5]}, "
                f"unexpected {sorted(found - expected)[:5]}; resume with the config the run was started with"
            )
