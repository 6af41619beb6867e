"""The LightningModule of the ladder: trains an executor, alone or together with its stop rule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

from datamodules.batch import Batch
from loopformer.initial import ExportedWeights
from loopformer.initialized import InitializedModule
from loopformer.looped import LoopedTransformer
from loopformer.loss_weights import FIELD, LossWeights
from loopformer.losses import equal_loop_weights, field_loss, initial_loss, letter_loss, stop_loss
from loopformer.optim import Optimizer, Schedule, build_optimizer, parameter_groups
from loopformer.rollout import Rollout
from loopformer.sharding import shard


class ExecutorModule(InitializedModule):
    """Trains a `LoopedTransformer` on rollouts of each batch's own depth.

    Args:
        network: the composed model.
        optimizer: optimiser, schedule and clipping.
        losses: weights of the loss terms.
        initial: see `InitializedModule`.
    """

    def __init__(
        self,
        network: LoopedTransformer,
        optimizer: Optimizer = Optimizer(),  # noqa: B008
        losses: LossWeights = LossWeights(),  # noqa: B008
        initial: ExportedWeights | None = None,
    ) -> None:
        super().__init__(initial)
        self.network = network
        self.optimizer_config = optimizer
        self.loss_weights = losses.settled(network)

    def configure_model(self) -> None:
        """Shard the network where the strategy asks for it (`fully_sharded`)."""
        shard(self.network, self.device_mesh)

    @property
    def term_names(self) -> list[str]:
        """The loss terms that this model has, by the names of `LossWeights`."""
        network, weights = self.network, self.loss_weights
        present = {
            "letter": True,
            "direct": network.direct_head is not None,
            "initial": network.direct_head is not None and bool(weights.initial),
            "stop": network.halting is not None and bool(weights.stop),
        }
        fields = [] if network.state_heads is None else [FIELD + name for name in network.state_heads.sizes]
        return [name for name, there in present.items() if there] + fields

    def loss_terms(
        self, rollout: Rollout, batch: Batch, loop_weights: Tensor | None = None, smoothing: float = 0.0
    ) -> dict[str, Tensor]:
        """Return the unweighted terms of a rollout, by the names of `LossWeights`.

        Args:
            rollout: what the model said.
            batch: what it was asked.
            loop_weights: [T] see `letter_loss`.
            smoothing: see `letter_loss`.
        """
        terms = {"letter": lambda: letter_loss(rollout.letter_logits, batch.labels, loop_weights, smoothing)}
        if (direct := rollout.direct_logits) is not None:
            terms["direct"] = lambda: letter_loss(direct, batch.labels, loop_weights, smoothing)
        if (initial := rollout.initial_logits) is not None:
            terms["initial"] = lambda: initial_loss(initial, batch.initial, smoothing)
        if (stop := rollout.stop_logits) is not None:
            terms["stop"] = lambda: stop_loss(stop, batch.steps)
        for name in rollout.field_logits:
            terms[FIELD + name] = lambda name=name: self._field_loss(name, rollout, batch, smoothing)  # type: ignore[misc]
        return {name: terms[name]() for name in self.term_names}

    @staticmethod
    def _field_loss(name: str, rollout: Rollout, batch: Batch, smoothing: float) -> Tensor:
        if name not in batch.fields:
            raise ValueError(
                f"network.state_heads: the data have no field {name!r}, only {sorted(batch.fields)}; "
                "remove its head, or train on a task that has it"
            )
        return field_loss(rollout.field_logits[name], batch.fields[name], smoothing)

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        """Weighted sum of loss terms."""
        return torch.stack([self.loss_weights.of(name) * term for name, term in terms.items()]).sum()

    def on_fit_start(self) -> None:
        """Compare the model's labels with the task's, before anything is trained.

        Raises:
            ValueError: they differ; the label numbers would mean different things.
        """
        super().on_fit_start()
        labels = getattr(getattr(self.trainer, "datamodule", None), "labels", None)
        if labels is not None and list(labels.texts) != self.network.labels:
            raise ValueError(
                f"network.labels: got {self.network.labels}, the task has {list(labels.texts)}; make them equal"
            )

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        """One rollout of the batch; the outputs carry it for callbacks."""
        del batch_idx
        loops = batch.labels.shape[1]
        rollout = self.network.rollout(batch, loops)
        weights = None
        if self.loss_weights.loops == "equal":
            shares = self.trainer.datamodule.count_shares  # type: ignore[attr-defined]
            weights = equal_loop_weights(shares, loops, batch.labels.device)
        terms = self.loss_terms(rollout, batch, weights, self.loss_weights.smoothing)
        loss = self.total(terms)
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(batch), sync_dist=True)
        for name, term in terms.items():
            self.log(f"train/{name}_loss", term.detach(), batch_size=len(batch), sync_dist=True)
        return {"loss": loss + self._zero_gradients(), "rollout": rollout.detach()}

    def _zero_gradients(self) -> Tensor:
        """Return a zero that gives every part beside the backbone a gradient, if only one of zeros.

        A batch of depth 1 never enters the bridge. Without a gradient DDP would wait for it for ever (or search for
        unused parameters at every step), and AdamW would skip it in some updates, depending on how batches fall.
        """
        network = self.network
        parts = [network.bridge, network.carry, network.direct_head, network.halting, network.state_heads]
        trained = [p for part in parts if part is not None for p in part.parameters() if p.requires_grad]
        return sum((p.flatten()[0] * 0.0 for p in trained), torch.zeros((), device=self.device))

    def on_validation_epoch_start(self) -> None:
        """Make a sum for every loss of every cohort.

        On every process: all of them take part in the exchange, those too that get no instance of a cohort.
        """
        suffixes = {cohort: "" if cohort == "trained" else f"/{cohort}" for cohort in self._cohorts()}
        self._validation_losses = {
            (name, cohort): (f"val/{name}_loss{suffix}", MeanMetric().to(self.device))
            for name in self.term_names
            for cohort, suffix in suffixes.items()
        }

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        """One rollout; losses are means over all instances of a cohort, whatever the batch sizes.

        Trained counts log as `val/letter_loss`, other cohorts as `val/letter_loss/held_out` and so on.
        """
        del batch_idx
        rollout = self.network.rollout(batch, batch.labels.shape[1])
        for cohort, counts in self._cohorts().items():
            rows = torch.isin(batch.steps, torch.tensor(counts, device=batch.steps.device))
            if n := int(rows.sum()):
                for name, term in self.loss_terms(rollout.select(rows), batch.select(rows)).items():
                    self._validation_losses[name, cohort][1].update(term, n)
        return {"rollout": rollout}

    def on_validation_epoch_end(self) -> None:
        """Log the losses over the instances of all processes."""
        for log_name, metric in self._validation_losses.values():
            value = metric.compute()
            if not torch.isnan(value):  # no instance of the cohort was validated (limit_val_batches)
                self.log(log_name, value, rank_zero_only=False)

    def _cohorts(self) -> dict[str, list[int]]:
        return self.trainer.datamodule.cohorts  # type: ignore[attr-defined]

    def configure_optimizers(self) -> Any:
        """AdamW over the trainable parameters, spared groups undecayed."""
        config = self.optimizer_config
        self.schedule = Schedule(config, int(self.trainer.estimated_stepping_batches))
        groups = parameter_groups(self.network, [self.network.bridge, self.network.carry], config)
        return build_optimizer(groups, config, self.schedule)

    def clipped_groups(self) -> list[tuple[list[nn.Parameter], float]]:
        """Clip the executor's and the halting part's gradients apart: neither loss scales the other's steps."""
        config, halting = self.optimizer_config, self.network.halting
        apart = [] if halting is None or halting.trains_executor else list(halting.parameters())
        apart_ids = {id(p) for p in apart}
        rest = [p for p in self.network.parameters() if p.requires_grad and id(p) not in apart_ids]
        return [(rest, config.clip), *([(apart, config.controller_clip)] if apart else [])]
