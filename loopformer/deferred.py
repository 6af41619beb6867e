"""Linear maps applied at many loops, whose weight gradient is one product over all of them.

Autograd would form the gradient of a weight at every loop, a full matrix from a handful of rows, and add it to the last
one: with few slots these matrices cost more memory traffic than all other work of a training step together. Here each
loop only keeps its rows, and the gradient is formed once, when the backward pass has left the first loop. In bfloat16
the sum over loops is then one product with float32 accumulation instead of a chain of rounded additions.

Shape legend: N rows (batch times slots) of one loop, I inputs, O outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

Rows = dict[int, tuple[Tensor, Tensor]]
"""Inputs [N, I] and output gradients [N, O] of every use. By number of the use, so that a second backward pass through
the same graph replaces what the first one left."""


class _Shared(torch.autograd.Function):
    """Hands out a weight; its backward runs after that of every use and forms the gradient from their rows."""

    @staticmethod
    def forward(ctx: Any, rows: Rows, dtype: torch.dtype, weight: Tensor, bias: Tensor | None) -> Any:
        ctx.rows = rows
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        ctx.set_materialize_grads(False)
        # New tensors even where the type is right already: a Function must not return its inputs.
        weight = weight.to(dtype) if weight.dtype != dtype else weight.view_as(weight)
        return weight, None if bias is None else (bias.to(dtype) if bias.dtype != dtype else bias.view_as(bias))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Any) -> Any:
        if not ctx.rows:
            return None, None, None, None
        inputs, gradients = (torch.cat(part) for part in zip(*ctx.rows.values(), strict=True))
        ctx.rows.clear()
        of_weight, of_bias = ctx.dtypes
        bias = None if of_bias is None else gradients.sum(0, dtype=of_bias)
        return None, None, (gradients.T @ inputs).to(of_weight), bias


class _Use(torch.autograd.Function):
    """One application of a shared weight: the gradient of the input as usual, the rows kept for the weight's."""

    @staticmethod
    def forward(ctx: Any, rows: Rows, number: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.rows, ctx.number = rows, number
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        ctx.rows[ctx.number] = x.flatten(0, -2), gradient.flatten(0, -2)
        return None, None, gradient @ weight if ctx.needs_input_grad[2] else None, None, None


class DeferredLinears:
    """The linear maps of one rollout; make a new one for every rollout."""

    def __init__(self) -> None:
        self._shared: dict[nn.Linear, tuple[Tensor, Tensor | None, Rows]] = {}
        self._uses = 0

    def __call__(self, linear: nn.Module, x: Tensor) -> Tensor:
        """Apply `linear` to x [..., I] -> [..., O], with the type that autocast would choose.

        Modules of another kind (adapters, quantised layers) and frozen weights take their own way.
        """
        if type(linear) is not nn.Linear or not linear.weight.requires_grad or not torch.is_grad_enabled():
            return linear(x)
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else linear.weight.dtype
        if linear not in self._shared:
            rows: Rows = {}
            self._shared[linear] = (*_Shared.apply(rows, dtype, linear.weight, linear.bias), rows)
        weight, bias, rows = self._shared[linear]
        self._uses += 1
        return _Use.apply(rows, self._uses, x.to(dtype), weight, bias)
