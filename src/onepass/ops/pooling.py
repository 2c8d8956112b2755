"""Maximum and mean over sliding windows or over all spatial positions.

In: `[n, c, spatial...]` with the window as ONNX attributes. Out: a stage that reduces over the axes `r0, r1,
...`; a mean is its sum, `acc`, and a division by the number of elements summed, `out`.
"""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

from onepass.core.dtypes import dtype_of_numpy
from onepass.core.errors import ShapeError
from onepass.core.tensor import Shape, TensorType
from onepass.loops.build import binary, cast, const, floordiv, idx, mul, sub
from onepass.loops.ir import Const, Expr, Load, Scalar
from onepass.loops.numerics import limits
from onepass.ops.opdef import Attrs, Axis, Combine, Compute, InputTypes, Lowering, define
from onepass.ops.shapes import (
    Numbers,
    attr,
    calc,
    ints,
    literal,
    load_stage,
    loop_axes,
    reference,
    required,
    wide,
)
from onepass.ops.window import Slide, Window, window


def _pooled(attrs: Attrs, shape: Shape) -> tuple[Window, Shape]:
    """The window of a pool over a tensor of `shape`, and the spatial output extents."""
    view = window(attrs, ints(attrs, "kernel_shape"))
    return view, view.outputs(shape[2:], bool(attr(attrs, "ceil_mode", 0)))


def _reduced(
    name: str, x: Load, shape: Shape, y: tuple[Axis, ...], r: tuple[Axis, ...], combine: Combine
) -> Compute:
    """The stage that reduces `x` over `r`; sums of float16 run in float32."""
    body = cast(x, wide(x.dtype)) if combine == "add" else x
    return Compute(name, body.dtype, (Axis("n", shape[0]), Axis("c", shape[1]), *y), body, r, combine)


def _windows(name: str, x: TensorType, attrs: Attrs, combine: Combine, fill: Scalar) -> Compute:
    """Reduces every window by `combine`, whose identity is `fill`."""
    view, outputs = _pooled(attrs, x.shape)
    outside = fill if view.leaves(x.shape[2:], outputs) else None
    element = Load("in0", (idx("n"), idx("c"), *view.indices), x.dtype, outside)
    return _reduced(name, element, x.shape, *view.axes(outputs), combine)


def _whole(name: str, x: TensorType, combine: Combine) -> Compute:
    """Reduces all spatial positions, which stay as axes of extent 1."""
    r = loop_axes(x.shape[2:], "r")
    element = Load("in0", (idx("n"), idx("c"), *(idx(axis.name) for axis in r)), x.dtype)
    return _reduced(name, element, x.shape, loop_axes((1,) * len(r), "y"), r, combine)


def _counted(slide: Slide, size: int, output: int, include_pad: bool) -> Expr:
    """How many of a window's elements along an axis are counted, a literal where it does not vary.

    A mean counts the elements of the tensor, or those of its padding as well.
    """
    low, high = (-slide.begin, size + slide.end) if include_pad else (0, size)

    def places_before(coordinate: int) -> Expr:
        """Number of places r with start + r * dilation < coordinate, within the window."""
        reached = floordiv(sub(const(coordinate + slide.dilation - 1), slide.start), slide.dilation)
        return calc("max", calc("min", reached, slide.kernel), 0)

    past = places_before(high) if slide.past(output) > high else const(slide.kernel)
    # A window may lie wholly beyond `high` with elements before `low` only by dilation: never below 0.
    missed = places_before(low) if -slide.begin < low else const(0)
    return sub(past, binary("min", missed, past) if slide.past(output) > high else missed)


def _mean(acc: Compute, elements: Expr, x: TensorType) -> Lowering:
    """`acc` divided by the number of `elements`, which may be a literal."""
    if not x.dtype.is_float:
        raise ShapeError(f"mean over {x}", why="a mean needs floating-point elements")
    number = literal(elements.value, acc.dtype) if isinstance(elements, Const) else cast(elements, acc.dtype)
    body = cast(calc("div", load_stage(acc), number), x.dtype)
    return Lowering((acc, Compute("out", x.dtype, acc.axes, body)), ("out",))


def _input(types: InputTypes) -> TensorType:
    x = required(types, 0)
    if x.rank < 3:
        raise ShapeError(f"pool over {x}", why="it needs batch, channel and spatial dimensions")
    return x


def _max_pool(types: InputTypes, attrs: Attrs) -> Lowering:
    """out[n,c,y] = max over r of x[n, c, y*stride + r*dilation - pad]; NaN propagates."""
    x = _input(types)
    return Lowering((_windows("out", x, attrs, "max", limits(x.dtype)[0]),), ("out",))


def _average_pool(types: InputTypes, attrs: Attrs) -> Lowering:
    """The sum of each window over its number of elements, with or without those in the padding."""
    x = _input(types)
    view, outputs = _pooled(attrs, x.shape)
    include_pad = bool(attr(attrs, "count_include_pad", 0))
    counts = (_counted(*axis, include_pad) for axis in zip(view, x.shape[2:], outputs, strict=True))
    return _mean(_windows("acc", x, attrs, "add", 0.0), reduce(mul, counts), x)


def _global_max_pool(types: InputTypes, attrs: Attrs) -> Lowering:
    return Lowering((_whole("out", _input(types), "max"),), ("out",))


def _global_average_pool(types: InputTypes, attrs: Attrs) -> Lowering:
    x = _input(types)
    return _mean(_whole("acc", x, "add"), const(math.prod(x.shape[2:])), x)


def _max_pool_reference(attrs: Attrs, x: Numbers) -> Numbers:
    """Elementwise maximum over the places in the window (numpy's, so NaN propagates)."""
    view, outputs = _pooled(attrs, x.shape)
    padded = view.padded(x, outputs, limits(dtype_of_numpy(x.dtype))[0])
    return reduce(np.maximum, (padded[spots] for _, spots in view.taps(outputs)))


def _average_pool_reference(attrs: Attrs, x: Numbers) -> Numbers:
    """Sum over the places in the window, divided by the sum of ones where they are counted."""
    view, outputs = _pooled(attrs, x.shape)
    include_pad = attr(attrs, "count_include_pad", 0)
    ones = np.pad(np.ones(x.shape[2:]), [(s.begin, s.end) for s in view], constant_values=include_pad)
    ones = np.pad(ones, [(0, s.span) for s in view])  # what the last window may overhang
    total, elements = (
        reduce(np.add, (array[spots] for _, spots in view.taps(outputs)))
        for array in (view.padded(x, outputs, 0), ones)
    )
    return np.asarray(total / elements.astype(x.dtype))


def _spatial(x: Numbers) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


define("max_pool", _max_pool, reference(_max_pool_reference))
define("average_pool", _average_pool, reference(_average_pool_reference))
define("global_max_pool", _global_max_pool, reference(lambda _, x: x.max(_spatial(x), keepdims=True)))
define(
    "global_average_pool", _global_average_pool, reference(lambda _, x: x.mean(_spatial(x), keepdims=True))
)
