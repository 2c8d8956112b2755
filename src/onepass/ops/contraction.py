"""Sums of products: conv, conv_transpose, matmul, gemm.

In: `[n, c, spatial...]` and `[out channels, channels a group, kernel...]`, or matrices. Out: one `add` stage
`acc` whose body is the product of two loads, and at most one elementwise stage after it. The axis
names are fixed for the forms: n, c, y0.. | k, r0.. for convolutions, b0.., m, n | k for matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onepass.core.dtypes import DType
from onepass.core.errors import ShapeError
from onepass.core.tensor import Shape, TensorType
from onepass.loops.build import add, binary, cast, const, floordiv, idx, mod, mul, select, sub
from onepass.loops.ir import Expr, Load
from onepass.ops.opdef import Attrs, Axis, Compute, InputTypes, Lowering, define
from onepass.ops.shapes import (
    Numbers,
    attr,
    broadcast_shape,
    calc,
    ints,
    literal,
    load,
    load_stage,
    loop_axes,
    optional,
    reference,
    required,
    wide,
)
from onepass.ops.window import Slide, Window, window


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ShapeError(what, why="the operands of a product must agree")


def _contracted(a: Load, b: Load, axes: Sequence[Axis], reduce_axes: Sequence[Axis]) -> Compute:
    """The stage `acc`: the sum of `a * b`. float16 is multiplied and summed in float32."""
    dtype = wide(a.dtype)
    body = binary("mul", cast(a, dtype), cast(b, dtype))
    return Compute("acc", dtype, tuple(axes), body, tuple(reduce_axes), "add")


def _finished(acc: Compute, body: Expr, dtype: DType) -> Lowering:
    """`acc`, and a stage `out` of `dtype` for `body` unless that is `acc` itself."""
    body = cast(body, dtype)
    if body == load_stage(acc):
        return Lowering((acc,), ("acc",))
    return Lowering((acc, Compute("out", dtype, acc.axes, body)), ("out",))


def _with_bias(acc: Compute, bias: TensorType | None, dtype: DType) -> Lowering:
    """`acc`, plus the bias `in2` of each channel where there is one."""
    body: Expr = load_stage(acc)
    if bias is not None:
        channels = acc.axes[1].extent
        _require(bias.shape == (channels,), f"bias {bias} for {channels} channels")
        body = binary("add", body, cast(Load("in2", (idx("c"),), bias.dtype), acc.dtype))
    return _finished(acc, body, dtype)


def _input_channel(group: int, out_channels: int, in_channels: int) -> Expr:
    """Channel of the input for output channel `c` and `k`; both counts are those of one group.

    The plain forms `k`, `c` (depthwise) and `first of the group + k` are kept apart, so that a reader of
    the expression need not simplify it.
    """
    if group == 1:
        return idx("k")
    first = floordiv(idx("c"), out_channels)
    return first if in_channels == 1 else add(mul(first, in_channels), idx("k"))


def _conv(types: InputTypes, attrs: Attrs) -> Lowering:
    """out[n,c,y] = sum over k, r of x[n, group's first + k, y*stride + r*dilation - pad] * w[c,k,r]."""
    x, w, group = required(types, 0), required(types, 1), attr(attrs, "group", 1)
    _require(x.rank == w.rank >= 3, f"convolution of {x} with weights {w}")
    _require(x.shape[1] == w.shape[1] * group, f"{x} has not {group} times the channels of weights {w}")
    _require(w.shape[0] % group == 0, f"{group} groups do not divide {w.shape[0]} output channels")
    view = window(attrs, w.shape[2:])
    outputs = view.outputs(x.shape[2:])
    y, r = view.axes(outputs)
    channel = _input_channel(group, w.shape[0] // group, w.shape[1])
    fill = literal(0, x.dtype) if view.leaves(x.shape[2:], outputs) else None
    data = Load("in0", (idx("n"), channel, *view.indices), x.dtype, fill)
    weight = Load("in1", (idx("c"), idx("k"), *(idx(axis.name) for axis in r)), w.dtype)
    axes = (Axis("n", x.shape[0]), Axis("c", w.shape[0]), *y)
    acc = _contracted(data, weight, axes, (Axis("k", w.shape[1]), *r))
    return _with_bias(acc, optional(types, 2), x.dtype)


def _per_channel(out: Numbers, bias: Sequence[Numbers]) -> Numbers:
    return out + bias[0].reshape(-1, *(1,) * (out.ndim - 2)) if bias else out


def _conv_reference(attrs: Attrs, x: Numbers, w: Numbers, *bias: Numbers) -> Numbers:
    """Multiplies matrices tap by tap, batched by group."""
    group, view = attr(attrs, "group", 1), window(attrs, w.shape[2:])
    outputs = view.outputs(x.shape[2:])
    n, channels, positions = x.shape[0], w.shape[0], math.prod(outputs)
    weights = w.reshape(group, channels // group, *w.shape[1:])
    padded = view.padded(x, outputs, 0)
    out: Numbers = np.zeros((n, group, channels // group, positions), np.result_type(x, w))
    for place, spots in view.taps(outputs):
        part = padded[spots].reshape(n, group, w.shape[1], positions)
        out += weights[place] @ part
    return _per_channel(out.reshape(n, channels, *outputs), bias)


def _transposed_outputs(view: Window, sizes: Shape, attrs: Attrs) -> Shape:
    """Spatial extents of a transposed convolution; padding takes away, `output_padding` adds."""
    extra = ints(attrs, "output_padding", (0,) * len(view))
    return tuple(
        max(0, s.stride * (size - 1) + s.span + more - s.begin - s.end)
        for s, size, more in zip(view, sizes, extra, strict=True)
    )


def _gathered(slide: Slide, size: int, output: int) -> tuple[int, Expr, Expr, bool]:
    """Extent of the axis `r`, coordinates in input and kernel, and whether these may lie outside.

    Input element i adds to output s*i + d*r - pad. Without dilation the taps that meet output y are
    r = (y+pad) % s + s*j and i = (y+pad) // s - j: only those are visited. Where r runs past the kernel,
    i is moved outside as well, or a NaN there would spoil an output that it does not belong to.
    """
    kernel, stride, begin = slide.kernel, slide.stride, slide.begin
    y, j = add(idx(f"y{slide.number}"), begin), idx(f"r{slide.number}")
    if stride == 1 or slide.dilation > 1:
        place = sub(y, mul(j, slide.dilation))
        if stride == 1:
            return kernel, place, j, begin < slide.span - 1 or output + begin > size
        whole = binary("eq", mod(place, stride), const(0))
        return kernel, select(whole, floordiv(place, stride), const(-1)), j, True
    taps = -(-kernel // stride)
    tap, place = add(mul(j, stride), mod(y, stride)), sub(floordiv(y, stride), j)
    if kernel % stride:
        return taps, select(calc("lt", tap, kernel), place, const(-1)), tap, True
    return taps, place, tap, begin // stride < taps - 1 or (output - 1 + begin) // stride >= size


def _conv_transpose(types: InputTypes, attrs: Attrs) -> Lowering:
    """Gather form: every output sums the taps that reach it, so outputs are independent."""
    x, w, group = required(types, 0), required(types, 1), attr(attrs, "group", 1)
    _require(x.rank == w.rank >= 3, f"transposed convolution of {x} with weights {w}")
    _require(x.shape[1] == w.shape[0], f"{x} has not the channels of weights {w}")
    _require(w.shape[0] % group == 0, f"{group} groups do not divide {w.shape[0]} channels")
    depth, width = w.shape[0] // group, w.shape[1]
    view = window(attrs, w.shape[2:])
    outputs = _transposed_outputs(view, x.shape[2:], attrs)
    taps, spots, places, outside = zip(*map(_gathered, view, x.shape[2:], outputs), strict=True)
    channel = _input_channel(group, width, depth)
    past = any(s.stride > 1 and s.dilation == 1 and s.kernel % s.stride for s in view)
    fill = literal(0, x.dtype)
    out_channel = idx("c") if group == 1 else mod(idx("c"), width)
    data = Load("in0", (idx("n"), channel, *spots), x.dtype, fill if any(outside) else None)
    weight = Load("in1", (channel, out_channel, *places), w.dtype, fill if past else None)
    axes = (Axis("n", x.shape[0]), Axis("c", width * group), *loop_axes(outputs, "y"))
    acc = _contracted(data, weight, axes, (Axis("k", depth), *loop_axes(taps, "r")))
    return _with_bias(acc, optional(types, 2), x.dtype)


def _conv_transpose_reference(attrs: Attrs, x: Numbers, w: Numbers, *bias: Numbers) -> Numbers:
    """Multiplies matrices tap by tap and adds the products into the strided outputs they belong to."""
    group, view, sizes = attr(attrs, "group", 1), window(attrs, w.shape[2:]), x.shape[2:]
    n, (depth, width) = x.shape[0], (w.shape[0] // group, w.shape[1])
    outputs = _transposed_outputs(view, sizes, attrs)
    weights = w.reshape(group, depth, width, *view.kernel).swapaxes(1, 2)
    data = x.reshape(n, group, depth, math.prod(sizes))
    room = (
        max(o + s.begin, s.stride * size + s.span) for o, s, size in zip(outputs, view, sizes, strict=True)
    )
    out: Numbers = np.zeros((n, group * width, *room), np.result_type(x, w))
    for place, spots in view.taps(sizes):
        out[spots] += (weights[place] @ data).reshape(n, group * width, *sizes)
    crop: list[Any] = [slice(s.begin, s.begin + output) for s, output in zip(view, outputs, strict=True)]
    return _per_channel(out[(..., *crop)], bias)


def _matmul(types: InputTypes, attrs: Attrs) -> Lowering:
    """numpy's `matmul`: a 1-D operand is a row on the left and a column on the right, not in the result."""
    a, b = required(types, 0), required(types, 1)
    _require(a.rank > 0 and b.rank > 0, f"matrix product of {a} and {b}")
    _require(a.shape[-1] == b.shape[-2 if b.rank > 1 else 0], f"matrix product of {a} and {b}")
    batch = loop_axes(broadcast_shape(a.shape[:-2], b.shape[:-2]), "b")
    m = (Axis("m", a.shape[-2]),) if a.rank > 1 else ()
    n = (Axis("n", b.shape[-1]),) if b.rank > 1 else ()
    k = (Axis("k", a.shape[-1]),)
    left, right = load("in0", a, (*batch, *m, *k)), load("in1", b, (*batch, *k, *n))
    acc = _contracted(left, right, (*batch, *m, *n), k)
    return _finished(acc, load_stage(acc), a.dtype)


def _scaled(x: Expr, factor: float) -> Expr:
    return x if factor == 1 else calc("mul", factor, x)


def _gemm(types: InputTypes, attrs: Attrs) -> Lowering:
    """alpha * A' B' + beta * C; C is not read where beta is 0."""
    a, b, c = required(types, 0), required(types, 1), optional(types, 2)
    _require(a.rank == b.rank == 2, f"gemm of {a} and {b}")
    a_axes = ("k", "m") if attr(attrs, "transA", 0) else ("m", "k")
    b_axes = ("n", "k") if attr(attrs, "transB", 0) else ("k", "n")
    a_sizes, b_sizes = dict(zip(a_axes, a.shape, strict=True)), dict(zip(b_axes, b.shape, strict=True))
    _require(a_sizes["k"] == b_sizes["k"], f"gemm of {a} and {b}")
    axes = (Axis("m", a_sizes["m"]), Axis("n", b_sizes["n"]))
    left, right = Load("in0", tuple(map(idx, a_axes)), a.dtype), Load("in1", tuple(map(idx, b_axes)), b.dtype)
    acc = _contracted(left, right, axes, (Axis("k", a_sizes["k"]),))
    out, beta = _scaled(load_stage(acc), attr(attrs, "alpha", 1.0)), attr(attrs, "beta", 1.0)
    if c is not None and beta != 0:
        out = binary("add", out, _scaled(cast(load("in2", c, axes), acc.dtype), beta))
    return _finished(acc, out, a.dtype)


def _gemm_reference(attrs: Attrs, a: Numbers, b: Numbers, *c: Numbers) -> Numbers:
    product = (a.T if attr(attrs, "transA", 0) else a) @ (b.T if attr(attrs, "transB", 0) else b)
    alpha, beta = (product.dtype.type(attr(attrs, name, 1.0)) for name in ("alpha", "beta"))
    return np.asarray(alpha * product + beta * c[0] if c and beta != 0 else alpha * product)


define("conv", _conv, reference(_conv_reference))
define("conv_transpose", _conv_transpose, reference(_conv_transpose_reference))
define("matmul", _matmul, reference(lambda _, a, b: np.matmul(a, b)))
define("gemm", _gemm, reference(_gemm_reference))
