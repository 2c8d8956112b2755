"""Reductions over any set of dimensions, and the index of the extreme.

Axes keep the number of the input's dimension: reducing dimension 1 of four leaves `i0`, `i2`, `i3`
(and `i1` of extent 1 with `keepdims`); reduced dimensions run as `r0`, `r1`, ... Sums of float16 run in
float32. A reduction over nothing gives the identity: 0, 1, or the least or greatest value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onepass.core.dtypes import BOOL, U8, DType, dtype_of_numpy
from onepass.core.tensor import Shape
from onepass.loops.build import binary, cast, const, idx, select, unary
from onepass.loops.ir import Expr, Load
from onepass.loops.numerics import limits
from onepass.ops.opdef import Attrs, Axis, Combine, Compute, InputTypes, Lowering, define
from onepass.ops.pointwise import truncated_quotient
from onepass.ops.shapes import (
    Numbers,
    as_float,
    attr,
    calc,
    ints,
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
        return loop_axes(self.shape)

    @property
    def kept(self) -> tuple[Axis, ...]:
        """The axes that number the rows."""
        return tuple(axis for k, axis in enumerate(self.axes) if k not in self.reduced)

    @property
    def inner(self) -> tuple[Axis, ...]:
        """The axes within a row: `r0`, `r1`, ..."""
        return loop_axes(tuple(self.shape[k] for k in self.reduced), "r")

    @property
    def length(self) -> int:
        return math.prod(axis.extent for axis in self.inner)

    def outputs(self, attrs: Attrs) -> tuple[Axis, ...]:
        """The axes of the result; with `keepdims` the reduced ones have extent 1."""
        if not attr(attrs, "keepdims", 1):
            return self.kept
        return tuple(Axis(a.name, 1 if k in self.reduced else a.extent) for k, a in enumerate(self.axes))

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


def _reduced_axes(attrs: Attrs, rank: int) -> tuple[int, ...]:
    """The dimensions that `axes` names, in order; without any, all, or none with `noop_with_empty_axes`."""
    axes = ints(attrs, "axes", ())
    if axes:
        return tuple(sorted({normalize_axis(axis, rank) for axis in axes}))
    return () if attr(attrs, "noop_with_empty_axes", 0) else tuple(range(rank))


def square(x: Expr) -> Expr:
    """`x * x`."""
    return binary("mul", x, x)


def _reduction(
    name: str,
    combine: Combine,
    compute: Callable[..., Any],
    working: Callable[[DType], DType] = wide,
    before: Callable[[Expr], Expr] = lambda x: x,
    after: Callable[[Expr, int], Expr] | None = None,
) -> None:
    """Defines `after(combine of before(x), row length)`, computed in the dtype `working(x.dtype)`.

    `compute` takes the array, and `axis` and `keepdims` as numpy's reductions do.
    """

    def lower(types: InputTypes, attrs: Attrs) -> Lowering:
        x = required(types, 0)
        rows = Rows(x.shape, _reduced_axes(attrs, x.rank))
        dtype = working(x.dtype)
        body = before(cast(rows.at_inner("in0", x.dtype), dtype))
        if after is None and dtype == x.dtype:
            return Lowering((reduce_stage("out", rows.outputs(attrs), body, rows.inner, combine),), ("out",))
        total = rows.combine("total", body, combine)
        value: Expr = load_stage(total)
        result = cast(value if after is None else after(value, rows.length), x.dtype)
        return Lowering((total, Compute("out", x.dtype, rows.outputs(attrs), result)), ("out",))

    def run(attrs: Attrs, x: Numbers) -> Any:
        return compute(x, axis=_reduced_axes(attrs, x.ndim), keepdims=bool(attr(attrs, "keepdims", 1)))

    define(name, lower, reference(run, working))


def _sum(x: Numbers, **over: Any) -> Numbers:
    return np.asarray(np.sum(x, dtype=x.dtype, **over))


def _extreme(function: Callable[..., Any], position: int) -> Callable[..., Any]:
    return lambda x, **over: function(x, initial=limits(dtype_of_numpy(x.dtype))[position], **over)


def _ordered(dtype: DType) -> DType:
    """Bools are compared as bytes."""
    return U8 if dtype == BOOL else dtype


def _arg(name: str, combine: Combine, function: Callable[..., Any]) -> None:
    """First the extreme of a row, then the least (or greatest) index where it stands. NaN wins."""

    def lower(types: InputTypes, attrs: Attrs) -> Lowering:
        x, last = required(types, 0), attr(attrs, "select_last_index", 0)
        rows = Rows(x.shape, (normalize_axis(attr(attrs, "axis", 0), x.rank),))
        value = rows.at_inner("in0", x.dtype)
        extreme = rows.combine("extreme", value, combine)
        hit = binary("eq", value, load_stage(extreme))
        if x.dtype.is_float:
            hit = binary("or", hit, unary("is_nan", value))
        place = select(hit, idx("r0"), const(-1 if last else rows.length))
        out = reduce_stage("out", rows.outputs(attrs), place, rows.inner, "max" if last else "min")
        return Lowering((extreme, out), ("out",))

    def run(attrs: Attrs, x: Numbers) -> Any:
        axis, keepdims = attr(attrs, "axis", 0), bool(attr(attrs, "keepdims", 1))
        if not attr(attrs, "select_last_index", 0):
            return function(x, axis=axis, keepdims=keepdims)
        return x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis, keepdims=keepdims)

    define(name, lower, reference(run))


_reduction("reduce_sum", "add", _sum)
_reduction("reduce_mean", "add",
           lambda x, **over: truncated_quotient(_sum(x, **over), _sum(np.ones_like(x), **over)),
           after=lambda total, length: calc("div", total, length))  # fmt: skip
_reduction("reduce_prod", "mul", lambda x, **over: np.prod(x, dtype=x.dtype, **over))
_reduction("reduce_max", "max", _extreme(np.max, 0), _ordered)
_reduction("reduce_min", "min", _extreme(np.min, 1), _ordered)
_reduction("reduce_sum_square", "add", lambda x, **over: _sum(x * x, **over), before=square)
_reduction("reduce_l1", "add", lambda x, **over: _sum(np.abs(x), **over), before=lambda x: unary("abs", x))
_reduction("reduce_l2", "add", lambda x, **over: np.sqrt(_sum(x * x, **over)), as_float, square,
           lambda total, _: unary("sqrt", total))  # fmt: skip
_arg("arg_max", "max", np.argmax)
_arg("arg_min", "min", np.argmin)
