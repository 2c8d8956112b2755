"""Softmax and the normalisations: each a few row reductions, then one elementwise stage.

Float16 is computed in float32 and rounded once at the end. The variance is the mean of squared
deviations (two passes), never mean(x^2) - mean(x)^2, which cancels. Softmax follows its formula: a NaN, or a
maximum of +inf, or a row of nothing but -inf gives NaN.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onepass.core.dtypes import DType, dtype_of_numpy
from onepass.core.errors import ShapeError
from onepass.core.tensor import Shape, TensorType
from onepass.loops.build import add, binary, cast, const, floordiv, idx, mul, select, sub, unary
from onepass.loops.ir import Const, Expr, Load
from onepass.ops.opdef import Attrs, Axis, Compute, InputTypes, Lowering, OpDef, define
from onepass.ops.reductions import Rows, reduce_stage
from onepass.ops.shapes import (
    Numbers,
    as_float,
    broadcast_shape,
    calc,
    float_attr,
    int_attr,
    ints_attr,
    load,
    load_stage,
    loop_axes,
    normalize_axis,
    optional,
    reference,
    required,
)

EPSILON = 1e-5  # ONNX's default
MVN_EPSILON = 1e-9  # in ONNX's definition of MeanVarianceNormalization


def _square(x: Expr) -> Expr:
    return binary("mul", x, x)


def _rows(types: InputTypes, attrs: Attrs, default_axis: int = -1) -> Rows:
    x = required(types, 0)
    return Rows(x.shape, (normalize_axis(int_attr(attrs, "axis", default_axis), x.rank),))


def _lower_softmax(types: InputTypes, attrs: Attrs) -> Lowering:
    x, rows = required(types, 0), _rows(types, attrs)
    dtype = as_float(x.dtype)
    top = rows.combine("max", rows.at_inner("in0", x.dtype), "max")
    shifted = binary("sub", cast(load("in0", x, rows.axes), dtype), cast(load_stage(top), dtype))
    exp = Compute("exp", dtype, rows.axes, unary("exp", shifted))
    total = rows.combine("sum", rows.at_inner("exp", dtype), "add")
    out = Compute("out", x.dtype, rows.axes, cast(binary("div", load_stage(exp), load_stage(total)), x.dtype))
    return Lowering((top, exp, total, out), ("out",))


def _lower_log_softmax(types: InputTypes, attrs: Attrs) -> Lowering:
    x, rows = required(types, 0), _rows(types, attrs)
    dtype = as_float(x.dtype)
    top = rows.combine("max", rows.at_inner("in0", x.dtype), "max")
    peak = cast(load_stage(top), dtype)
    inner = binary("sub", cast(rows.at_inner("in0", x.dtype), dtype), peak)
    total = rows.combine("sum", unary("exp", inner), "add")
    log = Compute("log", dtype, rows.kept, unary("log", load_stage(total)))
    shifted = binary("sub", cast(load("in0", x, rows.axes), dtype), peak)
    out = Compute("out", x.dtype, rows.axes, cast(binary("sub", shifted, load_stage(log)), x.dtype))
    return Lowering((top, total, log, out), ("out",))


def _working(x: Numbers) -> Numbers:
    return x.astype(as_float(dtype_of_numpy(x.dtype)).numpy)


def _softmax_reference(inputs: Any, attrs: Attrs) -> Numbers:
    x, axis = _working(inputs[0]), int_attr(attrs, "axis", -1)
    if not x.size:
        return np.asarray(inputs[0])
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray((e / e.sum(axis, keepdims=True)).astype(inputs[0].dtype))


def _log_softmax_reference(inputs: Any, attrs: Attrs) -> Numbers:
    x, axis = _working(inputs[0]), int_attr(attrs, "axis", -1)
    if not x.size:
        return np.asarray(inputs[0])
    shifted = x - x.max(axis, keepdims=True)
    log = np.log(np.exp(shifted).sum(axis, keepdims=True))
    return np.asarray((shifted - log).astype(inputs[0].dtype))


def _channel(name: str, tensor: TensorType | None, x: TensorType, dtype: DType) -> Expr | None:
    """The element of a vector over channels (dimension 1) that belongs to `i1`."""
    if tensor is None:
        return None
    channels = x.shape[1] if x.rank > 1 else 1
    if tensor.shape != (channels,):
        raise ShapeError(f"{name} has the shape {tensor.shape}", why=f"there are {channels} channels")
    return cast(Load(name, (idx("i1") if x.rank > 1 else Const(0),), tensor.dtype), dtype)


def _affine(x: Expr, scale: Expr | None, bias: Expr | None) -> Expr:
    scaled = x if scale is None else binary("mul", x, scale)
    return scaled if bias is None else binary("add", scaled, bias)


def _lower_batch_norm(types: InputTypes, attrs: Attrs) -> Lowering:
    x = required(types, 0)
    given = [required(types, k) for k in range(5)]
    dtype = as_float(max((t.dtype for t in given), key=lambda dtype: dtype.bits))
    scale, bias, mean, variance = (_channel(f"in{k}", given[k], x, dtype) for k in range(1, 5))
    assert scale is not None and bias is not None and mean is not None and variance is not None
    deviation = unary("sqrt", calc("add", variance, float_attr(attrs, "epsilon", EPSILON)))
    axes = loop_axes(x.shape)
    centred = binary("sub", cast(load("in0", x, axes), dtype), mean)
    body = _affine(centred, binary("div", scale, deviation), bias)
    return Lowering((Compute("out", x.dtype, axes, cast(body, x.dtype)),), ("out",))


def _batch_norm_reference(inputs: Any, attrs: Attrs) -> Numbers:
    x = inputs[0]
    shape = (-1, *(1,) * (x.ndim - 2)) if x.ndim > 1 else (1,)
    scale, bias, mean, variance = (_working(v).reshape(shape) for v in inputs[1:])
    factor = scale / np.sqrt(variance + float_attr(attrs, "epsilon", EPSILON))
    return np.asarray(((_working(x) - mean) * factor + bias).astype(x.dtype))


def _moments(x: Expr, kept: tuple[Axis, ...], inner: tuple[Axis, ...]) -> tuple[Compute, ...]:
    """Stages `sum`, `mean`, `square_sum`, `variance` of `x` over `inner`, one element for each of `kept`."""
    length = math.prod(axis.extent for axis in inner)
    total = reduce_stage("sum", kept, x, inner, "add")
    mean = Compute("mean", x.dtype, kept, calc("div", load_stage(total), length))
    squares = reduce_stage("square_sum", kept, _square(binary("sub", x, load_stage(mean))), inner, "add")
    variance = Compute("variance", x.dtype, kept, calc("div", load_stage(squares), length))
    return total, mean, squares, variance


def _inverse_std(mean_square: Compute, epsilon: float) -> Compute:
    body = calc("div", 1.0, unary("sqrt", calc("add", load_stage(mean_square), epsilon)))
    return Compute("inverse_std", mean_square.dtype, mean_square.axes, body)


def _standardize(
    x: TensorType, moments: tuple[Compute, ...], epsilon: float, row: tuple[Expr, ...],
    scale: Expr | None, bias: Expr | None,
) -> Lowering:  # fmt: skip
    """Last stages: `(x - mean) * inverse_std * scale + bias`; `row` indexes the moments at `i0`, `i1`, ..."""
    mean, inverse = moments[1], _inverse_std(moments[-1], epsilon)
    axes = loop_axes(x.shape)
    centred = binary("sub", cast(load("in0", x, axes), mean.dtype), Load("mean", row, mean.dtype))
    body = _affine(binary("mul", centred, Load("inverse_std", row, mean.dtype)), scale, bias)
    return Lowering((*moments, inverse, Compute("out", x.dtype, axes, cast(body, x.dtype))), ("out",))


def _lower_instance_norm(types: InputTypes, attrs: Attrs) -> Lowering:
    x = required(types, 0)
    dtype = as_float(x.dtype)
    rows = Rows(x.shape, tuple(range(2, x.rank)))
    moments = _moments(cast(rows.at_inner("in0", x.dtype), dtype), rows.kept, rows.inner)
    scale, bias = (_channel(f"in{k}", required(types, k), x, dtype) for k in (1, 2))
    row = tuple(idx(axis.name) for axis in rows.kept)
    return _standardize(x, moments, float_attr(attrs, "epsilon", EPSILON), row, scale, bias)


def _lower_group_norm(types: InputTypes, attrs: Attrs) -> Lowering:
    x, groups = required(types, 0), int_attr(attrs, "num_groups", 1)
    if x.rank < 2 or groups < 1 or x.shape[1] % groups:
        raise ShapeError(f"the channels of {x} do not divide into {groups} groups")
    size, dtype = x.shape[1] // groups, as_float(x.dtype)
    kept = (Axis("i0", x.shape[0]), Axis("i1", groups))
    inner = loop_axes((size, *x.shape[2:]), "r")
    indices = (idx("i0"), add(mul(idx("i1"), size), idx("r0")), *(idx(a.name) for a in inner[1:]))
    moments = _moments(cast(Load("in0", indices, x.dtype), dtype), kept, inner)
    scale, bias = (_channel(f"in{k}", required(types, k), x, dtype) for k in (1, 2))
    row = (idx("i0"), floordiv(idx("i1"), size))
    return _standardize(x, moments, float_attr(attrs, "epsilon", EPSILON), row, scale, bias)


def _broadcast_to(name: str, tensor: TensorType | None, rows: Rows, dtype: DType) -> Expr | None:
    if tensor is None:
        return None
    if broadcast_shape(rows.shape, tensor.shape) != rows.shape:
        raise ShapeError(f"{name} of shape {tensor.shape} does not broadcast to {rows.shape}")
    return cast(load(name, tensor, rows.axes), dtype)


def _trailing(types: InputTypes, attrs: Attrs) -> Rows:
    x = required(types, 0)
    first = normalize_axis(int_attr(attrs, "axis", -1), x.rank)
    return Rows(x.shape, tuple(range(first, x.rank)))


def _lower_layer_norm(types: InputTypes, attrs: Attrs) -> Lowering:
    x, rows = required(types, 0), _trailing(types, attrs)
    dtype = as_float(x.dtype)
    moments = _moments(cast(rows.at_inner("in0", x.dtype), dtype), rows.kept, rows.inner)
    scale = _broadcast_to("in1", required(types, 1), rows, dtype)
    bias = _broadcast_to("in2", optional(types, 2), rows, dtype)
    row = tuple(idx(axis.name) for axis in rows.kept)
    return _standardize(x, moments, float_attr(attrs, "epsilon", EPSILON), row, scale, bias)


def _lower_rms_norm(types: InputTypes, attrs: Attrs) -> Lowering:
    x, rows = required(types, 0), _trailing(types, attrs)
    dtype = as_float(x.dtype)
    squares = rows.combine("square_sum", _square(cast(rows.at_inner("in0", x.dtype), dtype)), "add")
    mean = Compute("mean_square", dtype, rows.kept, calc("div", load_stage(squares), rows.length))
    inverse = _inverse_std(mean, float_attr(attrs, "epsilon", EPSILON))
    value = binary("mul", cast(load("in0", x, rows.axes), dtype), load_stage(inverse))
    body = _affine(value, _broadcast_to("in1", required(types, 1), rows, dtype), None)
    out = Compute("out", x.dtype, rows.axes, cast(body, x.dtype))
    return Lowering((squares, mean, inverse, out), ("out",))


def _standardize_reference(x: Numbers, axes: tuple[int, ...], epsilon: float) -> Numbers:
    centred = x - x.mean(axes, keepdims=True)
    return np.asarray(centred / np.sqrt((centred * centred).mean(axes, keepdims=True) + epsilon))


def _per_channel(vector: Numbers, shape: Shape) -> Numbers:
    return _working(vector).reshape(-1, *(1,) * (len(shape) - 2))


def _instance_norm_reference(inputs: Any, attrs: Attrs) -> Numbers:
    x, scale, bias = inputs
    y = _standardize_reference(_working(x), tuple(range(2, x.ndim)), float_attr(attrs, "epsilon", EPSILON))
    return np.asarray((y * _per_channel(scale, x.shape) + _per_channel(bias, x.shape)).astype(x.dtype))


def _group_norm_reference(inputs: Any, attrs: Attrs) -> Numbers:
    x, scale, bias = inputs
    groups = int_attr(attrs, "num_groups", 1)
    split = _working(x).reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    axes = tuple(range(2, split.ndim))
    y = _standardize_reference(split, axes, float_attr(attrs, "epsilon", EPSILON)).reshape(x.shape)
    return np.asarray((y * _per_channel(scale, x.shape) + _per_channel(bias, x.shape)).astype(x.dtype))


def _layer_norm_reference(inputs: Any, attrs: Attrs) -> Numbers:
    x, scale, *bias = inputs
    axes = tuple(range(int_attr(attrs, "axis", -1) % x.ndim, x.ndim))
    y = _standardize_reference(_working(x), axes, float_attr(attrs, "epsilon", EPSILON)) * scale
    return np.asarray((y + bias[0] if bias else y).astype(x.dtype))


def _rms_norm_reference(inputs: Any, attrs: Attrs) -> Numbers:
    x, scale = inputs
    work, axes = _working(x), tuple(range(int_attr(attrs, "axis", -1) % x.ndim, x.ndim))
    root = np.sqrt((work * work).mean(axes, keepdims=True) + float_attr(attrs, "epsilon", EPSILON))
    return np.asarray((work / root * scale).astype(x.dtype))


def _lower_lp_norm(types: InputTypes, attrs: Attrs) -> Lowering:
    """A row of norm 0 stays 0."""
    x, rows, p = required(types, 0), _rows(types, attrs), int_attr(attrs, "p", 2)
    if p not in (1, 2):
        raise ShapeError(f"lp_normalization has p = {p}", why="ONNX knows 1 and 2")
    dtype = as_float(x.dtype)
    inner = cast(rows.at_inner("in0", x.dtype), dtype)
    total = rows.combine("sum", _square(inner) if p == 2 else unary("abs", inner), "add")
    norm = Compute(
        "norm", dtype, rows.kept, unary("sqrt", load_stage(total)) if p == 2 else load_stage(total)
    )
    quotient = binary("div", cast(load("in0", x, rows.axes), dtype), load_stage(norm))
    body = select(calc("eq", load_stage(norm), 0.0), const(0.0, dtype), quotient)
    return Lowering((total, norm, Compute("out", x.dtype, rows.axes, cast(body, x.dtype))), ("out",))


def _lp_norm_reference(inputs: Any, attrs: Attrs) -> Numbers:
    x, axis = _working(inputs[0]), int_attr(attrs, "axis", -1)
    norm = np.linalg.norm(x, int_attr(attrs, "p", 2), axis, keepdims=True)
    return np.asarray(np.where(norm == 0, 0, x / norm).astype(inputs[0].dtype))


def _lower_mean_variance(types: InputTypes, attrs: Attrs) -> Lowering:
    x = required(types, 0)
    dtype = as_float(x.dtype)
    axes = ints_attr(attrs, "axes") or (0, 2, 3)
    rows = Rows(x.shape, tuple(sorted({normalize_axis(axis, x.rank) for axis in axes})))
    moments = _moments(cast(rows.at_inner("in0", x.dtype), dtype), rows.kept, rows.inner)
    deviation = calc("add", unary("sqrt", load_stage(moments[-1])), MVN_EPSILON)
    centred = binary("sub", cast(load("in0", x, rows.axes), dtype), load_stage(moments[1]))
    out = Compute("out", x.dtype, rows.axes, cast(binary("div", centred, deviation), x.dtype))
    return Lowering((*moments, out), ("out",))


def _mean_variance_reference(inputs: Any, attrs: Attrs) -> Numbers:
    x, axes = _working(inputs[0]), ints_attr(attrs, "axes") or (0, 2, 3)
    y = (x - x.mean(axes, keepdims=True)) / (x.std(axes, keepdims=True) + MVN_EPSILON)
    return np.asarray(y.astype(inputs[0].dtype))


def _lrn_attrs(attrs: Attrs) -> tuple[int, float, float, float]:
    """Window, alpha / window, beta, bias."""
    size = int_attr(attrs, "size", 1)
    alpha, beta = float_attr(attrs, "alpha", 1e-4), float_attr(attrs, "beta", 0.75)
    return size, alpha / size, beta, float_attr(attrs, "bias", 1.0)


def _lower_lrn(types: InputTypes, attrs: Attrs) -> Lowering:
    """The window over channels is zero outside the tensor. The usual beta of 3/4 needs only square roots."""
    x = required(types, 0)
    size, alpha, beta, bias = _lrn_attrs(attrs)
    dtype, axes = as_float(x.dtype), loop_axes(x.shape)
    channel = sub(add(idx("i1"), idx("r0")), (size - 1) // 2)
    indices = tuple(channel if k == 1 else idx(a.name) for k, a in enumerate(axes))
    value = cast(Load("in0", indices, x.dtype, fill=0.0), dtype)
    squares = reduce_stage("square_sum", axes, _square(value), (Axis("r0", size),), "add")
    base = Compute("base", dtype, axes, calc("add", calc("mul", load_stage(squares), alpha), bias))
    root = unary("sqrt", load_stage(base))
    power = binary("mul", root, unary("sqrt", root)) if beta == 0.75 else calc("pow", load_stage(base), beta)
    body = binary("div", cast(load("in0", x, axes), dtype), power)
    return Lowering((squares, base, Compute("out", x.dtype, axes, cast(body, x.dtype))), ("out",))


def _lrn_reference(inputs: Any, attrs: Attrs) -> Numbers:
    size, alpha, beta, bias = _lrn_attrs(attrs)
    x = _working(inputs[0])
    before = (size - 1) // 2
    padded = np.pad(x * x, [(0, 0), (before, size - 1 - before)] + [(0, 0)] * (x.ndim - 2))
    squares = sum(padded[:, k : k + x.shape[1]] for k in range(size))
    return np.asarray((x / (bias + alpha * squares) ** beta).astype(inputs[0].dtype))


for _op in (
    OpDef("softmax", _lower_softmax, reference(_softmax_reference),
          "Exponentials of a row, divided by their sum."),
    OpDef("log_softmax", _lower_log_softmax, reference(_log_softmax_reference), "Logarithm of softmax."),
    OpDef("batch_normalization", _lower_batch_norm, reference(_batch_norm_reference),
          "Centres and scales each channel by given mean and variance."),
    OpDef("instance_normalization", _lower_instance_norm, reference(_instance_norm_reference),
          "Centres and scales each channel of each sample by its own mean and variance."),
    OpDef("group_normalization", _lower_group_norm, reference(_group_norm_reference),
          "Centres and scales groups of channels by their own mean and variance."),
    OpDef("layer_normalization", _lower_layer_norm, reference(_layer_norm_reference),
          "Centres and scales the trailing dimensions by their own mean and variance."),
    OpDef("rms_normalization", _lower_rms_norm, reference(_rms_norm_reference),
          "Divides the trailing dimensions by the root of their mean square."),
    OpDef("lp_normalization", _lower_lp_norm, reference(_lp_norm_reference), "Divides a row by its norm."),
    OpDef("mean_variance_normalization", _lower_mean_variance, reference(_mean_variance_reference),
          "Centres over dimensions and divides by the standard deviation."),
    OpDef("lrn", _lower_lrn, reference(_lrn_reference),
          "Divides by a power of the squares' sum over neighbouring channels."),
):  # fmt: skip
    define(_op)
