"""Halting: parts that watch the loops and say when to stop. One interface, three kinds."""

from loopformer.halting.base import Halting, HaltingInputs
from loopformer.halting.gru import GRUController
from loopformer.halting.stop_head import StopHead
from loopformer.halting.timer import AffineTimer

__all__ = ["AffineTimer", "GRUController", "Halting", "HaltingInputs", "StopHead"]
