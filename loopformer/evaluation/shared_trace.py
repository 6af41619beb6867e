"""Traces of models that see the requested count: the requests of a graph share everything before the count.

Loops are run only as far as they are asked for: up to the requested count, and on to the stop loop (or the cap) where
the stop rule has not fired by then. Requests that are done drop out.

Shape legend: B graphs, G requests of each (counts in descending order), L loops, K labels, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamodules.batch import Batch
from datamodules.graph_batcher import GraphBatcher
from datamodules.tasks.graph import Graphs
from loopformer.evaluation.convergence import TOLERANCES, relative_change
from loopformer.halting import HaltingInputs
from loopformer.looped import LoopedTransformer
from loopformer.shared_prefix import Prefix, SharedRollout, shared_rollout

COMPACT_EVERY = 4
"""Loops between two looks at which requests are done."""

COMPACT_BELOW = 0.9
"""Share of requests still running below which the others are dropped."""


@dataclass
class SharedTrace:
    """What a model said to G requests on each of B graphs.

    Attributes:
        letters: [B, G, L] int16 labels through C; loops that a request did not need repeat the last letter read.
        direct: the same by the direct head, or None.
        stops: [B, G] int32 stop loops, 0 where none by the cap.
        logits: [N, K] label logits of loops 1..N, by (graph, request) that was probed.
        converged: [B, G, V] int16 first loop whose state moved by less than each of `convergence.TOLERANCES`, 0 for
            none among the loops that were run.
    """

    letters: Tensor
    direct: Tensor | None
    stops: Tensor
    logits: dict[tuple[int, int], Tensor]
    converged: Tensor


@torch.inference_mode()
def trace_requests(
    network: LoopedTransformer,
    batcher: GraphBatcher,
    graphs: Graphs,
    counts: Sequence[int],
    cap: int,
    loops: int,
    probes: Sequence[tuple[int, int]] = (),
) -> SharedTrace:
    """Ask every graph for every count.

    Args:
        network: a model for which `can_share` holds.
        batcher: makes its prompts.
        graphs: B graphs.
        counts: requested counts G, in any order.
        cap: last loop at which the model may stop.
        loops: L, columns of the traces, at least the largest count; at least the cap where the model has a stop rule.
        probes: pairs of graph and request whose logits are kept.
    """
    shape = (len(graphs), len(counts))
    letters = torch.zeros(*shape, loops, dtype=torch.int16)
    converged = torch.zeros(*shape, len(TOLERANCES), dtype=torch.int16)
    direct = None if network.direct_head is None else torch.zeros_like(letters)
    stops = torch.zeros(shape, dtype=torch.int32)
    logits: dict[tuple[int, int], Tensor] = {}
    widths = np.array([len(str(count)) for count in counts])
    for width in np.unique(widths):
        # Prompts of equally many digits have equal lengths. Descending, so that those still read come first.
        columns = sorted(np.flatnonzero(widths == width).tolist(), key=lambda column: -counts[column])
        asked = [(g, columns.index(column)) for g, column in probes if column in columns]
        run = _Run(network, batcher, graphs, [counts[column] for column in columns], cap, loops, asked)
        run.finish()
        letters[:, columns], stops[:, columns], converged[:, columns] = run.letters, run.stops, run.converged
        if direct is not None and run.direct is not None:
            direct[:, columns] = run.direct
        logits |= {(g, columns[i]): torch.stack(rows) for (g, i), rows in run.logits.items()}
    return SharedTrace(letters, direct, stops, logits, converged)


class _Run:
    """The requests of one prompt length, from the first loop to the last one that any of them needs."""

    def __init__(
        self,
        network: LoopedTransformer,
        batcher: GraphBatcher,
        graphs: Graphs,
        counts: Sequence[int],
        cap: int,
        loops: int,
        probes: Sequence[tuple[int, int]],
    ) -> None:
        B, G = len(graphs), len(counts)
        batch = batcher.batch(graphs[np.repeat(np.arange(B), G)], np.tile(counts, B), facts={})
        batch = batch.to(network.label_ids.device)
        self.network, self.counts, self.probes = network, torch.tensor(counts), probes
        self.limit = counts[0] if network.halting is None else cap
        prefix = Prefix(network, batch.views[network.recurrence.view].input_ids.view(B, G, -1))
        self.rollout: SharedRollout = shared_rollout(network, prefix)
        self.memory: Any = None
        if network.halting is not None:
            state = prefix.requests[:, :, -1].flatten(0, 1)
            self.memory = network.halting.start(halting_inputs(network, batch, state, network.recurrence.view))
        self.letters = torch.zeros(B, G, loops, dtype=torch.int16)
        self.direct = None if network.direct_head is None else torch.zeros_like(self.letters)
        self.said = torch.zeros(B, G, loops, dtype=torch.bool)
        self.stops = torch.zeros(B, G, dtype=torch.int32)
        self.converged = torch.zeros(B, G, len(TOLERANCES), dtype=torch.int16)
        self.previous = prefix.requests[:, :, -1]
        self.logits: dict[tuple[int, int], list[Tensor]] = {probe: [] for probe in probes}
        self.origin = torch.arange(G).expand(B, -1)  # which request stands at each place

    def finish(self) -> None:
        """Run all loops."""
        for loop in range(1, self.limit + 1):
            if loop > 1:
                self.rollout.step()
            self._stop(loop)
            self._settle(loop)
            self._read(loop)
            if loop % COMPACT_EVERY == 0 and not self._compact(loop):
                break
        last = torch.where(self.said, torch.arange(self.said.shape[2]), 0).cummax(dim=2).values
        self.letters = self.letters.gather(2, last)
        if self.direct is not None:
            self.direct = self.direct.gather(2, last)

    def _stop(self, loop: int) -> None:
        halting = self.network.halting
        if halting is None:
            return
        self.memory, logit = halting.step(self.memory, self.rollout.answers().flatten(0, 1))
        fires = (logit >= 0).view(self.origin.shape).cpu()
        before = self.stops.gather(1, self.origin)
        self.stops.scatter_(1, self.origin, torch.where((before == 0) & fires, loop, before))

    def _settle(self, loop: int) -> None:
        answers = self.rollout.answers()
        change = relative_change(torch.stack([self.previous.to(answers.dtype), answers], 2))
        below = (change < change.new_tensor(TOLERANCES)).cpu()
        places = self.origin[..., None].expand_as(below)
        before = self.converged.gather(1, places)
        self.converged.scatter_(1, places, torch.where((before == 0) & below, loop, before).short())
        self.previous = answers

    def _read(self, loop: int) -> None:
        """Read the letters of the requests that want this loop: up to N, and where the model's answer is taken."""
        stops = self.stops.gather(1, self.origin)
        wanted = (self.counts[self.origin] >= loop) | (stops == loop) | ((stops == 0) & (loop == self.limit))
        columns = wanted.any(dim=0).nonzero()
        if not len(columns):
            return
        G = int(columns.max()) + 1
        logits = self.network.backbone.label_logits(self.rollout.read(G), self.network.label_ids).cpu()
        origin, wanted = self.origin[:, :G], wanted[:, :G]
        rows = torch.arange(len(origin))[:, None]
        self._note(self.letters, rows, origin, wanted, loop, logits)
        self.said[rows, origin, loop - 1] |= wanted
        if self.direct is not None and self.network.direct_head is not None:
            direct = self.network.direct_head(self.rollout.answers()[:, :G]).cpu()
            self._note(self.direct, rows, origin, wanted, loop, direct)
        for graph, request in self.probes:
            if loop <= self.counts[request]:
                place = (origin[graph] == request).nonzero()[0, 0]
                self.logits[graph, request].append(logits[graph, place])

    @staticmethod
    def _note(trace: Tensor, rows: Tensor, origin: Tensor, wanted: Tensor, loop: int, logits: Tensor) -> None:
        before = trace[rows, origin, loop - 1]
        trace[rows, origin, loop - 1] = torch.where(wanted, logits.argmax(-1).short(), before)

    def _compact(self, loop: int) -> bool:
        """Drop requests that are done; False if none is left."""
        running = self.counts[self.origin] > loop
        if self.network.halting is not None:
            running |= self.stops.gather(1, self.origin) == 0
        most = int(running.sum(dim=1).max())
        if most < COMPACT_BELOW * running.shape[1] and most:
            # Stable: the order by count stays. Places that a graph does not need keep requests that are done.
            places = torch.sort(running.int(), dim=1, descending=True, stable=True).indices[:, :most]
            self.origin = self.origin.gather(1, places)
            device = self.rollout.state.device
            if self.memory is not None:
                offset = torch.arange(len(places))[:, None] * running.shape[1]
                self.memory = self.memory[(places + offset).flatten().to(device)]
            self.rollout.keep(places.to(device))
            kept = places.to(device)[..., None].expand(-1, -1, self.previous.shape[2])
            self.previous = self.previous.gather(1, kept)
        return most > 0


def halting_inputs(network: LoopedTransformer, batch: Batch, prompt_state: Tensor, view: str) -> HaltingInputs:
    """What the halting part may look at, where P's answer states [Q, D] of one view are known already."""
    assert network.halting is not None
    if network.halting.prompt_view not in (None, view):
        return network.halting_inputs(batch)
    embeddings = network.backbone.lm.model.embed_tokens(batch.digits.clamp(min=0))
    return HaltingInputs(None if network.halting.prompt_view is None else prompt_state, batch.digits, embeddings)
