"""Random loop depth: how many loops a training batch runs, drawn apart from the steps its prompts ask for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_STREAM = 7_919  # sets these draws apart from the others that are seeded with (seed, epoch, position)


@dataclass(frozen=True)
class RandomLoops:
    """Draws the number of loops T of each batch; all T loops are supervised, whatever the requested counts N.

    Depth-recurrent language models draw the number of recurrences of a training step from a heavy-tailed distribution,
    the log-normal Poisson one, so that the model works at any depth: tau ~ Normal(log(m) - sigma^2/2, sigma), T ~ 1 +
    Poisson(exp(tau)). Here m is the batch's requested count less one, so that T has that count as its mean (one loop
    stays one loop) and a run costs about as much as one without; where a batch mixes counts, m comes from the largest
    of the data. Every loop has a target in these tasks, so the loss is taken at all T loops and not at the last alone,
    with full backpropagation through time. States go on after N, since every node has an outgoing edge. A stop rule
    still learns N: loops after it carry no stop label, and where T < N there are continue labels only.

    T is the same on every rank, a function of (seed, epoch, position).

    Attributes:
        sigma: spread; 0 leaves a plain Poisson distribution.
        most: largest T, which bounds memory. Where it lies above the largest trained count, loops beyond that count
            are trained.

    Raises:
        ValueError: a value is out of range.
    """

    sigma: float = 0.5
    most: int = 32

    def __post_init__(self) -> None:
        if self.sigma < 0:
            raise ValueError(f"train.loops.sigma: got {self.sigma}; use 0 or more")
        if self.most < 1:
            raise ValueError(f"train.loops.most: got {self.most}; use 1 or more")

    def draw(self, count: int, key: tuple[int, ...]) -> int:
        """Return the number of loops of a batch that asks for `count` steps; `key` decides the draw."""
        if count < 2:
            return 1
        rng = np.random.default_rng((*key, _STREAM))
        rate = np.exp(rng.normal(np.log(count - 1) - self.sigma**2 / 2, self.sigma))
        return min(1 + int(rng.poisson(rate)), self.most)
