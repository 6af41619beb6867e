"""The affine timer: exact fits and exact stops far beyond the trained counts."""

from __future__ import annotations

import pytest
import torch
from conftest import make_network

from datamodules.graph_batcher import GraphBatcher
from datamodules.panel import PUBLISHED_COUNTS
from loopformer.evaluation.trace import timer_stops
from loopformer.halting import AffineTimer
from loopformer.recurrence import FixedPrompt
from loopformer.timer_fit import fit_gain, fit_reader, refit_countdown


def fitted(width: int = 896, seed: int = 0) -> tuple[AffineTimer, torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    table = torch.randn(10, width) * 0.02
    digits = torch.tensor([[n // 10, n % 10] if n > 9 else [n, -1] for n in PUBLISHED_COUNTS])
    timer = AffineTimer()
    timer.build(width)
    fit_reader(timer, digits, table[digits.clamp(min=0)], PUBLISHED_COUNTS)
    return timer, digits, table


def test_gain_is_ten() -> None:
    assert fit_gain(PUBLISHED_COUNTS) == 10.0
    with pytest.raises(ValueError, match="two-digit counts"):
        fit_gain([1, 2, 3])


@pytest.mark.parametrize("width", [64, 896])
def test_reader_reads_numbers_it_never_saw(width: int) -> None:
    timer, _, table = fitted(width)
    numbers = torch.arange(0, 10_001)
    digits = torch.full((len(numbers), 5), -1)
    for row, number in enumerate(numbers.tolist()):
        text = str(number)
        digits[row, : len(text)] = torch.tensor([int(c) for c in text])
    error = (timer.reader(digits, table[digits.clamp(min=0)]) - numbers).abs()
    assert error.max() < 0.01  # far from the half step that would move a stop


def test_reader_refuses_embeddings_that_cannot_tell_digits_apart() -> None:
    digits = torch.tensor([[n // 10, n % 10] if n > 9 else [n, -1] for n in PUBLISHED_COUNTS])
    timer = AffineTimer()
    timer.build(4)
    with pytest.raises(ValueError, match="misreads a training count"):
        fit_reader(timer, digits, torch.randn(10, 4)[digits.clamp(min=0)], PUBLISHED_COUNTS)


def test_countdown_is_exact_to_the_last_float32_digit() -> None:
    timer, *_ = fitted()
    with torch.no_grad():
        timer.decay.fill_(1.0003)
        timer.decrement.fill_(-0.98)
    a, b = refit_countdown(timer, PUBLISHED_COUNTS, 12, 12.0)
    assert abs(a - 1) < 1e-7
    assert abs(b + 1) < 1e-6


def test_published_pair_of_constants_stops_exactly_to_8192() -> None:
    network = make_network(FixedPrompt(), halting=AffineTimer())
    timer = network.halting
    assert isinstance(timer, AffineTimer)
    batcher = GraphBatcher(network.backbone.tokenizer)
    digits = batcher.count_digits(torch.tensor(PUBLISHED_COUNTS).numpy())
    embeddings = network.backbone.lm.model.embed_tokens(digits.clamp(min=0)).detach()
    fit_reader(timer, digits, embeddings, PUBLISHED_COUNTS)
    with torch.no_grad():
        for parameter, value in ((timer.decay, 1.0), (timer.decrement, -0.99999994), (timer.stop_weight, -4.0)):
            parameter.fill_(value)
        timer.stop_bias.fill_(2.0)
    counts = list(range(1, 8193))
    assert timer_stops(network, batcher, counts, 8200).tolist() == counts
    with torch.no_grad():  # a countdown that AdamW alone might leave: it must fail, or this test could not
        timer.decrement.fill_(-0.9995)
    assert timer_stops(network, batcher, counts, 8200).tolist() != counts
