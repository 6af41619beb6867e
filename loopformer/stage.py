"""Base of the second stage: a stop rule trained over a frozen, already exported executor."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from loopformer import checkpoint
from loopformer.clipping import ClippedModule
from loopformer.halting import Halting
from loopformer.optim import Optimizer, Schedule, build_optimizer


class HaltingStage(ClippedModule):
    """Holds a frozen executor with a new (or continued) halting part, which alone is trained.

    Args:
        executor: folder of an exported executor.
        halting: the part to train. Where the executor already has one of the same kind, its weights are the start.
        optimizer: optimiser, schedule and clipping.

    Raises:
        CheckpointError: the folder cannot be loaded.
    """

    def __init__(self, executor: str, halting: Halting, optimizer: Optimizer) -> None:
        super().__init__()
        loaded = checkpoint.load(executor)
        self.executor_config = loaded.config
        self.optimizer_config = optimizer
        self.network = loaded.network
        previous = self.network.halting
        halting.build(self.network.backbone.hidden_size)
        if type(previous) is type(halting):
            halting.load_state_dict(previous.state_dict(), strict=False)
        self.network.halting = halting

    @property
    def network_config(self) -> dict[str, Any]:
        """Composition of the executor with the halting part as it is exported."""
        config = copy.deepcopy(self.executor_config["network"])
        config.setdefault("init_args", {})["halting"] = self.exported_halting()
        return config

    @property
    def provenance(self) -> dict[str, Any]:
        """What an export of this stage tells of its executor: how it was made, and on which counts."""
        made = self.executor_config.get("provenance", {})
        return {"trained_counts": list(made.get("trained_counts", [])), "executor": made}

    def exported_halting(self) -> dict[str, Any]:
        """Composition of the halting part in the exported model."""
        raise NotImplementedError

    def optimizer_groups(self) -> list[dict]:
        """Parameter groups of the halting part."""
        return [{"params": [p for p in self._halting().parameters() if p.requires_grad]}]

    def configure_optimizers(self) -> Any:
        """AdamW without weight decay on the halting part."""
        config = self.optimizer_config
        groups = [{"weight_decay": config.weight_decay, **group} for group in self.optimizer_groups()]
        return build_optimizer(groups, config, Schedule(config, int(self.trainer.estimated_stepping_batches)))

    def clipped_groups(self) -> list[tuple[list[nn.Parameter], float]]:
        """Clip the halting part, which alone is trained."""
        return [(list(self._halting().parameters()), self.optimizer_config.clip)]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep only the halting part: the executor is its folder's."""
        prefix = "network.halting."
        checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if k.startswith(prefix)}
        self.strict_loading = False

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a training checkpoint of another halting part.

        Raises:
            ValueError: naming the tensors that differ.
        """
        expected = {f"network.halting.{name}" for name in self._halting().state_dict()}
        if expected != set(checkpoint["state_dict"]):
            odd = sorted(expected ^ set(checkpoint["state_dict"]))[:5]
            raise ValueError(f"checkpoint: tensors {odd} do not match model.halting; resume with the run's own config")
        self.strict_loading = False

    def _halting(self) -> Halting:
        assert self.network.halting is not None
        return self.network.halting
