"""Closed-form and second-order fits of the affine timer (architecture 5).

Gradient steps alone leave errors that add up over thousands of loops. The reader is linear in its unknowns once the
gain is known, and the countdown needs a and b to float32's last digit: least squares and L-BFGS in float64 give both.
Source: architecture spec, "5 timer".
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from loopformer.halting import AffineTimer

READER_TOLERANCE = 1e-3
"""Largest reading error, in steps, that a fitted reader may have on its training counts."""


def fit_gain(counts: list[int]) -> float:
    """Least-squares gain g through the origin of (number - last digit) = g * first digit.

    Only two-digit counts whose digits are themselves one-digit training counts take part: for those the digits' own
    readings are known.

    Raises:
        ValueError: no count qualifies.
    """
    single = {n for n in counts if n < 10}
    pairs = [(n // 10, n - n % 10) for n in counts if 10 <= n < 100 and {n // 10, n % 10} <= single]
    if not pairs:
        raise ValueError("counts: the digit reader's gain needs two-digit counts whose digits are counts themselves")
    first, rest = np.array(pairs, dtype=np.float64).T
    return float(first @ rest / (first @ first))


def fit_reader(timer: AffineTimer, digit_ids: Tensor, digit_embeddings: Tensor, counts: list[int]) -> float:
    """Fit gain, projection and offset of the timer's digit reader in place.

    Args:
        timer: the timer whose reader is set.
        digit_ids: [C, M] token ids of each count's digits, padded with -1.
        digit_embeddings: [C, M, D] their embeddings.
        counts: the C training counts.

    Returns:
        the largest reading error on the training counts, in steps, after rounding to float32.

    Raises:
        ValueError: that error exceeds READER_TOLERANCE.
    """
    gain = fit_gain(counts)
    embeddings = digit_embeddings.double()
    features = torch.cat([embeddings, embeddings.new_ones(*embeddings.shape[:2], 1)], -1)
    composed = features.new_zeros(features.shape[0], features.shape[2])
    for m in range(features.shape[1]):
        present = (digit_ids[:, m] >= 0)[:, None]
        composed = torch.where(present, gain * composed + features[:, m], composed)
    target = np.asarray(counts, dtype=np.float64)
    solution = np.linalg.lstsq(composed.cpu().numpy(), target, rcond=1e-8)[0]
    reader = timer.reader
    with torch.no_grad():
        reader.gain.fill_(gain)
        reader.projection.copy_(torch.from_numpy(solution[:-1]))
        reader.offset.fill_(solution[-1])
        error = float((reader(digit_ids, digit_embeddings).cpu() - torch.tensor(counts)).abs().max())
    if not error <= READER_TOLERANCE:
        raise ValueError(
            f"timer: the digit reader misreads a training count by {error:.2g} steps (limit {READER_TOLERANCE}); the "
            "digits' embeddings must be distinct and at least 10 wide"
        )
    return error


def refit_countdown(timer: AffineTimer, counts: list[int], loops: int, scale: float) -> tuple[float, float]:
    """Refit a and b by float64 L-BFGS (strong Wolfe) on the remaining-work error of the first `loops` loops.

    Returns:
        a and b as stored in float32.
    """
    start = torch.tensor(counts, dtype=torch.float64)
    affine = torch.tensor([timer.decay.item(), timer.decrement.item()], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [affine], max_iter=500, tolerance_grad=1e-14, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        memory, track = start, [start]
        for _ in range(loops):
            memory = affine[0] * memory + affine[1]
            track.append(memory)
        remaining = (start[:, None] - torch.arange(loops + 1)) / scale
        counted = torch.arange(loops + 1) <= start[:, None]
        loss = (((torch.stack(track, 1) / scale - remaining) ** 2) * counted).sum() / counted.sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        timer.decay.fill_(float(affine[0]))
        timer.decrement.fill_(float(affine[1]))
    return timer.decay.item(), timer.decrement.item()
