"""The LightningModule of ordinary language models: fine-tuning on responses, or language modelling on all tokens.

    python train.py --config configs/sft_trace.yaml
    python train.py --config configs/base_lm.yaml --config configs/backbone/tiny.yaml

It takes `datamodules.text.TextBatch` from any task; which tokens count is the batch's own `loss_mask`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

from datamodules.text import TextBatch
from loopformer import language_checkpoint
from loopformer.generation import end_token_ids, generate_greedy, read_response
from loopformer.initial import ExportedWeights
from loopformer.initialized import InitializedModule
from loopformer.language_model import LanguageModel, Predictions
from loopformer.losses import token_loss
from loopformer.optim import Optimizer, Schedule, build_optimizer, parameter_groups


class CausalLMModule(InitializedModule):
    """Trains a `LanguageModel` on text.

    Args:
        network: backbone and what of it is trained.
        optimizer: optimiser, schedule and clipping.
        weighting: "example" is the mean over an example's tokens, then over examples; "token" the mean over all of a
            batch's tokens (`loopformer.losses.token_loss`).
        extra_tokens: in validation a model may write the reference's number of tokens and so many more.
        initial: see `InitializedModule`.

    Raises:
        ValueError: a negative `extra_tokens`.
    """

    def __init__(
        self,
        network: LanguageModel,
        optimizer: Optimizer = Optimizer(),  # noqa: B008
        weighting: Literal["example", "token"] = "example",
        extra_tokens: int = 16,
        initial: ExportedWeights | None = None,
    ) -> None:
        super().__init__(initial)
        if extra_tokens < 0:
            raise ValueError(f"extra_tokens: got {extra_tokens}; use 0 or more")
        self.network = network
        self.optimizer_config = optimizer
        self.weighting = weighting
        self.extra_tokens = extra_tokens

    @property
    def provenance(self) -> dict[str, Any]:
        """What an export tells of its start and its text: an evaluation asks in the way that was trained."""
        style = getattr(self.trainer.datamodule, "style", None)  # type: ignore[attr-defined]
        return super().provenance | ({} if style is None else {"text_style": style})

    def training_step(self, batch: TextBatch, batch_idx: int) -> dict[str, Tensor]:
        """Loss of a batch; `success` [] is the share of examples whose answers are all the most likely tokens."""
        del batch_idx
        found = self.network.predict(batch.input_ids, batch.loss_mask)
        loss = token_loss(found.logits, batch.input_ids, batch.loss_mask, self.weighting)
        success = answered(found, batch).double().mean()
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(batch), sync_dist=True)
        self.log("train/answered", success, batch_size=len(batch), sync_dist=True)
        return {"loss": loss, "success": success}

    def on_validation_epoch_start(self) -> None:
        """Make a mean for every number of every cohort.

        On every process: all of them take part in the exchange, those too that get no example of a cohort.
        """
        suffixes = ["" if cohort == "trained" else f"/{cohort}" for cohort in self._cohorts()]
        names = [f"val/{name}{suffix}" for name in ("loss", "answered", "generated") for suffix in suffixes]
        self._means = {name: MeanMetric().to(self.device) for name in names}

    def validation_step(self, batch: TextBatch, batch_idx: int) -> dict[str, Any]:
        """Loss on all examples, generation on those the batch marks.

        Trained counts log as `val/loss`, other cohorts as `val/loss/held_out` and so on. `val/answered` is the share of
        examples whose answers are all the most likely tokens, given the right ones before; `val/generated` the share of
        generated responses that equal the reference token by token. Callbacks get the responses themselves.
        """
        del batch_idx
        found = self.network.predict(batch.input_ids, batch.loss_mask)
        right = answered(found, batch).double()
        for suffix, rows in self._cohort_rows(batch):
            chosen = rows[:, None].expand_as(batch.loss_mask)[batch.loss_mask]  # [M] targets of the cohort
            loss = token_loss(found.logits[chosen], batch.input_ids[rows], batch.loss_mask[rows], self.weighting)
            self._means[f"val/loss{suffix}"].update(loss, int(rows.sum()))
            self._means[f"val/answered{suffix}"].update(right[rows])
        return self._generate(batch.select(batch.generated)) if bool(batch.generated.any()) else {}

    def _generate(self, batch: TextBatch) -> dict[str, Any]:
        backbone = self.network.backbone
        answers = batch.answers()
        responses = generate_greedy(
            backbone.lm,
            batch.prompts(),
            max(map(len, answers)) + self.extra_tokens,
            end_token_ids(backbone.lm, backbone.tokenizer),
        )
        pairs = zip(responses, answers, strict=True)
        equal = [response.ended and response.ids == answer[:-1] for response, answer in pairs]
        matched = torch.tensor(equal, dtype=torch.float64, device=batch.steps.device)
        for suffix, rows in self._cohort_rows(batch):
            self._means[f"val/generated{suffix}"].update(matched[rows])
        texts = [read_response(backbone.tokenizer, response) for response in responses]
        return {"generated": batch, "texts": texts, "ended": [response.ended for response in responses]}

    def on_validation_epoch_end(self) -> None:
        """Log the means over the examples of all processes."""
        for name, mean in self._means.items():
            value = mean.compute()
            if not torch.isnan(value):  # no example of the cohort was validated, or none generated
                self.log(name, value, rank_zero_only=False)

    def _cohorts(self) -> dict[str, list[int]]:
        """Validation counts by cohort; a datamodule without cohorts has one of everything."""
        return getattr(self.trainer.datamodule, "cohorts", {"trained": []})  # type: ignore[attr-defined]

    def _cohort_rows(self, batch: TextBatch) -> list[tuple[str, Tensor]]:
        """Log suffix and rows [B] bool of every cohort that occurs in the batch; one without counts is everything."""
        found = []
        for cohort, counts in self._cohorts().items():
            rows = torch.ones_like(batch.generated)
            if counts:
                rows = torch.isin(batch.steps, torch.tensor(counts, device=batch.steps.device))
            if bool(rows.any()):
                found.append(("" if cohort == "trained" else f"/{cohort}", rows))
        return found

    def configure_optimizers(self) -> Any:
        """AdamW over the trainable parameters, norms and biases undecayed."""
        config = self.optimizer_config
        self.schedule = Schedule(config, int(self.trainer.estimated_stepping_batches))
        return build_optimizer(parameter_groups(self.network, [], config), config, self.schedule)

    def clipped_groups(self) -> list[tuple[list[nn.Parameter], float]]:
        """Clip all trained parameters together."""
        return [([p for p in self.network.parameters() if p.requires_grad], self.optimizer_config.clip)]

    def export(
        self, directory: Path, config: dict[str, Any], provenance: dict[str, Any], metrics: dict[str, Any] | None
    ) -> None:
        """Write the checkpoint folder (called by the export callback)."""
        language_checkpoint.save(directory, self.network, config, provenance, metrics)


def answered(found: Predictions, batch: TextBatch) -> Tensor:
    """[B] bool, whether every token of an example's answers is the most likely one, given those before it.

    Args:
        found: predictions at the batch's `loss_mask`.
        batch: the batch.
    """
    wrong = found.logits.argmax(-1) != found.targets
    placed = torch.zeros_like(batch.loss_mask).masked_scatter(batch.loss_mask, wrong)
    return ~(placed & batch.answer_mask).any(1)
