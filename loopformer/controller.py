"""Stage of architecture 4's GRU controller: trained on the cached states of a frozen executor.

The executor never sees the requested count, so its states are computed once per graph and serve every count.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch import Tensor

from datamodules.batch import Batch
from loopformer.halting import GRUController, HaltingInputs
from loopformer.halting.gru import REMAINING_SCALE
from loopformer.losses import remaining_loss, stop_loss
from loopformer.metrics.functional import stop_loop
from loopformer.optim import Optimizer
from loopformer.stage import HaltingStage


class ControllerModule(HaltingStage):
    """Balanced stop loss plus remaining-work loss on (graph, count) pairs.

    Args:
        executor: folder of an exported executor; its GRU, if it has one, is the start.
        optimizer: optimiser and schedule.
        width: GRU memory size.
        loops: loops of a training rollout; longer requests get continue labels only.
    """

    def __init__(
        self,
        executor: str,
        optimizer: Optimizer = Optimizer(lr=3e-4, weight_decay=0.0),  # noqa: B008
        width: int = 128,
        loops: int = 12,
    ) -> None:
        super().__init__(executor, GRUController(width, predict_remaining=True), optimizer)
        self.loops = loops
        if not self.network.count_free:
            raise ValueError("executor: its prompt shows the count, so its states cannot be shared between counts")

    def exported_halting(self) -> dict[str, Any]:
        """The remaining-work readout serves training only and is dropped."""
        return {"class_path": "GRUController", "init_args": {"width": self._halting().width}}

    def export_network(self) -> None:
        """Drop the training-only readout before the export."""
        halting = self._halting()
        assert isinstance(halting, GRUController)
        halting.remaining_readout = None

    def on_fit_start(self) -> None:
        """Cache the executor's answer states per graph and P's state of the full prompt per pair."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        self.caches = [self._cache(data.panels[name], loops) for name, loops in self._panel_loops(data)]

    def _panel_loops(self, data: Any) -> list[tuple[str, int]]:
        return [("train", self.loops), ("validation", max(data.panels["validation"].counts))]

    @torch.no_grad()
    def _cache(self, panel: Any, loops: int) -> tuple[Tensor, Tensor]:
        states, prompts = [], []
        for batch in panel.graph_batches():
            start = self.network.start(batch.to(self.device))
            each = [self.network.recurrence.answer(s, start.memory) for s in islice(self.network.states(start), loops)]
            states.append(torch.stack(each, 1).float())
        for batch in panel.pair_batches():
            view = batch.to(self.device).views["full"]
            prompts.append(self.network.backbone.prelude_answer_state(view.input_ids, view.lengths).float())
        return torch.cat(states), torch.cat(prompts)

    def _run(self, batch: Batch, cache: tuple[Tensor, Tensor], counts: int) -> tuple[Tensor, Tensor]:
        states, prompts = cache
        inputs = HaltingInputs(prompts[batch.instance], batch.digits, states.new_empty(0))
        stop, remaining = self.network.halt(inputs, list(states[batch.instance // counts].unbind(1)))
        assert remaining is not None
        return stop, remaining

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """One batch of (graph, count) pairs on cached states."""
        del batch_idx
        counts = len(self.trainer.datamodule.panels["train"].counts)  # type: ignore[attr-defined]
        stop, remaining = self._run(batch, self.caches[0], counts)
        loss = stop_loss(stop, batch.steps) + remaining_loss(remaining, batch.steps, REMAINING_SCALE)
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(batch))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Exact stops and stop loss at seen counts up to the trained loops; `val/selection` orders by both."""
        del batch_idx
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        stop, _ = self._run(batch, self.caches[1], len(data.panels["validation"].counts))
        seen = torch.isin(batch.steps, torch.tensor(data.panels["train"].counts, device=batch.steps.device))
        seen &= batch.steps <= self.loops
        for name, rows in (("", seen), ("unseen/", ~seen)):
            if n := int(rows.sum()):
                exact = (stop_loop(stop[rows]) == batch.steps[rows]).float().mean()
                loss = stop_loss(stop[rows], batch.steps[rows])
                kw: dict[str, Any] = {"batch_size": n, "sync_dist": True}
                self.log(f"val/{name}exact_stop", exact, prog_bar=not name, **kw)
                self.log(f"val/{name}stop_loss", loss, **kw)
                if not name:  # one more exact stop outweighs any difference of loss
                    self.log("val/selection", exact - 1e-6 * loss.clamp(max=10.0), **kw)
