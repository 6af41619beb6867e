"""Runs a model on queries and keeps what it said as small integers.

An executor whose prompt lacks the count is rolled out once per graph and serves every count; its stop times come from
the halting part alone. Any other model runs once per query.

Shape legend: G graphs, Q queries, L loops, K labels, D hidden, C counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from datamodules.batch import Batch
from datamodules.graph_batcher import GraphBatcher
from datamodules.tasks.graph import Graphs
from loopformer.evaluation.convergence import TOLERANCES, Convergence
from loopformer.halting import HaltingInputs
from loopformer.looped import LoopedTransformer
from loopformer.metrics.functional import stop_loop

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
    states = network.states(start)
    rows = torch.tensor(list(probes), dtype=torch.long)
    settled = Convergence(network.recurrence.answer(start.anchor, start.memory))
    parts: list[tuple[Tensor, Tensor | None, Tensor | None, Tensor]] = []
    for begin in range(0, loops, READ_EVERY):
        chunk = list(islice(states, min(READ_EVERY, loops - begin)))
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


@torch.inference_mode()
def controller_stops(network: LoopedTransformer, batch: Batch, answers: Tensor) -> Tensor:
    """Stop loops [Q] of a controller that watches the executor: batch of Q queries, answers [Q, cap, D]."""
    logits, _ = network.halt(network.halting_inputs(batch), list(answers.unbind(1)))
    return stop_loop(logits).int().cpu()


@dataclass
class Traces:
    """Traces and stops of a whole benchmark.

    Attributes:
        letters: [R, L] letters through C; `direct` alike by the direct head, or None.
        stops: [G, C] stop loops.
        probes: [L, K] logits by probed graph.
        estimates: [C, cap + 1] estimate of the remaining steps by count, of a halting part that reads the count alone.
        converged: [R, V] first loops at which the state settled.
    """

    letters: Tensor
    direct: Tensor | None
    stops: Tensor
    probes: dict[int, Tensor]
    estimates: Tensor | None = None
    converged: Tensor | None = None


def run_count_free(
    network: LoopedTransformer,
    batcher: GraphBatcher,
    graphs: Graphs,
    counts: Sequence[int],
    cap: int,
    loops: int,
    batch_size: int,
    probes: Sequence[int],
    advance: Callable[[int], None],
) -> Traces:
    """One rollout per graph; every count reads the same trace.

    Args:
        network: the model.
        batcher: makes its prompts.
        graphs: G graphs.
        counts: C requested counts.
        cap: last loop at which the model may stop.
        loops: L, forced loops of every trace.
        batch_size: graphs of one rollout.
        probes: graphs whose logits are kept for the native check.
        advance: called with the number of queries finished.
    """
    device = network.label_ids.device
    halting = network.halting
    watches = halting is not None and halting.reads_state
    shared, estimates = None, None
    if halting is not None and not watches:
        shared, estimates = countdown(network, batcher, counts, cap)
    letters, directs, stops, converged = [], [], [], []
    kept: dict[int, Tensor] = {}
    for begin in range(0, len(graphs), batch_size):
        part = graphs[slice(begin, begin + batch_size)]
        batch = batcher.batch(part, 1, facts={}).to(device)
        local = [g - begin for g in probes if begin <= g < begin + len(part)]
        trace = trace_batch(network, batch, loops, keep_answers=watches, probes=local)
        kept |= {begin + g: trace.logits[i] for i, g in enumerate(local)}
        letters.append(trace.letters)
        directs.append(trace.direct)
        converged.append(trace.converged)
        if watches:
            assert trace.answers is not None
            columns = []
            for count in counts:
                query = batcher.batch(part, count, facts={}).to(device)
                columns.append(controller_stops(network, query, trace.answers[:, :cap]))
            stops.append(torch.stack(columns, 1))
        elif shared is not None:
            stops.append(shared.expand(len(part), -1))
        else:
            stops.append(torch.zeros(len(part), len(counts), dtype=torch.int32))
        advance(len(part) * len(counts))
    direct = None if network.direct_head is None else torch.cat([d for d in directs if d is not None])
    return Traces(torch.cat(letters), direct, torch.cat(stops), kept, estimates, torch.cat(converged))


def run_count_dependent(
    network: LoopedTransformer,
    batcher: GraphBatcher,
    graphs: Graphs,
    counts: Sequence[int],
    cap: int,
    loops: int,
    batch_size: int,
    probes: Sequence[int],
    advance: Callable[[int], None],
) -> Traces:
    """One rollout per query, in batches of one count; arguments as in `run_count_free`.

    A trace is only needed up to its own count, or up to the cap where a stop rule decides.
    """
    device = network.label_ids.device
    shape = (len(graphs), len(counts))
    letters = torch.zeros(*shape, loops, dtype=torch.int16)
    direct = None if network.direct_head is None else letters.clone()
    stops = torch.zeros(shape, dtype=torch.int32)
    converged = torch.zeros(*shape, len(TOLERANCES), dtype=torch.int16)
    for column, count in enumerate(counts):
        length = min(loops, cap if network.halting is not None else count)
        for begin in range(0, len(graphs), batch_size):
            rows = slice(begin, begin + batch_size)
            batch = batcher.batch(graphs[rows], count, facts={}).to(device)
            trace = trace_batch(network, batch, length, keep_answers=network.halting is not None)
            # Loops that were not run repeat the last letter: without a stop rule it is what the model returns.
            kept = torch.arange(loops).clamp(max=length - 1)
            letters[rows, column] = trace.letters[:, kept]
            converged[rows, column] = trace.converged
            if direct is not None and trace.direct is not None:
                direct[rows, column] = trace.direct[:, kept]
            if trace.answers is not None:
                stops[rows, column] = controller_stops(network, batch, trace.answers)
            advance(len(trace.letters))
    del probes  # every query ran natively, only batched
    flat = letters.view(-1, loops)
    return Traces(
        flat, None if direct is None else direct.view(-1, loops), stops, {}, converged=converged.flatten(0, 1)
    )
