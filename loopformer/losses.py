"""Loss terms of a rollout. All run in float32 and are means over examples of means over an example's loops.

Shape legend: B batch, T loops, K labels.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from datamodules.batch import IGNORE


def letter_loss(logits: Tensor, labels: Tensor, loop_weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy at every loop t <= N, mean over an example's loops, then over examples.

    Args:
        logits: [B, T, K].
        labels: [B, T], IGNORE after an example's last step.
        loop_weights: [T] weight of each loop, the same in every example, in place of the mean over an example's loops.
        smoothing: share of a label's weight that is spread over all labels.
    """
    per_loop = F.cross_entropy(
        logits.float().flatten(0, 1),
        labels.flatten(),
        ignore_index=IGNORE,
        reduction="none",
        label_smoothing=smoothing,
    )
    per_loop = per_loop.view_as(labels)  # 0 where ignored
    if loop_weights is not None:
        return (per_loop @ loop_weights).mean()
    return _example_means(per_loop, labels != IGNORE).mean()


def equal_loop_weights(shares: Mapping[int, float], loops: int, device: torch.device | None = None) -> Tensor:
    """Weights that give every loop the same total weight over the training data.

    The usual loss weighs loop t of an example by 1/N. Over data in which a share p(N) of the examples asks for N steps,
    loop t then weighs sum over N >= t of p(N)/N in total: for equal shares of 1-6, 8, 10, 12 loop 1 has
    (1 + 1/2 + 1/3 + 1/4 + 1/5 + 1/6 + 1/8 + 1/10 + 1/12) / (1/12) = 33.1 times the weight of loop 12, which is where a
    model must learn not to drift. With w_t = 1 / (M P(N >= t)), M being the largest count, the total of loop t is
    P(N >= t) w_t = 1/M for every t, and the totals of all loops sum to 1 as they do in the usual loss, so learning
    rates keep their meaning. Deep loops are rare, hence a batch of deep examples now weighs more than a shallow one.

    Args:
        shares: share of the training examples by requested count.
        loops: number of loops T of the batch.
        device: where to put the weights.

    Returns:
        [T] float32.

    Raises:
        ValueError: the batch is deeper than every count of the training data.
    """
    most = max(shares)
    if loops > most:
        raise ValueError(
            f"losses.loops: 'equal' weighs loops 1 to {most}, the largest requested count, but a batch has {loops}; "
            "use 'example' together with data.init_args.train.init_args.loops"
        )
    reaching = [sum(share for count, share in shares.items() if count >= t) for t in range(1, loops + 1)]
    return torch.tensor([1 / (most * share) for share in reaching], device=device)


def field_loss(logits: Tensor, values: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of a state field at loops 0..N, mean over an example's loops, then over examples.

    Args:
        logits: [B, T + 1, V].
        values: [B, T + 1], IGNORE where the field is undefined.
        smoothing: see `letter_loss`.

    Raises:
        ValueError: a value lies outside the head's V values.
    """
    if values.device.type == "cpu" and values.numel() and int(values.max()) >= logits.shape[-1]:
        raise ValueError(
            f"fields: a label is {int(values.max())}, but its head has {logits.shape[-1]} values; "
            "set state_heads.values to the size of the field's label set"
        )
    return letter_loss(logits, values, smoothing=smoothing)


def initial_loss(logits: Tensor, initial: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of the loop-0 readout [B, K] against the state before the first loop [B]."""
    return F.cross_entropy(logits.float(), initial, ignore_index=IGNORE, label_smoothing=smoothing)


def stop_loss(stop_logits: Tensor, steps: Tensor) -> Tensor:
    """Balanced binary cross-entropy: continue at loops before N, stop at N, loops after N not counted.

    The mean over the continues and the one stop weigh equally (N = 1 has only the stop). An example whose N lies
    beyond the loops rolled out has continues only.

    Args:
        stop_logits: [B, T].
        steps: [B] requested counts N.
    """
    loop = torch.arange(1, stop_logits.shape[1] + 1, device=stop_logits.device)
    before, at = loop < steps[:, None], loop == steps[:, None]
    per_loop = F.binary_cross_entropy_with_logits(stop_logits.float(), at.float(), reduction="none")
    halves = torch.stack([_example_means(per_loop, before), _example_means(per_loop, at)])
    present = torch.stack([before.any(1), at.any(1)])
    return (halves.sum(0) / present.sum(0)).mean()


def remaining_loss(remaining: Tensor, steps: Tensor, scale: float) -> Tensor:
    """Mean squared error of the estimated remaining steps, in units of `scale`.

    The mean runs over loops 0..min(N, T); the error before the first loop counts `scale` times more on top.
    Source: architecture spec, controller stage ("12 x the initial squared error / 144").

    Args:
        remaining: [B, T + 1] estimates at loops 0..T, in steps.
        steps: [B] requested counts N.
        scale: steps per unit (12 in the published run).
    """
    loop = torch.arange(remaining.shape[1], device=remaining.device)
    squared = ((remaining.float() - (steps[:, None] - loop)) / scale).square()
    counted = loop <= steps[:, None]
    return _example_means(squared, counted).mean() + scale * squared[:, 0].mean()


def token_loss(logits: Tensor, input_ids: Tensor, target_mask: Tensor, weighting: str = "example") -> Tensor:
    """Next-token cross-entropy of an ordinary language model, over chosen targets.

    Args:
        logits: [M, V] of the tokens that stand before the M targets, in row-major order of the mask.
        input_ids: [B, S].
        target_mask: [B, S] bool, the M targets; its first column is False.
        weighting: "example" is the mean over an example's targets, then over examples, so that a long response weighs
            no more than a short one (as in `letter_loss`); "token" is the mean over all targets of the batch. They
            agree where all examples have equally many targets, as in batches of one depth.

    Raises:
        ValueError: unknown weighting.
    """
    if weighting not in ("example", "token"):
        raise ValueError(f"weighting: got {weighting!r}; use 'example' or 'token'")
    per_target = F.cross_entropy(logits.float(), input_ids[target_mask], reduction="none")
    if weighting == "token":
        return per_target.mean()
    placed = torch.zeros(target_mask.shape, device=logits.device).masked_scatter(target_mask, per_target)
    return _example_means(placed, target_mask).mean()


def _example_means(values: Tensor, counted: Tensor) -> Tensor:
    """Mean of the counted entries of each row, 0 for a row without any: [B, T] -> [B]."""
    return (values * counted).sum(1) / counted.sum(1).clamp(min=1)
