"""The public class: a transposed convolution whose weights stay the same from call to call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from cupy_convt3d._call import Settings, settings_of
from cupy_convt3d._layer_cupy import CupyLayer
from cupy_convt3d._layer_numpy import NumpyLayer
from cupy_convt3d._layer_torch import TorchLayer
from cupy_convt3d._libraries import common_library
from cupy_convt3d._run_dlpack import from_dlpack

Array = TypeVar("Array")
IntOrTriple = int | Sequence[int]


class ConvTranspose3dPlan(Generic[Array]):
    """A 3-D transposed convolution with given weights, for many calls.

    ``plan(x)`` is ``conv_transpose3d(x, weight, bias, ...)`` with less to do: the weights are
    checked when the plan is made, and rearranged for the kernel once for each shape of ``x``.

    Parameters
    ----------
    weight : array, shape (C_in, C_out/groups, KD, KH, KW)
        A CuPy array, a NumPy array, a torch tensor, or any object with ``__dlpack__`` on a CUDA
        device. Copied: later changes of the array do not show in the plan.
    bias : array, shape (C_out,), optional
        Of the library, dtype and device of ``weight``. Copied.
    stride, padding, output_padding, groups, dilation
        As in `conv_transpose3d`.
    algorithm, deterministic, precision, activation, negative_slope, config
        As in `conv_transpose3d`.

    Raises
    ------
    TypeError, ValueError, ImportError
        As `conv_transpose3d` does: everything about the weights when the plan is made, everything
        about ``x`` and ``out`` in the call.
    RuntimeError
        The first call with a shape of ``x`` while a CUDA graph is captured.

    Notes
    -----
    A call allocates what `conv_transpose3d` does. Beyond that the plan holds, until it is deleted,
    the copies of weight and bias and, where the kernel wants its weights rearranged, a buffer of
    about their size for each shape of ``x`` it was called with. A plan of NumPy arrays or of
    tensors on the CPU holds the copies alone.

    Calls may come from any stream and any thread: a call on another stream than the one that
    copied or rearranged the weights waits there for that work, the host does not. The memory of a
    CuPy plan goes back to its stream's pool when the plan is deleted: keep it until calls on other
    streams are done. A call can be captured in a CUDA graph after one with the same shape of ``x``;
    keep the plan as long as the graph, and launch it after that first call's work is done (a graph
    waits for no other stream). The graph uses the weights of the plan.

    Examples
    --------
    >>> import numpy as np
    >>> from cupy_convt3d import ConvTranspose3dPlan
    >>> weight = np.array([1, 2, 4], dtype=np.float32).reshape(1, 1, 1, 1, 3)
    >>> plan = ConvTranspose3dPlan(weight, activation="relu")
    >>> plan(np.array([1, -1], dtype=np.float32).reshape(1, 1, 1, 1, 2)).ravel()
    array([1., 1., 2., 0.], dtype=float32)
    """

    def __init__(
        self,
        weight: Array,
        bias: Array | None = None,
        stride: IntOrTriple = 1,
        padding: IntOrTriple = 0,
        output_padding: IntOrTriple = 0,
        groups: int = 1,
        dilation: IntOrTriple = 1,
        *,
        algorithm: str = "auto",
        deterministic: bool = True,
        precision: str | None = "ieee",
        activation: str | None = None,
        negative_slope: float = 0.01,
        config: Hashable = None,
    ) -> None:
        library = common_library({"weight": weight, "bias": bias})
        settings = settings_of(
            stride,
            padding,
            output_padding,
            groups,
            dilation,
            None,
            algorithm,
            deterministic,
            precision,
            activation,
            negative_slope,
            config,
        )
        arrays: tuple[Any, Any] = (weight, bias)
        if library == "dlpack":
            arrays = (from_dlpack(weight), None if bias is None else from_dlpack(bias))
        layers: dict[str, Callable[[Any, Any, Settings], Callable[[Any, Any], Any]]]
        layers = {"numpy": NumpyLayer, "torch": TorchLayer, "cupy": CupyLayer, "dlpack": CupyLayer}
        self._layer = layers[library](*arrays, settings)

    def __call__(self, x: Array, *, out: Array | None = None) -> Array:
        """Return the transposed convolution of ``x``.

        Parameters
        ----------
        x : array, shape (N, C_in, D, H, W) or (C_in, D, H, W)
            Of the library, dtype and device of the weights; any strides. With weights from CuPy or
            DLPack, a CuPy array or an object with DLPack.
        out : array, optional
            As in `conv_transpose3d`.

        Returns
        -------
        y : array, shape (N, C_out, OD, OH, OW), or without N if ``x`` has none
            ``out`` itself if it was given; a CuPy array for DLPack objects.
        """
        result: Array = self._layer(x, out)
        return result
