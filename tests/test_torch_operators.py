"""The operators of torch: their registration, and their derivatives of every order."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint

import cupy_convt3d
from cupy_convt3d.torch import conv_transpose3d
from cupy_convt3d.torch._operators import FORWARD, GRAD_INPUT, GRAD_WEIGHT
from tests.gradients import exact_gradients, normal_operands
from tests.libraries import from_torch, to_torch
from tests.problems import Case

# Small: numerical derivatives call an operator twice for each element.
SWEEP = [
    Case("plain", (2, 2, 2, 1, 2), (2, 2, 2, 2, 1), bias=True),
    Case("no-bias", (1, 2, 1, 2, 2), (2, 1, 2, 1, 2), stride=(2, 1, 2)),
    Case("padding", (1, 1, 3, 2, 3), (1, 2, 2, 2, 2), bias=True, padding=(1, 0, 1)),
    Case(
        "output-padding-above-stride",
        (1, 2, 2, 1, 2),
        (2, 1, 1, 2, 2),
        bias=True,
        output_padding=(1, 2, 1),
        dilation=(2, 3, 2),
    ),
    Case(
        "output-padding",
        (1, 1, 2, 1, 2),
        (1, 1, 2, 1, 2),
        stride=(2, 3, 2),
        padding=(1, 0, 0),
        output_padding=(1, 2, 0),
    ),
    Case("groups", (1, 4, 2, 1, 2), (4, 1, 2, 2, 1), bias=True, stride=2, groups=2),
    Case("dilation", (1, 1, 2, 2, 2), (1, 1, 2, 2, 2), bias=True, dilation=(1, 2, 3)),
    Case("depthwise", (2, 3, 2, 1, 2), (3, 1, 1, 2, 2), bias=True, stride=(1, 2, 1), groups=3),
    Case("stride-above-kernel", (1, 2, 2, 1, 2), (2, 2, 1, 1, 1), stride=(2, 3, 3)),
    Case("unbatched", (2, 2, 1, 2), (2, 1, 2, 2, 1), bias=True, stride=2),
]
BATCHED = [case for case in SWEEP if len(case.x) == 5]
CASES = pytest.mark.parametrize("case", SWEEP, ids=lambda case: case.id)
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
# torch's own forward mode compiles its formulas by a function that torch has deprecated.
FORWARD_MODE = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)


def operands_of(case: Case, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return x, weight, and bias if there is one; they require gradients."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [case.x, case.weight] + ([case.bias_shape] if case.bias_shape else [])
    return tuple(
        torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in shapes
    )


def arguments_of(case: Case, precision: str = "ieee") -> tuple[Any, ...]:
    problem = case.problem()
    geometry = problem.stride, problem.padding, problem.output_padding
    return (*geometry, problem.groups, problem.dilation, precision, "auto", True)


def calls_of(
    case: Case, dtype: torch.dtype
) -> dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], tuple[Any, ...]]]:
    """Return the call of each operator: itself, its tensors, and its other arguments."""
    x, weight, *bias = operands_of(case, dtype)
    arguments = arguments_of(case)
    grad_output = torch.randn(case.problem().y_shape, dtype=dtype).requires_grad_()
    return {
        "forward": (FORWARD, (x, weight, *(bias or [None])), arguments),
        "grad_input": (GRAD_INPUT, (grad_output, weight), (case.x, *arguments)),
        "grad_weight": (GRAD_WEIGHT, (x, grad_output), (case.weight, *arguments)),
    }


@DTYPES
@pytest.mark.parametrize("case", BATCHED, ids=lambda case: case.id)
@pytest.mark.parametrize("name", ["forward", "grad_input", "grad_weight"])
def test_opcheck(name: str, case: Case, dtype: torch.dtype) -> None:
    operator, tensors, others = calls_of(case, dtype)[name]
    results = torch.library.opcheck(operator, (*tensors, *others))
    assert set(results.values()) == {"SUCCESS"}
    assert len(results) == 4


@CASES
@DTYPES
def test_gradcheck(case: Case, dtype: torch.dtype) -> None:
    def call(x: Any, weight: Any, bias: Any = None) -> Any:
        return conv_transpose3d(x, weight, bias, **case.settings)

    assert torch.autograd.gradcheck(call, operands_of(case, dtype))


@CASES
@DTYPES
def test_gradgradcheck(case: Case, dtype: torch.dtype) -> None:
    def call(x: Any, weight: Any, bias: Any = None) -> Any:
        return conv_transpose3d(x, weight, bias, **case.settings)

    assert torch.autograd.gradgradcheck(call, operands_of(case, dtype))


@DTYPES
@pytest.mark.parametrize("case", BATCHED, ids=lambda case: case.id)
@pytest.mark.parametrize("name", ["grad_input", "grad_weight"])
def test_gradcheck_of_the_gradients(name: str, case: Case, dtype: torch.dtype) -> None:
    operator, tensors, others = calls_of(case, dtype)[name]
    assert torch.autograd.gradcheck(lambda *pair: operator(*pair, *others), tensors)
    assert torch.autograd.gradgradcheck(
        lambda *pair: operator(*pair, *others), tensors, fast_mode=True
    )


@FORWARD_MODE
@DTYPES
@pytest.mark.parametrize("case", BATCHED[:4], ids=lambda case: case.id)
@pytest.mark.parametrize("name", ["forward", "grad_input", "grad_weight"])
def test_forward_mode(name: str, case: Case, dtype: torch.dtype) -> None:
    operator, tensors, others = calls_of(case, dtype)[name]
    given = tuple(tensor for tensor in tensors if tensor is not None)

    def call(*some: Any) -> Any:
        return operator(*some, *tensors[len(some) :], *others)

    assert torch.autograd.gradcheck(call, given, check_forward_ad=True, check_backward_ad=False)


def test_third_derivatives_are_torchs() -> None:
    case = SWEEP[5]
    x, weight, bias = operands_of(case, torch.float64)
    found = []
    for function in (conv_transpose3d, torch.nn.functional.conv_transpose3d):
        value = function(x, weight, bias, **case.settings).sin().sum()
        for operand in (x, weight, x):
            (gradient,) = torch.autograd.grad(value, operand, create_graph=True)
            value = (gradient**2).sum()
        found.append(gradient)
    torch.testing.assert_close(*found)


def test_only_the_gradients_that_are_needed_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    from cupy_convt3d.torch import _autograd

    called = []
    for name in ("grad_input", "grad_weight", "bias_gradient"):
        function = getattr(_autograd, name)
        monkeypatch.setattr(
            _autograd, name, lambda *a, n=name, f=function: (called.append(n), f(*a))[1]
        )
    for needed, name in enumerate(("grad_input", "grad_weight", "bias_gradient")):
        called.clear()
        operands = [t.detach() for t in operands_of(SWEEP[0], torch.float32)]
        operands[needed].requires_grad_()
        conv_transpose3d(*operands).sum().backward()
        assert called == [name]
        assert operands[needed].grad is not None


def test_an_operand_that_its_gradient_needs_may_not_change() -> None:
    x, weight, bias = operands_of(SWEEP[0], torch.float32)
    y = conv_transpose3d(x, weight, bias)
    with torch.no_grad():
        weight += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@CASES
def test_gradients_are_those_of_the_public_functions(case: Case) -> None:
    operands = normal_operands(case, "float32")
    x, weight, grad_output = (to_torch(a) for a in operands)
    x.requires_grad_()
    weight.requires_grad_()
    conv_transpose3d(x, weight, **case.settings).backward(grad_output)
    grad_x = cupy_convt3d.conv_transpose3d_grad_input(
        operands[2], operands[1], case.x, **case.settings
    )
    grad_weight = cupy_convt3d.conv_transpose3d_grad_weight(
        operands[0], operands[2], case.weight, **case.settings
    )
    np.testing.assert_array_equal(x.grad.numpy(), grad_x)
    np.testing.assert_array_equal(weight.grad.numpy(), grad_weight)


@pytest.mark.parametrize("with_ml_dtypes", [True, False])
def test_gradients_of_bfloat16(with_ml_dtypes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_ml_dtypes:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    case = Case("bf16", (3, 4, 3, 4, 2), (4, 3, 2, 3, 2), stride=2, groups=2)
    operands = normal_operands(case, "bfloat16")
    x, weight, grad_output = (to_torch(a) for a in operands)
    x.requires_grad_()
    weight.requires_grad_()
    cupy_convt3d.conv_transpose3d(x, weight, **case.settings).backward(grad_output)
    for gradient, expected in zip(
        (x.grad, weight.grad), exact_gradients(case, operands), strict=True
    ):
        assert gradient.dtype == torch.bfloat16
        # One rounding, of 2**-9 at most, of float32 sums of at most 72 products.
        np.testing.assert_allclose(from_torch(gradient), expected, rtol=2**-8, atol=1e-4)


def test_the_bias_gradient_of_16_bit_floats_is_summed_in_float32() -> None:
    bias = torch.zeros(1, dtype=torch.float16, requires_grad=True)
    x = torch.zeros((1, 1, 16, 16, 16), dtype=torch.float16)
    y = conv_transpose3d(x, torch.zeros((1, 1, 1, 1, 1), dtype=torch.float16), bias)
    y.sum().backward()
    assert bias.grad == 4096


def test_lazy_views_and_any_strides_have_gradients() -> None:
    x, weight, bias = operands_of(SWEEP[0], torch.complex64)
    y = conv_transpose3d(x.conj().transpose(2, 4), weight.conj().transpose(2, 4), bias)
    y.backward(torch.ones_like(y).conj())
    found = [x.grad, weight.grad]
    x.grad = weight.grad = None
    expected = torch.nn.functional.conv_transpose3d(
        x.conj().transpose(2, 4), weight.conj().transpose(2, 4), bias
    )
    torch.testing.assert_close(y, expected)
    expected.backward(torch.ones_like(y))
    torch.testing.assert_close(found, [x.grad, weight.grad])


@pytest.mark.parametrize("name", ["forward", "grad_input", "grad_weight"])
def test_fake_results_have_the_strides_of_real_ones(name: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    for case in BATCHED:
        operator, tensors, others = calls_of(case, torch.float32)[name]
        moved = [
            t if t is None or t.ndim < 5 else t.detach().to(memory_format=torch.channels_last_3d)
            for t in tensors
        ]
        real = operator(*moved, *others)
        with FakeTensorMode() as mode:
            fake = operator(*(t if t is None else mode.from_tensor(t) for t in moved), *others)
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)
        assert real.is_contiguous()


@FORWARD_MODE
@pytest.mark.parametrize("case", [SWEEP[0], SWEEP[5]], ids=lambda case: case.id)
def test_transforms_of_torch_func(case: Case) -> None:
    x, weight, bias = (t.detach() for t in operands_of(case, torch.float64))

    def results(function: Callable[..., torch.Tensor]) -> list[Any]:
        def call(*operands: torch.Tensor) -> torch.Tensor:
            return function(*operands, **case.settings)

        def loss(*operands: torch.Tensor) -> torch.Tensor:
            return (call(*operands) ** 3).sum()

        def sample_loss(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return loss(x, weight, bias)

        of_all = torch.func.grad(loss, argnums=(0, 1, 2))(x, weight, bias)
        second = torch.func.grad(lambda x: torch.func.grad(loss)(x, weight, bias).sum())(x)
        jacobian = torch.func.jacrev(call, argnums=1)(x, weight, bias)
        tangent = torch.func.jvp(call, (x, weight, bias), (x, weight, bias))[1]
        per_sample = torch.func.vmap(torch.func.grad(sample_loss), (None, 0))(weight, x[:, None])
        hessian = torch.func.hessian(loss, argnums=(0, 1, 2))(x, weight, bias)
        forward_twice = torch.func.jacfwd(torch.func.jacfwd(loss, argnums=1), argnums=1)
        samples = torch.stack([x, 2 * x])
        mapped = torch.vmap(lambda x: call(x, weight, bias))
        of_mapped = torch.func.jvp(mapped, (samples,), (samples,))
        vectorized = torch.autograd.functional.jacobian(
            lambda weight: call(x, weight, bias),
            weight,
            vectorize=True,
            strategy="forward-mode",
        )
        return [
            of_all,
            second,
            jacobian,
            tangent,
            per_sample,
            hessian,
            forward_twice(x, weight, bias),
            of_mapped,
            vectorized,
        ]

    torch.testing.assert_close(
        results(conv_transpose3d), results(torch.nn.functional.conv_transpose3d)
    )


def test_vmap_over_no_samples() -> None:
    none, weight = torch.randn(0, 1, 2, 2, 2, 2), torch.randn(2, 3, 1, 2, 1)
    assert torch.vmap(conv_transpose3d, (0, None))(none, weight).shape == (0, 1, 3, 2, 3, 2)


@pytest.mark.parametrize("in_dims", [(0, None, None), (1, 0, None), (None, 2, 0), (3, 1, 1)])
@pytest.mark.parametrize("name", ["forward", "grad_input", "grad_weight"])
def test_vmap(name: str, in_dims: tuple[int | None, ...]) -> None:
    """Each element of the mapped axis gives what it gives alone."""
    case = Case("vmap", (2, 4, 2, 3, 2), (4, 3, 2, 1, 2), bias=True, stride=2, groups=2)
    operator, tensors, others = calls_of(case, torch.float64)[name]
    dims = in_dims[: len(tensors)]
    if dims == (None, None):
        return
    mapped = [
        t.detach() if dim is None else torch.stack([t.detach() * (1 + j) for j in range(3)], dim)
        for t, dim in zip(tensors, dims, strict=True)
    ]
    found = torch.vmap(lambda *some: operator(*some, *others), dims)(*mapped)
    expected = [
        operator(
            *(t if d is None else t.select(d, j) for t, d in zip(mapped, dims, strict=True)),
            *others,
        )
        for j in range(3)
    ]
    torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_takes_its_dtype_in_each_call(dtype: torch.dtype) -> None:
    x, weight, bias = operands_of(SWEEP[0], torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        y = conv_transpose3d(x, weight, bias)
        also = cupy_convt3d.conv_transpose3d(x.to(dtype), weight, bias)
    assert y.dtype == also.dtype == dtype
    expected = conv_transpose3d(x.to(dtype), weight.to(dtype), bias.to(dtype))
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    y.float().sum().backward()
    assert x.grad.dtype == weight.grad.dtype == bias.grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_autocast_leaves_other_dtypes(dtype: torch.dtype) -> None:
    x, weight, bias = operands_of(SWEEP[0], dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert conv_transpose3d(x, weight, bias).dtype == dtype


def test_autocast_that_is_off_casts_nothing() -> None:
    x, weight, bias = operands_of(SWEEP[0], torch.float32)
    with torch.autocast("cpu", enabled=False):
        assert conv_transpose3d(x, weight, bias).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert conv_transpose3d(x, weight, bias).dtype == torch.float32


def test_inference_mode() -> None:
    x, weight, bias = operands_of(SWEEP[0], torch.float32)
    expected = conv_transpose3d(x, weight, bias)
    with torch.inference_mode():
        y = conv_transpose3d(x, weight, bias)
        also = conv_transpose3d(x * 1, weight, bias)
    assert y.is_inference()
    torch.testing.assert_close([y, also], [expected.detach()] * 2, rtol=0, atol=0)


def test_checkpoints_compute_the_forward_again() -> None:
    operands = operands_of(SWEEP[0], torch.float64)
    found = []
    for call in (
        conv_transpose3d,
        lambda *a: torch.utils.checkpoint.checkpoint(conv_transpose3d, *a, use_reentrant=False),
    ):
        found.append(torch.autograd.grad(call(*operands).sin().sum(), operands))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_deterministic_algorithms() -> None:
    x, weight, bias = operands_of(SWEEP[0], torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for _ in range(2):
            y = conv_transpose3d(x, weight, bias)
            runs.append((y, *torch.autograd.grad(y.sum(), (x, weight, bias))))
    finally:
        torch.use_deterministic_algorithms(False)
    for first, second in zip(*runs, strict=True):
        assert torch.equal(first, second)


def test_deterministic_algorithms_are_asked_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from cupy_convt3d.torch import _operators

    arguments = (*arguments_of(SWEEP[0])[:-1], False)
    assert not _operators._settings(_operators.ALGORITHMS, *arguments).deterministic
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert _operators._settings(_operators.ALGORITHMS, *arguments).deterministic


def test_the_operators_check_their_arguments() -> None:
    x, weight, bias = operands_of(SWEEP[0], torch.float32)
    arguments = arguments_of(SWEEP[0])
    with pytest.raises(ValueError, match="x must have 5 axes, a batch first, in the operator"):
        FORWARD(x[0], weight, bias, *arguments)
    with pytest.raises(TypeError, match="weight must have the dtype of x, float32, got"):
        FORWARD(x, weight.double(), bias, *arguments)
    with pytest.raises(ValueError, match="precision must be None or one of ieee"):
        FORWARD(x, weight, bias, *arguments_of(SWEEP[0], "fp32"))
    with pytest.raises(ValueError, match="stride must be at least 1"):
        FORWARD(x, weight, bias, (0, 1, 1), *arguments[1:])
    grad_output = torch.zeros(SWEEP[0].problem().y_shape)
    with pytest.raises(ValueError, match="grad_output must have the shape of the result"):
        GRAD_INPUT(grad_output[:, :, 1:], weight, x.shape, *arguments)
    with pytest.raises(ValueError, match="grad_output must have 5 axes, a batch first, in the op"):
        GRAD_INPUT(grad_output[0], weight, x.shape[1:], *arguments)
    with pytest.raises(TypeError, match="grad_output must have the dtype of x"):
        GRAD_WEIGHT(x, grad_output.double(), weight.shape, *arguments)


def test_arguments_that_are_no_tensors() -> None:
    x, weight, _ = operands_of(SWEEP[0], torch.float32)
    with pytest.raises(TypeError, match="input must be a torch tensor, got list"):
        conv_transpose3d([1.0], weight)
    with pytest.raises(TypeError, match="weight must be a torch tensor, got NoneType"):
        conv_transpose3d(x, None)
    with pytest.raises(TypeError, match="config must be None for gradients of torch tensors"):
        cupy_convt3d.conv_transpose3d_grad_input(x, weight, x.shape, config=1)
