"""Reductions over any set of dimensions, index of the extreme, and running sums.

Axes keep the number of the input's dimension: reducing dimension 1 of four leaves `i0`, `i2`, `i3`
(and `i1` of extent 1 with `keepdims`); reduced dimensions run as `r0`, `r1`, ... Sums of float16 run in
float32. A reduction over nothing gives the identity: 0, 1, or the least or greatest value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onepass.core.dtypes import BOOL, U8, DType, dtype_of_numpy
from onepass.core.tensor import Shape, TensorType
from onepass.loops.build import add, binary, cast, const, idx, select, sub, unary
from onepass.loops.ir import Expr, Load
from onepass.loops.numerics import limits
from onepass.ops.opdef import Attrs, Axis, Combine, Compute, InputTypes, Lowering, OpDef, define
from onepass.ops.pointwise import truncated_quotient
from onepass.ops.shapes import (
    Numbers,
    as_float,
    calc,
    count,
    int_attr,
    ints_attr,
    load_stage,
    loop_axes,
    normalize_axis,
    reference,
    required,
    wide,
)


@dataclass(frozen=True, slots=True)
class Rows:
    """A tensor seen as rows: the dimensions `reduced` run within a row, the others number the rows."""

    shape: Shape
    reduced: tuple[int, ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        """One axis a dimension."""
        return loop_axes(self.shape)

    @property
    def kept(self) -> tuple[Axis, ...]:
        """The axes that number the rows."""
        return tuple(axis for k, axis in enumerate(self.axes) if k not in self.reduced)

    @property
    def inner(self) -> tuple[Axis, ...]:
        """The axes within a row: `r0`, `r1`, ..."""
        return tuple(Axis(f"r{j}", self.shape[k]) for j, k in enumerate(self.reduced))

    @property
    def length(self) -> int:
        """Elements of one row."""
        return count(self.shape, self.reduced)

    def at_inner(self, name: str, dtype: DType) -> Load:
        """The element of buffer `name` at a row and a place within it."""
        names = {k: f"r{j}" for j, k in enumerate(self.reduced)}
        return Load(name, tuple(idx(names.get(k, f"i{k}")) for k in range(len(self.shape))), dtype)

    def combine(self, name: str, body: Expr, combine: Combine) -> Compute:
        """The stage with one element a row, `body` combined along it."""
        return reduce_stage(name, self.kept, body, self.inner, combine)


def reduce_stage(
    name: str, axes: tuple[Axis, ...], body: Expr, inner: tuple[Axis, ...], combine: Combine
) -> Compute:
    """A stage that combines `body` over `inner`; without `inner` a plain one."""
    return Compute(name, body.dtype, axes, body, inner, combine if inner else None)


def reduced_axes(attrs: Attrs, rank: int) -> tuple[int, ...]:
    """The dimensions that `axes` names, in order; without any, all, or none with `noop_with_empty_axes`."""
    axes = ints_attr(attrs, "axes")
    if axes:
        return tuple(sorted({normalize_axis(axis, rank) for axis in axes}))
    return () if int_attr(attrs, "noop_with_empty_axes", 0) else tuple(range(rank))


def _output_axes(rows: Rows, keepdims: bool) -> tuple[Axis, ...]:
    if not keepdims:
        return rows.kept
    return tuple(Axis(a.name, 1 if k in rows.reduced else a.extent) for k, a in enumerate(rows.axes))


def _keepdims(attrs: Attrs) -> bool:
    return bool(int_attr(attrs, "keepdims", 1))


def _reduction(
    name: str,
    combine: Combine,
    compute: Callable[[Numbers, tuple[int, ...], bool], Any],
    doc: str,
    *,
    working: Callable[[DType], DType] = wide,
    before: Callable[[Expr], Expr] = lambda x: x,
    after: Callable[[Expr, int], Expr] | None = None,
) -> None:
    """Defines `after(combine of before(x), row length)`, computed in the dtype `working(x.dtype)`."""

    def lower(types: InputTypes, attrs: Attrs) -> Lowering:
        x = required(types, 0)
        rows = Rows(x.shape, reduced_axes(attrs, x.rank))
        axes = _output_axes(rows, _keepdims(attrs))
        dtype = working(x.dtype)
        body = before(cast(rows.at_inner("in0", x.dtype), dtype))
        if after is None and dtype == x.dtype:
            return Lowering((reduce_stage("out", axes, body, rows.inner, combine),), ("out",))
        total = rows.combine("total", body, combine)
        value: Expr = load_stage(total)
        result = cast(value if after is None else after(value, rows.length), x.dtype)
        return Lowering((total, Compute("out", x.dtype, axes, result)), ("out",))

    def run(inputs: Any, attrs: Attrs) -> Numbers:
        x = inputs[0]
        work = x.astype(working(dtype_of_numpy(x.dtype)).numpy)
        result = np.asarray(compute(work, reduced_axes(attrs, x.ndim), _keepdims(attrs)))
        return result.astype(x.dtype)

    define(OpDef(name, lower, reference(run), doc))


def _square(x: Expr) -> Expr:
    return binary("mul", x, x)


def _sum(x: Numbers, axes: tuple[int, ...], keepdims: bool) -> Numbers:
    return np.asarray(np.sum(x, axis=axes, keepdims=keepdims, dtype=x.dtype))


def _mean(x: Numbers, axes: tuple[int, ...], keepdims: bool) -> Numbers:
    total, length = _sum(x, axes, keepdims), count(x.shape, axes)
    return truncated_quotient(total, np.asarray(length, x.dtype))


def _extreme(function: Any, position: int) -> Callable[[Numbers, tuple[int, ...], bool], Numbers]:
    def run(x: Numbers, axes: tuple[int, ...], keepdims: bool) -> Numbers:
        initial = limits(dtype_of_numpy(x.dtype))[position]
        return np.asarray(function(x, axis=axes, keepdims=keepdims, initial=initial))

    return run


def _log_sum_exp(x: Numbers, axes: tuple[int, ...], keepdims: bool) -> Numbers:
    for axis in axes:
        x = np.logaddexp.reduce(x, axis=axis, keepdims=True)
    return x if keepdims else np.squeeze(x, axes)


def _ordered(dtype: DType) -> DType:
    """Bools are compared as bytes."""
    return U8 if dtype == BOOL else dtype


def _lower_log_sum_exp(types: InputTypes, attrs: Attrs) -> Lowering:
    """The maximum is subtracted first, unless it is infinite: then 0 is, and infinities come out right."""
    x = required(types, 0)
    rows = Rows(x.shape, reduced_axes(attrs, x.rank))
    value = cast(rows.at_inner("in0", x.dtype), as_float(x.dtype))
    top = rows.combine("max", value, "max")
    peak = load_stage(top)
    shift = Compute("shift", top.dtype, top.axes, select(unary("is_inf", peak), const(0.0, peak.dtype), peak))
    total = rows.combine("sum", unary("exp", binary("sub", value, load_stage(shift))), "add")
    result = binary("add", unary("log", load_stage(total)), load_stage(shift))
    out = Compute("out", x.dtype, _output_axes(rows, _keepdims(attrs)), cast(result, x.dtype))
    return Lowering((top, shift, total, out), ("out",))


def _log_sum_exp_reference(inputs: Any, attrs: Attrs) -> Numbers:
    x = inputs[0]
    work = x.astype(as_float(dtype_of_numpy(x.dtype)).numpy)
    return _log_sum_exp(work, reduced_axes(attrs, x.ndim), _keepdims(attrs)).astype(x.dtype)


def _lower_arg(combine: Combine) -> Callable[[InputTypes, Attrs], Lowering]:
    """First the extreme of a row, then the least (or greatest) index where it stands. NaN wins."""

    def lower(types: InputTypes, attrs: Attrs) -> Lowering:
        x = required(types, 0)
        rows = Rows(x.shape, (normalize_axis(int_attr(attrs, "axis", 0), x.rank),))
        value = rows.at_inner("in0", x.dtype)
        extreme = rows.combine("extreme", value, combine)
        hit = binary("eq", value, load_stage(extreme))
        if x.dtype.is_float:
            hit = binary("or", hit, unary("is_nan", value))
        last = int_attr(attrs, "select_last_index", 0)
        place = select(hit, idx("r0"), const(-1 if last else rows.length))
        axes = _output_axes(rows, _keepdims(attrs))
        out = reduce_stage("out", axes, place, rows.inner, "max" if last else "min")
        return Lowering((extreme, out), ("out",))

    return lower


def _arg_reference(function: Any) -> Callable[[Any, Attrs], Numbers]:
    def run(inputs: Any, attrs: Attrs) -> Numbers:
        x, axis, keepdims = inputs[0], int_attr(attrs, "axis", 0), _keepdims(attrs)
        if not int_attr(attrs, "select_last_index", 0):
            return np.asarray(function(x, axis=axis, keepdims=keepdims))
        backwards = function(np.flip(x, axis), axis=axis, keepdims=keepdims)
        return np.asarray(x.shape[axis] - 1 - backwards)

    return run


def _lower_cum_sum(types: InputTypes, attrs: Attrs) -> Lowering:
    """Each element sums those before it: quadratic in the row, which ONNX models keep short."""
    x: TensorType = required(types, 0)
    axis = normalize_axis(int_attr(attrs, "axis", 0), x.rank)
    axes = loop_axes(x.shape)
    back = add(idx("r0"), int_attr(attrs, "exclusive", 0))
    here = idx(f"i{axis}")
    source = add(here, back) if int_attr(attrs, "reverse", 0) else sub(here, back)
    indices = tuple(source if k == axis else idx(f"i{k}") for k in range(x.rank))
    body = cast(Load("in0", indices, x.dtype, fill=0), wide(x.dtype))
    inner = (Axis("r0", x.shape[axis]),)
    if body.dtype == x.dtype:
        return Lowering((reduce_stage("out", axes, body, inner, "add"),), ("out",))
    total = reduce_stage("total", axes, body, inner, "add")
    out = Compute("out", x.dtype, axes, cast(load_stage(total), x.dtype))
    return Lowering((total, out), ("out",))


def _cum_sum_reference(inputs: Any, attrs: Attrs) -> Numbers:
    x, axis = inputs[0], int_attr(attrs, "axis", 0)
    work = np.flip(x, axis) if int_attr(attrs, "reverse", 0) else x
    total = np.cumsum(work, axis=axis, dtype=wide(dtype_of_numpy(x.dtype)).numpy)
    if int_attr(attrs, "exclusive", 0):
        total = np.roll(total, 1, axis)
        np.moveaxis(total, axis, 0)[:1] = 0
    return (np.flip(total, axis) if int_attr(attrs, "reverse", 0) else total).astype(x.dtype)


_reduction("reduce_sum", "add", _sum, "Sum over dimensions.")
_reduction("reduce_mean", "add", _mean, "Mean over dimensions; integers truncate.",
           after=lambda total, length: calc("div", total, length))  # fmt: skip
_reduction("reduce_prod", "mul", lambda x, axes, keep: np.prod(x, axis=axes, keepdims=keep, dtype=x.dtype),
           "Product over dimensions.")  # fmt: skip
_reduction("reduce_max", "max", _extreme(np.max, 0), "Largest element over dimensions; NaN wins.",
           working=_ordered)  # fmt: skip
_reduction("reduce_min", "min", _extreme(np.min, 1), "Smallest element over dimensions; NaN wins.",
           working=_ordered)  # fmt: skip
_reduction("reduce_sum_square", "add", lambda x, axes, keep: _sum(x * x, axes, keep),
           "Sum of squares over dimensions.", before=_square)  # fmt: skip
_reduction("reduce_l1", "add", lambda x, axes, keep: _sum(np.abs(x), axes, keep),
           "Sum of absolute values over dimensions.",
           before=lambda x: unary("abs", x))  # fmt: skip
_reduction("reduce_l2", "add", lambda x, axes, keep: np.sqrt(_sum(x * x, axes, keep)),
           "Square root of the sum of squares over dimensions.",
           working=as_float, before=_square, after=lambda total, _: unary("sqrt", total))  # fmt: skip
_reduction("reduce_log_sum", "add", lambda x, axes, keep: np.log(_sum(x, axes, keep)),
           "Logarithm of the sum over dimensions.",
           working=as_float, after=lambda total, _: unary("log", total))  # fmt: skip
define(OpDef("reduce_log_sum_exp", _lower_log_sum_exp, reference(_log_sum_exp_reference),
             "Logarithm of the sum of exponentials over dimensions."))  # fmt: skip
define(OpDef("arg_max", _lower_arg("max"), reference(_arg_reference(np.argmax)),
             "Index of the largest element along a dimension."))  # fmt: skip
define(OpDef("arg_min", _lower_arg("min"), reference(_arg_reference(np.argmin)),
             "Index of the smallest element along a dimension."))  # fmt: skip
define(OpDef("cum_sum", _lower_cum_sum, reference(_cum_sum_reference), "Running sum along a dimension."))
