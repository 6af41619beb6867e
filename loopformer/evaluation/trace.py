"""Runs a model on some graphs and all requested counts, and keeps what it said as small integers.

An executor whose prompt lacks the count is rolled out once per graph and serves every count; its stop times come from
the halting part alone. Any other model answers every query, with everything before the count shared.

Shape legend: B graphs, C counts, Q queries, L loops, K labels, D hidden, X projected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from datamodules.batch import Batch
from datamodules.graph_batcher import GraphBatcher
from datamodules.tasks.graph import Graphs
from loopformer.evaluation.convergence import TOLERANCES, Convergence
from loopformer.evaluation.shared_trace import halting_inputs, trace_requests
from loopformer.halting import HaltingInputs
from loopformer.looped import LoopedTransformer
from loopformer.metrics.functional import stop_loop
from loopformer.recurrence import Start
from loopformer.shared_prefix import Prefix, can_share

READ_EVERY = 32
"""Loops whose states are read through C together; bounds the memory whatever the number of loops."""


@dataclass
class Trace:
    """What a model said at loops 1..L.

    Attributes:
        letters: [R, L] int16 labels through C; `direct` alike by the direct head, or None.
        answers: [R, L, D] answer states, if they were asked for.
        logits: [P, L, K] of the probed rows.
        converged: [R, V] int16 first loop whose state moved by less than each of `convergence.TOLERANCES`, 0 for none.
    """

    letters: Tensor
    direct: Tensor | None
    answers: Tensor | None
    logits: Tensor
    converged: Tensor


def state_chunks(network: LoopedTransformer, start: Start, loops: int) -> Iterator[list[Tensor]]:
    """Yield the states of loops 1 to `loops`, up to `READ_EVERY` at a time."""
    states = network.states(start)
    for begin in range(0, loops, READ_EVERY):
        yield list(islice(states, min(READ_EVERY, loops - begin)))


@torch.inference_mode()
def trace_batch(
    network: LoopedTransformer, batch: Batch, loops: int, keep_answers: bool = False, probes: Sequence[int] = ()
) -> Trace:
    """Roll one batch out for a forced number of loops; memory does not grow with them, but for one integer a loop.

    Args:
        network: the model, on the batch's device.
        batch: the queries.
        loops: L, any number.
        keep_answers: keep the answer states (for stop rules that read them).
        probes: rows whose label logits are kept.
    """
    start = network.start(batch)
    rows = torch.tensor(list(probes), dtype=torch.long)
    settled = Convergence(network.recurrence.answer(start.anchor, start.memory))
    parts: list[tuple[Tensor, Tensor | None, Tensor | None, Tensor]] = []
    for chunk in state_chunks(network, start, loops):
        answers = torch.stack([network.recurrence.answer(s, start.memory) for s in chunk], 1)
        settled.update(answers)
        logits = network.read(chunk, start)
        direct = None if network.direct_head is None else network.direct_head(answers).argmax(-1).short().cpu()
        parts.append(
            (logits.argmax(-1).short().cpu(), direct, answers.float() if keep_answers else None, logits[rows].cpu())
        )
    letters, directs, kept, probed = zip(*parts, strict=True)
    return Trace(
        torch.cat(letters, 1),
        None if network.direct_head is None else torch.cat([d for d in directs if d is not None], 1),
        torch.cat([a for a in kept if a is not None], 1) if keep_answers else None,
        torch.cat(probed, 1),
        settled.stops.cpu(),
    )


@torch.inference_mode()
def countdown(
    network: LoopedTransformer, batcher: GraphBatcher, counts: Sequence[int], cap: int
) -> tuple[Tensor, Tensor | None]:
    """Run a halting part that reads the digits alone: one run per count, whatever the graph.

    Returns:
        [C] int32 first loop with stop probability at least 0.5, 0 where there is none by the cap; and [C, cap + 1]
        float32 estimate of the remaining steps at loops 0..cap, if the part makes one.
    """
    assert network.halting is not None
    digits = batcher.count_digits(np.asarray(counts)).to(network.label_ids.device)
    embeddings = network.backbone.lm.model.embed_tokens(digits.clamp(min=0))
    memory = network.halting.start(HaltingInputs(None, digits, embeddings))
    stops = torch.zeros(len(counts), dtype=torch.int32, device=digits.device)
    remaining = [network.halting.remaining(memory)]
    for loop in range(1, cap + 1):
        memory, logit = network.halting.step(memory, None)
        stops = torch.where((stops == 0) & (logit >= 0), loop, stops)
        remaining.append(network.halting.remaining(memory))
    known = [r.float() for r in remaining if r is not None]
    return stops.cpu(), torch.stack(known, 1).cpu() if known else None


def timer_stops(network: LoopedTransformer, batcher: GraphBatcher, counts: Sequence[int], cap: int) -> Tensor:
    """Stop loops [C] of `countdown`."""
    return countdown(network, batcher, counts, cap)[0]


CONTROLLER_GRAPHS = 16
"""Graphs whose requests a controller watches together; their memories stay in the processor's cache."""

DROP_EVERY = 8
"""Loops after which requests that have stopped are dropped."""


@torch.inference_mode()
def controller_stops(
    network: LoopedTransformer, batcher: GraphBatcher, graphs: Graphs, counts: Sequence[int], answers: Tensor
) -> Tensor:
    """Stop loops [B, C] int32 of a controller that watches the executor; all counts share its states [B, cap, D]."""
    stops = torch.zeros(len(graphs), len(counts), dtype=torch.int32)
    widths = np.array([len(str(count)) for count in counts])
    for begin in range(0, len(graphs), CONTROLLER_GRAPHS):
        rows = slice(begin, begin + CONTROLLER_GRAPHS)
        for width in np.unique(widths):  # prompts of equally many digits have equal lengths
            columns = np.flatnonzero(widths == width)
            watched = _watch(network, batcher, graphs[rows], np.asarray(counts)[columns], answers[rows])
            stops[rows, columns] = watched.int().cpu()
    return stops


def _watch(
    network: LoopedTransformer, batcher: GraphBatcher, graphs: Graphs, counts: np.ndarray, answers: Tensor
) -> Tensor:
    """[B, C] stop loops; what the controller takes from the states is computed once per graph."""
    halting, (B, C) = network.halting, (len(graphs), len(counts))
    assert halting is not None
    batch = batcher.batch(graphs[np.repeat(np.arange(B), C)], np.tile(counts, B), facts={}).to(answers.device)
    if halting.prompt_view is not None and can_share(network):
        prefix = Prefix(network, batch.views[halting.prompt_view].input_ids.view(B, C, -1))
        inputs = halting_inputs(network, batch, prefix.requests[:, :, -1].flatten(0, 1), halting.prompt_view)
    else:
        inputs = network.halting_inputs(batch)
    memory, projected = halting.start(inputs), halting.project(answers)
    stops = torch.zeros(B * C, dtype=torch.int64, device=answers.device)
    running = torch.arange(B * C, device=answers.device)
    for loop in range(1, answers.shape[1] + 1):
        memory, logit = halting.advance(memory, projected[running // C, loop - 1])
        stops[running] = torch.where((stops[running] == 0) & (logit >= 0), loop, stops[running])
        if loop % DROP_EVERY == 0:
            kept = (stops[running] == 0).nonzero()[:, 0]
            if not len(kept):
                break
            running, memory = running[kept], None if memory is None else memory[kept]
    return stops.view(B, C)


@dataclass
class Part:
    """What a model said to all requests on some of the graphs.

    Attributes:
        letters: [R, L] int16 letters through C: R = B for a count-free executor, else B C.
        direct: the same by the direct head, or None.
        stops: [B, C] int32 stop loops, 0 where none by the cap.
        logits: [N, K] label logits of loops 1..N of the probed (graph, count) pairs.
        converged: [R, V] int16 first loops at which the state settled, 0 where it did not.
    """

    letters: Tensor
    direct: Tensor | None
    stops: Tensor
    logits: dict[tuple[int, int], Tensor]
    converged: Tensor


@dataclass(frozen=True)
class Request:
    """What is asked of every graph.

    Attributes:
        counts: C requested counts.
        cap: last loop at which the model may stop.
        loops: L, columns of the traces.
        probes: columns of the counts whose logits are kept for the native check.
        stops: [C] stop loops of a halting part that reads the count alone (`countdown`), or None.
    """

    counts: Sequence[int]
    cap: int
    loops: int
    probes: Sequence[int]
    stops: Tensor | None = None


def run_part(
    network: LoopedTransformer, batcher: GraphBatcher, graphs: Graphs, request: Request, probed: Sequence[int]
) -> Part:
    """Run all requests on some graphs.

    Args:
        network: the model.
        batcher: makes its prompts.
        graphs: B graphs.
        request: what is asked.
        probed: graphs whose logits are kept, for the counts of `request.probes`.
    """
    if network.count_free:
        return _count_free(network, batcher, graphs, request, probed)
    if not can_share(network):
        return batched_part(network, batcher, graphs, request)
    pairs = [(graph, column) for graph in probed for column in request.probes]
    trace = trace_requests(network, batcher, graphs, request.counts, request.cap, request.loops, pairs)
    direct = None if trace.direct is None else trace.direct.flatten(0, 1)
    return Part(trace.letters.flatten(0, 1), direct, trace.stops, trace.logits, trace.converged.flatten(0, 1))


def _count_free(
    network: LoopedTransformer, batcher: GraphBatcher, graphs: Graphs, request: Request, probed: Sequence[int]
) -> Part:
    """One rollout per graph; every count reads the same trace."""
    halting, counts = network.halting, request.counts
    watches = halting is not None and halting.reads_state
    batch = batcher.batch(graphs, 1, facts={}).to(network.label_ids.device)
    trace = trace_batch(network, batch, request.loops, keep_answers=watches, probes=probed)
    stops = torch.zeros(len(graphs), len(counts), dtype=torch.int32)
    if watches:
        assert trace.answers is not None
        stops = controller_stops(network, batcher, graphs, counts, trace.answers[:, : request.cap])
    elif request.stops is not None:
        stops = request.stops.expand(len(graphs), -1).contiguous()
    logits = {
        (graph, column): trace.logits[i, : counts[column]]
        for i, graph in enumerate(probed)
        for column in request.probes
    }
    return Part(trace.letters, trace.direct, stops, logits, trace.converged)


def batched_part(network: LoopedTransformer, batcher: GraphBatcher, graphs: Graphs, request: Request) -> Part:
    """One rollout per query, in batches of one count: nothing is shared, so nothing is probed.

    It serves models that cannot share, and is the yardstick of the others. A trace is only run up to its own count, or
    up to the cap where a stop rule decides.
    """
    shape = (len(graphs), len(request.counts))
    letters = torch.zeros(*shape, request.loops, dtype=torch.int16)
    direct = None if network.direct_head is None else letters.clone()
    stops = torch.zeros(shape, dtype=torch.int32)
    converged = torch.zeros(*shape, len(TOLERANCES), dtype=torch.int16)
    for column, count in enumerate(request.counts):
        length = min(request.loops, request.cap if network.halting is not None else count)
        batch = batcher.batch(graphs, count, facts={}).to(network.label_ids.device)
        trace = trace_batch(network, batch, length, keep_answers=network.halting is not None)
        kept = torch.arange(request.loops).clamp(max=length - 1)  # loops that were not run repeat the last letter
        letters[:, column], converged[:, column] = trace.letters[:, kept], trace.converged
        if direct is not None and trace.direct is not None:
            direct[:, column] = trace.direct[:, kept]
        if trace.answers is not None:
            stops[:, column] = batch_stops(network, batch, trace.answers)
    flat = None if direct is None else direct.flatten(0, 1)
    return Part(letters.flatten(0, 1), flat, stops, {}, converged.flatten(0, 1))


@torch.inference_mode()
def batch_stops(network: LoopedTransformer, batch: Batch, answers: Tensor) -> Tensor:
    """Stop loops [Q] of one request per row: answers [Q, cap, D]."""
    logits, _ = network.halt(network.halting_inputs(batch), list(answers.unbind(1)))
    return stop_loop(logits).int().cpu()


def join_parts(parts: Sequence[Part], offsets: Sequence[int]) -> Part:
    """One part of many, with probes numbered by graph over all of them; `offsets` are their first graphs."""
    direct = [part.direct for part in parts if part.direct is not None]
    logits: Mapping[tuple[int, int], Tensor] = {
        (offset + graph, column): rows
        for offset, part in zip(offsets, parts, strict=True)
        for (graph, column), rows in part.logits.items()
    }
    return Part(
        letters=torch.cat([part.letters for part in parts]),
        direct=torch.cat(direct) if direct else None,
        stops=torch.cat([part.stops for part in parts]),
        logits=dict(logits),
        converged=torch.cat([part.converged for part in parts]),
    )
