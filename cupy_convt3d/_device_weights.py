"""Weights that stay on a CUDA device: packed once for each shape of x, and ready on any stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cupy_convt3d._call import Settings, Shape
from cupy_convt3d._dtypes import KernelDtype
from cupy_convt3d._launch import BoundPlan
from cupy_convt3d._run_cupy import bound_plan
from cupy_convt3d._stream_order import Written


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the calls with one shape of x share.

    ``packed`` is None if the kernels read the weights as they are. Whoever runs ``bound`` on a
    stream lets ``written`` precede it.
    """

    bound: BoundPlan
    packed: Any
    written: Written


class DeviceWeights:
    """Weights and bias on one device, and what was prepared from them.

    Building one, and preparing, needs the device to be current.

    Parameters
    ----------
    weight, bias : CuPy array or torch tensor, C-contiguous and aligned; bias may be None
        Written by what is queued on CuPy's current stream.
    dtype, settings, device
        Of the calls.
    allocate : function
        Returns an array of so many bytes, from the memory of the library of the weights.
    pointer : function
        Returns an array as `BoundPlan` takes it.
    """

    def __init__(
        self,
        cupy: Any,
        weight: Any,
        bias: Any,
        dtype: KernelDtype,
        settings: Settings,
        device: int,
        allocate: Callable[[int], Any],
        pointer: Callable[[Any], Any],
    ) -> None:
        self.weight = weight
        self.bias = bias
        self._cupy = cupy
        self._dtype = dtype
        self._settings = settings
        self._device = device
        self._allocate = allocate
        self._pointer = pointer
        self._copied = Written(cupy)
        self._prepared: dict[tuple[Shape, bool], Prepared] = {}

    def prepared(self, x_shape: Shape, x_aligned: bool) -> Prepared:
        """Return what calls with this shape share; the first packs on CuPy's current stream.

        Raises
        ------
        RuntimeError
            The first call of a shape, while a graph is captured: the packing would be in the graph
            and not be done before.
        """
        found = self._prepared.get((x_shape, x_aligned))
        if found is not None:
            return found
        stream = self._cupy.cuda.get_current_stream()
        if self._cupy.cuda.runtime.streamIsCapturing(stream.ptr):
            raise RuntimeError(
                f"a plan must be called once with x of shape {x_shape} before such a call is "
                "captured in a graph"
            )
        bias_shape = None if self.bias is None else tuple(self.bias.shape)
        weight_shape = tuple(self.weight.shape)
        bound = bound_plan(
            x_shape,
            weight_shape,
            bias_shape,
            self._dtype,
            self._settings,
            self._device,
            x_aligned,
        )
        if bound.packed_bytes:
            self._copied.precede(stream)
            packed = self._allocate(bound.packed_bytes)
            bound.pack({"weight": self._pointer(self.weight), "packed": self._pointer(packed)})
            prepared = Prepared(bound, packed, Written(self._cupy))
        else:
            prepared = Prepared(bound, None, self._copied)
        # Of two threads that came here both packed; all later calls take the same.
        return self._prepared.setdefault((x_shape, x_aligned), prepared)
