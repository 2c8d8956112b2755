"""Softmax and the normalisations: each a few row reductions, then one elementwise stage.

Float16 is computed in float32 and rounded once at the end. The variance is the mean of squared
deviations (two passes), never mean(x^2) - mean(x)^2, which cancels. Softmax follows its formula: a NaN, or a
maximum of +inf, or a row of nothing but -inf gives NaN.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from onepass.core.dtypes import DType
from onepass.core.errors import ShapeError
from onepass.core.tensor import TensorType
from onepass.loops.build import add, binary, cast, floordiv, fma, idx, mul, sub, unary
from onepass.loops.ir import Const, Expr, Load
from onepass.ops.opdef import Attrs, Axis, Compute, InputTypes, Lowering, define
from onepass.ops.reductions import Rows, reduce_stage, square
from onepass.ops.shapes import (
    Numbers,
    as_float,
    attr,
    calc,
    literal,
    load,
    load_stage,
    loop_axes,
    normalize_axis,
    optional,
    reference,
    required,
)


def _epsilon(attrs: Attrs) -> float:
    return attr(attrs, "epsilon", 1e-5)  # ONNX's default


def _softmax_rows(types: InputTypes, attrs: Attrs) -> tuple[TensorType, Rows, Compute]:
    """The input, its rows along `axis`, and the stage of their maxima."""
    x = required(types, 0)
    rows = Rows(x.shape, (normalize_axis(attr(attrs, "axis", -1), x.rank),))
    return x, rows, rows.combine("max", rows.at_inner("in0", x.dtype), "max")


def _softmax(types: InputTypes, attrs: Attrs) -> Lowering:
    x, rows, top = _softmax_rows(types, attrs)
    dtype = as_float(x.dtype)
    shifted = binary("sub", cast(load("in0", x, rows.axes), dtype), cast(load_stage(top), dtype))
    exp = Compute("exp", dtype, rows.axes, unary("exp", shifted))
    total = rows.combine("sum", rows.at_inner("exp", dtype), "add")
    # One division a row: the sum lies between 1 and the length of a row, so its inverse loses nothing.
    inverse = Compute("inverse", dtype, rows.kept, calc("div", 1.0, load_stage(total)))
    body = binary("mul", load_stage(exp), load_stage(inverse))
    out = Compute("out", x.dtype, rows.axes, cast(body, x.dtype))
    return Lowering((top, exp, total, inverse, out), ("out",))


def _log_softmax(types: InputTypes, attrs: Attrs) -> Lowering:
    x, rows, top = _softmax_rows(types, attrs)
    dtype = as_float(x.dtype)
    inner, outer = (
        binary("sub", cast(element, dtype), cast(load_stage(top), dtype))
        for element in (rows.at_inner("in0", x.dtype), load("in0", x, rows.axes))
    )
    total = rows.combine("sum", unary("exp", inner), "add")
    log = Compute("log", dtype, rows.kept, unary("log", load_stage(total)))
    out = Compute("out", x.dtype, rows.axes, cast(binary("sub", outer, load_stage(log)), x.dtype))
    return Lowering((top, total, log, out), ("out",))


def _softmax_reference(attrs: Attrs, x: Numbers, log: bool = False) -> Numbers:
    axis = attr(attrs, "axis", -1)
    shifted = x - x.max(axis, keepdims=True, initial=-np.inf)
    e = np.exp(shifted)
    total = e.sum(axis, keepdims=True)
    return np.asarray(shifted - np.log(total) if log else e / total)


def _channel(types: InputTypes, position: int, x: TensorType, dtype: DType) -> Expr:
    """The element of a vector over channels (dimension 1) that belongs to `i1`."""
    vector, channels = required(types, position), x.shape[1] if x.rank > 1 else 1
    if vector.shape != (channels,):
        raise ShapeError(
            f"input {position} has the shape {vector.shape}", why=f"there are {channels} channels"
        )
    return cast(Load(f"in{position}", (idx("i1") if x.rank > 1 else Const(0),), vector.dtype), dtype)


def _batch_norm(types: InputTypes, attrs: Attrs) -> Lowering:
    x = required(types, 0)
    dtype = as_float(max((required(types, k).dtype for k in range(5)), key=lambda dtype: dtype.bits))
    scale, bias, mean, variance = (_channel(types, k, x, dtype) for k in range(1, 5))
    axes = loop_axes(x.shape)
    centred = binary("sub", cast(load("in0", x, axes), dtype), mean)
    factor = binary("div", scale, unary("sqrt", calc("add", variance, _epsilon(attrs))))
    body = binary("add", binary("mul", centred, factor), bias)
    return Lowering((Compute("out", x.dtype, axes, cast(body, x.dtype)),), ("out",))


def _per_channel(x: Numbers, *vectors: Numbers) -> list[Numbers]:
    return [vector.reshape(-1, *(1,) * max(0, x.ndim - 2)) for vector in vectors]


def _batch_norm_reference(attrs: Attrs, x: Numbers, *vectors: Numbers) -> Numbers:
    scale, bias, mean, variance = _per_channel(x, *vectors) if x.ndim > 1 else vectors
    return np.asarray((x - mean) * (scale / np.sqrt(variance + _epsilon(attrs))) + bias)


def _normalized(
    x: TensorType,
    value: Expr,
    kept: tuple[Axis, ...],
    inner: tuple[Axis, ...],
    row: tuple[Expr, ...],
    attrs: Attrs,
    centred: bool = True,
) -> tuple[tuple[Compute, ...], Expr]:
    """Stages of the rows' moments, and the element of `x` at `i0`, ... less the mean, over the deviation.

    `value` is the element at a row `kept` and a place `inner` in it, `row` the row of `i0`, `i1`, ...
    Without `centred` the mean is taken to be 0.
    """
    length, dtype, stages = math.prod(axis.extent for axis in inner), value.dtype, []
    element = cast(load("in0", x, loop_axes(x.shape)), dtype)
    if centred:
        total = reduce_stage("sum", kept, value, inner, "add")
        mean = Compute("mean", dtype, kept, calc("div", load_stage(total), length))
        value = binary("sub", value, load_stage(mean))
        element = binary("sub", element, Load("mean", row, dtype))
        stages = [total, mean]
    squares = reduce_stage("square_sum", kept, square(value), inner, "add")
    variance = Compute("variance", dtype, kept, calc("div", load_stage(squares), length))
    root = unary("sqrt", calc("add", load_stage(variance), _epsilon(attrs)))
    inverse = Compute("inverse_std", dtype, kept, calc("div", 1.0, root))
    return (*stages, squares, variance, inverse), binary("mul", element, Load("inverse_std", row, dtype))


def _scaled(
    stages: tuple[Compute, ...], value: Expr, x: TensorType, scale: Expr, bias: Expr | None
) -> Lowering:
    body = binary("mul", value, scale) if bias is None else fma(value, scale, bias)
    return Lowering((*stages, Compute("out", x.dtype, loop_axes(x.shape), cast(body, x.dtype))), ("out",))


def _group_norm(types: InputTypes, attrs: Attrs) -> Lowering:
    """Without `num_groups` each channel is a group of its own: instance normalisation."""
    x = required(types, 0)
    groups = attr(attrs, "num_groups", x.shape[1] if x.rank > 1 else 0)
    if groups < 1 or x.rank < 2 or x.shape[1] % groups:
        raise ShapeError(f"the channels of {x} do not divide into {groups} groups")
    size, dtype = x.shape[1] // groups, as_float(x.dtype)
    kept = (Axis("i0", x.shape[0]), Axis("i1", groups))
    inner = loop_axes((size, *x.shape[2:]) if size > 1 else x.shape[2:], "r")
    spots = [idx(axis.name) for axis in inner]
    channel = add(mul(idx("i1"), size), spots.pop(0)) if size > 1 else idx("i1")
    value = cast(Load("in0", (idx("i0"), channel, *spots), x.dtype), dtype)
    row = (idx("i0"), floordiv(idx("i1"), size))
    scale, bias = (_channel(types, k, x, dtype) for k in (1, 2))
    return _scaled(*_normalized(x, value, kept, inner, row, attrs), x, scale, bias)


def _row_norm(types: InputTypes, attrs: Attrs, centred: bool = True) -> Lowering:
    """Over the trailing dimensions from `axis` on."""
    x = required(types, 0)
    rows = Rows(x.shape, tuple(range(normalize_axis(attr(attrs, "axis", -1), x.rank), x.rank)))
    dtype = as_float(x.dtype)
    value = cast(rows.at_inner("in0", x.dtype), dtype)
    row = tuple(idx(axis.name) for axis in rows.kept)
    scale, bias = required(types, 1), optional(types, 2)
    return _scaled(
        *_normalized(x, value, rows.kept, rows.inner, row, attrs, centred),
        x,
        cast(load("in1", scale, rows.axes), dtype),
        None if bias is None else cast(load("in2", bias, rows.axes), dtype),
    )


def _normalized_reference(attrs: Attrs, x: Numbers, axes: tuple[int, ...], centred: bool = True) -> Numbers:
    x = x - x.mean(axes, keepdims=True) if centred else x
    return np.asarray(x / np.sqrt((x * x).mean(axes, keepdims=True) + _epsilon(attrs)))


def _group_norm_reference(attrs: Attrs, x: Numbers, *vectors: Numbers) -> Numbers:
    groups = attr(attrs, "num_groups", x.shape[1])
    grouped = x.reshape(x.shape[0], groups, math.prod(x.shape[1:]) // groups)
    scale, bias = _per_channel(x, *vectors)
    return np.asarray(_normalized_reference(attrs, grouped, (2,)).reshape(x.shape) * scale + bias)


def _row_norm_reference(
    attrs: Attrs, x: Numbers, scale: Numbers, *bias: Numbers, centred: bool = True
) -> Numbers:
    axes = tuple(range(attr(attrs, "axis", -1) % x.ndim, x.ndim))
    scaled = _normalized_reference(attrs, x, axes, centred) * scale
    return scaled + bias[0] if bias else scaled


def _lrn_attrs(attrs: Attrs) -> tuple[int, float, float, float]:
    """Window, alpha / window, beta, bias."""
    size, alpha = attr(attrs, "size", 1), attr(attrs, "alpha", 1e-4)
    return size, alpha / size, attr(attrs, "beta", 0.75), attr(attrs, "bias", 1.0)


def _lrn(types: InputTypes, attrs: Attrs) -> Lowering:
    """The window over channels is zero outside the tensor. The usual beta of 3/4 needs only square roots."""
    x = required(types, 0)
    size, alpha, beta, bias = _lrn_attrs(attrs)
    dtype, axes = as_float(x.dtype), loop_axes(x.shape)
    channel = sub(add(idx("i1"), idx("r0")), (size - 1) // 2)
    indices = tuple(channel if k == 1 else idx(a.name) for k, a in enumerate(axes))
    value = cast(Load("in0", indices, x.dtype, fill=literal(0, x.dtype)), dtype)
    squares = reduce_stage("square_sum", axes, square(value), (Axis("r0", size),), "add")
    base = Compute("base", dtype, axes, calc("add", calc("mul", load_stage(squares), alpha), bias))
    root = unary("sqrt", load_stage(base))
    power = binary("mul", root, unary("sqrt", root)) if beta == 0.75 else calc("pow", load_stage(base), beta)
    body = binary("div", cast(load("in0", x, axes), dtype), power)
    return Lowering((squares, base, Compute("out", x.dtype, axes, cast(body, x.dtype))), ("out",))


def _lrn_reference(attrs: Attrs, x: Numbers) -> Numbers:
    size, alpha, beta, bias = _lrn_attrs(attrs)
    before = (size - 1) // 2
    padded = np.pad(x * x, [(0, 0), (before, size - 1 - before)] + [(0, 0)] * (x.ndim - 2))
    squares = sum(padded[:, k : k + x.shape[1]] for k in range(size))
    return np.asarray(x / (bias + alpha * squares) ** beta)


define("softmax", _softmax, reference(_softmax_reference, as_float))
define("log_softmax", _log_softmax, reference(partial(_softmax_reference, log=True), as_float))
define("batch_normalization", _batch_norm, reference(_batch_norm_reference, as_float))
define("instance_normalization", _group_norm, reference(_group_norm_reference, as_float))
define("group_normalization", _group_norm, reference(_group_norm_reference, as_float))
define("layer_normalization", _row_norm, reference(_row_norm_reference, as_float))
define("rms_normalization", partial(_row_norm, centred=False),
       reference(partial(_row_norm_reference, centred=False), as_float))  # fmt: skip
define("lrn", _lrn, reference(_lrn_reference, as_float))
