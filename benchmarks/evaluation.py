"""How much faster is an evaluation that shares work than batched native calls, and do both say the same?

    python -m benchmarks.evaluation                                 # architectures 1, 2, 3 and 4 on the tiny backbone
    python -m benchmarks.evaluation --only 3 --graphs 9 --counts 1-256
    python -m benchmarks.evaluation --checkpoint runs/NAME/model

Both run in this process, one after the other. "Batched native" runs every query's whole prompt and all its loops, in
batches of one count; a sample of the queries stands for all. Times are the processor's, so other programs do not count.
Without a checkpoint the weights are random.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from datamodules.graph_batcher import GraphBatcher
from datamodules.tasks.graph_splits import benchmark
from loopformer import checkpoint
from loopformer.evaluation.graph_benchmark import CAP, SHARED, parse_counts
from loopformer.evaluation.trace import Part, Request, batched_part, join_parts, run_part
from loopformer.looped import LoopedTransformer

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
ARCHITECTURES = {
    "1 (full sequence)": "arch1.yaml",
    "2 (full sequence, stop head)": "arch2.yaml",
    "3 (fixed prompt, stop head)": "arch3b.yaml",
    "4 (count-free, GRU)": "arch4_executor.yaml",
}


def tiny_network(config: str) -> LoopedTransformer:
    """The composition of a config on the tiny backbone, with random weights."""
    parts: dict[str, Any] = yaml.safe_load((CONFIGS / config).read_text())["model"]["init_args"]["network"]
    tiny = yaml.safe_load((CONFIGS / "backbone" / "tiny.yaml").read_text())["model"]["init_args"]["network"]
    torch.manual_seed(0)
    return checkpoint.build_network({**parts, "init_args": {**parts["init_args"], **tiny["init_args"]}}).eval()


def compare(name: str, network: LoopedTransformer, counts: list[int], options: argparse.Namespace) -> None:
    """Print seconds per query of both ways, their ratio and whether all letters and stops agree."""
    batcher, every = GraphBatcher(network.backbone.tokenizer), benchmark()
    mixed = np.random.default_rng(0).permutation(len(every))
    graphs, native_graphs = every[mixed[: options.graphs]], every[mixed[: options.native_graphs]]
    loops = CAP if network.halting is not None else counts[-1]
    request = Request(counts, CAP, loops, probes=())
    size = options.graphs if network.count_free else max(1, 150 // SHARED)
    begin = time.process_time()
    offsets = list(range(0, options.graphs, size))
    shared = join_parts([run_part(network, batcher, graphs[slice(o, o + size)], request, ()) for o in offsets], offsets)
    seconds = (time.process_time() - begin) / shared.stops.numel()
    # Native calls are slow: a sample of the counts, evenly spread, stands for all.
    columns = np.unique(np.linspace(0, len(counts) - 1, options.native_counts).round().astype(int)).tolist()
    asked = [counts[column] for column in columns]
    begin = time.process_time()
    native = batched_part(network, batcher, native_graphs, Request(asked, CAP, loops, probes=()))
    native_seconds = (time.process_time() - begin) / native.stops.numel()
    agree = letters_agree(shared, native, network.count_free, counts, columns)
    both = min(options.graphs, options.native_graphs)
    stops = float((shared.stops[:both, columns] == native.stops[:both]).double().mean())
    print(
        f"{name}: shared {seconds * 1e3:.3f} ms per query, batched native {native_seconds * 1e3:.2f} ms, "
        f"{native_seconds / seconds:.1f} times longer; letters up to N agree {agree:.2%}, stops {stops:.2%}; "
        f"mean stop {float(shared.stops.double().mean()):.0f}",
        flush=True,
    )


def letters_agree(shared: Part, native: Part, count_free: bool, counts: list[int], columns: list[int]) -> float:
    """Share of the queries run both ways whose letters agree at every loop up to N."""
    both = min(len(shared.stops), len(native.stops))
    mine = shared.letters.view(len(shared.stops), 1 if count_free else len(counts), -1)[:both]
    theirs = native.letters.view(len(native.stops), len(columns), -1)[:both]
    same = [
        (mine[:, 0 if count_free else column, : counts[column]] == theirs[:, i, : counts[column]]).all(dim=1)
        for i, column in enumerate(columns)
    ]
    return float(torch.stack(same).double().mean())


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", help="an exported model instead of the tiny architectures")
    parser.add_argument("--counts", default="1-256")
    parser.add_argument("--graphs", type=int, default=9, help="graphs that are asked every count")
    parser.add_argument("--native-graphs", type=int, default=64, help="graphs of a native batch")
    parser.add_argument("--native-counts", type=int, default=4, help="counts that are run natively")
    parser.add_argument("--only", default="", help="run the architectures whose name begins so")
    options = parser.parse_args()
    networks = {name: tiny_network(config) for name, config in ARCHITECTURES.items() if name.startswith(options.only)}
    if options.checkpoint:
        networks = {options.checkpoint: checkpoint.load(options.checkpoint).network}
    for name, network in networks.items():
        compare(name, network, parse_counts(options.counts), options)


if __name__ == "__main__":
    main()
