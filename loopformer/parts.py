"""Every part a configuration may name. Importing this module makes their short class names known to jsonargparse."""

from loopformer.adaptation import Adaptation, Everything, Frozen, LoRA, RecurrentBlock
from loopformer.backbone import Backbone, PretrainedBackbone, ScratchBackbone
from loopformer.bridge import Bridge, ReentryBridge
from loopformer.halting import AffineTimer, GRUController, Halting, StopHead
from loopformer.language_model import LanguageModel
from loopformer.looped import DirectHead, LoopedTransformer
from loopformer.recurrence import FixedPrompt, FullSequence, Recurrence

__all__ = [
    "Adaptation",
    "AffineTimer",
    "Backbone",
    "Bridge",
    "DirectHead",
    "Everything",
    "FixedPrompt",
    "Frozen",
    "FullSequence",
    "GRUController",
    "Halting",
    "LanguageModel",
    "LoRA",
    "LoopedTransformer",
    "PretrainedBackbone",
    "Recurrence",
    "RecurrentBlock",
    "ReentryBridge",
    "ScratchBackbone",
    "StopHead",
]
