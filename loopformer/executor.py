"""The LightningModule of the ladder: trains an executor, alone or together with its stop rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from torch import Tensor

from datamodules.batch import Batch
from loopformer.looped import LoopedTransformer
from loopformer.losses import field_loss, initial_loss, letter_loss, stop_loss
from loopformer.optim import Optimizer, Schedule, build_optimizer, parameter_groups
from loopformer.rollout import Rollout

FIELD = "field_"
"""Before a field's name in the names of the loss terms."""


@dataclass
class LossWeights:
    """Weights of the loss terms of an executor run.

    Attributes:
        letter: cross-entropy of the readout through C, at every loop.
        direct: the same of the direct head (models that have one).
        initial: cross-entropy of the direct head at loop 0 against the start state. Extra supervision, absent from the
            published recipe; from scratch it shortens the plateau before the lookup forms.
        stop: balanced stop loss of the halting part (models that have one).
        fields: cross-entropy of the named state fields (models with state heads): one weight for all, or by name.
    """

    letter: float = 1.0
    direct: float = 0.25
    initial: float = 0.0
    stop: float = 0.1
    fields: float | dict[str, float] = 0.5

    def of(self, term: str) -> float:
        """Return the weight of a loss term; a field's is called `field_NAME`."""
        if term.startswith(FIELD):
            return self.fields[term.removeprefix(FIELD)] if isinstance(self.fields, dict) else self.fields
        weight: float = getattr(self, term)
        return weight


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
        self.loss_weights = losses
        self.strict_loading = False  # frozen base weights are not in the training checkpoint; see on_load_checkpoint
        if losses.initial and network.direct_head is None:
            raise ValueError("losses.initial: needs network.direct_head, which reads loop 0")
        if isinstance(losses.fields, dict):
            heads = set() if network.state_heads is None else set(network.state_heads.sizes)
            if odd := sorted(heads ^ set(losses.fields)):
                raise ValueError(
                    f"losses.fields: {odd[0]!r} has a weight or a head in network.state_heads, not both; "
                    "give one number for all fields, or exactly one weight per head"
                )

    def loss_terms(self, rollout: Rollout, batch: Batch) -> dict[str, Tensor]:
        """Return the unweighted terms that this model has, by the names of `LossWeights`."""
        terms = {"letter": letter_loss(rollout.letter_logits, batch.labels)}
        if rollout.direct_logits is not None:
            terms["direct"] = letter_loss(rollout.direct_logits, batch.labels)
        if rollout.initial_logits is not None and self.loss_weights.initial:
            terms["initial"] = initial_loss(rollout.initial_logits, batch.initial)
        if rollout.stop_logits is not None and self.loss_weights.stop:
            terms["stop"] = stop_loss(rollout.stop_logits, batch.steps)
        for name, logits in rollout.field_logits.items():
            if name not in batch.fields:
                raise ValueError(
                    f"network.state_heads: the data have no field {name!r}, only {sorted(batch.fields)}; "
                    "remove its head, or train on a task that has it"
                )
            terms[FIELD + name] = field_loss(logits, batch.fields[name])
        return terms

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        """Weighted sum of loss terms."""
        return torch.stack([self.loss_weights.of(name) * term for name, term in terms.items()]).sum()

    def on_fit_start(self) -> None:
        """Compare the model's labels with the task's, before anything is trained.

        Raises:
            ValueError: they differ; the label numbers would mean different things.
        """
        labels = getattr(getattr(self.trainer, "datamodule", None), "labels", None)
        if labels is not None and list(labels.texts) != self.network.labels:
            raise ValueError(
                f"network.labels: got {self.network.labels}, the task has {list(labels.texts)}; make them equal"
            )

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
