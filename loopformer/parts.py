"""Every part a configuration may name. Importing this module makes their short class names known to jsonargparse."""

from loopformer.adaptation import Adaptation, Everything, Frozen, LoRA, RecurrentBlock
from loopformer.backbone import Backbone, PretrainedBackbone, ScratchBackbone
from loopformer.bridge import Bridge, ReentryBridge, ReinjectionBridge
from loopformer.carry import FieldCarry, MarkedCarry
from loopformer.fixed_rules import FixedRules
from loopformer.halting import AffineTimer, GRUController, Halting, StopHead
from loopformer.language_model import LanguageModel
from loopformer.looped import DirectHead, LoopedTransformer
from loopformer.noise import StateNoise
from loopformer.recurrence import FixedPrompt, FullSequence, Recurrence
from loopformer.state_heads import ClassHead, FieldHead, MarkedClassHead, MarkerHead, PointerHead, StateHeads

__all__ = [
    "Adaptation",
    "AffineTimer",
    "Backbone",
    "Bridge",
    "ClassHead",
    "DirectHead",
    "Everything",
    "FieldCarry",
    "FieldHead",
    "FixedPrompt",
    "FixedRules",
    "Frozen",
    "FullSequence",
    "GRUController",
    "Halting",
    "LanguageModel",
    "LoRA",
    "LoopedTransformer",
    "MarkedCarry",
    "MarkedClassHead",
    "MarkerHead",
    "PointerHead",
    "PretrainedBackbone",
    "Recurrence",
    "RecurrentBlock",
    "ReentryBridge",
    "ReinjectionBridge",
    "ScratchBackbone",
    "StateHeads",
    "StateNoise",
    "StopHead",
]
