"""Weight gradients formed once for all loops equal those that autograd forms loop by loop."""

import pytest
import torch
from torch import nn

from loopformer.deferred import DeferredLinears


def looped(linear, apply, x, loops=5, read=range(5)):
    """Apply the map again and again; the loss reads some of the states."""
    total, state = 0.0, x
    for t in range(loops):
        state = torch.tanh(apply(linear, state))
        if t in read:
            total = total + (state * (t + 1)).square().sum()
    return total


def plain(linear, x):
    return linear(x)


def gradients(linear, x, apply, **options):
    linear.zero_grad()
    x.grad = None
    loss = looped(linear, apply, x, **options)
    loss.backward()
    return [loss.detach(), x.grad, *(p.grad for p in linear.parameters())]


@pytest.fixture
def case():
    torch.manual_seed(0)
    return nn.Linear(6, 6).double(), torch.randn(3, 2, 6, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("read", [range(5), [1, 3], [0]])
def test_equals_autograd(case, read):
    linear, x = case
    expected = gradients(linear, x, plain, read=read)
    found = gradients(linear, x, DeferredLinears(), read=read)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_adds_to_ordinary_uses_of_the_same_weight(case):
    linear, x = case

    def mixed(apply):
        linear.zero_grad()
        (looped(linear, apply, linear(x)) + linear(x).sum()).backward()
        return linear.weight.grad

    torch.testing.assert_close(mixed(DeferredLinears()), mixed(plain), rtol=1e-12, atol=1e-12)


def test_a_second_pass_through_the_same_graph_counts_once(case):
    """The first pass asks for the input's gradient alone and leaves its rows behind."""
    linear, x = case
    expected = gradients(linear, x, plain)
    linear.zero_grad()
    loss = looped(linear, DeferredLinears(), x)
    (of_input,) = torch.autograd.grad(loss, x, retain_graph=True)
    torch.testing.assert_close(of_input, expected[1], rtol=1e-12, atol=1e-12)
    loss.backward()
    torch.testing.assert_close(linear.weight.grad, expected[2], rtol=1e-12, atol=1e-12)


def test_frozen_weights_and_other_modules_take_their_own_way(case):
    linear, x = case
    linear.requires_grad_(False)
    out = DeferredLinears()(linear, x)
    assert torch.equal(out, linear(x))
    assert type(out.grad_fn).__name__ != "_UseBackward"
    doubled = nn.Sequential(linear, nn.Tanh())
    assert torch.equal(DeferredLinears()(doubled, x), doubled(x))
    linear.requires_grad_(True)
    with torch.no_grad():
        assert DeferredLinears()(linear, x).grad_fn is None


def test_bfloat16_sums_lose_less_than_a_chain_of_additions():
    torch.manual_seed(1)
    linear, x = nn.Linear(32, 32, bias=False), torch.randn(4, 32)

    def weight_gradient(apply, autocast):
        linear.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = sum((apply(linear, x * (1 + t / 50)).float().square().sum() for t in range(48)), torch.zeros(()))
        loss.backward()
        return linear.weight.grad.clone()

    exact = weight_gradient(plain, False)
    errors = [(weight_gradient(apply, True) - exact).norm() for apply in (plain, DeferredLinears())]
    assert errors[1] < 0.5 * errors[0]
