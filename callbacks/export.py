"""Writes the trained model as a checkpoint folder (safetensors, config, card) when the fit is over."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from loopformer import checkpoint
from loopformer.sharding import gather

log = logging.getLogger(__name__)


class ExportModel(L.Callback):
    """Exports `pl_module.network` to `directory`.

    Where the run selects a best training checkpoint (ModelCheckpoint with a monitor), its weights are exported,
    otherwise the last ones.

    Args:
        directory: the folder to write; it must not exist.
        network_config: composition of the network as parsed from YAML; modules of a later stage bring their own.
        provenance: seed, command and whatever else the card should tell.
    """

    def __init__(self, directory: str, network_config: dict[str, Any] | None, provenance: dict[str, Any]) -> None:
        self.directory = Path(directory)
        self.network_config = network_config
        self.provenance = provenance

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the folder on rank 0."""
        gather(pl_module.network)  # type: ignore[arg-type]
        if not trainer.is_global_zero or trainer.interrupted:
            return
        module: Any = pl_module
        provenance = {**self.provenance, **getattr(module, "provenance", {}), "optimizer_steps": trainer.global_step}
        best = self._select(trainer, module)
        if best:
            provenance["selected"] = best
        if hasattr(module, "export_network"):
            module.export_network()
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if hasattr(callback, "complete") and hasattr(callback, "stage"):
                provenance["curriculum"] = {"stage": callback.stage + 1, "complete": callback.complete}
        metrics = {k: round(float(v), 6) for k, v in trainer.callback_metrics.items() if k.startswith("val/")}
        metrics |= getattr(module, "report", {})
        config = self.network_config if self.network_config is not None else module.network_config
        if hasattr(module, "export"):
            module.export(self.directory, config, provenance, metrics or None)
        else:
            checkpoint.save(self.directory, module.network, config, provenance, metrics or None)
        log.info("exported the model to %s", self.directory)

    @staticmethod
    def _select(trainer: L.Trainer, module: Any) -> dict[str, Any] | None:
        selector = trainer.checkpoint_callback
        if not isinstance(selector, ModelCheckpoint) or not selector.monitor or not selector.best_model_path:
            return None
        saved = torch.load(selector.best_model_path, map_location="cpu", weights_only=True)
        module.load_state_dict(saved["state_dict"], strict=False)
        score = None if selector.best_model_score is None else float(selector.best_model_score)
        return {"step": saved["global_step"], "monitor": selector.monitor, "score": score}


def command_line() -> str:
    """The command that started this run, for provenance."""
    return " ".join(["python", *sys.argv])
