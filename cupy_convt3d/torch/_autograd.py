"""The derivatives of the three operators, each made of the others: of any order therefore.

Each operator is a product of two tensors. With h the gradient of its result, in torch's convention
for complex numbers, the gradients of the two are:

    y           = conv(x, w)               x: grad_input(h, w)    w: grad_weight(x, h)
    grad_input  (g, w), antilinear in w    g: conv(h, w)          w: grad_weight(h, g)
    grad_weight (x, g), antilinear in x    x: grad_input(g, h)    g: conv(x, h)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from cupy_convt3d.torch._operators import FORWARD, GRAD_INPUT, GRAD_WEIGHT, LIBRARY
from cupy_convt3d.torch._vmap import forward_rule, grad_input_rule, grad_weight_rule


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """What the three have in common; the arguments are those of the operator."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        first, second, third, *settings = inputs
        ctx.save_for_backward(first, second)
        ctx.save_for_forward(first, second)
        ctx.shape = third
        # Another kernel than the named one may be faster for the derivatives.
        *geometry, precision, _algorithm, _deterministic = settings
        ctx.settings = (*geometry, precision, "auto", True)


class _Forward(_Product):
    @staticmethod
    def forward(*inputs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return FORWARD(*inputs)

    @staticmethod
    def vmap(*inputs: Any) -> Any:
        return forward_rule(forward, *inputs)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, *others = ctx.needs_input_grad
        return (
            grad_input(grad, weight, x.shape, *ctx.settings) if needs_x else None,
            grad_weight(x, grad, weight.shape, *ctx.settings) if needs_weight else None,
            bias_gradient(grad) if needs_bias else None,
            *(None for _ in others),
        )

    @staticmethod
    def jvp(ctx: Any, of_x: Any, of_weight: Any, of_bias: Any, *_others: Any) -> Any:
        x, weight = ctx.saved_tensors
        of_y = _sum(
            None if of_x is None else forward(of_x, weight, None, *ctx.settings),
            None if of_weight is None else forward(x, of_weight, None, *ctx.settings),
        )
        if of_bias is None:
            return of_y
        of_bias = of_bias[:, None, None, None]
        return _sum(of_y, of_bias)


class _GradInput(_Product):
    @staticmethod
    def forward(*inputs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return GRAD_INPUT(*inputs)

    @staticmethod
    def vmap(*inputs: Any) -> Any:
        return grad_input_rule(grad_input, *inputs)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        grad_output, weight = ctx.saved_tensors
        needs_grad_output, needs_weight, *others = ctx.needs_input_grad
        return (
            forward(grad, weight, None, *ctx.settings) if needs_grad_output else None,
            grad_weight(grad, grad_output, weight.shape, *ctx.settings) if needs_weight else None,
            *(None for _ in others),
        )

    @staticmethod
    def jvp(ctx: Any, of_grad_output: Any, of_weight: Any, *_others: Any) -> Any:
        grad_output, weight = ctx.saved_tensors
        return _sum(
            None
            if of_grad_output is None
            else grad_input(of_grad_output, weight, ctx.shape, *ctx.settings),
            None
            if of_weight is None
            else grad_input(grad_output, of_weight, ctx.shape, *ctx.settings),
        )


class _GradWeight(_Product):
    @staticmethod
    def forward(*inputs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return GRAD_WEIGHT(*inputs)

    @staticmethod
    def vmap(*inputs: Any) -> Any:
        return grad_weight_rule(grad_weight, *inputs)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        x, grad_output = ctx.saved_tensors
        needs_x, needs_grad_output, *others = ctx.needs_input_grad
        return (
            grad_input(grad_output, grad, x.shape, *ctx.settings) if needs_x else None,
            forward(x, grad, None, *ctx.settings) if needs_grad_output else None,
            *(None for _ in others),
        )

    @staticmethod
    def jvp(ctx: Any, of_x: Any, of_grad_output: Any, *_others: Any) -> Any:
        x, grad_output = ctx.saved_tensors
        return _sum(
            None if of_x is None else grad_weight(of_x, grad_output, ctx.shape, *ctx.settings),
            None
            if of_grad_output is None
            else grad_weight(x, of_grad_output, ctx.shape, *ctx.settings),
        )


def bias_gradient(grad_output: Any) -> Any:
    """Return the sum over all axes but the channels; 16-bit floats are summed in float32."""
    dtype = torch.float32 if grad_output.dtype.itemsize == 2 else grad_output.dtype
    axes = (0, 2, 3, 4) if grad_output.ndim == 5 else (1, 2, 3)
    return grad_output.sum(axes, dtype=dtype).to(grad_output.dtype)


def _sum(left: Any, right: Any) -> Any:
    """Return the sum of two tangents, of which one may be missing."""
    if left is None or right is None:
        return right if left is None else left
    return left + right


def _needs_derivative(inputs: tuple[Any, ...]) -> bool:
    """Whether one of the tensors requires a gradient, or carries a tangent of forward mode."""
    recording = torch.is_grad_enabled()
    # Tangents exist inside a level of forward mode alone; asking each tensor costs a microsecond.
    forward_mode = forward_ad._current_level >= 0
    for tensor in inputs[:3]:
        if isinstance(tensor, torch.Tensor):
            if recording and tensor.requires_grad:
                return True
            # Tangents that vmap maps cannot be asked; the operator takes them apart.
            if forward_mode and (
                torch._C._functorch.is_legacy_batchedtensor(tensor)
                or forward_ad.unpack_dual(tensor).tangent is not None
            ):
                return True
    return False


def _recorded(function: Any) -> Callable[..., Any]:
    """Return the kernel of an operator that records its derivatives where they are needed."""

    def run(*inputs: Any) -> Any:
        return (function.apply if _needs_derivative(inputs) else function.forward)(*inputs)

    return run


def _callable(operator: Any, function: Any) -> Callable[..., Any]:
    """Return the operator in the form that is fastest, and that every transform can take."""

    def call(*inputs: Any) -> Any:
        if torch.compiler.is_compiling():
            return operator(*inputs)
        if torch._C._are_functorch_transforms_active():
            # From its outside alone an operator shows them no rule for its derivative.
            return function.apply(*inputs)
        # The second spares the way through the kernel of `_recorded`.
        return (operator if _needs_derivative(inputs) else function.forward)(*inputs)

    return call


forward = _callable(FORWARD, _Forward)
grad_input = _callable(GRAD_INPUT, _GradInput)
grad_weight = _callable(GRAD_WEIGHT, _GradWeight)

for _operator, _function in (
    (FORWARD, _Forward),
    (GRAD_INPUT, _GradInput),
    (GRAD_WEIGHT, _GradWeight),
):
    LIBRARY.impl(_operator, _recorded(_function), "Autograd")
