"""Tests of the host run itself, on kernels that are right or wrong in one known way."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cupy_convt3d._plan import Launch, Plan
from tests.host import compiler
from tests.host.compiler import HostCompilerError, KernelCompiler
from tests.host.executor import HostExecutor, HostKernelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from numpy.typing import NDArray

    from cupy_convt3d._plan import Role

    Array = NDArray[Any]
    MakeExecutor = Callable[..., HostExecutor]

HEADER = """\
#include <ptx.cuh>
struct Params {
  long long n;
};
"""

COUNT = np.dtype([("n", np.int64)])


def _launch(
    kernel: str = "kernel",
    *,
    grid: int = 1,
    block: int = 256,
    shared_bytes: int = 0,
    n: int = 0,
    roles: tuple[Role, ...] = ("x", "y"),
    options: tuple[str, ...] = (),
) -> Launch:
    params = np.zeros(1, dtype=COUNT)
    params["n"] = n
    return Launch(kernel, options, grid, block, shared_bytes, params, roles)


def _plan(*launches: Launch, workspace_bytes: int = 0) -> Plan:
    return Plan("test", launches, workspace_bytes, deterministic=True)


@pytest.fixture
def make_executor(tmp_path: Path) -> MakeExecutor:
    """Return a function that writes a kernel of the given body and returns its executor."""

    def make(
        body: str,
        parameters: str = "const float* x, float* y",
        before: str = "",
        **arguments: str | int,
    ) -> HostExecutor:
        (tmp_path / "kernel.cu").write_text(
            f'{HEADER}{before}\nextern "C" __global__ void __launch_bounds__(1024)\n'
            f"kernel({parameters}, const __grid_constant__ Params p) {{\n"
            f"{textwrap.dedent(body)}\n}}\n"
        )
        return HostExecutor(tmp_path, tmp_path / "cache", **arguments)

    return make


def _run(
    executor: HostExecutor,
    launch: Launch,
    y: Array,
    x: Array | None = None,
) -> Array:
    executor.run(_plan(launch), {"x": x, "y": y})
    return y


EXCHANGE = """
    __shared__ float stage[256];
    stage[threadIdx.x] = x[threadIdx.x];
    {barrier}
    y[threadIdx.x] = stage[blockDim.x - 1 - threadIdx.x];
"""
ORDERS = [("forward", 0), ("reverse", 0), ("shuffle", 0), ("shuffle", 1)]


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_barrier_exchanges_shared_memory(
    make_executor: MakeExecutor, order: str, seed: int
) -> None:
    executor = make_executor(EXCHANGE.format(barrier="__syncthreads();"), order=order, seed=seed)
    x = np.arange(256, dtype=np.float32)
    y = _run(executor, _launch(), np.zeros_like(x), x)
    np.testing.assert_array_equal(y, x[::-1])


def test_missing_barrier_shows_as_poison_that_depends_on_the_order(
    make_executor: MakeExecutor,
) -> None:
    x = np.arange(256, dtype=np.float32)
    written = {}
    for order, seed in ORDERS:
        executor = make_executor(EXCHANGE.format(barrier=""), order=order, seed=seed)
        y = _run(executor, _launch(), np.zeros_like(x), x)
        written[order, seed] = ~np.isnan(y)
        np.testing.assert_array_equal(y[written[order, seed]], x[::-1][written[order, seed]])
    # Of each pair of threads that exchange values, the one that runs last finds the other's.
    np.testing.assert_array_equal(written["forward", 0], np.arange(256) >= 128)
    np.testing.assert_array_equal(written["reverse", 0], np.arange(256) < 128)
    for seed in (0, 1):
        assert np.count_nonzero(written["shuffle", seed]) == 128
    assert np.any(written["shuffle", 0] != written["shuffle", 1])


def test_exited_threads_do_not_block_a_barrier(make_executor: MakeExecutor) -> None:
    executor = make_executor(
        """
        __shared__ float stage[256];
        if (threadIdx.x >= 100) return;
        stage[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        y[threadIdx.x] = stage[99 - threadIdx.x];
        """
    )
    x = np.arange(100, dtype=np.float32)
    np.testing.assert_array_equal(_run(executor, _launch(), np.zeros_like(x), x), x[::-1])


def test_shared_memory_of_templates_is_separate(make_executor: MakeExecutor) -> None:
    executor = make_executor(
        """
        __shared__ float own[256];
        own[threadIdx.x] = x[threadIdx.x];
        y[threadIdx.x] = exchange<1>(own[threadIdx.x]) + 1000 * exchange<2>(own[threadIdx.x]);
        """,
        before="""
        template <int kStep>
        __device__ float exchange(float value) {
          __shared__ float stage[256];
          stage[threadIdx.x] = value;
          __syncthreads();
          return stage[(threadIdx.x + kStep) % 256];
        }
        """,
    )
    x = np.arange(256, dtype=np.float32)
    y = _run(executor, _launch(), np.zeros_like(x), x)
    np.testing.assert_array_equal(y, np.roll(x, -1) + 1000 * np.roll(x, -2))


@pytest.mark.parametrize(("order", "seed"), ORDERS)
@pytest.mark.parametrize("block", [32, 96, 256])
def test_shuffles_reduce_a_block(
    make_executor: MakeExecutor, block: int, order: str, seed: int
) -> None:
    executor = make_executor(
        """
        __shared__ int partial[32];
        int sum = x[blockIdx.x * blockDim.x + threadIdx.x];
        const unsigned all = 0xffffffffu;
        for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(all, sum, lanes);
        if (threadIdx.x % warpSize == 0) partial[threadIdx.x / warpSize] = sum;
        __syncthreads();
        if (threadIdx.x >= warpSize) return;
        sum = threadIdx.x < blockDim.x / warpSize ? partial[threadIdx.x] : 0;
        for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_down_sync(all, sum, lanes);
        if (threadIdx.x == 0) y[blockIdx.x] = sum;
        """,
        "const int* x, int* y",
        order=order,
        seed=seed,
    )
    x = np.random.default_rng(0).integers(-1000, 1000, (7, block), dtype=np.int32)
    y = _run(executor, _launch(grid=7, block=block), np.zeros(7, dtype=np.int32), x)
    np.testing.assert_array_equal(y, x.sum(axis=1))


def test_warp_collectives_of_part_of_a_warp(make_executor: MakeExecutor) -> None:
    executor = make_executor(
        """
        const int lane = threadIdx.x;
        unsigned long long result = 0;
        if (lane < 8) {
          const unsigned mask = 0xffu;
          result = __ballot_sync(mask, lane % 3 == 0);
          result = result * 10 + __any_sync(mask, lane == 5);
          result = result * 10 + __all_sync(mask, lane != 5);
          __syncwarp(mask);
        } else {
          const unsigned mask = 0xffffff00u;
          result = __shfl_sync(mask, 1000ull + lane, 9);
          result = result * 100 + __shfl_sync(mask, lane, 1, 4);
        }
        y[lane] = result;
        """,
        "const float* x, unsigned long long* y",
    )
    y = _run(executor, _launch(block=32), np.zeros(32, dtype=np.uint64))
    expected = [0b01001001 * 100 + 10] * 8
    expected += [1009 * 100 + lane // 4 * 4 + 1 for lane in range(8, 32)]
    np.testing.assert_array_equal(y, np.array(expected, dtype=np.uint64))


def test_shuffle_from_an_absent_lane_is_not_a_number(make_executor: MakeExecutor) -> None:
    executor = make_executor(
        """
        if (threadIdx.x == 3) return;
        y[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, threadIdx.x == 0 ? 3 : 1);
        """
    )
    y = _run(executor, _launch(block=32), np.zeros(32, dtype=np.float32))
    assert np.isnan(y[0])
    np.testing.assert_array_equal(y[[1, 2, 4, 31]], 1)
    assert y[3] == 0


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_atomics_add_up_over_blocks(make_executor: MakeExecutor, order: str, seed: int) -> None:
    executor = make_executor(
        """
        atomicAdd(y, 0.5);
        const unsigned long long place = atomicAdd(count, 1ull);
        ticket[place] = blockIdx.x * blockDim.x + threadIdx.x;
        """,
        "double* y, unsigned long long* count, unsigned* ticket",
        order=order,
        seed=seed,
    )
    arrays = {
        "y": np.zeros(1),
        "count": np.zeros(1, dtype=np.uint64),
        "ticket": np.zeros(300 * 64, dtype=np.uint32),
    }
    executor.run(_plan(_launch(grid=300, block=64, roles=tuple(arrays))), arrays)
    assert arrays["y"][0] == 300 * 64 / 2
    assert arrays["count"][0] == 300 * 64
    ticket = arrays["ticket"]
    np.testing.assert_array_equal(np.sort(ticket), np.arange(300 * 64))
    if order == "forward":
        np.testing.assert_array_equal(ticket, np.arange(300 * 64))
    elif order == "reverse":
        np.testing.assert_array_equal(ticket, np.arange(300 * 64)[::-1])
    else:
        assert np.any(np.diff(ticket.astype(np.int64)) != 1)


def test_launches_share_the_workspace(make_executor: MakeExecutor) -> None:
    executor = make_executor(
        """
        if (p.n == 0) {
          y[threadIdx.x] = total[threadIdx.x];
          total[threadIdx.x] = threadIdx.x;
        } else {
          y[threadIdx.x + 32] = p.n * total[threadIdx.x];
        }
        """,
        "float* total, float* y",
    )
    launches = [_launch(block=32, n=n, roles=("workspace", "y")) for n in (0, 3)]
    y = np.zeros(64, dtype=np.float32)
    executor.run(_plan(*launches, workspace_bytes=128), {"y": y})
    assert np.all(y[:32].view(np.uint32) == 0xFFFFFFFF)
    np.testing.assert_array_equal(y[32:], 3 * np.arange(32))


def test_none_is_a_null_pointer(make_executor: MakeExecutor) -> None:
    executor = make_executor("y[threadIdx.x] = x == nullptr ? 1 : 2;")
    y = np.zeros(4, dtype=np.float32)
    assert _run(executor, _launch(block=4), y).tolist() == [1] * 4
    assert _run(executor, _launch(block=4), y, np.zeros(0, np.float32)).tolist() == [2] * 4


@pytest.mark.parametrize(("index", "offset"), [("p.n", 256), ("p.n + 7", 284), ("-1", -4)])
def test_write_outside_an_array_is_caught(
    make_executor: MakeExecutor, index: str, offset: int
) -> None:
    executor = make_executor(f"if (threadIdx.x == 0) y[{index}] = 0;")
    with pytest.raises(AssertionError, match=rf"kernel wrote outside y: byte offset {offset}, "):
        _run(executor, _launch(n=64), np.zeros(64, dtype=np.float32))


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (np.float16, "unsigned short"),
        (np.float32, "unsigned"),
        (np.float64, "unsigned long long"),
    ],
)
def test_read_outside_an_array_is_not_a_number(
    make_executor: MakeExecutor, dtype: type[np.generic], bits: str
) -> None:
    executor = make_executor("y[0] = x[-1]; y[1] = x[p.n];", f"const {bits}* x, {bits}* y")
    y = _run(executor, _launch(block=1, n=5), np.zeros(2, dtype), np.zeros(5, dtype))
    assert np.all(np.isnan(y))


def test_write_to_an_input_is_caught(make_executor: MakeExecutor) -> None:
    executor = make_executor("const_cast<float*>(x)[5] = 1; y[0] = 1;")
    x = np.zeros(64, dtype=np.float32)
    with pytest.raises(AssertionError, match=r"kernel wrote to the read-only x: byte offset 2\d"):
        _run(executor, _launch(), np.zeros(64, dtype=np.float32), x)
    assert np.all(x == 0)


def test_unwritten_shared_memory_is_not_a_number(make_executor: MakeExecutor) -> None:
    executor = make_executor(
        """
        __shared__ float fixed[256];
        float* dynamic = reinterpret_cast<float*>(dynamic_shared_memory());
        y[blockIdx.x * 2] = fixed[threadIdx.x];
        y[blockIdx.x * 2 + 1] = dynamic[threadIdx.x];
        fixed[threadIdx.x] = dynamic[threadIdx.x] = 1;
        """
    )
    # The second block must not find what the first one left.
    y = _run(executor, _launch(grid=2, shared_bytes=1024), np.zeros(4, dtype=np.float32))
    assert np.all(np.isnan(y))


def test_dynamic_shared_memory_is_aligned_and_private_to_a_block(
    make_executor: MakeExecutor,
) -> None:
    executor = make_executor(
        """
        unsigned char* memory = dynamic_shared_memory();
        float4* stage = reinterpret_cast<float4*>(memory);
        const float t = threadIdx.x;
        stage[threadIdx.x] = make_float4(t, t + 0.25f, t + 0.5f, x[blockIdx.x]);
        __syncthreads();
        const float4 other = stage[(threadIdx.x + 1) % blockDim.x];
        y[blockIdx.x * blockDim.x + threadIdx.x] = other.x + other.w;
        if (reinterpret_cast<unsigned long long>(memory) % 16 != 0) y[0] = -1;
        """
    )
    x = np.array([1000, 2000], dtype=np.float32)
    launch = _launch(grid=2, block=64, shared_bytes=64 * 16)
    y = _run(executor, launch, np.zeros((2, 64), dtype=np.float32), x)
    np.testing.assert_array_equal(y, x[:, None] + np.roll(np.arange(64), -1))


@pytest.mark.parametrize("offset", [100, 103, -1])
def test_dynamic_shared_memory_overrun_is_caught(make_executor: MakeExecutor, offset: int) -> None:
    executor = make_executor(f"if (blockIdx.x == 2) dynamic_shared_memory()[{offset}] = 1;")
    message = (
        rf"kernel: block 2 wrote outside its dynamic shared memory: byte offset {offset}, "
        "it has 100 bytes"
    )
    with pytest.raises(HostKernelError, match=message):
        _run(executor, _launch(grid=4, shared_bytes=100), np.zeros(1, dtype=np.float32))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "if (threadIdx.x < 5)\n  __syncthreads();\nelse\n  __syncthreads();",
            r"divergent __syncthreads in block 1: "
            r"thread 0 waits in __syncthreads at kernel\.cu:\d+, "
            r"thread 5 waits in __syncthreads at kernel\.cu:\d+",
        ),
        (
            "if (threadIdx.x == 7)\n  __syncthreads();\nelse\n  __syncwarp();",
            r"deadlock in block 1: thread 0 waits in a warp collective of lanes 0xffffffff at "
            r"kernel\.cu:\d+, thread 7 waits in __syncthreads at kernel\.cu:\d+",
        ),
        (
            "if (threadIdx.x % 32 < 16)\n  __syncwarp();\nelse\n  __syncwarp(0xffff0001u);",
            r"deadlock in block 1: thread 0 waits in a warp collective of lanes 0xffffffff at ",
        ),
        (
            "__syncwarp(0xfffffffeu);",
            r"block 1: the mask 0xfffffffe of a warp collective at kernel\.cu:\d+ lacks the "
            "calling lane 0",
        ),
    ],
    ids=["divergent barrier", "barrier against collective", "masks differ", "not in the mask"],
)
def test_threads_that_cannot_go_on_are_reported(
    make_executor: MakeExecutor, body: str, message: str
) -> None:
    executor = make_executor(f"if (blockIdx.x != 1) return;\n{body}\ny[0] = 1;")
    with pytest.raises(HostKernelError, match=message):
        _run(executor, _launch(grid=3), np.zeros(1, dtype=np.float32))


def test_an_executor_works_after_an_error(make_executor: MakeExecutor) -> None:
    executor = make_executor(
        """
        if (p.n == 1 && threadIdx.x < 3) __syncthreads();
        if (p.n == 1) __syncthreads();
        y[threadIdx.x] = p.n;
        """
    )
    y = np.zeros(8, dtype=np.float32)
    with pytest.raises(HostKernelError, match="divergent"):
        _run(executor, _launch(block=8, n=1), y)
    assert _run(executor, _launch(block=8, n=2), y).tolist() == [2] * 8


@pytest.mark.parametrize("roles", [("x",), ("x", "y", "y")])
def test_wrong_number_of_arguments_is_reported(
    make_executor: MakeExecutor, roles: tuple[Role, ...]
) -> None:
    executor = make_executor("y[0] = 1;")
    with pytest.raises(ValueError, match=r"kernel takes parameters of \(8, 8, 8\) bytes"):
        _run(executor, _launch(roles=roles), np.zeros(1, dtype=np.float32))


def test_wrong_size_of_the_parameters_is_reported(make_executor: MakeExecutor) -> None:
    executor = make_executor("y[0] = 1;")
    params = np.zeros(1, dtype=[("n", np.int64), ("m", np.int32)])
    launch = Launch("kernel", (), 1, 1, 0, params, ("x", "y"))
    with pytest.raises(ValueError, match=r"the launch passes \(8, 8, 12\)"):
        _run(executor, launch, np.zeros(1, dtype=np.float32))


@pytest.mark.parametrize(
    ("extents", "message"),
    [
        ({"grid": 2**31}, "grid is 2147483648"),
        ({"grid": 0}, "grid is 0"),
        ({"block": 1025}, "block is 1025"),
        ({"block": 0}, "block is 0"),
    ],
)
def test_launches_that_cuda_refuses_are_refused(
    make_executor: MakeExecutor, extents: dict[str, int], message: str
) -> None:
    executor = make_executor("y[0] = 1;")
    with pytest.raises(ValueError, match=message):
        _run(executor, _launch(**extents), np.zeros(1, dtype=np.float32))


def test_arrays_that_are_not_contiguous_are_refused(make_executor: MakeExecutor) -> None:
    executor = make_executor("y[0] = 1;")
    with pytest.raises(ValueError, match="y is not C-contiguous"):
        _run(executor, _launch(), np.zeros((4, 4), dtype=np.float32).T)


def test_options_define_macros_and_make_variants(make_executor: MakeExecutor) -> None:
    executor = make_executor("y[0] = VALUE;")
    device_only = ("--std=c++17", "-lineinfo")
    variants = [("kernel", (*device_only, f"-DVALUE={value}")) for value in (1, 2)]
    executor.build_all(variants)
    for value, (_, options) in zip((1, 2), variants, strict=True):
        y = _run(executor, _launch(options=options), np.zeros(1, dtype=np.float32))
        assert y[0] == value


def test_built_ins_give_what_cuda_defines(make_executor: MakeExecutor) -> None:
    executor = make_executor(
        """
        y[0] = __umulhi(0xffffffffu, 0xfffffffeu);
        y[1] = __umul64hi(~0ull, ~0ull - 1);
        y[2] = __mulhi(-2147483647, 3);
        y[3] = __mul64hi(-9223372036854775807ll, 3ll);
        y[4] = min(-1, 2) + max(3ll, 4ll) + min(5u, 6u);
        y[5] = __float_as_uint(__uint_as_float(0x7fc12345u));
        y[6] = __double_as_longlong(__longlong_as_double(-5));
        // 1 + 2^-24 squared, less 1 + 2^-23: only the fused form keeps 2^-48.
        y[7] = static_cast<long long>(
            ldexp(__fma_rn(1 + 0x1p-30, 1 + 0x1p-30, -(1 + 0x1p-29)), 60));
        y[8] = static_cast<long long>(
            ldexp(fmaf(1 + 0x1p-15f, 1 + 0x1p-15f, -(1 + 0x1p-14f)), 30));
        const double product = (1 + 0x1p-30) * (1 + 0x1p-30);
        y[9] = product - (1 + 0x1p-29) == 0;
        """,
        "const float* x, long long* y",
    )
    y = _run(executor, _launch(block=1), np.zeros(10, dtype=np.int64))
    assert y.tolist() == [0xFFFFFFFD, -3, -2, -2, 8, 0x7FC12345, -5, 1, 1, 1]


HALVES_TO_FLOATS = """
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < p.n) y[i] = half_bits_to_float(x[i]);
"""
FLOATS_TO_HALVES = """
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < p.n) y[i] = float_to_half_bits(x[i]);
"""


def _assert_same_bits_or_nan(actual: Array, expected: Array) -> None:
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    numbers = ~np.isnan(expected)
    bits = f"u{actual.itemsize}"
    np.testing.assert_array_equal(actual.view(bits)[numbers], expected.view(bits)[numbers])


def test_every_half_converts_to_float_exactly(make_executor: MakeExecutor) -> None:
    executor = make_executor(HALVES_TO_FLOATS, "const unsigned short* x, float* y")
    x = np.arange(2**16, dtype=np.uint16)
    y = _run(executor, _launch(grid=256, n=x.size), np.zeros(x.size, dtype=np.float32), x)
    _assert_same_bits_or_nan(y, x.view(np.float16).astype(np.float32))


def _floats_around_halves() -> Array:
    """Return all finite halves, the midpoints to the next, and the floats next to both."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    above = np.append(halves[1:], np.float32(2**16))
    midpoints = (halves + above) / 2
    near = np.concatenate([halves, midpoints, [np.float32(2**16)]]).astype(np.float32)
    near = np.concatenate([near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, 0)])
    return np.concatenate([near, -near])


def _random_floats() -> Array:
    """Return floats of all exponents, infinities and NaNs among them, and of half's range."""
    generator = np.random.default_rng(0)
    bits = generator.integers(0, 2**32, 50_000, dtype=np.uint32).view(np.float32)
    exponents = generator.uniform(-26, 17, 50_000)
    scaled = (generator.choice([-1, 1], 50_000) * 2**exponents).astype(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 65519.996, 65520], dtype=np.float32)
    return np.concatenate([bits, scaled, special])


@pytest.mark.parametrize("floats", [_floats_around_halves, _random_floats])
def test_floats_round_to_half_as_in_numpy(
    make_executor: MakeExecutor, floats: Callable[[], Array]
) -> None:
    executor = make_executor(FLOATS_TO_HALVES, "const float* x, unsigned short* y")
    x = floats()
    y = np.zeros(x.size, dtype=np.uint16)
    _run(executor, _launch(grid=-(-x.size // 256), n=x.size), y, x)
    with np.errstate(over="ignore", under="ignore"):
        expected = x.astype(np.float16)
    _assert_same_bits_or_nan(y.view(np.float16), expected)
    assert np.all(y[np.isnan(x)] == 0x7FFF)


def test_a_changed_header_or_kernel_is_recompiled(tmp_path: Path) -> None:
    (tmp_path / "value.cuh").write_text("constexpr int kValue = 1;\n")
    kernel = tmp_path / "kernel.cu"
    kernel.write_text(
        f'#include <value.cuh>\n{HEADER}extern "C" __global__ void '
        "kernel(const float* x, float* y, const Params p) { y[0] = kValue; }\n"
    )
    values = []
    for step in range(3):
        if step == 1:
            (tmp_path / "value.cuh").write_text("constexpr int kValue = 2;\n")
        if step == 2:
            kernel.write_text(kernel.read_text().replace("= kValue", "= kValue + 1"))
        executor = HostExecutor(tmp_path, tmp_path / "cache")
        values.append(_run(executor, _launch(block=1), np.zeros(1, dtype=np.float32))[0])
    assert values == [1, 2, 3]


def test_two_processes_may_compile_the_same_kernel(tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").write_text(f'{HEADER}extern "C" __global__ void kernel(Params p) {{}}')
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from tests.host.compiler import KernelCompiler
        print(KernelCompiler(Path(sys.argv[1]), Path(sys.argv[1], "cache")).compile("kernel", ()))
        """
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    root = Path(__file__).resolve().parents[2]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) for _ in range(2)
    ]
    libraries = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(libraries) == 1
    # No temporary file is left either.
    assert [str(path) for path in (tmp_path / "cache").iterdir()] == list(libraries)


def test_a_kernel_that_does_not_compile_is_reported(
    make_executor: MakeExecutor, tmp_path: Path
) -> None:
    executor = make_executor("y[0] = undeclared;")
    with pytest.raises(HostCompilerError, match="undeclared"):
        _run(executor, _launch(), np.zeros(1, dtype=np.float32))
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_missing_compiler_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    compiler.find_compiler.cache_clear()
    try:
        with pytest.raises(
            HostCompilerError, match=r"Looked for: g\+\+, clang\+\+.*apt install g\+\+"
        ):
            KernelCompiler(tmp_path, tmp_path).compile("kernel", ())
    finally:
        compiler.find_compiler.cache_clear()
