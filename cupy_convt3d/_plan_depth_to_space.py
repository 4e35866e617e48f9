"""The launches of ``kernels_cu/convt3d_depth_to_space.cu``: kernel == stride, no padding."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cupy_convt3d._activation import NO_ACTIVATION, Activation
from cupy_convt3d._box_copy import fill_box_copy
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._packing import packing_launch
from cupy_convt3d._params import INDEX32_LIMIT, common_params, fast_divmod, index_bits
from cupy_convt3d._plan import Launch, Plan, launch_params, variant_options
from cupy_convt3d._problem import Problem
from cupy_convt3d._tensor_core import (
    FRAGMENT_BYTES,
    MATHS,
    WARP,
    Math,
    channel_pitch,
    copy_bytes,
)


@dataclass(frozen=True, slots=True)
class DepthToSpaceConfig:
    """The tiles of the depth-to-space kernel.

    A block has ``warps_m * warps_n`` warps, each with ``warp_m_tiles`` x ``warp_n_tiles`` tiles of
    16 x 8 products at a time. It keeps the inputs of ``8 * warp_n_tiles * warps_n`` positions and
    multiplies them with ``part_m_tiles`` m tiles. ``stages`` stages of ``stage_steps`` k steps of
    weights are in shared memory.
    """

    math: str
    warp_m_tiles: int
    warp_n_tiles: int
    warps_m: int
    warps_n: int
    part_m_tiles: int
    stage_steps: int
    stages: int

    @property
    def threads(self) -> int:
        return WARP * self.warps_m * self.warps_n

    @property
    def positions(self) -> int:
        return 8 * self.warp_n_tiles * self.warps_n


def is_depth_to_space(problem: Problem) -> bool:
    """Whether kernel == stride, at most 2 along width: the kernel's own conditions."""
    return (
        problem.kernel == problem.stride
        and problem.kernel[2] <= 2
        and problem.padding == (0, 0, 0)
        and problem.output_padding == (0, 0, 0)
        and all(d == 1 or k == 1 for d, k in zip(problem.dilation, problem.kernel, strict=True))
    )


def co_tiles_of(problem: Problem) -> int:
    """Return the m tiles of one tap (kd, kh): 16 rows of output channels and taps along width."""
    return -(-problem.out_channels_per_group // (16 // problem.kernel[2]))


def m_tiles_of(problem: Problem) -> int:
    """Return the m tiles of a group."""
    return problem.kernel[0] * problem.kernel[1] * co_tiles_of(problem)


def shared_bytes_of(
    problem: Problem, dtype: KernelDtype, config: DepthToSpaceConfig
) -> tuple[int, int, int]:
    """Return the bytes of a channel's pitch, of all inputs, and of one stage of weights."""
    mma = MATHS[config.math]
    k_steps = -(-problem.in_channels_per_group // mma.step_k)
    pitch = channel_pitch(config.positions * dtype.itemsize, dtype)
    fragments = config.warps_m * config.warp_m_tiles * mma.parts * WARP * FRAGMENT_BYTES
    return pitch, k_steps * mma.step_k * pitch, config.stage_steps * fragments


def fit_depth_to_space(
    problem: Problem,
    dtype: KernelDtype,
    mma: Math,
    warp_tiles: tuple[int, int],
    warps: tuple[int, int],
    shared_bytes: int,
) -> list[DepthToSpaceConfig]:
    """Return the configurations of these warps that fit ``shared_bytes``.

    They differ in the m tiles of a block: where positions are few, more blocks share them. Each has
    the deepest pipeline that fits.
    """
    m_tiles = m_tiles_of(problem)
    stage_m = warp_tiles[0] * warps[0]
    found = []
    for parts in (1, 2, 4, 8, 16):
        share = -(-m_tiles // parts)
        part_m_tiles = -(-share // stage_m) * stage_m
        if parts > 1 and -(-m_tiles // part_m_tiles) < parts:
            break
        for stages, steps in ((3, 2), (3, 1), (2, 1)):
            config = DepthToSpaceConfig(mma.name, *warp_tiles, *warps, part_m_tiles, steps, stages)
            _, inputs, stage_bytes = shared_bytes_of(problem, dtype, config)
            if inputs + stages * stage_bytes <= shared_bytes:
                found.append(config)
                break
    return found


def plan_depth_to_space(
    problem: Problem,
    dtype: KernelDtype,
    has_bias: bool,
    config: DepthToSpaceConfig,
    bits: int | None = None,
    *,
    activation: Activation = NO_ACTIVATION,
    x_aligned: bool = True,
) -> Plan:
    """Return the plan of the depth-to-space kernel with the tiles of ``config``.

    Parameters
    ----------
    bits : int, optional
        Forces the index width (tests do).
    x_aligned : bool
        Whether the address of x is a multiple of 16 bytes.
    """
    mma = MATHS[config.math]
    volume = math.prod(problem.input)
    k_steps = -(-problem.in_channels_per_group // mma.step_k)
    m_tiles = m_tiles_of(problem)
    m_parts = -(-m_tiles // config.part_m_tiles)
    position_tiles = -(-volume // config.positions)
    tiles = problem.batch * problem.groups * position_tiles * m_parts
    fragments = problem.groups * k_steps * m_tiles * WARP
    unit = copy_bytes(volume, dtype, x_aligned)
    pitch, inputs, stage_bytes = shared_bytes_of(problem, dtype, config)

    params = common_params(problem, has_bias, activation)
    params["tiles"] = tiles
    params["co_tiles"] = m_parts
    params["axis"][2]["tile"] = config.positions
    params["axis"][2]["tiles"] = position_tiles
    gemm = params["gemm"]
    for name, divisor in (
        ("co_tile", co_tiles_of(problem)),
        ("taps_h", problem.kernel[1]),
        ("warps_m", config.warps_m),
    ):
        gemm[name] = fast_divmod(divisor)
    for name, value in (
        ("m_tiles", m_tiles),
        ("part_m_tiles", config.part_m_tiles),
        ("stage_steps", config.stage_steps),
        ("stages", config.stages),
        ("stage_bytes", stage_bytes),
        ("stage_weights", inputs),
    ):
        gemm[name] = value
    fill_box_copy(
        gemm["x"],
        extent=problem.input,
        channels=problem.in_channels_per_group,
        box=(1, 1, config.positions),
        channel_pitch=pitch // dtype.itemsize,
        copy_elements=unit // dtype.itemsize,
        threads=config.threads,
    )
    if bits is None:
        # Samples are found with 64-bit arithmetic in both widths.
        bits = index_bits(replace(problem, batch=1), tiles, fragments, volume + config.positions)
    pack = packing_launch(
        "pack_depth_to_space", dtype, bits, mma, params, fragments, CONVT3D_TAPS_W=problem.kernel[2]
    )
    multiply = Launch(
        kernel="convt3d_depth_to_space",
        options=variant_options(
            dtype,
            bits,
            activation,
            CONVT3D_MATH=mma.number,
            CONVT3D_TAPS_W=problem.kernel[2],
            CONVT3D_WARP_M_TILES=config.warp_m_tiles,
            CONVT3D_WARP_N_TILES=config.warp_n_tiles,
        ),
        grid=min(tiles, INDEX32_LIMIT),
        block=config.threads,
        shared_bytes=inputs + config.stages * stage_bytes,
        params=launch_params(params),
        roles=("x", "weight", "packed", "bias", "y"),
    )
    return Plan(
        "implicit_gemm",
        (multiply,),
        workspace_bytes=0,
        deterministic=True,
        packing=(pack,),
        packed_bytes=fragments * mma.parts * FRAGMENT_BYTES,
    )
