"""The LightningModule of the ladder: trains an executor, alone or together with its stop rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from datamodules.batch import Batch
from loopformer.looped import LoopedTransformer, Rollout
from loopformer.losses import initial_loss, letter_loss, stop_loss
from loopformer.optim import Optimizer, Schedule, build_optimizer, parameter_groups
from loopformer.own_tensors import OwnTensorsModule


@dataclass
class LossWeights:
    """Weights of the loss terms of an executor run.

    Attributes:
        letter: cross-entropy of the readout through C, at every loop.
        direct: the same of the direct head (models that have one).
        initial: cross-entropy of the direct head at loop 0 against the start state. Extra supervision, absent from the
            published recipe; from scratch it shortens the plateau before the lookup forms.
        stop: balanced stop loss of the halting part (models that have one).
    """

    letter: float = 1.0
    direct: float = 0.25
    initial: float = 0.0
    stop: float = 0.1


class ExecutorModule(OwnTensorsModule):
    """Trains a `LoopedTransformer` on rollouts of each batch's own depth.

    Args:
        network: the composed model.
        optimizer: optimiser, schedule and clipping.
        losses: weights of the loss terms.
    """

    def __init__(
        self,
        network: LoopedTransformer,
        optimizer: Optimizer = Optimizer(),  # noqa: B008
        losses: LossWeights = LossWeights(),  # noqa: B008
    ) -> None:
        super().__init__()
        self.network = network
        self.optimizer_config = optimizer
        self.loss_weights = losses
        if losses.initial and network.direct_head is None:
            raise ValueError("losses.initial: needs network.direct_head, which reads loop 0")

    def loss_terms(self, rollout: Rollout, batch: Batch) -> dict[str, Tensor]:
        """Return the unweighted terms that this model has, by the names of `LossWeights`."""
        terms = {"letter": letter_loss(rollout.letter_logits, batch.labels)}
        if rollout.direct_logits is not None:
            terms["direct"] = letter_loss(rollout.direct_logits, batch.labels)
        if rollout.initial_logits is not None and self.loss_weights.initial:
            terms["initial"] = initial_loss(rollout.initial_logits, batch.initial)
        if rollout.stop_logits is not None and self.loss_weights.stop:
            terms["stop"] = stop_loss(rollout.stop_logits, batch.steps)
        return terms

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        """Weighted sum of loss terms."""
        return torch.stack([getattr(self.loss_weights, name) * term for name, term in terms.items()]).sum()

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        """One rollout of the batch; the outputs carry it for callbacks."""
        del batch_idx
        rollout = self.network.rollout(batch, batch.labels.shape[1])
        terms = self.loss_terms(rollout, batch)
        loss = self.total(terms)
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(batch))
        for name, term in terms.items():
            self.log(f"train/{name}_loss", term.detach(), batch_size=len(batch))
        return {"loss": loss, "rollout": rollout.detach()}

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        """One rollout; losses are means over all instances of a cohort, whatever the batch sizes.

        Trained counts log as `val/letter_loss`, other cohorts as `val/letter_loss/held_out` and so on.
        """
        del batch_idx
        rollout = self.network.rollout(batch, batch.labels.shape[1])
        cohorts: dict[str, list[int]] = self.trainer.datamodule.cohorts  # type: ignore[attr-defined]
        for cohort, counts in cohorts.items():
            rows = torch.isin(batch.steps, torch.tensor(counts, device=batch.steps.device))
            if n := int(rows.sum()):
                suffix = "" if cohort == "trained" else f"/{cohort}"
                terms = self.loss_terms(rollout.select(rows), batch.select(rows))
                losses = {f"val/{name}_loss{suffix}": term for name, term in terms.items()}
                self.log_dict(losses, batch_size=n, sync_dist=True)
        return {"rollout": rollout}

    def configure_optimizers(self) -> Any:
        """AdamW over the trainable parameters, spared groups undecayed."""
        config = self.optimizer_config
        self.schedule = Schedule(config, int(self.trainer.estimated_stepping_batches))
        groups = parameter_groups(self.network, [self.network.bridge], config)
        return build_optimizer(groups, config, self.schedule)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the executor's and the halting part's gradients apart: neither loss scales the other's steps."""
        del optimizer, gradient_clip_val, gradient_clip_algorithm
        halting = self.network.halting
        apart = [] if halting is None or halting.trains_executor else list(halting.parameters())
        apart_ids = {id(p) for p in apart}
        rest = [p for p in self.network.parameters() if p.requires_grad and id(p) not in apart_ids]
        norm = torch.nn.utils.clip_grad_norm_(rest, self.optimizer_config.clip)
        self.log("train/grad_norm", norm)
        if apart:
            torch.nn.utils.clip_grad_norm_(apart, self.optimizer_config.controller_clip)
