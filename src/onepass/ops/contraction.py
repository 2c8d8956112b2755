"""Sums of products: conv, conv_transpose, matmul, gemm.

In: `[n, c, spatial...]` and `[out channels, channels a group, kernel...]`, or matrices. Out: one `add` stage
`acc` whose body is the product of two loads, and at most one elementwise stage after it. The axis
names are fixed for the forms: n, c, y0.. | k, r0.. for convolutions, b0.., m, n | k for matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onepass.core.dtypes import DType
from onepass.core.errors import ShapeError
from onepass.core.tensor import Shape, TensorType
from onepass.loops.build import add, binary, cast, const, floordiv, idx, mod, mul, select, sub
from onepass.loops.ir import Const, Expr, Load
from onepass.ops.opdef import Attrs, Axis, Compute, InputTypes, Lowering, OpDef, define
from onepass.ops.shapes import (
    Numbers,
    broadcast_shape,
    float_attr,
    int_attr,
    ints_attr,
    load,
    load_stage,
    optional,
    reference,
    required,
    wide,
)
from onepass.ops.window import Window, window

COLUMN_BYTES = 1 << 26  # the reference unfolds at most this much of a convolution's input at a time


def require(condition: bool, what: str) -> None:
    """Raises `ShapeError` unless the shapes of the operands agree."""
    if not condition:
        raise ShapeError(what, why="the operands of a product must agree")


def zero(dtype: DType) -> float | int:
    """The 0 of `dtype`."""
    return 0.0 if dtype.is_float else 0


def contracted(a: Load, b: Load, axes: Sequence[Axis], reduce_axes: Sequence[Axis]) -> Compute:
    """The stage `acc`: the sum of `a * b`. float16 is multiplied and summed in float32."""
    dtype = wide(a.dtype)
    body = binary("mul", cast(a, dtype), cast(b, dtype))
    return Compute("acc", dtype, tuple(axes), body, tuple(reduce_axes), "add")


def finished(acc: Compute, body: Expr, dtype: DType) -> Lowering:
    """`acc`, and a stage `out` of `dtype` for `body` unless that is `acc` itself."""
    body = cast(body, dtype)
    if body == load_stage(acc):
        return Lowering((acc,), ("acc",))
    return Lowering((acc, Compute("out", dtype, acc.axes, body)), ("out",))


def with_bias(acc: Compute, bias: TensorType | None, dtype: DType) -> Lowering:
    """`acc`, plus the bias `in2` of each channel where there is one."""
    body: Expr = load_stage(acc)
    if bias is not None:
        channels = acc.axes[1].extent
        require(bias.shape == (channels,), f"bias {bias} for {channels} channels")
        body = binary("add", body, cast(Load("in2", (idx("c"),), bias.dtype), acc.dtype))
    return finished(acc, body, dtype)


def input_channel(out_channels: int, in_channels: int) -> Expr:
    """Channel of the input for output channel `c` and `k`; both counts are those of one group.

    The plain forms `c` (depthwise) and `first of the group + k` are kept apart, so that a reader of
    the expression need not simplify it.
    """
    if in_channels == 1:
        return floordiv(idx("c"), out_channels)
    return add(mul(floordiv(idx("c"), out_channels), in_channels), idx("k"))


def conv_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """out[n,c,y] = sum over k, r of x[n, group's first + k, y*stride + r*dilation - pad] * w[c,k,r]."""
    x, w, group = required(types, 0), required(types, 1), int_attr(attrs, "group", 1)
    require(x.rank == w.rank >= 3, f"convolution of {x} with weights {w}")
    require(x.shape[1] == w.shape[1] * group, f"{x} has not {group} times the channels of weights {w}")
    require(w.shape[0] % group == 0, f"{group} groups do not divide {w.shape[0]} output channels")
    shape = window(attrs, w.shape[2:])
    outputs = shape.outputs(x.shape[2:])
    y, r = shape.axes(outputs)
    channel = idx("k") if group == 1 else input_channel(w.shape[0] // group, w.shape[1])
    fill = zero(x.dtype) if shape.leaves(x.shape[2:], outputs) else None
    data = Load("in0", (idx("n"), channel, *shape.indices()), x.dtype, fill)
    weight = Load("in1", (idx("c"), idx("k"), *(idx(axis.name) for axis in r)), w.dtype)
    axes = (Axis("n", x.shape[0]), Axis("c", w.shape[0]), *y)
    acc = contracted(data, weight, axes, (Axis("k", w.shape[1]), *r))
    return with_bias(acc, optional(types, 2), x.dtype)


def add_bias(out: Numbers, arrays: Sequence[Numbers]) -> Numbers:
    """`out` plus the bias of each channel, if there is one."""
    return out + arrays[2].reshape(-1, *(1,) * (out.ndim - 2)) if len(arrays) > 2 else out


def conv_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """Unfolds the windows (a few output rows at a time) and multiplies matrices, batched by group."""
    x, w, group = arrays[0], arrays[1], int_attr(attrs, "group", 1)
    shape = window(attrs, w.shape[2:])
    outputs = shape.outputs(x.shape[2:])
    n, depth, rank = x.shape[0], math.prod(w.shape[1:]), shape.rank
    views = shape.views(shape.padded(x, outputs, 0), outputs)
    # n, channels, kernel..., outputs...
    views = views.transpose((0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank)))
    weights = w.reshape(group, w.shape[0] // group, depth)
    row_bytes = max(1, n * group * depth * math.prod(outputs[1:]) * x.itemsize)
    rows = max(1, COLUMN_BYTES // row_bytes)
    out: Numbers = np.empty((n, w.shape[0], *outputs), np.result_type(x, w))
    for first in range(0, outputs[0], rows):
        part = np.moveaxis(np.moveaxis(views, -rank, 0)[first : first + rows], 0, -rank)
        product = weights @ part.reshape(n, group, depth, math.prod(part.shape[-rank:]))
        out[:, :, first : first + rows] = product.reshape(n, w.shape[0], *part.shape[-rank:])
    return add_bias(out, arrays)


def transposed_outputs(shape: Window, sizes: Shape, attrs: Attrs) -> Shape:
    """Spatial extents of a transposed convolution; padding takes away, `output_padding` adds."""
    extra = ints_attr(attrs, "output_padding") or (0,) * shape.rank
    return tuple(
        max(0, stride * (size - 1) + span + more - begin - end)
        for stride, size, span, more, begin, end in zip(
            shape.strides, sizes, shape.spans, extra, shape.begin, shape.end, strict=True
        )
    )


def gathered(shape: Window, axis: int, size: int, output: int) -> tuple[int, Expr, Expr, bool]:
    """Extent of `r<axis>`, coordinates in input and kernel, and whether these may lie outside.

    Input element i adds to output s*i + d*r - pad. Without dilation the taps that meet output y are
    r = (y+pad) % s + s*j and i = (y+pad) // s - j: only those are visited. Where r runs past the kernel,
    i is moved outside as well, or a NaN there would spoil an output that it does not belong to.
    """
    kernel, stride, dilation = shape.kernel[axis], shape.strides[axis], shape.dilations[axis]
    y, j = add(idx(f"y{axis}"), shape.begin[axis]), idx(f"r{axis}")
    if stride == 1 or dilation > 1:
        place = sub(y, mul(j, dilation))
        inside = shape.begin[axis] >= shape.spans[axis] - 1 and output + shape.begin[axis] <= size
        if stride == 1:
            return kernel, place, j, not inside
        whole = binary("eq", mod(place, stride), const(0))
        return kernel, select(whole, floordiv(place, stride), const(-1)), j, True
    taps = -(-kernel // stride)
    tap, place = add(mul(j, stride), mod(y, stride)), sub(floordiv(y, stride), j)
    last = (output - 1 + shape.begin[axis]) // stride
    if kernel % stride:
        place = select(binary("lt", tap, const(kernel)), place, const(-1))
        return taps, place, tap, True
    return taps, place, tap, shape.begin[axis] // stride < taps - 1 or last >= size


def conv_transpose_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """Gather form: every output sums the taps that reach it, so outputs are independent."""
    x, w, group = required(types, 0), required(types, 1), int_attr(attrs, "group", 1)
    require(x.rank == w.rank >= 3, f"transposed convolution of {x} with weights {w}")
    require(x.shape[1] == w.shape[0], f"{x} has not the channels of weights {w}")
    require(w.shape[0] % group == 0, f"{group} groups do not divide {w.shape[0]} channels")
    depth, width = w.shape[0] // group, w.shape[1]
    shape = window(attrs, w.shape[2:])
    outputs = transposed_outputs(shape, x.shape[2:], attrs)
    y, _ = shape.axes(outputs)
    parts = [gathered(shape, i, x.shape[2 + i], outputs[i]) for i in range(shape.rank)]
    r = tuple(Axis(f"r{i}", part[0]) for i, part in enumerate(parts))
    channel = idx("k") if group == 1 else input_channel(width, depth)
    fill = zero(x.dtype) if any(part[3] for part in parts) else None
    past = any(
        shape.strides[i] > 1 and shape.dilations[i] == 1 and shape.kernel[i] % shape.strides[i]
        for i in range(shape.rank)
    )
    out_channel = idx("c") if group == 1 else mod(idx("c"), width)
    spots, places = tuple(part[1] for part in parts), tuple(part[2] for part in parts)
    data = Load("in0", (idx("n"), channel, *spots), x.dtype, fill)
    weight = Load("in1", (channel, out_channel, *places), w.dtype, fill if past else None)
    axes = (Axis("n", x.shape[0]), Axis("c", width * group), *y)
    return with_bias(contracted(data, weight, axes, (Axis("k", depth), *r)), optional(types, 2), x.dtype)


def conv_transpose_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """Multiplies matrices, then adds each tap's products into the strided outputs they belong to."""
    x, w, group = arrays[0], arrays[1], int_attr(attrs, "group", 1)
    n, (channels, width), sizes = x.shape[0], w.shape[:2], x.shape[2:]
    shape = window(attrs, w.shape[2:])
    outputs = transposed_outputs(shape, sizes, attrs)
    weights = w.reshape(group, channels // group, width * math.prod(shape.kernel)).swapaxes(1, 2)
    taps = weights @ x.reshape(n, group, channels // group, math.prod(sizes))
    taps = taps.reshape(n, group * width, math.prod(shape.kernel), *sizes)
    room = (
        max(output + begin, stride * size + span)
        for output, begin, stride, size, span in zip(
            outputs, shape.begin, shape.strides, sizes, shape.spans, strict=True
        )
    )
    out: Numbers = np.zeros((n, group * width, *room), taps.dtype)
    for number, tap in enumerate(np.ndindex(shape.kernel)):
        spots = tuple(
            slice(r * d, r * d + s * size, s)
            for r, d, s, size in zip(tap, shape.dilations, shape.strides, sizes, strict=True)
        )
        out[(slice(None), slice(None), *spots)] += taps[:, :, number]
    crop = tuple(slice(begin, begin + output) for begin, output in zip(shape.begin, outputs, strict=True))
    return add_bias(out[(slice(None), slice(None), *crop)], arrays)


def matmul_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """numpy's `matmul`: a 1-D operand is a row on the left and a column on the right, not in the result."""
    a, b = required(types, 0), required(types, 1)
    require(a.rank > 0 and b.rank > 0, f"matrix product of {a} and {b}")
    depth = a.shape[-1]
    require(depth == b.shape[-2 if b.rank > 1 else 0], f"matrix product of {a} and {b}")
    batch = tuple(
        Axis(f"b{i}", extent) for i, extent in enumerate(broadcast_shape(a.shape[:-2], b.shape[:-2]))
    )
    m = (Axis("m", a.shape[-2]),) if a.rank > 1 else ()
    n = (Axis("n", b.shape[-1]),) if b.rank > 1 else ()
    k = (Axis("k", depth),)
    left, right = load("in0", a, (*batch, *m, *k)), load("in1", b, (*batch, *k, *n))
    acc = contracted(left, right, (*batch, *m, *n), k)
    return finished(acc, load_stage(acc), a.dtype)


def scaled_by(x: Expr, factor: float) -> Expr:
    """`factor * x`; no multiplication by 1."""
    if factor == 1:
        return x
    return binary("mul", Const(factor if x.dtype.is_float else int(factor), x.dtype), x)


def gemm_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """alpha * A' B' + beta * C; C is not read where beta is 0."""
    a, b, c = required(types, 0), required(types, 1), optional(types, 2)
    require(a.rank == b.rank == 2, f"gemm of {a} and {b}")
    a_axes, b_axes = ("m", "k"), ("k", "n")
    a_axes = a_axes[::-1] if int_attr(attrs, "transA", 0) else a_axes
    b_axes = b_axes[::-1] if int_attr(attrs, "transB", 0) else b_axes
    a_sizes, b_sizes = dict(zip(a_axes, a.shape, strict=True)), dict(zip(b_axes, b.shape, strict=True))
    require(a_sizes["k"] == b_sizes["k"], f"gemm of {a} and {b}")
    axes = (Axis("m", a_sizes["m"]), Axis("n", b_sizes["n"]))
    left, right = Load("in0", tuple(map(idx, a_axes)), a.dtype), Load("in1", tuple(map(idx, b_axes)), b.dtype)
    acc = contracted(left, right, axes, (Axis("k", a_sizes["k"]),))
    out = scaled_by(load_stage(acc), float_attr(attrs, "alpha", 1.0))
    beta = float_attr(attrs, "beta", 1.0)
    if c is not None and beta != 0:
        require(broadcast_shape(c.shape, acc.type.shape) == acc.type.shape, f"{c} added to {acc.type}")
        out = binary("add", out, scaled_by(cast(load("in2", c, axes), acc.dtype), beta))
    return finished(acc, out, a.dtype)


def gemm_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """alpha * A' B' + beta * C in the operands' dtype."""
    a, b = arrays[0], arrays[1]
    alpha, beta = float_attr(attrs, "alpha", 1.0), float_attr(attrs, "beta", 1.0)
    out: Numbers = (a.T if int_attr(attrs, "transA", 0) else a) @ (b.T if int_attr(attrs, "transB", 0) else b)
    out = out if alpha == 1 else out * out.dtype.type(alpha)
    if len(arrays) > 2 and beta != 0:
        out = out + (arrays[2] if beta == 1 else arrays[2] * out.dtype.type(beta))
    return out


def matmul_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """numpy's `matmul`."""
    return np.asarray(np.matmul(arrays[0], arrays[1]))


for _name, _lower, _compute, _doc in (
    ("conv", conv_lower, conv_reference, "Slides a window over the input and sums products."),
    (
        "conv_transpose",
        conv_transpose_lower,
        conv_transpose_reference,
        "Spreads every input element through a window: a convolution's gradient, used to upsample.",
    ),
    ("matmul", matmul_lower, matmul_reference, "Multiplies matrices, batched by the leading axes."),
    ("gemm", gemm_lower, gemm_reference, "Multiplies two matrices, scales, and adds a third."),
):
    define(OpDef(_name, _lower, reference(_compute), _doc))
