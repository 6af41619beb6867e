"""An ordinary causal language model: the same backbone without recurrence, for baselines and for pretraining a base.

Shape legend: B batch, S sequence, M targets, V vocabulary, D hidden.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from loopformer.adaptation import Adaptation, Everything, LoRA
from loopformer.backbone import Backbone
from loopformer.look_back import look_back as start_looking_back
from loopformer.own_tensors import own_tensor_names


class Predictions(NamedTuple):
    """Next-token logits at chosen targets.

    Attributes:
        logits: [M, V], in row-major order of the mask.
        targets: [M] the tokens to predict.
    """

    logits: Tensor
    targets: Tensor


class LanguageModel(nn.Module):
    """A decoder that reads its layers once, as it was made.

    Args:
        backbone: the decoder with its tokenizer. Its split only tells what `adaptation` calls R.
        adaptation: what is trained; default everything. LoRA adapts R: a split without P and C makes that all layers.
        look_back: start P's heads as heads that look a few tokens back (`loopformer.look_back`), where P is not
            pretrained: the same start as a looped model's.

    Raises:
        ValueError: LoRA on a from-scratch backbone: there is nothing to adapt, and no base to load it onto again.
    """

    def __init__(
        self,
        backbone: Backbone,
        adaptation: Adaptation = Everything(),  # noqa: B008
        look_back: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(adaptation, LoRA) and backbone.reference is None:
            raise ValueError("adaptation: LoRA needs a pretrained backbone; use Everything from scratch")
        self.backbone = backbone
        self.adaptation = adaptation
        if look_back and backbone.reference is None:
            start_looking_back(backbone.prelude, backbone.lm.model.rotary_emb.inv_freq)
        adaptation.apply(backbone)

    def train(self, mode: bool = True) -> LanguageModel:
        """Set the mode of the trained parts; the frozen part of the backbone stays in eval mode on purpose."""
        super().train(mode)
        self.backbone.eval()
        for module in self.adaptation.trained_modules(self.backbone):
            module.train(mode)
        return self

    def predict(self, input_ids: Tensor, target_mask: Tensor) -> Predictions:
        """Run the model and read it out at the targets alone: a vocabulary is wide, and most positions do not count.

        Args:
            input_ids: [B, S], right padded: a causal model never looks to the right, so padding needs no mask.
            target_mask: [B, S] bool, tokens to predict from those before them; its first column is False.
        """
        lm = self.backbone.lm
        hidden = lm.model(input_ids=input_ids, use_cache=False).last_hidden_state
        return Predictions(lm.lm_head(hidden[:, :-1][target_mask[:, 1:]]), input_ids[target_mask])

    def own_tensor_names(self) -> set[str]:
        """Names in `state_dict` that cannot be loaded from the base again: what training checkpoints must hold."""
        return own_tensor_names(self, self.backbone, self.adaptation)
