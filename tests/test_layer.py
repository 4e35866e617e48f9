"""Plans with given weights: values, what is checked when, and that weights are packed once."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from cupy_convt3d import ConvTranspose3dPlan, _run_cupy, conv_transpose3d
from cupy_convt3d._dtypes import DTYPES as KERNEL_DTYPES
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._launch import BoundPlan
from cupy_convt3d._params import common_params
from cupy_convt3d._plan import Launch, Plan, launch_params, variant_options
from cupy_convt3d._plan_gather import plan_gather
from cupy_convt3d._problem import Problem
from tests.executors import run_on_host
from tests.host.executor import HostExecutor
from tests.libraries import CUPY, LIBRARIES, NUMPY, TORCH, Library
from tests.problems import (
    DTYPES,
    EDGES,
    Case,
    exact_result,
    integer_data,
    normal_data,
)
from tests.test_device import Exported

CASE = Case("layer", (2, 4, 3, 4, 5), (4, 3, 3, 2, 3), True, (2, 1, 2), (1, 0, 1), groups=2)


def plan_of(library: Library, case: Case, arrays: Any, **keywords: Any) -> tuple[Any, Any]:
    """Return a plan and its x."""
    x, weight, bias = library.make_all(arrays)
    return ConvTranspose3dPlan(weight, bias, **case.settings, **keywords), x


@LIBRARIES
@pytest.mark.parametrize("dtype", DTYPES)
def test_edges(library: Library, dtype: str) -> None:
    for case in EDGES:
        arrays = integer_data(case, dtype)
        plan, x = plan_of(library, case, arrays)
        y = plan(x)
        assert type(y) is type(x)
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(library.read(y), exact_result(case, arrays))


@LIBRARIES
@pytest.mark.parametrize("algorithm", ["auto", "gather", "scatter", "implicit_gemm"])
@pytest.mark.parametrize("activation", [None, "leaky_relu"])
def test_a_plan_is_the_function(library: Library, algorithm: str, activation: str | None) -> None:
    keywords: dict[str, Any] = {
        "algorithm": algorithm,
        "deterministic": False,
        "precision": None,
        "activation": activation,
        "negative_slope": 0.5,
    }
    plan, x = plan_of(library, CASE, normal_data(CASE, "float32"), **keywords)
    operands = library.make_all(normal_data(CASE, "float32"))
    expected = conv_transpose3d(*operands, **CASE.settings, **keywords)
    np.testing.assert_array_equal(library.read(plan(x)), library.read(expected))


@LIBRARIES
def test_shapes_of_x_may_change_from_call_to_call(library: Library) -> None:
    plan, _ = plan_of(library, CASE, integer_data(CASE, "float32"))
    for shape in [(1, 4, 5, 2, 3), (4, 3, 3, 3), (0, 4, 3, 4, 5), (2, 4, 3, 4, 5), (1, 4, 5, 2, 3)]:
        case = Case("other", shape, CASE.weight, True, **CASE.settings)
        x = integer_data(case, "float32")[0]
        arrays = (x, *integer_data(CASE, "float32")[1:])
        expected = np.asarray(library.read(plan(library.make(x))))
        function = conv_transpose3d(*library.make_all(arrays), **CASE.settings)
        np.testing.assert_array_equal(expected, library.read(function))
        assert expected.shape[-4:][0] == 6


@LIBRARIES
def test_later_changes_of_the_weights_do_not_show(library: Library) -> None:
    arrays = integer_data(CASE, "float32")
    x, weight, bias = library.make_all(arrays)
    plan = ConvTranspose3dPlan(weight, bias, **CASE.settings)
    weight[...] = 7
    bias[...] = 7
    np.testing.assert_array_equal(library.read(plan(x)), exact_result(CASE, arrays))


@LIBRARIES
def test_weights_of_any_strides(library: Library) -> None:
    arrays = integer_data(CASE, "float32")
    x, _, bias = library.make_all(arrays)
    turned = library.make(np.ascontiguousarray(arrays[1].transpose(4, 3, 2, 1, 0)))
    turned = turned.permute(4, 3, 2, 1, 0) if library is TORCH else turned.transpose(4, 3, 2, 1, 0)
    plan = ConvTranspose3dPlan(turned, bias, **CASE.settings)
    np.testing.assert_array_equal(library.read(plan(x)), exact_result(CASE, arrays))


@LIBRARIES
def test_out_is_filled_and_returned(library: Library) -> None:
    arrays = integer_data(CASE, "float32")
    plan, x = plan_of(library, CASE, arrays)
    expected = exact_result(CASE, arrays)
    out = library.make(np.full(expected.shape, np.nan, dtype=np.float32))
    assert plan(x, out=out) is out
    np.testing.assert_array_equal(library.read(out), expected)
    with pytest.raises(ValueError, match="out must have the shape of the result"):
        plan(x, out=out[:1])
    with pytest.raises(TypeError, match="out must have the dtype of x"):
        plan(x, out=library.make(np.zeros(expected.shape)))


@LIBRARIES
def test_out_over_x_is_refused(library: Library) -> None:
    x = library.make(np.ones((1, 1, 2, 2, 2), dtype=np.float32))
    plan = ConvTranspose3dPlan(library.make(np.ones((1, 1, 1, 1, 1), dtype=np.float32)))
    with pytest.raises(ValueError, match="out must not lie in the range of memory of x"):
        plan(x, out=x)


@LIBRARIES
@pytest.mark.parametrize(
    ("weight", "keywords", "error", "message"),
    [
        ((4, 3, 3, 3), {}, ValueError, r"weight must have 5 axes .*got 4 with shape \(4, 3, 3, 3"),
        ((4, 3, 0, 1, 1), {}, ValueError, "weight must have at least one element on each axis"),
        ((0, 3, 1, 1, 1), {}, ValueError, "weight must have at least one element on each axis"),
        ((4, 3, 1, 1, 1), {"groups": 3}, ValueError, "groups must divide C_in, got groups=3"),
        ((4, 3, 1, 1, 1), {"groups": True}, TypeError, "groups must be an integer"),
        ((4, 3, 1, 1, 1), {"stride": 0}, ValueError, "stride must be at least 1"),
        ((4, 3, 1, 1, 1), {"padding": -1}, ValueError, "padding must not be negative"),
        ((4, 3, 1, 1, 1), {"dilation": 0}, ValueError, "dilation must be at least 1"),
        ((4, 3, 1, 1, 1), {"output_padding": 1}, ValueError, "output_padding must be smaller"),
        ((4, 3, 1, 1, 1), {"bias": 4}, ValueError, r"bias must have shape \(3,\), got \(4,\)"),
        ((4, 3, 1, 1, 1), {"algorithm": "x"}, ValueError, "algorithm must be one of"),
        ((4, 3, 1, 1, 1), {"precision": "x"}, ValueError, "precision must be None or one of"),
        ((4, 3, 1, 1, 1), {"activation": "x"}, ValueError, "activation must be None or one of"),
        ((4, 3, 1, 1, 1), {"deterministic": 0}, TypeError, "deterministic must be True or False"),
    ],
)
def test_weights_are_checked_when_the_plan_is_made(
    library: Library,
    weight: tuple[int, ...],
    keywords: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    keywords = dict(keywords)
    if "bias" in keywords:
        keywords["bias"] = library.make(np.ones(keywords["bias"], dtype=np.float32))
    with pytest.raises(error, match=message):
        ConvTranspose3dPlan(library.make(np.ones(weight, dtype=np.float32)), **keywords)


@LIBRARIES
def test_dtypes_and_libraries_of_the_weights(library: Library) -> None:
    weight = library.make(np.ones((1, 1, 1, 1, 1), dtype=np.float32))
    with pytest.raises(TypeError, match="weight must have one of the dtypes"):
        ConvTranspose3dPlan(library.make(np.ones((1, 1, 1, 1, 1), dtype=np.int32)))
    with pytest.raises(TypeError, match=r"bias must have the dtype of weight, float32, got .*64"):
        ConvTranspose3dPlan(weight, library.make(np.ones(1)))
    with pytest.raises(TypeError, match="activation must be None for complex dtypes"):
        ConvTranspose3dPlan(library.make(np.ones((1, 1, 1, 1, 1), dtype="c8")), activation="relu")
    other = TORCH if library is NUMPY else NUMPY
    with pytest.raises(TypeError, match="weight, bias must be of one library: weight is a"):
        ConvTranspose3dPlan(weight, other.make(np.ones(1, dtype=np.float32)))
    with pytest.raises(TypeError, match="weight must be a CuPy array, NumPy array, torch tensor"):
        ConvTranspose3dPlan([[1.0]])


@LIBRARIES
@pytest.mark.parametrize("warm", [False, True])
def test_a_call_checks_x(library: Library, warm: bool) -> None:
    plan, x = plan_of(library, CASE, integer_data(CASE, "float32"))
    if warm:
        plan(x)
    with pytest.raises(TypeError, match=r"x must have the dtype of weight, float32, got .*float64"):
        plan(library.make(np.ones(CASE.x)))
    with pytest.raises(TypeError, match="x must have one of the dtypes"):
        plan(library.make(np.ones(CASE.x, dtype=np.int64)))
    with pytest.raises(ValueError, match=r"x must have C_in = 4 channels like weight, got 5"):
        plan(library.make(np.ones((1, 5, 3, 4, 5), dtype=np.float32)))
    with pytest.raises(ValueError, match="x must have 5 axes"):
        plan(library.make(np.ones((3, 4, 5), dtype=np.float32)))
    with pytest.raises(ValueError, match="x must have at least one channel and one element"):
        plan(library.make(np.ones((1, 4, 3, 0, 5), dtype=np.float32)))
    other = TORCH if library is NUMPY else NUMPY
    with pytest.raises(TypeError, match=r"x must be"):
        plan(other.make(np.ones(CASE.x, dtype=np.float32)))
    with pytest.raises(TypeError, match="x must be"):
        plan([1.0])
    with pytest.raises(TypeError, match=r"out must be"):
        plan(x, out=other.make(np.ones((1,), dtype=np.float32)))


def test_weights_that_only_a_larger_x_suits() -> None:
    plan = ConvTranspose3dPlan(np.ones((1, 1, 1, 2, 1)), padding=(0, 2, 1), stride=(1, 2, 3))
    with pytest.raises(ValueError, match="x must be large enough for an output"):
        plan(np.ones((1, 1, 1, 1, 1)))
    assert plan(np.ones((1, 1, 1, 3, 2))).shape == (1, 1, 1, 2, 2)


def test_tensors_that_require_gradients() -> None:
    layer = torch.nn.ConvTranspose3d(2, 3, 2)
    with pytest.raises(ValueError, match="weight must not require gradients"):
        ConvTranspose3dPlan(layer.weight, layer.bias)
    plan = ConvTranspose3dPlan(layer.weight.detach(), layer.bias.detach())
    x = torch.randn(1, 2, 3, 3, 3)
    torch.testing.assert_close(plan(x), layer(x).detach())
    with pytest.raises(ValueError, match="x must not require gradients"):
        plan(x.requires_grad_())
    with pytest.raises(TypeError, match="x must be of the library of weight, torch, got a numpy"):
        plan(x.detach().numpy())


def test_tensors_on_another_device() -> None:
    plan = ConvTranspose3dPlan(torch.ones((1, 1, 1, 1, 1)))
    with pytest.raises(ValueError, match="x must be on the device of weight, cpu, got meta"):
        plan(torch.ones((1, 1, 1, 1, 1), device="meta"))
    with pytest.raises(ValueError, match="weight must be on the CPU or a CUDA device, got meta"):
        ConvTranspose3dPlan(torch.ones((1, 1, 1, 1, 1), device="meta"))


def packing_plan(
    problem: Problem, dtype: KernelDtype, has_bias: bool, *arguments: Any, **keywords: Any
) -> Plan:
    """Return the gather with weights that are packed first: copied, by the kernel of the bias."""
    gather = plan_gather(problem, dtype, has_bias)
    (launch,) = gather.launches
    size = int(np.prod(problem.weight_shape))
    params = common_params(problem, has_bias=True)
    params["out_channels"], params["groups"] = size, 1
    params["plane"] = params["plane_chunk"] = 1
    params["tiles"] = size
    pack = Launch(
        "fill_bias", variant_options(dtype, 32), size, 32, 0, launch_params(params),
        ("weight", "packed"),
    )  # fmt: skip
    run = Launch(
        launch.kernel, launch.options, launch.grid, launch.block, launch.shared_bytes,
        launch.params, ("x", "packed", "bias", "y"),
    )  # fmt: skip
    return Plan("packing", (run,), 0, True, (pack,), size * dtype.itemsize)


def test_the_packing_of_these_tests_packs(host: HostExecutor) -> None:
    arrays = integer_data(CASE, "float32")
    plan = packing_plan(CASE.problem(), KERNEL_DTYPES["float32"], True)
    y = run_on_host(host, plan, CASE.problem(), arrays)
    np.testing.assert_array_equal(y, exact_result(CASE, arrays))


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Make every problem pack its weights; yields the streams on which that was done."""
    import cupy

    streams: list[int] = []
    pack = BoundPlan.pack

    def counted(self: BoundPlan, arrays: Any) -> None:
        streams.append(cupy.cuda.get_current_stream().ptr)
        pack(self, arrays)

    monkeypatch.setattr(_run_cupy, "make_plan", packing_plan)
    monkeypatch.setattr(BoundPlan, "pack", counted)
    _run_cupy.bound_plan.cache_clear()
    yield streams
    _run_cupy.bound_plan.cache_clear()


@pytest.mark.cuda
def test_weights_are_packed_once_for_each_shape(packs: list[int]) -> None:
    arrays = integer_data(CASE, "float32")
    plan, x = plan_of(CUPY, CASE, arrays)
    expected = exact_result(CASE, arrays)
    assert len(packs) == 0
    for _ in range(3):
        np.testing.assert_array_equal(plan(x).get(), expected)
    assert len(packs) == 1
    for _ in range(2):
        np.testing.assert_array_equal(plan(x[:1]).get(), expected[:1])
    assert len(packs) == 2
    # The function packs in every call.
    operands = CUPY.make_all(arrays)
    for _ in range(2):
        np.testing.assert_array_equal(conv_transpose3d(*operands, **CASE.settings).get(), expected)
    assert len(packs) == 4


@pytest.mark.cuda
def test_wrong_out_and_empty_batches_pack_nothing(packs: list[int]) -> None:
    plan, x = plan_of(CUPY, CASE, integer_data(CASE, "float32"))
    with pytest.raises(ValueError, match="out must have the shape"):
        plan(x, out=x)
    assert plan(x[:0]).shape[0] == 0
    assert len(packs) == 0


class Watched:
    """A stream that notes the events it waits for."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.waits: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def wait_event(self, event: Any) -> None:
        self.waits.append(event)
        self._stream.wait_event(event)


@pytest.mark.cuda
@pytest.mark.usefixtures("packs")
def test_another_stream_waits_for_the_packing_and_the_same_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import cupy

    arrays = integer_data(CASE, "float32")
    plan, x = plan_of(CUPY, CASE, arrays)
    cupy.cuda.Stream.null.synchronize()
    first = Watched(cupy.cuda.Stream(non_blocking=True))
    second = Watched(cupy.cuda.Stream(non_blocking=True))
    get_current_stream = cupy.cuda.get_current_stream

    def watched() -> Any:
        current = get_current_stream()
        return next((w for w in (first, second) if w.ptr == current.ptr), current)

    monkeypatch.setattr(cupy.cuda, "get_current_stream", watched)
    results = []
    for stream in (first, first, second, second, first):
        with stream._stream:
            results.append(plan(x))
    # The first call waits for the copy of the weights.
    assert len(first.waits) == 1
    assert len(second.waits) == 2
    assert first.waits[0] is not second.waits[0]
    for stream in (first, second):
        stream.synchronize()
    for y in results:
        np.testing.assert_array_equal(y.get(), exact_result(CASE, arrays))


@pytest.mark.cuda
@pytest.mark.parametrize("warm_up_on_the_same_stream", [True, False])
@pytest.mark.usefixtures("packs")
def test_a_call_can_be_captured_after_one_of_its_shape(warm_up_on_the_same_stream: bool) -> None:
    import cupy

    arrays = integer_data(CASE, "float32")
    plan, x = plan_of(CUPY, CASE, arrays)
    expected = exact_result(CASE, arrays)
    out = cupy.full(expected.shape, np.nan, dtype=np.float32)
    cupy.cuda.Stream.null.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream if warm_up_on_the_same_stream else cupy.cuda.Stream.null:
        plan(x)
    with stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        plan(x, out=out)
        graph = stream.end_capture()
    cupy.cuda.Stream.null.synchronize()
    for seed in (0, 1):
        new = (integer_data(CASE, "float32", seed)[0], *arrays[1:])
        x.set(new[0])
        cupy.cuda.Stream.null.synchronize()
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(out.get(), exact_result(CASE, new))


@pytest.mark.cuda
def test_the_first_call_of_a_shape_is_not_captured(packs: list[int]) -> None:
    import cupy

    arrays = integer_data(CASE, "float32")
    plan, x = plan_of(CUPY, CASE, arrays)
    out = cupy.empty(exact_result(CASE, arrays).shape, dtype=np.float32)
    cupy.cuda.Stream.null.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(RuntimeError, match=r"must be called once with x of shape \(2, 4, 3,"):
            plan(x, out=out)
        stream.end_capture()
    assert len(packs) == 0
    np.testing.assert_array_equal(plan(x).get(), exact_result(CASE, arrays))


@pytest.mark.cuda
@pytest.mark.usefixtures("packs")
def test_threads_may_share_a_plan() -> None:
    import cupy

    arrays = integer_data(CASE, "float32")
    plan, x = plan_of(CUPY, CASE, arrays)
    cupy.cuda.Stream.null.synchronize()
    results: list[Any] = []

    def work() -> None:
        with cupy.cuda.Stream(non_blocking=True) as stream:
            for _ in range(3):
                results.append(plan(x))
            stream.synchronize()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 12
    for y in results:
        np.testing.assert_array_equal(y.get(), exact_result(CASE, arrays))


@pytest.mark.cuda
@pytest.mark.usefixtures("packs")
def test_memory_goes_with_the_plan() -> None:
    import cupy

    arrays = integer_data(CASE, "float32")
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        plan, x = plan_of(CUPY, CASE, arrays)
        gc.collect()
        held = pool.used_bytes() - x.nbytes
        plan(x)
        gc.collect()
        # The packed buffer, rounded up by the pool.
        assert held < pool.used_bytes() - x.nbytes <= held + arrays[1].nbytes + 512
        del plan, x
        gc.collect()
        assert pool.used_bytes() == 0


@pytest.mark.cuda
def test_weights_as_raw_addresses_on_a_foreign_stream(packs: list[int]) -> None:
    """How torch tensors reach the kernels: addresses as integers, on a stream that CuPy wraps."""
    import cupy

    from cupy_convt3d._call import settings_of
    from cupy_convt3d._device_weights import DeviceWeights
    from cupy_convt3d._torch_bridge import cupy_stream

    def address(array: Any) -> Any:
        return np.uintp(array.data.ptr)

    arrays = integer_data(CASE, "float32")
    x, weight, bias = CUPY.make_all(arrays)
    y = cupy.full(CASE.problem().y_shape, np.nan, dtype=np.float32)
    settings = settings_of(*CASE.settings.values(), None, "auto", True)
    cupy.cuda.Stream.null.synchronize()
    owner = cupy.cuda.Stream(non_blocking=True)
    with cupy_stream(cupy, owner.ptr, 0):
        weights = DeviceWeights(
            cupy, weight, bias, KERNEL_DTYPES["float32"], settings, 0,
            lambda size: cupy.empty(size, dtype="u1"), address,
        )  # fmt: skip
    for _ in range(2):
        # A new wrapper of the same stream in each call, as for torch.
        with cupy_stream(cupy, owner.ptr, 0):
            prepared = weights.prepared(CASE.x, True)
            assert not prepared.written.precede(cupy.cuda.get_current_stream())
            roles = {"x": x, "bias": bias, "y": y, "packed": prepared.packed}
            prepared.bound.run({role: address(array) for role, array in roles.items()})
    owner.synchronize()
    assert packs == [owner.ptr]
    np.testing.assert_array_equal(y.get(), exact_result(CASE, arrays))


@pytest.mark.cuda
def test_dlpack_objects() -> None:
    import cupy

    arrays = integer_data(CASE, "float32")
    x, weight, bias = CUPY.make_all(arrays)
    plan = ConvTranspose3dPlan(Exported(weight), Exported(bias), **CASE.settings)
    weight[...] = 0
    out = cupy.empty(exact_result(CASE, arrays).shape, dtype=np.float32)
    for y in (plan(Exported(x)), plan(x), plan(Exported(x), out=out)):
        assert type(y) is cupy.ndarray
        np.testing.assert_array_equal(y.get(), exact_result(CASE, arrays))


@pytest.mark.cuda
@pytest.mark.two_devices
def test_a_plan_runs_on_the_device_of_its_weights() -> None:
    import cupy

    arrays = integer_data(CASE, "float32")
    with cupy.cuda.Device(1):
        x, weight, bias = CUPY.make_all(arrays)
    near = cupy.asarray(arrays[0])
    plan = ConvTranspose3dPlan(weight, bias, **CASE.settings)
    y = plan(x)
    assert (y.device.id, cupy.cuda.runtime.getDevice()) == (1, 0)
    np.testing.assert_array_equal(y.get(), exact_result(CASE, arrays))
    with pytest.raises(ValueError, match="x must be on the device of weight, 1, got device 0"):
        plan(near)
    with pytest.raises(ValueError, match="bias must be on the device of weight, 1, got device 0"):
        ConvTranspose3dPlan(weight, cupy.asarray(arrays[2]), **CASE.settings)
