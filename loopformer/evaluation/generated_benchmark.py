"""The graph benchmark for ordinary models: they write the path, or the final letter, as text.

python evaluate.py --checkpoint runs/sft_trace/model --benchmark traces --output results/sft_trace
python evaluate.py --checkpoint Qwen/Qwen2.5-0.5B-Instruct --benchmark traces --traces.style steps --output results/q
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from datamodules.graph_text import GraphTextBatcher
from datamodules.tasks.graph import KINDS, Graphs
from datamodules.tasks.graph_text import NEW_TOKENS, STYLES, GraphTexts, GraphTextStyle
from loopformer.evaluation.generated_store import GeneratedMetadata, GeneratedStore, pack_texts
from loopformer.evaluation.graph_benchmark import GraphOptions, choose_graphs, parse_counts
from loopformer.evaluation.writer import Writer
from loopformer.generation import Response, read_response
from loopformer.language_checkpoint import LanguageCheckpoint

TRAINED = "trained"
PLAIN_END = "\n"
"""Where a response ends if there is no chat template: worked examples teach a line each, not an end token."""


@dataclass
class TraceOptions:
    """What to ask an ordinary model, and how.

    Attributes:
        style: "trained" repeats the style of the model's training; "trace" is the bare prompt, "steps" and "direct" are
            messages with three worked examples (whole path, final letter).
        counts: requested counts, such as "1-256" or "1,6,12".
        graphs: graphs of each of the nine seed-and-kind strata; None for all 150.
        fresh: draw graphs that the benchmark and no training data contain, instead of the benchmark's own.
        batch_size: prompts of one batch.
        max_new_tokens: budget of each response; None for 272, or 8 in style "direct".
    """

    style: str = TRAINED
    counts: str = "1-12,16,24,32,48,64,96,128,192,256"
    graphs: int | None = None
    fresh: bool = False
    batch_size: int = 150
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.style not in (TRAINED, *STYLES):
            raise ValueError(f"style: got {self.style!r}; use one of {', '.join((TRAINED, *STYLES))}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size: needs at least 1, got {self.batch_size}")
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens: needs at least 1, got {self.max_new_tokens}")


def evaluate_traces(
    checkpoint: LanguageCheckpoint,
    options: TraceOptions,
    advance: Callable[[int], object],
    begin: Callable[[int], object],
    partial_results: Path | None = None,
) -> tuple[GeneratedStore, float]:
    """Run the benchmark.

    Args:
        checkpoint: the model.
        options: graphs, counts and style.
        advance: called with the number of queries finished.
        begin: called once with the number of all queries.
        partial_results: folder in which finished batches are kept; None to keep nothing.

    Returns:
        The responses, and the seconds that generating them took.

    Raises:
        ValueError: an option is out of range, or "trained" is asked of a model whose folder does not tell its style.
    """
    texts = GraphTexts(find_style(checkpoint, options.style))
    counts = parse_counts(options.counts)
    graphs = choose_graphs(GraphOptions(graphs=options.graphs, fresh=options.fresh))
    begin(len(counts) * len(graphs))
    budget = options.max_new_tokens or NEW_TOKENS[texts.style]
    stratum = np.unique(np.stack([graphs.seed, graphs.kind], 1), axis=0, return_inverse=True)[1].reshape(-1)
    steps = np.tile(np.array(counts), len(graphs))
    instance = np.repeat(np.arange(len(graphs)), len(counts))

    writer = Writer(checkpoint, partial_results)
    responses: list[tuple[str, Response]] = [("", Response([], False, 0))] * len(steps)
    batcher = GraphTextBatcher(checkpoint.tokenizer, texts)
    for rows, answered in _respond(checkpoint, writer, batcher, graphs, steps, options.batch_size, budget):
        for row, answer in zip(rows.tolist(), answered, strict=True):
            responses[row] = answer
        advance(len(rows))

    text, text_end = pack_texts([written for written, _ in responses])
    store = GeneratedStore(
        metadata=GeneratedMetadata(
            benchmark="traces",
            style=texts.style,
            labels=tuple(texts.task.labels.names),
            max_new_tokens=budget,
            digests=checkpoint.digests() | {"graphs": hashlib.sha256(graphs.csv().encode()).hexdigest()},
            trained_steps=tuple(checkpoint.provenance.get("trained_counts", ())),
            fact_values={"kind": tuple(KINDS)},
        ),
        text=text,
        text_end=text_end,
        ended=torch.tensor([response.ended for _, response in responses]).to(torch.uint8),
        tokens=torch.tensor([response.tokens for _, response in responses], dtype=torch.int32),
        instance=torch.from_numpy(instance.astype(np.int32)),
        steps=torch.from_numpy(steps.astype(np.int32)),
        reference=torch.from_numpy(graphs.states(counts[-1]).astype(np.int16)),
        stratum=torch.from_numpy(stratum.astype(np.int16)),
        facts={name: torch.from_numpy(values.astype(np.int32)) for name, values in graphs.facts().items()},
    )
    return store, writer.seconds


def find_style(checkpoint: LanguageCheckpoint, style: str) -> GraphTextStyle:
    """Resolve "trained" to the style that the model was trained on.

    Raises:
        ValueError: its folder does not tell.
    """
    found = checkpoint.provenance.get("text_style") if style == TRAINED else style
    for known in STYLES:
        if found == known:
            return known
    raise ValueError(
        f"style: {checkpoint.source} does not tell how it was trained; choose --traces.style {', '.join(STYLES)}"
    )


def _respond(
    checkpoint: LanguageCheckpoint,
    writer: Writer,
    batcher: GraphTextBatcher,
    graphs: Graphs,
    steps: np.ndarray,
    size: int,
    budget: int,
) -> Iterator[tuple[np.ndarray, list[tuple[str, Response]]]]:
    """Yield the queries of a batch and their texts; queries of one count together, since they end together."""
    tokenizer = checkpoint.tokenizer
    plain = batcher.texts.is_message and tokenizer.chat_template is None
    per_graph = len(steps) // len(graphs)
    order = np.argsort(steps, kind="stable")
    for begin in range(0, len(order), size):
        rows = order[begin : begin + size]
        asked = batcher.batch(graphs[rows // per_graph], steps[rows], facts={})
        responses = writer(asked.prompts(), budget)
        yield rows, [_read(response, read_response(tokenizer, response), plain) for response in responses]


def _read(response: Response, text: str, plain: bool) -> tuple[str, Response]:
    """Text of a response; a plain one ends with its line."""
    if plain and PLAIN_END in text:
        return text.split(PLAIN_END, maxsplit=1)[0], Response(response.ids, True, response.tokens)
    return text, response
