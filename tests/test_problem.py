"""Every rule of the operation: accepted values, sizes, and the text of each error."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

import cupy_convt3d
from cupy_convt3d import conv_transpose3d, output_shape
from cupy_convt3d._problem import make_problem
from tests.problems import EDGES, Case, as_triple, case_of, load_cases

X = (2, 6, 3, 4, 5)
WEIGHT = (6, 2, 3, 3, 3)


@pytest.mark.parametrize("case", EDGES, ids=lambda case: case.id)
def test_output_shape_is_torchs(case: Case) -> None:
    expected = torch.nn.functional.conv_transpose3d(
        torch.zeros(case.x), torch.zeros(case.weight), **case.settings
    ).shape
    assert output_shape(case.x, case.weight, **case.settings) == tuple(expected)


@pytest.mark.parametrize(
    "entry", [e for e in load_cases() if "out" in e], ids=lambda entry: entry["id"]
)
def test_output_shape_of_reported_cases(entry: dict) -> None:
    case = case_of(entry)
    if "output_size" not in entry:
        assert output_shape(case.x, case.weight, **case.settings) == tuple(entry["out"])
    problem = make_problem(
        case.x, case.weight, None, **case.settings, output_size=entry.get("output_size")
    )
    assert problem.y_shape[-3:] == tuple(entry["out"])[-3:]
    assert problem.out_channels == entry["out"][-4]


def test_positional_order_is_torchs() -> None:
    ours = list(inspect.signature(conv_transpose3d).parameters)
    assert ours[:8] == [
        "x",
        "weight",
        "bias",
        "stride",
        "padding",
        "output_padding",
        "groups",
        "dilation",
    ]
    kinds = [p.kind for p in inspect.signature(conv_transpose3d).parameters.values()]
    assert kinds[8:] == [inspect.Parameter.KEYWORD_ONLY] * 8


def test_public_names() -> None:
    assert cupy_convt3d.__all__ == [
        "ConvTranspose3dPlan",
        "__version__",
        "conv_transpose3d",
        "conv_transpose3d_grad_bias",
        "conv_transpose3d_grad_input",
        "conv_transpose3d_grad_weight",
        "output_shape",
    ]


@pytest.mark.parametrize("stride", [2, np.int64(2), (2, 2, 2), [2, 2, 2], (np.int32(2), 2, 2)])
def test_integers_and_triples_are_one(stride: object) -> None:
    problem = make_problem(X, WEIGHT, stride=stride)
    assert problem.stride == (2, 2, 2)
    assert [type(s) for s in problem.stride] == [int, int, int]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"stride": 0}, ValueError, r"stride must be at least 1 on each axis, got \(0, 0, 0\)"),
        ({"stride": (1, -1, 1)}, ValueError, r"stride must be at least 1 .*\(1, -1, 1\)"),
        ({"stride": True}, TypeError, "stride must be an integer, got the bool True"),
        ({"stride": np.True_}, TypeError, "stride must be an integer, got the bool"),
        ({"stride": 1.0}, TypeError, r"stride must be an integer, got 1\.0 of type float"),
        ({"stride": (1, 1.0, 1)}, TypeError, r"stride\[1\] must be an integer, got 1\.0"),
        ({"stride": (1, True, 1)}, TypeError, r"stride\[1\] must be an integer, got the bool"),
        ({"stride": (1, 2)}, ValueError, r"stride must be an int or have 3 entries .*\(1, 2\)"),
        ({"stride": None}, TypeError, "stride must be an int or a sequence of 3 ints, got None"),
        ({"stride": "same"}, TypeError, "stride must be an int or a sequence"),
        ({"stride": {1, 2, 3}}, TypeError, "stride must be an int or a sequence"),
        ({"stride": np.ones(3, int)}, TypeError, "stride must be an int or a sequence"),
        ({"stride": 2**31}, ValueError, "stride must be below 2147483648 on each axis"),
        ({"padding": "same"}, TypeError, "padding='same' is not defined here"),
        ({"padding": -1}, ValueError, r"padding must not be negative on any axis, got \(-1"),
        ({"padding": 3}, ValueError, "output of at least 1 element on each spatial axis"),
        ({"dilation": 0}, ValueError, "dilation must be at least 1 on each axis"),
        ({"groups": 0}, ValueError, "groups must be at least 1, got 0"),
        ({"groups": 4}, ValueError, r"groups must divide C_in, got groups=4 \(C_in=6\)"),
        ({"groups": (1, 1, 1)}, TypeError, "groups must be an integer"),
        ({"output_padding": -1}, ValueError, "output_padding must not be negative"),
        (
            {"output_padding": (1, 0, 0), "stride": (1, 2, 2)},
            ValueError,
            r"smaller than stride or dilation on each axis, got output_padding=\(1, 0, 0\) "
            r"\(stride=\(1, 2, 2\), dilation=\(1, 1, 1\)\)",
        ),
        (
            {"x_shape": (6, 3, 4)},
            ValueError,
            r"got 3 with shape \(6, 3, 4\); a single volume is x\[None, None\]",
        ),
        ({"x_shape": (2, 0, 3, 4, 5)}, ValueError, "x must have at least one channel"),
        ({"x_shape": (2, 6, 3, 0, 5)}, ValueError, r"x must have .*shape \(2, 6, 3, 0, 5\)"),
        ({"weight_shape": (6, 2, 3, 3)}, ValueError, "weight must have 5 axes"),
        ({"weight_shape": (6, 0, 3, 3, 3)}, ValueError, "weight must have at least one element"),
        ({"weight_shape": (6, 2, 3, 0, 3)}, ValueError, "weight must have at least one element"),
        ({"weight_shape": (5, 2, 3, 3, 3)}, ValueError, "weight must have C_in = 6 .*got 5"),
        ({"bias_shape": (3,)}, ValueError, r"bias must have shape \(2,\), got \(3,\)"),
        ({"bias_shape": (2, 1)}, ValueError, r"bias must have shape \(2,\), got \(2, 1\)"),
        (
            {"output_size": (5, 6, 8)},
            ValueError,
            r"output_size must be between \(5, 6, 7\) and \(5, 6, 7\) .*got \(5, 6, 8\)",
        ),
        ({"output_size": (5, 6)}, ValueError, "output_size must have 3 entries, or 5 like x"),
        ({"output_size": 5}, TypeError, "output_size must be a sequence of ints"),
        (
            {"output_size": (6, 6, 7), "output_padding": 1, "stride": 2},
            ValueError,
            "output_padding must be left at 0 when output_size is given",
        ),
        (
            {"x_shape": (2**20, 6, 2**20, 2**20, 2**20)},
            ValueError,
            "x must have at most 288230376151711743 elements",
        ),
        (
            {"stride": 2**30, "x_shape": (2**20, 6, 2**5, 2**5, 2**5)},
            ValueError,
            "the result must have at most",
        ),
        (
            {"dilation": 2**31 - 1, "weight_shape": (6, 2, 3, 3, 3)},
            ValueError,
            "the result must have at most",
        ),
    ],
)
def test_errors(settings: dict, error: type[Exception], message: str) -> None:
    arguments = {"x_shape": X, "weight_shape": WEIGHT, **settings}
    with pytest.raises(error, match=message):
        make_problem(**arguments)


@pytest.mark.parametrize(
    "entry", [e for e in load_cases() if "raises" in e], ids=lambda entry: entry["id"]
)
def test_reported_errors(entry: dict) -> None:
    """The arguments that other libraries crashed on or accepted."""
    dtypes = entry.get("dtype", "float32")
    x_dtype, weight_dtype = dtypes if isinstance(dtypes, list) else (dtypes, dtypes)
    groups = entry.get("groups", 1)
    bias = None
    if isinstance(entry.get("bias"), list):
        bias = np.zeros(entry["bias"], dtype=x_dtype)
    elif entry.get("bias"):
        bias = np.zeros(entry["w"][1] * groups, dtype=x_dtype)
    expected = {"ValueError": ValueError, "TypeError": TypeError}[entry["raises"]]
    with pytest.raises(expected):
        conv_transpose3d(
            np.zeros(entry["x"], dtype=x_dtype),
            np.zeros(entry["w"], dtype=weight_dtype),
            bias,
            as_triple(entry.get("stride", 1)),
            as_triple(entry.get("padding", 0)),
            as_triple(entry.get("output_padding", 0)),
            groups,
            as_triple(entry.get("dilation", 1)),
            output_size=entry.get("output_size"),
        )


def test_output_size_range_counts_dilation() -> None:
    def output(size: int) -> tuple[int, ...]:
        return make_problem(
            (1, 1, 4, 4, 4), (1, 1, 3, 3, 3), stride=2, dilation=2, output_size=(size,) * 3
        ).output

    assert output(11) == (11, 11, 11)
    assert output(12) == (12, 12, 12)
    with pytest.raises(ValueError, match="output_size must be between"):
        output(13)
    with pytest.raises(ValueError, match="output_size must be between"):
        output(10)


def test_output_size_may_repeat_batch_and_channels() -> None:
    batched = make_problem((2, 6, 3, 4, 5), WEIGHT, stride=2, output_size=(2, 2, 8, 9, 11))
    assert batched.output_padding == (1, 0, 0)
    unbatched = make_problem((6, 3, 4, 5), WEIGHT, stride=2, output_size=(2, 8, 9, 11))
    assert unbatched.output_padding == (1, 0, 0)
