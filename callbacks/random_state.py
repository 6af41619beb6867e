"""Keeps every random generator's state in the training checkpoint: a resumed run draws the same numbers."""

from __future__ import annotations

import random
from typing import Any

import lightning as L
import numpy as np
import torch


class RandomState(L.Callback):
    """Saves and restores Python's, NumPy's, torch's and CUDA's generators.

    Lightning saves none of them. All values are plain types, since checkpoints load without pickle. In a distributed
    run the saved state is rank 0's: give ranks draws of their own from (seed, step, rank), not from these generators.
    """

    def __init__(self) -> None:
        self._pending: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the generators' states as tensors and plain lists."""
        version, internal, gauss = random.getstate()
        kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002  (the global one)
        return {
            "python": [version, list(internal), gauss],
            "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Hold the states until training starts: loading happens before other set-up may draw numbers."""
        self._pending = state_dict

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore the generators of a resumed run."""
        del trainer, pl_module
        state = self._pending
        if state is None:
            return
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))
        kind, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
        torch.set_rng_state(state["torch"].cpu())
        if state["cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all([s.cpu() for s in state["cuda"]])
        self._pending = None
