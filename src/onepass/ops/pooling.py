"""Maximum and mean over sliding windows or over all spatial positions.

In: `[n, c, spatial...]` with the window as ONNX attributes. Out: a stage that reduces over the axes `r0, r1,
...`; a mean is its sum, `acc`, and a division by the number of elements summed, `out`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onepass.core.dtypes import DType, dtype_of_numpy
from onepass.core.errors import ShapeError
from onepass.core.tensor import Shape, TensorType
from onepass.loops.build import binary, cast, const, floordiv, idx, mul, sub
from onepass.loops.ir import Const, Expr, Load, Scalar
from onepass.ops.opdef import Attrs, Axis, Combine, Compute, InputTypes, Lowering, OpDef, define
from onepass.ops.shapes import Numbers, int_attr, ints_attr, load_stage, reference, required, wide
from onepass.ops.window import Window, window


def lowest(dtype: DType) -> Scalar:
    """The identity of `max`."""
    return -math.inf if dtype.is_float else int(np.iinfo(dtype.name).min)


def pooled(attrs: Attrs, shape: Shape) -> tuple[Window, Shape]:
    """The window of a pool over a tensor of `shape`, and the spatial output extents."""
    view = window(attrs, ints_attr(attrs, "kernel_shape") or ())
    return view, view.outputs(shape[2:], bool(int_attr(attrs, "ceil_mode", 0)))


def window_stage(name: str, x: TensorType, attrs: Attrs, combine: Combine, fill: Scalar) -> Compute:
    """Reduces every window by `combine`, whose identity is `fill`."""
    view, outputs = pooled(attrs, x.shape)
    y, r = view.axes(outputs)
    outside = fill if view.leaves(x.shape[2:], outputs) else None
    axes = (Axis("n", x.shape[0]), Axis("c", x.shape[1]), *y)
    return reduced(
        name, Load("in0", (idx("n"), idx("c"), *view.indices()), x.dtype, outside), axes, r, combine
    )


def reduced(name: str, x: Load, axes: tuple[Axis, ...], r: tuple[Axis, ...], combine: Combine) -> Compute:
    """The stage that reduces `x` over `r`; sums of float16 run in float32."""
    body = cast(x, wide(x.dtype)) if combine == "add" else x
    return Compute(name, body.dtype, axes, body, r, combine)


def bounds(view: Window, axis: int, size: int, include_pad: bool) -> tuple[int, int]:
    """The coordinates that a mean counts: the tensor's, or those of its padding as well."""
    return (-view.begin[axis], size + view.end[axis]) if include_pad else (0, size)


def counted(view: Window, axis: int, size: int, output: int, include_pad: bool) -> Expr:
    """How many of a window's elements along `axis` are counted, a literal where it does not vary."""
    low, high = bounds(view, axis, size, include_pad)
    kernel, dilation, begin = view.kernel[axis], view.dilations[axis], view.begin[axis]
    last = (output - 1) * view.strides[axis] - begin + view.spans[axis]
    # places r with low <= start + r*dilation < high
    past: Expr = const(kernel)
    before: Expr = const(0)
    start = view.start(axis)
    if last > high:
        reached = floordiv(sub(const(high + dilation - 1), start), dilation)
        past = binary("max", binary("min", reached, const(kernel)), const(0))
    if -begin < low:
        missed = floordiv(sub(const(low + dilation - 1), start), dilation)
        before = binary("min", binary("max", missed, const(0)), past)
    return sub(past, before)


def mean(acc: Compute, elements: Expr, dtype: DType) -> Lowering:
    """`acc` divided by the number of `elements`, as `dtype`."""
    body = cast(binary("div", load_stage(acc), literal(elements, acc.dtype)), dtype)
    return Lowering((acc, Compute("out", dtype, acc.axes, body)), ("out",))


def literal(number: Expr, dtype: DType) -> Expr:
    """The int64 expression `number` as `dtype`, at once where it is a literal."""
    return Const(float(number.value), dtype) if isinstance(number, Const) else cast(number, dtype)


def floating(types: InputTypes, minimum_rank: int = 3) -> TensorType:
    """The first input, which has to hold floats."""
    x = pool_input(types, minimum_rank)
    if not x.dtype.is_float:
        raise ShapeError(f"mean over {x}", why="a mean needs floating-point elements")
    return x


def pool_input(types: InputTypes, minimum_rank: int = 3) -> TensorType:
    """The first input, which has to be `[n, c, spatial...]`."""
    x = required(types, 0)
    if x.rank < minimum_rank:
        raise ShapeError(f"pool over {x}", why="it needs batch, channel and spatial dimensions")
    return x


def max_pool_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """out[n,c,y] = max over r of x[n, c, y*stride + r*dilation - pad]; NaN propagates."""
    x = pool_input(types)
    return Lowering((window_stage("out", x, attrs, "max", lowest(x.dtype)),), ("out",))


def average_pool_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """The sum of each window over its number of elements, with or without those in the padding."""
    x = floating(types)
    view, outputs = pooled(attrs, x.shape)
    include_pad = bool(int_attr(attrs, "count_include_pad", 0))
    elements: Expr = const(1)
    for axis in range(view.rank):
        elements = mul(elements, counted(view, axis, x.shape[2 + axis], outputs[axis], include_pad))
    return mean(window_stage("acc", x, attrs, "add", 0.0), elements, x.dtype)


def whole(name: str, x: TensorType, combine: Combine) -> Compute:
    """Reduces all spatial positions, which stay as axes of extent 1."""
    r = tuple(Axis(f"r{i}", extent) for i, extent in enumerate(x.shape[2:]))
    axes = (Axis("n", x.shape[0]), Axis("c", x.shape[1]), *(Axis(f"y{i}", 1) for i in range(len(r))))
    return reduced(
        name, Load("in0", (idx("n"), idx("c"), *(idx(axis.name) for axis in r)), x.dtype), axes, r, combine
    )


def global_max_pool_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """Maximum over all spatial positions."""
    return Lowering((whole("out", pool_input(types), "max"),), ("out",))


def global_average_pool_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """Sum over all spatial positions over their number."""
    x = floating(types)
    return mean(whole("acc", x, "add"), const(math.prod(x.shape[2:])), x.dtype)


def max_pool_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """Elementwise maximum over the places in the window (numpy's, so NaN propagates)."""
    x = arrays[0]
    view, outputs = pooled(attrs, x.shape)
    fill = lowest(dtype_of_numpy(x.dtype))
    views = view.views(view.padded(x, outputs, fill), outputs)
    out: Numbers = np.full((*x.shape[:2], *outputs), fill, x.dtype)
    for place in np.ndindex(view.kernel):
        out = np.maximum(out, views[(Ellipsis, *place)])
    return out


def average_pool_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """Sum over the places in the window, divided by how many of them are counted."""
    x = arrays[0]
    view, outputs = pooled(attrs, x.shape)
    views = view.views(view.padded(x, outputs, 0), outputs)
    out: Numbers = np.zeros((*x.shape[:2], *outputs), x.dtype)
    for place in np.ndindex(view.kernel):
        out = out + views[(Ellipsis, *place)]
    include_pad = bool(int_attr(attrs, "count_include_pad", 0))
    elements: Numbers = np.ones((), x.dtype)
    for axis, output in enumerate(outputs):
        low, high = bounds(view, axis, x.shape[2 + axis], include_pad)
        start = np.arange(output)[:, None] * view.strides[axis] - view.begin[axis]
        spots = start + np.arange(view.kernel[axis]) * view.dilations[axis]
        elements = elements[..., None] * np.sum((low <= spots) & (spots < high), axis=1)
    return np.asarray(out / elements.astype(x.dtype))


def global_max_pool_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """numpy's `max` over the spatial axes."""
    return np.asarray(arrays[0].max(axis=tuple(range(2, arrays[0].ndim)), keepdims=True))


def global_average_pool_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """numpy's `mean` over the spatial axes."""
    return np.asarray(arrays[0].mean(axis=tuple(range(2, arrays[0].ndim)), keepdims=True))


for _name, _lower, _compute, _doc in (
    ("max_pool", max_pool_lower, max_pool_reference, "Takes the maximum of each window."),
    ("average_pool", average_pool_lower, average_pool_reference, "Takes the mean of each window."),
    (
        "global_max_pool",
        global_max_pool_lower,
        global_max_pool_reference,
        "Takes the maximum over all spatial positions.",
    ),
    (
        "global_average_pool",
        global_average_pool_lower,
        global_average_pool_reference,
        "Takes the mean over all spatial positions.",
    ),
):
    define(OpDef(_name, _lower, reference(_compute), _doc))
