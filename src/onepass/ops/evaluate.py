"""Evaluates the stages of an op with numpy, all elements at once.

In: a `Lowering` and the op's input arrays. Out: the op's outputs, computed in the stages' own dtypes.
Quick enough to check `lower` against `reference` on real sizes; the memory it takes is bounded by
splitting a stage into blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from onepass.core.dtypes import DType
from onepass.core.errors import InternalError
from onepass.loops.ir import Binary, Cast, Const, Expr, Fma, Index, Load, Scalar, Select, Unary
from onepass.loops.numerics import Value, convert, fma, function, limits
from onepass.ops.opdef import Array, Combine, Compute, Lowering

# Elements of a block over all axes of a stage. A block keeps each subexpression, at most 8 bytes an element,
# so a body of fifty operations stays near 100 MB.
_BLOCK_ELEMENTS = 1 << 18
_REDUCE: dict[Combine, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
_Ranges = tuple[range, ...]


def evaluate(lowering: Lowering, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
    """The op's outputs for `inputs` (None where an optional input is absent).

    Reductions accumulate in the stage's dtype, in numpy's pairwise order. Raises `InternalError` for an
    index outside its tensor, other than in the arm of a `Select` or in a `Load` with a `fill`.
    """
    tensors = {f"in{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not None}
    with np.errstate(all="ignore"):
        for stage in lowering.stages:
            tensors[stage.name] = _evaluate_stage(stage, tensors)
    return tuple(tensors[name] for name in lowering.outputs)


def identity(combine: Combine, dtype: DType) -> Scalar:
    """The value that leaves every other unchanged under `combine`: what an empty reduction gives."""
    low, high = limits(dtype)
    return {"add": 0, "mul": 1, "max": low, "min": high}[combine]


def _evaluate_stage(stage: Compute, tensors: Mapping[str, Array]) -> Array:
    if stage.type.size == 0:
        return np.empty(stage.type.shape, stage.dtype.numpy)
    ranges = tuple(range(axis.extent) for axis in stage.axes + stage.reduce_axes)
    result = _evaluate_block(stage, ranges, tensors)
    if result.shape != stage.type.shape:
        raise InternalError("evaluate", f"stage '{stage.name}' gives shape {result.shape}")
    return result


def _evaluate_block(stage: Compute, ranges: _Ranges, tensors: Mapping[str, Array]) -> Array:
    """The stage over part of its axes; halves the longest axis until a block is small enough."""
    shape = tuple(map(len, ranges))
    if math.prod(shape) > _BLOCK_ELEMENTS:
        longest = shape.index(max(shape))
        middle = shape[longest] // 2
        first, second = (
            _evaluate_block(stage, (*ranges[:longest], part, *ranges[longest + 1 :]), tensors)
            for part in (ranges[longest][:middle], ranges[longest][middle:])
        )
        if longest < len(stage.axes):
            return np.concatenate((first, second), axis=longest)
        return cast(Array, np.asarray(_REDUCE[_combine(stage)](first, second)))
    value = np.broadcast_to(_Block(stage, ranges, tensors).value(stage.body, lazy=False), shape)
    if not stage.reduce_axes:
        return np.array(value)
    outer = shape[: len(stage.axes)]
    # One flat axis: numpy sums pairwise only along contiguous memory.
    flat = value.reshape(*outer, math.prod(shape[len(outer) :]))
    combine = _combine(stage)
    initial = np.asarray(identity(combine, stage.dtype), stage.dtype.numpy)[()]
    reduced = _REDUCE[combine].reduce(flat, axis=-1, dtype=stage.dtype.numpy, initial=initial)
    return np.asarray(reduced)


def _combine(stage: Compute) -> Combine:
    if stage.combine is None:
        raise InternalError("evaluate", f"stage '{stage.name}' has reduce axes and no combine")
    return stage.combine


class _Block:
    """One stage over ranges of its axes: expressions become arrays that broadcast to those ranges."""

    def __init__(self, stage: Compute, ranges: _Ranges, tensors: Mapping[str, Array]) -> None:
        axes = stage.axes + stage.reduce_axes
        self._stage = stage.name
        self._tensors = tensors
        self._grids = {
            axis.name: np.arange(part.start, part.stop, dtype=np.int64).reshape(-1, *(1,) * inner)
            for axis, part, inner in zip(axes, ranges, reversed(range(len(axes))), strict=True)
        }
        self._known: dict[tuple[int, bool], Value] = {}

    def value(self, expr: Expr, lazy: bool) -> Value:
        """`expr` on the grid; `lazy` where an element may belong to an arm that is not chosen."""
        key = id(expr), lazy
        if key not in self._known:
            self._known[key] = self._compute(expr, lazy)
        return self._known[key]

    def _compute(self, expr: Expr, lazy: bool) -> Value:
        match expr:
            case Const():
                return np.asarray(expr.value, expr.dtype.numpy)
            case Index():
                return self._grids[expr.name]
            case Load():
                return self._load(expr, lazy)
            case Unary():
                return function(expr.op, expr.x.dtype)(self.value(expr.x, lazy))
            case Binary():
                a, b = self.value(expr.a, lazy), self.value(expr.b, lazy)
                return function(expr.op, expr.a.dtype)(a, b)
            case Fma():
                a, b, c = (self.value(x, lazy) for x in (expr.a, expr.b, expr.c))
                return fma(a, b, c, expr.dtype)
            case Cast():
                return convert(self.value(expr.x, lazy), expr.dtype)
            case Select():
                condition = self.value(expr.condition, lazy)
                return np.where(condition, self.value(expr.yes, True), self.value(expr.no, True))
            case _:
                raise InternalError("evaluate", f"no expression of the loop IR: {expr!r}")

    def _load(self, load: Load, lazy: bool) -> Value:
        tensor = self._tensors[load.buffer]
        indices = [np.asarray(self.value(index, lazy)) for index in load.indices]
        if len(indices) != tensor.ndim or tensor.dtype != load.dtype.numpy:
            detail = f"stage '{self._stage}': '{load.buffer}' is {tensor.dtype} of rank {tensor.ndim}"
            raise InternalError("evaluate", f"{detail}, loaded as {load.dtype} with {len(indices)} indices")
        bounds = zip(indices, tensor.shape, strict=True)
        inside = [np.logical_and(np.greater_equal(i, 0), np.less(i, n)) for i, n in bounds]
        if all(part.all() for part in inside):
            return cast(Value, tensor[tuple(indices)])
        if load.fill is None and not lazy:
            raise InternalError("evaluate", f"stage '{self._stage}' loads outside of '{load.buffer}'")
        fill = np.asarray(load.fill if load.fill is not None else 0, tensor.dtype)
        mask = np.asarray(True)
        for part in inside:
            mask = np.logical_and(mask, part)
        if tensor.size == 0:
            return np.broadcast_to(fill, mask.shape)
        clipped = [np.clip(i, 0, n - 1) for i, n in zip(indices, tensor.shape, strict=True)]
        return np.where(mask, tensor[tuple(clipped)], fill)
