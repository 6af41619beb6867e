"""Does a long rollout cost the same per loop, and no more memory, however long it is?

python -m benchmarks.long_rollout --checkpoint checkpoints/tiny-executor-timer --loops 8192

The eighths of the rollout are timed apart.
"""

from __future__ import annotations

import argparse
import resource
import time
from itertools import islice

import torch

from datamodules.graph_batcher import GraphBatcher
from datamodules.tasks.graph_splits import benchmark
from loopformer import checkpoint


def main() -> None:
    """Roll out in eight parts and print time per loop and peak memory after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--loops", type=int, default=8192)
    parser.add_argument("--graphs", type=int, default=64)
    arguments = parser.parse_args()
    network = checkpoint.load(arguments.checkpoint).network
    batch = GraphBatcher(network.backbone.tokenizer).batch(benchmark()[: arguments.graphs], 1)
    part = arguments.loops // 8
    with torch.inference_mode():
        states = network.states(network.start(batch))
        for done in range(part, arguments.loops + 1, part):
            begin = time.perf_counter()
            for _ in islice(states, part):
                pass
            spent = (time.perf_counter() - begin) / part
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
            print(f"loops to {done:6d}: {spent * 1e3:6.2f} ms per loop, peak memory {memory:6.0f} MiB")


if __name__ == "__main__":
    main()
