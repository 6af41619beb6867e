"""What of the backbone is trained: a part of the composition, not a flag.

Trained weights are float32 whatever the frozen ones are: an AdamW step of 1e-3 on a bfloat16 weight of 1.0 is lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import nn

from loopformer.backbone import Backbone


class Adaptation(ABC):
    """Marks the backbone's trainable parameters."""

    @abstractmethod
    def trained_modules(self, backbone: Backbone) -> list[nn.Module]:
        """Return the modules whose parameters are trained."""

    def apply(self, backbone: Backbone) -> None:
        """Freeze everything (in eval mode) except the trained modules (float32, in train mode)."""
        backbone.requires_grad_(False)
        backbone.eval()
        for module in self.trained_modules(backbone):
            module.requires_grad_(True)
            module.float()
            module.train()


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
