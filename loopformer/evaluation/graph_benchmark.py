"""The graph benchmark: 1,350 graphs times 256 counts, or any other graphs and counts, into an outcome store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.graph_batcher import GraphBatcher
from datamodules.tasks.graph import KINDS, Graphs
from datamodules.tasks.graph_splits import benchmark, fresh, published
from loopformer.checkpoint import Checkpoint
from loopformer.evaluation.native import check_columns, check_native, native_seconds
from loopformer.evaluation.outcomes import FORMAT, OutcomeMetadata, OutcomeStore
from loopformer.evaluation.partial import PartialResults, number_types
from loopformer.evaluation.trace import Part, Request, countdown, join_parts, run_part
from loopformer.looped import LoopedTransformer
from loopformer.shared_prefix import can_share

CAP = 272
"""Safety cap of the published protocol; counts close to it or beyond get a cap of their own (16 loops more)."""

SHARED = 16
"""A model that sees the count runs this much fewer graphs at a time, each with all its counts."""

FRESH_SEEDS = (401, 402, 403)
"""Master seeds of fresh graphs."""


@dataclass
class GraphOptions:
    """What to evaluate, and how.

    Attributes:
        counts: requested counts, such as "1-256", "8192" or "1,6,12".
        graphs: graphs of each of the nine seed-and-kind strata; None for all 150.
        fresh: draw graphs that the benchmark and no training data contain, instead of the benchmark's own.
        batch_size: graphs of one rollout; of a model that sees the count a sixteenth as many, each with all counts.
        native_sample: queries run one at a time to tell how much faster the shared evaluation is; 0 for none.
    """

    counts: str = "1-256"
    graphs: int | None = None
    fresh: bool = False
    batch_size: int = 150
    native_sample: int = 200

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size: needs at least 1, got {self.batch_size}")
        if self.native_sample < 0:
            raise ValueError(f"native_sample: needs at least 0, got {self.native_sample}")


@dataclass
class Timing:
    """Wall seconds of an evaluation, and of the same queries run natively (extrapolated from a sample)."""

    shared: float
    native: float | None
    native_checks: int


def parse_counts(text: str) -> list[int]:
    """Parse "1-256", "8192" or "1,6,12-16" into sorted counts.

    Raises:
        ValueError: it is none of these, or a count is below 1.
    """
    counts: set[int] = set()
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            counts.update(range(int(first), int(last or first) + 1))
    except ValueError:
        raise ValueError(f"counts: {text!r} is not of the form 1-256 or 1,6,12") from None
    if not counts or min(counts) < 1:
        raise ValueError(f"counts: {text!r} holds no count, or one below 1")
    return sorted(counts)


def choose_graphs(options: GraphOptions) -> Graphs:
    """Return the benchmark's graphs (or fresh ones), the same number of each stratum.

    Raises:
        ValueError: more benchmark graphs are asked for than there are.
    """
    if options.fresh:
        avoid = benchmark().tables() | published("cyclic", "train").tables()
        return fresh(options.graphs or 50, seeds=FRESH_SEEDS, avoid=avoid)
    graphs = benchmark()
    if options.graphs is None:
        return graphs
    if not 1 <= options.graphs <= 150:
        raise ValueError(
            f"graphs: each stratum of the benchmark has 1 to 150, got {options.graphs}; use fresh for more"
        )
    return graphs[graphs.index < options.graphs]


def evaluate_graphs(
    checkpoint: Checkpoint,
    options: GraphOptions,
    advance: Callable[[int], None],
    begin: Callable[[int], None],
    partial_results: Path | None = None,
) -> tuple[OutcomeStore, Timing]:
    """Run the benchmark.

    Args:
        checkpoint: the model.
        options: graphs and counts.
        advance: called with the number of queries finished.
        begin: called once with the number of all queries.
        partial_results: folder for finished parts. A killed evaluation goes on from them; once the results are safe,
            the caller removes it (`discard`). None keeps nothing.

    Raises:
        ValueError: an option is out of range, or the model's labels are not the letters.
        RuntimeError: the native check failed.
    """
    network = checkpoint.network
    batcher = GraphBatcher(network.backbone.tokenizer)
    if network.labels != list(batcher.labels.texts):
        raise ValueError(f"checkpoint: its labels {network.labels[:3]}... are not the graph task's letters")
    counts, graphs = parse_counts(options.counts), choose_graphs(options)
    begin(len(counts) * len(graphs))
    cap = max(CAP, counts[-1] + 16)
    # Beyond the largest count only a stop rule needs loops: its letters up to the cap tell what it would have returned.
    needs_cap = network.halting is not None and counts[-1] < CAP
    loops = cap if needs_cap or (network.halting is not None and network.halting.reads_state) else counts[-1]
    stratum = np.unique(np.stack([graphs.seed, graphs.kind], 1), axis=0, return_inverse=True)[1].reshape(-1)

    stops = estimates = None
    if network.halting is not None and not network.halting.reads_state:
        stops, estimates = countdown(network, batcher, counts, cap)
    request = Request(counts, cap, loops, check_columns(counts), stops)
    digests = _digests(checkpoint, graphs)
    with_counts = not network.count_free and can_share(network)
    size = max(1, options.batch_size // SHARED) if with_counts else options.batch_size
    kept = PartialResults(partial_results, _identity(network, digests, request, size))
    whole, shared = _run(network, batcher, graphs, request, stratum, size, kept, advance)
    checks = check_native(network, batcher, graphs, whole.logits, whole.stops, counts, cap)
    sample = options.native_sample
    native = native_seconds(network, batcher, graphs, counts, cap, sample) * whole.stops.numel() if sample else None

    metadata = OutcomeMetadata(
        benchmark="graph",
        labels=tuple(batcher.labels.names),
        loops=loops,
        cap=loops,
        digests=digests,
        trained_steps=tuple(checkpoint.config.get("provenance", {}).get("trained_counts", ())),
        fact_values={"kind": tuple(KINDS)},
    )
    shown = None if estimates is None else estimates[:, : loops + 1]
    return _store(metadata, whole, graphs, counts, stratum, network.count_free, shown), Timing(shared, native, checks)


def _store(
    metadata: OutcomeMetadata,
    whole: Part,
    graphs: Graphs,
    counts: Sequence[int],
    stratum: NDArray[np.intp],
    count_free: bool,
    estimates: torch.Tensor | None,
) -> OutcomeStore:
    """What a model said to every count of every graph; a count-free one said the same to all counts."""
    each = torch.arange(len(counts), dtype=torch.int32).repeat(len(graphs))
    return OutcomeStore(
        metadata=metadata,
        letters=whole.letters,
        direct=whole.direct,
        converged=whole.converged,
        reference=_reference(graphs, metadata.loops, 1 if count_free else len(counts)),
        row=_rows(len(graphs), len(counts), count_free),
        instance=torch.arange(len(graphs), dtype=torch.int32).repeat_interleave(len(counts)),
        steps=torch.tensor(counts, dtype=torch.int32).repeat(len(graphs)),
        stops=torch.where(whole.stops > metadata.loops, 0, whole.stops).flatten(),
        stratum=torch.from_numpy(stratum.astype(np.int16)),
        facts={name: torch.from_numpy(values.astype(np.int32)) for name, values in graphs.facts().items()},
        initial=torch.from_numpy(graphs.start.astype(np.int16)),
        successors=torch.from_numpy(graphs.successors().astype(np.int16)),
        estimates=estimates,
        estimate=None if estimates is None else each,
    )


def _run(
    network: LoopedTransformer,
    batcher: GraphBatcher,
    graphs: Graphs,
    request: Request,
    stratum: NDArray[np.intp],
    size: int,
    kept: PartialResults,
    advance: Callable[[int], None],
) -> tuple[Part, float]:
    """Run part after part; the first graph of every stratum is probed for the native check."""
    first = {int(np.flatnonzero(stratum == s)[0]) for s in np.unique(stratum)}
    offsets = list(range(0, len(graphs), size))
    parts, seconds = [], 0.0
    for number, offset in enumerate(offsets):
        some = graphs[slice(offset, offset + size)]
        probed = [graph - offset for graph in sorted(first) if offset <= graph < offset + len(some)]
        part, spent = kept.get(number, partial(run_part, network, batcher, some, request, probed))
        parts.append(part)
        seconds += spent
        advance(len(some) * len(request.counts))
    return join_parts(parts, offsets), seconds


def _identity(network: LoopedTransformer, digests: dict[str, str], request: Request, size: int) -> dict[str, Any]:
    """All that the numbers depend on, down to the last bit."""
    asked = {"counts": list(request.counts), "cap": request.cap, "loops": request.loops, "graphs_of_a_part": size}
    return {"format": FORMAT, "digests": digests, **number_types(network.label_ids.device.type), **asked}


def _reference(graphs: Graphs, loops: int, repeats: int) -> torch.Tensor:
    return torch.from_numpy(graphs.states(loops).astype(np.int16)).repeat_interleave(repeats, 0)


def _rows(graphs: int, counts: int, count_free: bool) -> torch.Tensor:
    queries = torch.arange(graphs * counts, dtype=torch.int32)
    return queries // counts if count_free else queries


def _digests(checkpoint: Checkpoint, graphs: Graphs) -> dict[str, str]:
    return {**checkpoint.digests(), "graphs": hashlib.sha256(graphs.csv().encode()).hexdigest()}
