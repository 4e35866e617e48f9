"""``precision=`` and ``config=``: what they accept, and that they reach the choice of a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cupy_convt3d import _run_cupy, conv_transpose3d
from cupy_convt3d._algorithm import make_plan
from cupy_convt3d._call import settings_of
from cupy_convt3d._dtypes import DTYPES
from cupy_convt3d._plan import Plan
from cupy_convt3d._precision import PRECISIONS, precision_of
from cupy_convt3d._problem import make_problem
from tests.libraries import CUPY, LIBRARIES, Library

PROBLEM = make_problem((1, 2, 3, 3, 3), (2, 2, 2, 2, 2))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_names_stand_for_themselves(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPY_TF32", "1")
    assert precision_of(precision) == precision


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "ieee"), ("0", "ieee"), ("1", "tf32"), ("2", "tf32"), (" 1 ", "tf32"), ("-1", "ieee")],
)
def test_none_follows_the_environment_as_cupy_does(
    value: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("CUPY_TF32", raising=False)
    else:
        monkeypatch.setenv("CUPY_TF32", value)
    assert precision_of(None) == expected


def test_the_environment_must_hold_an_integer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPY_TF32", "yes")
    with pytest.raises(ValueError, match="needs an integer in the environment variable CUPY_TF32"):
        precision_of(None)
    # Only where it is asked for.
    assert precision_of("ieee") == "ieee"


@LIBRARIES
@pytest.mark.parametrize("precision", ["fp32", "IEEE", 1, True, ["ieee"]])
def test_wrong_values(library: Library, precision: object) -> None:
    x = library.make(np.ones((1, 1, 2, 2, 2), dtype=np.float32))
    with pytest.raises(
        ValueError, match="precision must be None or one of ieee, bf16x3, tf32, got"
    ):
        conv_transpose3d(x, x, precision=precision)


@LIBRARIES
@pytest.mark.parametrize("precision", [*PRECISIONS, None])
@pytest.mark.parametrize("algorithm", ["gather", "scatter"])
def test_gather_and_scatter_are_ieee_whatever_is_accepted(
    library: Library, precision: str | None, algorithm: str
) -> None:
    # 1 + 2**-12 takes 12 bits: TF32 has 10, a bfloat16 8.
    x = np.full((1, 1, 1, 1, 1), 1 + 2.0**-12, dtype=np.float32)
    one = np.full((1, 1, 1, 1, 1), 1 + 2.0**-11, dtype=np.float32)
    y = conv_transpose3d(*library.make_all((x, one)), precision=precision, algorithm=algorithm)
    np.testing.assert_array_equal(library.read(y), x * one)


@pytest.mark.parametrize("algorithm", ["auto", "gather", "scatter", "implicit_gemm"])
def test_a_configuration_is_a_record(algorithm: str) -> None:
    with pytest.raises(TypeError, match=r"config must be a configuration of a kernel, got \(1, 2"):
        make_plan(PROBLEM, DTYPES["float32"], False, algorithm, True, config=(1, 2))


def test_a_configuration_can_be_a_key() -> None:
    """Plans are kept by their settings."""
    x, weight = np.ones((1, 1, 2, 2, 2)), np.ones((1, 1, 2, 2, 2))
    with pytest.raises(
        TypeError, match=r"config must be a configuration of a kernel, got \{'a': 1\}"
    ):
        conv_transpose3d(x, weight, config={"a": 1})


@pytest.mark.cuda
def test_both_reach_the_choice_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def spy(*arguments: Any, **keywords: Any) -> Plan:
        seen.append(keywords)
        return make_plan(*arguments, **{**keywords, "config": None})

    monkeypatch.setattr(_run_cupy, "make_plan", spy)
    x = CUPY.make(np.ones((1, 1, 2, 3, 7), dtype=np.float32))
    conv_transpose3d(x, x, precision="tf32", config=("a", 1))
    conv_transpose3d(x, x, precision="bf16x3", config=("a", 1))
    assert [(s["precision"], s["config"]) for s in seen] == [
        ("tf32", ("a", 1)),
        ("bf16x3", ("a", 1)),
    ]


def test_settings_keep_them_apart() -> None:
    def settings(**keywords: Any) -> object:
        return settings_of(1, 0, 0, 1, 1, None, "auto", True, **keywords)

    assert settings() == settings(precision="ieee", activation=None, config=None)
    different = {
        settings(),
        settings(precision="tf32"),
        settings(config="x"),
        settings(activation="relu"),
        settings(activation="leaky_relu"),
        settings(activation="leaky_relu", negative_slope=0.5),
    }
    assert len(different) == 6
