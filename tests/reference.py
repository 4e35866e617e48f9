"""An independent definition of the operation, and the error bounds that results are held to.

Nothing here is shared with the package.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray


def scatter_reference(
    x: NDArray[Any],
    weight: NDArray[Any],
    bias: NDArray[Any] | None,
    output: tuple[int, int, int],
    stride: tuple[int, int, int],
    padding: tuple[int, int, int],
    groups: int,
    dilation: tuple[int, int, int],
) -> NDArray[Any]:
    """Add every product to the output it belongs to, in float64 (complex128), from the definition.

    ``output`` is given, not computed: its formula is what the tests check.
    """
    wide = np.complex128 if np.iscomplexobj(x) or x.dtype.kind == "c" else np.float64
    x, weight = x.astype(wide), weight.astype(wide)
    n, c_in = x.shape[:2]
    per_group = weight.shape[1]
    y = np.zeros((n, per_group * groups, *output), dtype=wide)
    if bias is not None:
        y += bias.astype(wide)[:, None, None, None]
    for i in itertools.product(*(range(extent) for extent in x.shape[2:])):
        for k in itertools.product(*(range(extent) for extent in weight.shape[2:])):
            o = tuple(
                a * s - p + b * d
                for a, b, s, p, d in zip(i, k, stride, padding, dilation, strict=True)
            )
            if all(0 <= a < extent for a, extent in zip(o, output, strict=True)):
                for g in range(groups):
                    ci = slice(g * c_in // groups, (g + 1) * c_in // groups)
                    co = slice(g * per_group, (g + 1) * per_group)
                    y[(slice(None), co, *o)] += (
                        x[(slice(None), ci, *i)] @ weight[(ci, slice(None), *k)]
                    )
    return y


def gradient_reference(
    x: NDArray[Any],
    weight: NDArray[Any],
    grad_output: NDArray[Any],
    stride: tuple[int, int, int],
    padding: tuple[int, int, int],
    groups: int,
    dilation: tuple[int, int, int],
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the gradients of x and weight, product by product, in float64 (complex128)."""
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    x, weight, grad_output = (a.astype(wide) for a in (x, weight, grad_output))
    grad_x, grad_weight = np.zeros_like(x), np.zeros_like(weight)
    c_in, per_group = weight.shape[:2]
    for i in itertools.product(*(range(extent) for extent in x.shape[2:])):
        for k in itertools.product(*(range(extent) for extent in weight.shape[2:])):
            o = tuple(
                a * s - p + b * d
                for a, b, s, p, d in zip(i, k, stride, padding, dilation, strict=True)
            )
            if not all(0 <= a < extent for a, extent in zip(o, grad_output.shape[2:], strict=True)):
                continue
            for g in range(groups):
                ci = slice(g * c_in // groups, (g + 1) * c_in // groups)
                co = slice(g * per_group, (g + 1) * per_group)
                of_x, of_y = (slice(None), ci, *i), (slice(None), co, *o)
                of_weight = (ci, slice(None), *k)
                grad_x[of_x] += grad_output[of_y] @ weight[of_weight].conj().T
                grad_weight[of_weight] += x[of_x].conj().T @ grad_output[of_y]
    return grad_x, grad_weight


#: Unit roundoff of the storage and of the accumulator, by dtype.
_STORAGE_EPSILON = {
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float32": 2.0**-24,
    "float64": 2.0**-53,
    "complex64": 2.0**-24,
    "complex128": 2.0**-53,
}
_SUM_EPSILON = {**_STORAGE_EPSILON, "float16": 2.0**-24, "bfloat16": 2.0**-24}

#: Smallest positive normal number of the storage: below it rounding is absolute.
_SMALLEST = {
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
    "float32": 2.0**-126,
    "float64": 2.0**-1022,
    "complex64": 2.0**-126,
    "complex128": 2.0**-1022,
}


#: Relative error of one product on tensor cores, and products that one product is made of, by math.
#: The significands of tf32 and bfloat16 have 11 and 8 bits, so rounding an operand to them errs by
#: at most u = 2**-11 or 2**-8. Of the rest, at most u, lo keeps as many bits: an operand split into
#: hi + lo errs by u**2 / 2. The product that is left out, lo*lo, is at most u**2: 2 u**2 in all,
#: and a little for what is quadratic in that.
_PRODUCT_ERROR = {
    "float16": (0.0, 1),
    "bfloat16": (0.0, 1),
    "tf32": (2.01 * 2.0**-11, 1),
    "tf32x3": (2.01 * 2.0**-22, 3),
    "bf16x3": (2.01 * 2.0**-16, 3),
    "float64": (0.0, 1),
}


def tensor_core_bound(
    math: str, dtype: str, depth: int, magnitude: NDArray[Any], exact: NDArray[Any]
) -> NDArray[Any]:
    """Return the largest error that a result of ``depth`` products by tensor cores may have.

    Each addition on a tensor core truncates to float32: an error of at most 2**-23 of the sum so
    far, which is below ``magnitude``. float64 rounds each fused multiply-add to nearest.
    """
    product, terms = _PRODUCT_ERROR[math]
    unit = 2.0**-53 if math == "float64" else 2.0**-23
    # The taps along width are summed after the tensor cores, and the bias last.
    summed = (product + (2 * terms * depth + 2) * unit) * magnitude
    stored = _STORAGE_EPSILON[dtype] * (np.abs(exact) + summed)
    return np.asarray(summed + stored + _SMALLEST[dtype] * _STORAGE_EPSILON[dtype] * 2)


def error_bound(
    dtype: str, depth: int, magnitude: NDArray[Any], exact: NDArray[Any]
) -> NDArray[Any]:
    """Return the largest error that a result of ``depth`` products may have, element by element.

    The classic bound of a sum in any order (Higham, "Accuracy and Stability of Numerical
    Algorithms", section 3.1): with ``u`` the unit roundoff of the accumulator, ``depth * u`` times
    the sum of the absolute products, ``magnitude``; one more ``u`` for the bias, and for complex
    numbers twice that, as each part sums two real products per complex one. Then one rounding to
    storage.
    """
    terms = (2 * depth if dtype.startswith("complex") else depth) + 2
    summed = terms * _SUM_EPSILON[dtype] * magnitude
    stored = _STORAGE_EPSILON[dtype] * (np.abs(exact) + summed)
    return np.asarray(summed + stored + _SMALLEST[dtype] * _STORAGE_EPSILON[dtype] * 2)
