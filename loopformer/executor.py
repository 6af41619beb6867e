"""The LightningModule of the ladder: trains an executor, alone or together with its stop rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from datamodules.batch import Batch
from loopformer.halting import StopHead
from loopformer.looped import LoopedTransformer, Rollout
from loopformer.losses import equal_loop_weights, initial_loss, letter_loss, stop_loss
from loopformer.optim import Optimizer, Schedule, build_optimizer, parameter_groups


@dataclass
class LossWeights:
    """Weights of the loss terms of an executor run.

    Attributes:
        letter: cross-entropy of the readout through C, at every loop.
        direct: the same of the direct head. None: 0.25 in models that have one.
        initial: cross-entropy of the direct head at loop 0 against the start state. Extra supervision, absent from the
            published recipe; from scratch it shortens the plateau before the lookup forms.
        stop: balanced stop loss of the halting part. None: 0.1 in models that have one.
        loops: how an example's loops share its weight in the letter and direct losses of training. "example": equally,
            so that shallow loops, which every example has, weigh most. "equal": so that over the training data every
            loop has the same total weight (`loopformer.losses.equal_loop_weights`). Validation losses always use
            "example", so that runs compare.
    """

    letter: float = 1.0
    direct: float | None = None
    initial: float = 0.0
    stop: float | None = None
    loops: Literal["example", "equal"] = "example"

    def settled(self, network: LoopedTransformer) -> LossWeights:
        """Return the weights with numbers for None, and tell what the network makes of them.

        Raises:
            ValueError: a loss needs a part that the network lacks, or leaves a readout untrained.
        """
        if network.direct_head is None:
            if self.initial:
                raise ValueError("losses.initial: needs network.direct_head, which reads loop 0; add it or set 0")
            if self.direct:
                rank_zero_warn(f"losses.direct: {self.direct} is ignored, network.direct_head is null; set it to null")
        elif self.direct == 0 and not self.initial:
            raise ValueError("losses.direct: 0 would leave the direct head untrained; set network.direct_head to null")
        if network.halting is None:
            if self.stop:
                rank_zero_warn(f"losses.stop: {self.stop} is ignored, network.halting is null; set it to null")
        elif self.stop == 0:
            rank_zero_warn("losses.stop: 0 leaves network.halting untrained; set network.halting to null")
        if isinstance(network.halting, StopHead) and network.count_free:
            rank_zero_warn(
                "network.halting: a StopHead sees only the loops' states, and recurrence.view 'executor' hides the "
                "count from them: it cannot know when to stop. Use view 'full' or a GRUController"
            )
        return replace(
            self,
            direct=_given(self.direct, 0.25 if network.direct_head is not None else 0.0),
            stop=_given(self.stop, 0.1 if network.halting is not None else 0.0),
        )


def _given(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


class ExecutorModule(L.LightningModule):
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
        self.loss_weights = losses.settled(network)
        self.strict_loading = False  # frozen base weights are not in the training checkpoint; see on_load_checkpoint

    def loss_terms(self, rollout: Rollout, batch: Batch, loop_weights: Tensor | None = None) -> dict[str, Tensor]:
        """Return the unweighted terms that this model has, by the names of `LossWeights`.

        Args:
            rollout: what the model said.
            batch: what it was asked.
            loop_weights: [T] see `letter_loss`.
        """
        terms = {"letter": letter_loss(rollout.letter_logits, batch.labels, loop_weights)}
        if rollout.direct_logits is not None:
            terms["direct"] = letter_loss(rollout.direct_logits, batch.labels, loop_weights)
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
        loops = batch.labels.shape[1]
        rollout = self.network.rollout(batch, loops)
        weights = None
        if self.loss_weights.loops == "equal":
            shares = self.trainer.datamodule.count_shares  # type: ignore[attr-defined]
            weights = equal_loop_weights(shares, loops, batch.labels.device)
        terms = self.loss_terms(rollout, batch, weights)
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

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep only what a resumed run cannot load from the base again."""
        own = self.network.own_tensor_names()
        checkpoint["state_dict"] = {
            name: value for name, value in checkpoint["state_dict"].items() if name.removeprefix("network.") in own
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint whose tensors are not exactly the expected ones.

        Raises:
            ValueError: naming the missing and the unexpected tensors.
        """
        expected = {f"network.{name}" for name in self.network.own_tensor_names()}
        found = set(checkpoint["state_dict"])
        if expected != found:
            raise ValueError(
                f"checkpoint: missing tensors {sorted(expected - found)[:5]}, "
                f"unexpected {sorted(found - expected)[:5]}; resume with the config the run was started with"
            )
