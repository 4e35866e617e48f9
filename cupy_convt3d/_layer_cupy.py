"""A plan whose weights are CuPy arrays."""

from __future__ import annotations

from typing import Any

from cupy_convt3d._call import Settings, check_layer_dtype, check_weights, layer_problem
from cupy_convt3d._device_weights import DeviceWeights
from cupy_convt3d._libraries import library_of
from cupy_convt3d._overlap import check_no_overlap, check_out
from cupy_convt3d._run_cupy import COPY_ALIGNMENT, byte_range_of, dense


class CupyLayer:
    """Calls with copies of CuPy weights; x is a CuPy array or offers DLPack on a CUDA device."""

    def __init__(self, weight: Any, bias: Any, settings: Settings) -> None:
        import cupy

        self._cupy = cupy
        self._dtype = check_weights(weight, bias, settings)
        self._settings = settings
        self._device: int = weight.data.device_id
        if bias is not None and bias.data.device_id != self._device:
            raise ValueError(
                f"bias must be on the device of weight, {self._device}, "
                f"got device {bias.data.device_id}"
            )
        with cupy.cuda.Device(self._device):
            self._weights = DeviceWeights(
                cupy,
                self._copy(weight, "weight"),
                None if bias is None else self._copy(bias, "bias"),
                self._dtype,
                settings,
                self._device,
                allocate=lambda size: cupy.empty(size, dtype="u1"),
                pointer=lambda array: array,
            )
        # Of calls so far: the shape of x to that of y.
        self._y_shapes: dict[tuple[int, ...], tuple[int, ...]] = {}

    def __call__(self, x: Any, out: Any) -> Any:
        cupy = self._cupy
        if not isinstance(x, cupy.ndarray):
            x = self._from_dlpack(x)
        weight = self._weights.weight
        if x.dtype != weight.dtype:
            check_layer_dtype(x.dtype, self._dtype)
        if x.data.device_id != self._device:
            raise ValueError(
                f"x must be on the device of weight, {self._device}, got device {x.data.device_id}"
            )
        y_shape = self._y_shapes.get(x.shape)
        if y_shape is None:
            y_shape = self._y_shape(x.shape)
        if out is not None:
            self._check_out(x, out, y_shape)
        if self._device != cupy.cuda.runtime.getDevice():
            with cupy.cuda.Device(self._device):
                return self._run(x, out, y_shape)
        return self._run(x, out, y_shape)

    def _run(self, x: Any, out: Any, y_shape: tuple[int, ...]) -> Any:
        cupy = self._cupy
        y = cupy.empty(y_shape, dtype=x.dtype) if out is None else out
        if y.size == 0:
            return y
        x = dense(cupy, x, "x", self._dtype.itemsize)
        prepared = self._weights.prepared(x.shape, x.data.ptr % COPY_ALIGNMENT == 0)
        prepared.written.precede(cupy.cuda.get_current_stream())
        bound = prepared.bound
        workspace = None
        if bound.workspace_bytes:
            workspace = cupy.empty(bound.workspace_bytes, dtype="u1")
            if cupy.cuda.runtime.streamIsCapturing(cupy.cuda.get_current_stream().ptr):
                bound.captured.append(workspace)
        bound.run(
            {
                "x": x,
                "weight": self._weights.weight,
                "bias": self._weights.bias,
                "y": y,
                "workspace": workspace,
                "packed": prepared.packed,
            }
        )
        return y

    def _copy(self, array: Any, name: str) -> Any:
        copy = dense(self._cupy, array, name, self._dtype.itemsize)
        return array.copy() if copy is array else copy

    def _from_dlpack(self, x: Any) -> Any:
        if library_of(x, "x") != "dlpack":
            raise TypeError(
                "x must be a CuPy array or offer DLPack on a CUDA device, like the weights of the "
                f"plan, got {type(x).__module__}.{type(x).__qualname__}"
            )
        return self._cupy.from_dlpack(x)

    def _y_shape(self, x_shape: tuple[int, ...]) -> tuple[int, ...]:
        problem = layer_problem(x_shape, self._weights.weight, self._weights.bias, self._settings)
        shape = problem.y_shape if len(x_shape) == 5 else problem.y_shape[1:]
        self._y_shapes[x_shape] = shape
        return shape

    def _check_out(self, x: Any, out: Any, y_shape: tuple[int, ...]) -> None:
        if not isinstance(out, self._cupy.ndarray):
            raise TypeError(f"out must be a CuPy array, got {type(out).__name__}")
        if out.data.device_id != self._device:
            raise ValueError(
                f"out must be on the device of x, {self._device}, got device {out.data.device_id}"
            )
        check_out(out, y_shape, x.dtype, out.flags.c_contiguous, out.data.ptr, self._dtype.itemsize)
        check_no_overlap(byte_range_of(out), {"x": byte_range_of(x)})
