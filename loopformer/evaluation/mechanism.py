"""What happens inside a model on one example, loop by loop.

    python evaluate.py mechanism --checkpoint checkpoints/tiny-executor-timer --graph 0 --loops 12 --output OUT

Writes OUT/mechanism.json (everything below but the raw attention), OUT/attention.safetensors (weights of the answer
position over every prompt token, by loop, layer and head) and OUT/mechanism.html (the same as figures).

Shape legend: T loops, A layers of R and C, H heads, S prompt tokens, n rules, K labels.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cosine_similarity

from datamodules.graph_batcher import GraphBatcher
from datamodules.tasks.graph import KINDS, Graphs
from datamodules.tasks.graph_splits import benchmark
from datamodules.tasks.prompt import Layout, View
from loopformer.evaluation.attention import recorded_attention
from loopformer.evaluation.convergence import relative_change
from loopformer.evaluation.mechanism_page import write_mechanism_page
from loopformer.files import atomic_path, write_text
from loopformer.looped import LoopedTransformer

TOP = 5
"""Letters listed of each readout."""

OFFSETS = 8
"""Tokens, from the source of the rule to read on, whose attention is listed one by one."""

FORMAT = 1


@dataclass(frozen=True)
class Mechanism:
    """One example's run; plain JSON types, lists over loops 1..T unless said.

    Attributes:
        instance: graph number, kind, seed, requested count, prompt view, prompt tokens.
        rules: source, target and token span [begin, end) of each rule, in displayed order.
        start: letter before loop 1.
        reference: letters after steps 1..T.
        letters: [T][TOP] letter and probability among the labels, read through C.
        direct: the same by the direct head, None where the model has none.
        state_norm: [T + 1] Euclidean norm of the answer state at loops 0..T, loop 0 being P's output.
        cosine: cosine of the answer state to the one of the loop before.
        change: norm of the difference to the state of the loop before, over the norm of the new state.
        stop_probability: of the halting part, None where the model has none.
        remaining: [T + 1] steps that the halting part thinks remain at loops 0..T, None where it makes no estimate.
        layers: number in the decoder and block ("R" or "C") of each of the A layers.
        rule_attention: [T][A][H][n] attention of the answer position on the tokens of each rule.
        elsewhere: [T][A][H] attention on everything else; with the rules it sums to 1.
        rule_to_read: index of the rule whose source is the reference state before the loop, None where there is none.
        offset_attention: [OFFSETS][A][H] attention on the token so far after the source of the rule to read, mean over
            the loops that have one: a model may keep a rule in the tokens behind it.
    """

    instance: dict[str, Any]
    rules: list[dict[str, Any]]
    start: str
    reference: list[str]
    letters: list[list[list[Any]]]
    direct: list[list[list[Any]]] | None
    state_norm: list[float]
    cosine: list[float]
    change: list[float]
    stop_probability: list[float] | None
    remaining: list[float] | None
    layers: list[dict[str, Any]]
    rule_attention: list[Any]
    elsewhere: list[Any]
    rule_to_read: list[int | None]
    offset_attention: list[Any]


@torch.inference_mode()
def trace_mechanism(
    network: LoopedTransformer, batcher: GraphBatcher, graph: Graphs, count: int, loops: int
) -> tuple[Mechanism, Tensor]:
    """Run one example and look inside.

    Args:
        network: the model.
        batcher: makes its prompt.
        graph: a single graph.
        count: requested count N.
        loops: T, whatever the stop rule says.

    Returns:
        the panel, and the raw attention [T, A, H, S] in float32.

    Raises:
        ValueError: not exactly one graph, or no loops.
    """
    if len(graph) != 1 or loops < 1:
        raise ValueError(f"mechanism: needs one graph and at least one loop, got {len(graph)} and {loops}")
    batch = batcher.batch(graph, count).to(network.label_ids.device)
    view = cast("View", network.recurrence.view)
    tokens = int(batch.views[view].lengths[0])
    split = network.backbone.split
    recurrent = range(split.prelude, split.prelude + split.recurrent)
    coda = range(recurrent.stop, recurrent.stop + split.coda)
    attention, logits, answers = [], [], []
    with recorded_attention(network) as log:
        start = network.start(batch)
        for state in islice(network.states(start), loops):
            weights = [log.take(recurrent, tokens)]  # P's calls and the recording of C's memory are dropped
            logits.append(network.read([state], start)[0, 0])
            weights.append(log.take(coda, tokens))
            attention.append(torch.cat([part for part in weights if part.numel()]))
            answers.append(network.recurrence.answer(state, start.memory))
        initial = network.recurrence.answer(start.anchor, start.memory)
    states = torch.stack([initial, *answers], 1)[0].float()
    raw = torch.stack(attention)
    layout = batcher.layout(view, graph.sources.shape[1], count)
    spans = rule_spans(layout, tokens)
    per_rule = torch.stack([raw[..., begin:end].sum(-1) for begin, end in spans], -1)
    names, direct = batcher.labels.names, network.direct_head
    path = [int(graph.start[0]), *graph.states(loops)[0].tolist()]
    wanted = [_rule_of(graph, letter) for letter in path[:-1]]
    stop, remaining = _halting(network, batch, answers)
    ids = batch.views[view].input_ids[0, :tokens].tolist()
    return Mechanism(
        instance={
            "index": int(graph.index[0]), "kind": KINDS[int(graph.kind[0])], "seed": int(graph.seed[0]), "count": count,
            "view": view, "tokens": [network.backbone.tokenizer.decode([i]) for i in ids],
        },
        rules=[
            {"source": names[a], "target": names[b], "tokens": list(span)}
            for a, b, span in zip(graph.sources[0], graph.targets[0], spans, strict=True)
        ],
        start=names[path[0]],
        reference=[names[x] for x in path[1:]],
        letters=_top(torch.stack(logits), names),
        direct=None if direct is None else _top(direct(torch.cat(answers)), names),
        state_norm=_plain(states.norm(dim=-1)),
        cosine=_plain(cosine_similarity(states[1:], states[:-1], dim=-1)),
        change=_plain(relative_change(states)),
        stop_probability=stop,
        remaining=remaining,
        layers=[{"layer": i, "block": "R" if i in recurrent else "C"} for i in (*recurrent, *coda)],
        rule_attention=_plain(per_rule),
        elsewhere=_plain(1 - per_rule.sum(-1)),
        rule_to_read=wanted,
        offset_attention=_plain(_by_offset(raw, [None if rule is None else spans[rule][0] for rule in wanted])),
    ), raw  # fmt: skip


def rule_spans(layout: Layout, tokens: int) -> list[tuple[int, int]]:
    """Token spans of the rules: from a rule's source to before the next rule's; the last is as long as the first."""
    begins = [int(column) for column in layout.sources]
    length = begins[1] - begins[0] if len(begins) > 1 else int(layout.targets[0]) - begins[0] + 1
    return list(zip(begins, [*begins[1:], min(begins[-1] + length, tokens)], strict=True))


def choose_graph(number: int) -> Graphs:
    """Return graph `number` of the benchmark.

    Raises:
        ValueError: there is no such graph.
    """
    graphs = benchmark()
    if not 0 <= number < len(graphs):
        raise ValueError(f"graph: the benchmark has graphs 0 to {len(graphs) - 1}, got {number}")
    return graphs[slice(number, number + 1)]


def write_mechanism(output: Path, name: str, panel: Mechanism, attention: Tensor, overwrite: bool = False) -> None:
    """Write mechanism.json, attention.safetensors and mechanism.html into a folder, each atomically.

    Raises:
        FileExistsError: a file exists and `overwrite` is false.
    """
    data = {"format": FORMAT, "model": name, **asdict(panel)}
    with atomic_path(output / "attention.safetensors", overwrite) as temporary:
        save_file({"attention": attention.contiguous()}, temporary)
    write_mechanism_page(output / "mechanism.html", data, overwrite)
    write_text(output / "mechanism.json", json.dumps(data, allow_nan=False) + "\n", overwrite)


def _halting(
    network: LoopedTransformer, batch: Any, answers: list[Tensor]
) -> tuple[list[float] | None, list[float] | None]:
    if network.halting is None:
        return None, None
    logits, remaining = network.halt(network.halting_inputs(batch), list(answers))
    return _plain(logits[0].float().sigmoid()), None if remaining is None else _plain(remaining[0])


def _rule_of(graph: Graphs, letter: int) -> int | None:
    found = np.flatnonzero(graph.sources[0] == letter)
    return int(found[0]) if found.size else None


def _by_offset(raw: Tensor, sources: list[int | None]) -> Tensor:
    """[T, A, H, S] attention and the token of each loop's source -> [OFFSETS, A, H] mean."""
    padded = torch.nn.functional.pad(raw, (0, OFFSETS))
    rows = [padded[t, :, :, token : token + OFFSETS] for t, token in enumerate(sources) if token is not None]
    return torch.stack(rows).mean(0).movedim(-1, 0) if rows else raw.new_zeros(OFFSETS, *raw.shape[1:3])


def _top(logits: Tensor, names: tuple[str, ...] | list[str]) -> list[list[list[Any]]]:
    """[T, K] logits -> letters and probabilities of the likeliest."""
    probabilities, labels = logits.float().softmax(-1).topk(min(TOP, logits.shape[-1]))
    return [
        [[names[i], p] for i, p in zip(row, _plain(values), strict=True)]
        for row, values in zip(labels.tolist(), probabilities, strict=True)
    ]


def _plain(values: Tensor) -> list[Any]:
    return cast("list[Any]", np.round(values.double().cpu().numpy(), 6).tolist())
