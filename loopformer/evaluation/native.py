"""Native calls: one query at a time, as a deployed model would run it. The yardstick of every shortcut.

Sharing work between queries is allowed only where native calls agree. Source: evaluation protocol, "Exactness".
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from datamodules.batch import Batch
from datamodules.graph_batcher import GraphBatcher
from datamodules.tasks.graph import Graphs
from loopformer.evaluation.trace import READ_EVERY
from loopformer.looped import LoopedTransformer

CHECK_COUNTS = (1, 6, 12, 32, 128, 256)
LOGIT_TOLERANCE = 2e-3


@dataclass
class NativeAnswer:
    """One query's run.

    Attributes:
        logits: [T, K] label logits of the loops run: up to the later of the requested count and the stop.
        stop: first loop with stop probability at least 0.5, 0 if none came by the cap.
    """

    logits: Tensor
    stop: int


@torch.inference_mode()
def native_call(network: LoopedTransformer, batcher: GraphBatcher, graph: Graphs, count: int, cap: int) -> NativeAnswer:
    """Run one query loop by loop until its stop rule fires (and at least to the requested count).

    Args:
        network: the model.
        batcher: makes its prompt.
        graph: a single graph.
        count: requested count N.
        cap: last loop at which it may stop.
    """
    batch = batcher.batch(graph, count, facts={}).to(network.label_ids.device)
    start = network.start(batch)
    halting, stop, states = network.halting, 0, []
    memory = None if halting is None else halting.start(network.halting_inputs(batch))
    for loop, state in enumerate(islice(network.states(start), cap if halting is not None else count), 1):
        states.append(state)
        if halting is not None and stop == 0:
            memory, logit = halting.step(memory, network.recurrence.answer(state, start.memory))
            if logit.item() >= 0:
                stop = loop
        if loop >= count and (stop or halting is None):
            break
    return NativeAnswer(network.read(states, start)[0].cpu(), stop)


def check_columns(counts: Sequence[int]) -> list[int]:
    """Columns of the counts that native calls check: the protocol's, or the first and last where none occurs."""
    return [column for column, count in enumerate(counts) if count in CHECK_COUNTS] or [0, len(counts) - 1]


def check_native(
    network: LoopedTransformer,
    batcher: GraphBatcher,
    graphs: Graphs,
    probes: Mapping[tuple[int, int], Tensor],
    stops: Tensor,
    counts: Sequence[int],
    cap: int,
) -> int:
    """Compare shared traces with native calls.

    Args:
        network: the model.
        batcher: makes its prompts.
        graphs: the benchmark's graphs.
        probes: [N, K] shared logits by graph and column of its count.
        stops: [G, C] shared stop loops.
        counts: the C counts.
        cap: last loop at which the model may stop.

    Returns:
        the number of native calls compared.

    Raises:
        RuntimeError: a logit differs by more than 2e-3, or a letter or a stop loop differs.
    """
    for (graph, column), shared in probes.items():
        count = counts[column]
        native = native_call(network, batcher, graphs[slice(graph, graph + 1)], count, cap)
        logits = native.logits[:count]
        worst = float((logits - shared[:count]).abs().max())
        same = bool((logits.argmax(-1) == shared[:count].argmax(-1)).all())
        if worst > LOGIT_TOLERANCE or not same or native.stop != int(stops[graph, column]):
            raise RuntimeError(
                f"native check failed on graph {graph} at N = {count}: logits differ by up to {worst:.2g} (allowed "
                f"{LOGIT_TOLERANCE}), letters {'agree' if same else 'differ'}, stop {native.stop} against "
                f"{int(stops[graph, column])}; evaluate with --precision float32"
            )
    return len(probes)


@torch.inference_mode()
def check_alone(network: LoopedTransformer, batch: Batch, said: Tensor) -> None:
    """Run one instance alone: what a model says must not depend on its batch. Letters of equal logits may differ.

    Args:
        network: the model.
        batch: a batch of one, on any device.
        said: [T] the letters in its batch; the first `READ_EVERY` are compared.

    Raises:
        RuntimeError: a letter differs.
    """
    loops = min(len(said), READ_EVERY)
    logits = network.rollout(batch.to(network.label_ids.device), loops).letter_logits[0].float().cpu()
    behind = logits.max(-1).values - logits.gather(-1, said[:loops].long()[:, None])[:, 0]
    if bool((behind > LOGIT_TOLERANCE).any()):
        loop = int(behind.argmax()) + 1
        raise RuntimeError(
            f"native check: an instance alone says another letter at loop {loop} than in its batch (logits differ by "
            f"{float(behind.max()):.2g}); evaluate with --precision float32"
        )


def native_seconds(
    network: LoopedTransformer, batcher: GraphBatcher, graphs: Graphs, counts: Sequence[int], cap: int, sample: int
) -> float:
    """Mean wall seconds of a native call over a random sample of the benchmark's queries (seed 239)."""
    rng = np.random.default_rng(239)
    queries = zip(rng.integers(len(graphs), size=sample), rng.integers(len(counts), size=sample), strict=True)
    begin = time.perf_counter()
    for graph, column in queries:
        native_call(network, batcher, graphs[slice(int(graph), int(graph) + 1)], counts[column], cap)
    return (time.perf_counter() - begin) / sample
