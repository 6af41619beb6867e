"""A timer on its own, without the executor: does it read every number, and stop at every count?

Source: evaluation protocol, "Controller-only".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from datamodules.graph_batcher import GraphBatcher
from loopformer.evaluation.trace import timer_stops
from loopformer.halting import AffineTimer, HaltingInputs
from loopformer.looped import LoopedTransformer

COUNTS = 8192
READINGS = 10_000


@torch.inference_mode()
def sweep_timer(
    network: LoopedTransformer, batcher: GraphBatcher, counts: int = COUNTS, readings: int = READINGS
) -> dict[str, Any] | None:
    """Ask a timer for every count from 1 on.

    Args:
        network: the model.
        batcher: tokenises the counts' digits.
        counts: largest count whose first stop is checked.
        readings: largest number whose reading is checked, from 0.

    Returns:
        `counts`, `exact_stop` (fraction), `first_failure` (count, or None), `readings` and `reading_error` (largest,
        in steps); None if the model has no timer.
    """
    if not isinstance(network.halting, AffineTimer):
        return None
    asked = list(range(1, counts + 1))
    stops = timer_stops(network, batcher, asked, counts + 16).numpy()
    wrong = np.flatnonzero(stops != np.asarray(asked))
    digits = batcher.count_digits(np.arange(readings + 1)).to(network.label_ids.device)
    embeddings = network.backbone.lm.model.embed_tokens(digits.clamp(min=0))
    read = network.halting.start(HaltingInputs(None, digits, embeddings)).double().cpu()
    return {
        "counts": counts,
        "exact_stop": 1 - len(wrong) / counts,
        "first_failure": int(wrong[0]) + 1 if len(wrong) else None,
        "readings": readings,
        "reading_error": float((read - torch.arange(readings + 1)).abs().max()),
    }
