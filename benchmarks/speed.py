"""Training speed of Architecture 4 against a loop that recomputes every position, in one run.

    python -m benchmarks.speed            # tiny shapes
    python -m benchmarks.speed --real     # the shapes of Qwen2.5-0.5B (random weights), batch 4, depth 12, bf16

The naive loop is what one writes first: each loop passes all positions through R and C by the library's layers and puts
back everything but the answer. Both take the same forward and backward passes on the same batch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from datamodules.batch import Batch
from datamodules.graph_batcher import GraphBatcher
from datamodules.tasks.graph_splits import published
from loopformer.adaptation import Everything, RecurrentBlock
from loopformer.backbone import ScratchBackbone, Split, run_layers, take_positions
from loopformer.bridge import ReentryBridge
from loopformer.looped import DirectHead, LoopedTransformer
from loopformer.losses import letter_loss
from loopformer.recurrence import FixedPrompt

TINY = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4}
REAL = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


def build(real: bool) -> LoopedTransformer:
    """Architecture 4 with random weights, at either size."""
    torch.manual_seed(0)
    if real:
        backbone = ScratchBackbone(REAL, split=Split(6, 12, 6))
        backbone.to(torch.bfloat16)
        return LoopedTransformer(backbone, FixedPrompt(), ReentryBridge(), DirectHead(), None, RecurrentBlock())
    backbone = ScratchBackbone({**TINY, "num_key_value_heads": 4, "tie_word_embeddings": False}, split=Split(1, 1, 1))
    return LoopedTransformer(backbone, FixedPrompt(), ReentryBridge(), DirectHead(), None, Everything())


def naive_logits(network: LoopedTransformer, batch: Batch, loops: int) -> Tensor:
    """Recompute all positions at every loop: label logits [B, T, K]."""
    backbone, view = network.backbone, batch.views["executor"]
    hidden = backbone.embed(view.input_ids)
    geometry = backbone.geometry(hidden, None, view.answer_positions)
    entering = run_layers(backbone.prelude, hidden, geometry)
    index = view.answer_positions[:, None, None].expand(-1, 1, hidden.shape[-1])
    anchor = entering.gather(1, index)
    once = run_layers(backbone.recurrent, entering, geometry)
    state, read = once.gather(1, index), []
    for loop in range(loops):
        if loop:
            assert network.bridge is not None
            fed = network.bridge(state, anchor).to(entering.dtype)
            state = run_layers(backbone.recurrent, entering.scatter(1, index, fed), geometry).gather(1, index)
        coda = run_layers(backbone.coda, once.scatter(1, index, state), geometry)
        read.append(take_positions(coda, view.answer_positions))
    return backbone.label_logits(torch.stack(read, 1), network.label_ids)


def seconds(step: Callable[[], object], repeats: int) -> float:
    """Median wall seconds of a step, after one to warm up."""
    step()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2]


def matrix_rate(dtype: torch.dtype, size: int = 2048) -> float:
    """Measured rate of a large square matrix product in operations per second."""
    a = torch.randn(size, size).to(dtype)
    return 2 * size**3 / seconds(lambda: torch.mm(a, a), 5)


def operations(network: LoopedTransformer, tokens: int, loops: int, naive: bool) -> float:
    """Matrix operations of one example's forward and backward passes, attention products left out.

    A layer costs 2 operations per weight and token forward, and twice that backward where gradients flow through it.
    """
    backbone = network.backbone

    def weights(layers: list[torch.nn.Module]) -> int:
        return sum(p.numel() for layer in layers for p in layer.parameters() if p.dim() == 2)

    p, r, c = (weights(part) for part in (backbone.prelude, backbone.recurrent, backbone.coda))
    later = tokens if naive else 1
    forward = p * tokens + r * (tokens + (loops - 1) * later) + c * (tokens * (0 if naive else 1) + loops * later)
    trains_prelude = next(iter(backbone.prelude[0].parameters())).requires_grad
    return 2.0 * forward + 4.0 * (forward - (0 if trains_prelude else p * tokens))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="Qwen2.5-0.5B shapes in bf16 instead of the tiny backbone")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--loops", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    network = build(arguments.real)
    graphs = published("cyclic", "train")[: arguments.batch]
    batch = GraphBatcher(network.backbone.tokenizer).batch(graphs, arguments.loops)
    tokens = int(batch.views["executor"].lengths[0])
    dtype = torch.bfloat16 if arguments.real else torch.float32

    def step(logits: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            network.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=arguments.real):
                loss = letter_loss(logits(), batch.labels)
            loss.backward()

        return run

    rate = matrix_rate(dtype)
    print(f"{torch.get_num_threads()} threads, {dtype}, matrix products at {rate / 1e9:.0f} G operations/s")
    ours = seconds(step(lambda: network.rollout(batch, arguments.loops).letter_logits), arguments.repeats)
    naive = seconds(step(lambda: naive_logits(network, batch, arguments.loops)), max(1, arguments.repeats // 2))
    for name, value, is_naive in (("fixed prompt memory", ours, False), ("naive loop", naive, True)):
        share = operations(network, tokens, arguments.loops, is_naive) * arguments.batch / value / rate
        print(f"{name:20s} {value / arguments.batch:8.4f} s per example, {share:5.1%} of the matrix rate")
    print(f"ratio {naive / ours:.1f}")


if __name__ == "__main__":
    main()
