"""The activations: torch's values in every dtype and on every path, and what is refused."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cupy_convt3d import conv_transpose3d
from cupy_convt3d._activation import (
    ACTIVATIONS,
    NO_ACTIVATION,
    Activation,
    activation_of,
    check_activation,
)
from cupy_convt3d._dtypes import DTYPES
from cupy_convt3d._numpy_activation import CHUNK, activate
from cupy_convt3d._plan import Plan
from cupy_convt3d._plan_gather import plan_gather
from cupy_convt3d._plan_scatter import plan_scatter
from cupy_convt3d._problem import Problem
from tests.executors import run_on_device, run_on_host
from tests.host.executor import HostExecutor
from tests.libraries import LIBRARIES, Library, to_torch
from tests.problems import (
    Arrays,
    Case,
    exact_result,
    integer_data,
    magnitude,
    normal_data,
    numpy_dtype,
)
from tests.reference import error_bound

REAL = pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
NAMES = pytest.mark.parametrize("name", ACTIVATIONS)

SLOPE = 0.25

#: 1024 inputs along a row of taps that are 1. Apart, blocks own their outputs; close, an output
#: has three inputs, of which two are 0, and the scatter adds with atomics.
APART = Case("apart", (1, 1, 1, 1, 1024), (1, 1, 1, 1, 3), stride=(1, 1, 3))
CLOSE = Case("close", (1, 1, 1, 1, 3072), (1, 1, 1, 1, 3), padding=(0, 0, 1))

#: Sums of many products with bias; outputs without a product; blocks that meet.
SUMS = Case("sums", (2, 3, 3, 4, 5), (3, 2, 2, 3, 2), True, (2, 1, 2), (1, 0, 1))
HOLES = Case("holes", (1, 2, 2, 3, 4), (2, 3, 1, 2, 1), True, (3, 2, 2))
ATOMICS = Case("atomics", (1, 3, 9, 10, 30), (3, 5, 3, 3, 3), True, (1, 2, 1))

PLANNERS = pytest.mark.parametrize(
    "planner", [plan_gather, plan_scatter], ids=["gather", "scatter"]
)

Run = Callable[[Plan, Problem, Arrays], NDArray[Any]]


def torch_activation(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return torch's activation of NumPy values, in float64."""
    tensor = torch.from_numpy(values.astype(np.float64))
    function = getattr(torch.nn.functional, name)
    result = function(tensor, SLOPE) if name == "leaky_relu" else function(tensor)
    return np.asarray(result.numpy())


def special_values() -> NDArray[Any]:
    """Return 1024 values: from -9 to 9, and the ones that have rules of their own."""
    special = [-np.inf, np.inf, np.nan, -100.0, 100.0, -0.0, 0.0]
    return np.concatenate([np.linspace(-9, 9, 1024 - len(special)), special])


def special_data(case: Case, dtype: str) -> Arrays:
    x = np.zeros(case.x, dtype=numpy_dtype(dtype))
    x[..., :: x.size // 1024] = special_values()
    if case is CLOSE:
        x = np.roll(x, 1, axis=-1)
    return x, np.ones(case.weight, dtype=numpy_dtype(dtype)), None


def check_special(name: str, dtype: str, y: NDArray[Any]) -> None:
    """Compare with torch at the values as stored."""
    values = special_values().astype(numpy_dtype(dtype)).astype(np.float64)
    expected = torch_activation(name, np.repeat(values, 3))
    storage = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
    smallest = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 0}
    sums = storage["float64"] if dtype == "float64" else storage["float32"]
    # The error of the argument of erfc is multiplied by up to 2*z*z = 81.
    rtol = 1.1 * storage[dtype] + 200 * sums
    actual = y.ravel().astype(np.float64)
    # torch's 1 + erf cancels far below 0 (and its float32 gelu makes NaN of infinity).
    atol = max(smallest[dtype], 1e-14 if name == "gelu" else 0)
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)
    if name == "gelu":
        tail = np.repeat(values, 3) < -1
        exact = [
            v * 0.5 * math.erfc(-v * math.sqrt(0.5)) for v in np.repeat(values, 3)[tail].tolist()
        ]
        np.testing.assert_allclose(actual[tail], exact, rtol=rtol, atol=smallest[dtype])


def planned(planner: Any, case: Case, dtype: str, name: str) -> Plan:
    activation = activation_of(name, SLOPE)
    plan: Plan = planner(case.problem(), DTYPES[dtype], case.bias, activation=activation)
    return plan


def check_kernels(planner: Any, dtype: str, name: str, run: Run) -> None:
    for case in (APART, CLOSE):
        plan = planned(planner, case, dtype, name)
        y = run(plan, case.problem(), special_data(case, dtype))
        check_special(name, dtype, y)
    if planner is plan_scatter:
        assert [launch.kernel for launch in plan.launches] == [
            "fill_bias",
            "convt3d_scatter",
            "finish_sums",
        ]
    for case in (SUMS, HOLES, ATOMICS):
        arrays = normal_data(case, dtype)
        y = run(planned(planner, case, dtype, name), case.problem(), arrays)
        check_sums(case, dtype, name, arrays, y)


def check_sums(case: Case, dtype: str, name: str, arrays: Arrays, y: NDArray[Any]) -> None:
    sums = exact_result(case, arrays)
    # None of the functions is steeper than 1.13, and computing one costs a few roundings of its
    # argument.
    size = magnitude(case, arrays).real + np.abs(sums)
    bound = 1.13 * error_bound(dtype, case.depth + 16, size, sums)
    assert np.all(np.abs(y.astype(np.float64) - torch_activation(name, sums)) <= bound)


@PLANNERS
@REAL
@NAMES
def test_kernels_on_host(host: HostExecutor, planner: Any, dtype: str, name: str) -> None:
    check_kernels(planner, dtype, name, lambda *arguments: run_on_host(host, *arguments))


@pytest.mark.cuda
@PLANNERS
@REAL
@NAMES
def test_kernels_on_device(planner: Any, dtype: str, name: str) -> None:
    check_kernels(planner, dtype, name, run_on_device)


@LIBRARIES
@REAL
@NAMES
@pytest.mark.parametrize("algorithm", ["auto", "scatter"])
def test_the_public_function(library: Library, dtype: str, name: str, algorithm: str) -> None:
    def call(case: Case, arrays: Arrays) -> NDArray[Any]:
        y = conv_transpose3d(
            *library.make_all(arrays),
            **case.settings,
            algorithm=algorithm,
            activation=name,
            negative_slope=SLOPE,
        )
        return np.asarray(library.read(y))

    for case in (APART, CLOSE):
        check_special(name, dtype, call(case, special_data(case, dtype)))
    for case in (SUMS, HOLES):
        arrays = normal_data(case, dtype)
        check_sums(case, dtype, name, arrays, call(case, arrays))


@LIBRARIES
def test_relu_and_leaky_relu_are_exact_on_integers(library: Library) -> None:
    arrays = integer_data(SUMS, "float32")
    operands = library.make_all(arrays)
    expected = exact_result(SUMS, arrays)
    assert (expected < 0).any()
    y = conv_transpose3d(*operands, **SUMS.settings, activation="relu")
    np.testing.assert_array_equal(library.read(y), np.maximum(expected, 0))
    y = conv_transpose3d(*operands, **SUMS.settings, activation="leaky_relu", negative_slope=-0.5)
    np.testing.assert_array_equal(
        library.read(y), np.where(expected > 0, expected, expected * -0.5)
    )


@LIBRARIES
def test_the_activation_comes_before_the_rounding(library: Library) -> None:
    """A sum beyond float16 that the activation brings back into range is not infinite."""
    x = library.make(np.full((1, 1, 1, 1, 2), -300, dtype=np.float16))
    weight = library.make(np.full((1, 1, 1, 1, 1), 300, dtype=np.float16))
    y = conv_transpose3d(x, weight, activation="leaky_relu", negative_slope=0.5)
    np.testing.assert_array_equal(library.read(y).ravel(), np.float16(-45000))


@LIBRARIES
@NAMES
def test_the_largest_numbers_do_not_overflow(library: Library, name: str) -> None:
    x = np.full((1, 1, 1, 1, 1), 3e38, dtype=np.float32)
    y = conv_transpose3d(*library.make_all((x, np.ones_like(x))), activation=name)
    np.testing.assert_array_equal(library.read(y), x)


def test_a_kernel_without_an_activation_has_no_option_for_it() -> None:
    for planner in (plan_gather, plan_scatter):
        for launch in planner(ATOMICS.problem(), DTYPES["float16"], True).launches:
            assert not any("ACTIVATION" in option for option in launch.options)


def test_only_the_launch_that_finishes_has_the_activation() -> None:
    plan = planned(plan_scatter, ATOMICS, "float32", "gelu")
    with_option = [
        launch.kernel
        for launch in plan.launches
        if f"-DCONVT3D_ACTIVATION={1 + ACTIVATIONS.index('gelu')}" in launch.options
    ]
    assert with_option == ["finish_sums"]
    assert plan.launches[-1].roles == ("y", "y")
    assert plan.workspace_bytes == 0
    half = planned(plan_scatter, ATOMICS, "float16", "gelu")
    assert half.launches[-1].roles == ("workspace", "y")
    (owned,) = planned(plan_scatter, APART, "float32", "leaky_relu").launches
    assert owned.params["negative_slope"] == SLOPE


def test_bfloat16_tensors_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = normal_data(SUMS, "bfloat16")
    operands = [to_torch(array) for array in arrays if array is not None]
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    y = conv_transpose3d(*operands, **SUMS.settings, activation="silu")
    check_sums(SUMS, "bfloat16", "silu", arrays, y.float().numpy())


def test_chunks_give_the_same_as_the_whole() -> None:
    values = np.random.default_rng(0).standard_normal((3, CHUNK + 1))
    for name in ACTIVATIONS:
        activated = values.copy()
        activate(activated, activation_of(name, SLOPE))
        np.testing.assert_allclose(
            activated, torch_activation(name, values), rtol=1e-13, atol=1e-15
        )


@LIBRARIES
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@NAMES
def test_complex_numbers_are_refused(library: Library, dtype: str, name: str) -> None:
    x = library.make(np.ones((1, 1, 2, 2, 2), dtype=dtype))
    message = rf"activation must be None for complex dtypes, got '{name}' \(the dtype is {dtype}\)"
    with pytest.raises(TypeError, match=message):
        conv_transpose3d(x, x, activation=name)


@LIBRARIES
@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"activation": "tanh"}, ValueError, "activation must be None or one of relu, leaky_relu,"),
        ({"activation": torch.nn.functional.relu}, ValueError, "activation must be None or one of"),
        ({"activation": ["relu"]}, ValueError, r"silu, got \['relu'\]"),
        ({"negative_slope": True}, TypeError, "negative_slope must be a real number, got True of"),
        ({"negative_slope": np.True_}, TypeError, "negative_slope must be a real number"),
        ({"negative_slope": "0.1"}, TypeError, "negative_slope must be a real number, got '0.1'"),
        ({"negative_slope": None}, TypeError, "negative_slope must be a real number"),
        ({"negative_slope": 1j}, TypeError, "negative_slope must be a real number"),
        ({"negative_slope": np.nan}, ValueError, "negative_slope must be finite, got nan"),
        ({"negative_slope": -np.inf}, ValueError, "negative_slope must be finite, got -inf"),
        ({"negative_slope": 10**400}, ValueError, "negative_slope must be finite"),
    ],
)
def test_wrong_settings(
    library: Library, keywords: dict[str, Any], error: type[Exception], message: str
) -> None:
    x = library.make(np.ones((1, 1, 2, 2, 2), dtype=np.float32))
    with pytest.raises(error, match=message):
        conv_transpose3d(x, x, **keywords)


def test_equal_activations_are_one() -> None:
    assert activation_of(None, 0.5) is NO_ACTIVATION
    assert activation_of("relu", 0.5) == activation_of("relu", 0.1) == Activation("relu", 0.0)
    for slope in (1, np.float32(1), np.int8(1), Fraction(1)):
        one = activation_of("leaky_relu", slope)
        assert one == Activation("leaky_relu", 1.0)
        assert type(one.negative_slope) is float
    assert np.signbit(activation_of("leaky_relu", -0.0).negative_slope) == np.False_
    check_activation(NO_ACTIVATION, DTYPES["complex64"])
