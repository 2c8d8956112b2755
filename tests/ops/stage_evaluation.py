"""Evaluates the stages of an op with numpy, all elements at once, in the stages' own dtypes."""

import math

import numpy as np

from onepass.loops.ir import Binary, Cast, Const, Fma, Index, Load, Select, Unary
from onepass.loops.numerics import convert, fma, function, limits

# Elements of a block over all axes of a stage: it keeps each subexpression, 8 bytes an element at most.
BLOCK_ELEMENTS = 1 << 18
REDUCE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def evaluate(lowering, inputs):
    """The op's outputs for `inputs` (None where an optional input is absent).

    Reductions accumulate in the stage's dtype, in numpy's pairwise order. Raises `IndexError` for an
    index outside its tensor, other than in the arm of a `Select` or in a `Load` with a `fill`.
    """
    tensors = {f"in{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not None}
    with np.errstate(all="ignore"):
        for stage in lowering.stages:
            ranges = tuple(range(axis.extent) for axis in stage.axes + stage.reduce_axes)
            empty = np.empty(stage.type.shape, stage.dtype.numpy)
            tensors[stage.name] = _block(stage, ranges, tensors) if empty.size else empty
    return tuple(tensors[name] for name in lowering.outputs)


def identity(combine, dtype):
    """The value that leaves every other unchanged under `combine`: what an empty reduction gives."""
    low, high = limits(dtype)
    return {"add": 0, "mul": 1, "max": low, "min": high}[combine]


def _block(stage, ranges, tensors):
    """The stage over part of its axes; halves the longest axis until a block is small enough."""
    shape = tuple(map(len, ranges))
    if math.prod(shape) > BLOCK_ELEMENTS:
        longest = shape.index(max(shape))
        parts = ranges[longest][: shape[longest] // 2], ranges[longest][shape[longest] // 2 :]
        first, second = (
            _block(stage, (*ranges[:longest], part, *ranges[longest + 1 :]), tensors) for part in parts
        )
        if longest < len(stage.axes):
            return np.concatenate((first, second), axis=longest)
        return np.asarray(REDUCE[stage.combine](first, second))
    grids = {
        axis.name: np.arange(part.start, part.stop, dtype=np.int64).reshape(-1, *(1,) * (len(ranges) - k - 1))
        for k, (axis, part) in enumerate(zip(stage.axes + stage.reduce_axes, ranges, strict=True))
    }
    value = np.broadcast_to(Block(grids, tensors).value(stage.body, lazy=False), shape)
    if not stage.reduce_axes:
        return np.array(value)
    # One flat axis: numpy sums pairwise only along contiguous memory.
    outer = shape[: len(stage.axes)]
    flat = value.reshape(*outer, math.prod(shape[len(outer) :]))
    initial = np.asarray(identity(stage.combine, stage.dtype), stage.dtype.numpy)[()]
    return np.asarray(REDUCE[stage.combine].reduce(flat, axis=-1, dtype=stage.dtype.numpy, initial=initial))


class Block:
    """Ranges of a stage's axes, as open grids: expressions become arrays that broadcast to them."""

    def __init__(self, grids, tensors):
        self.grids, self.tensors = grids, tensors
        self.known = {}

    def value(self, expr, lazy):
        """`expr` on the grid; `lazy` where an element may belong to an arm that is not chosen."""
        key = id(expr), lazy
        if key not in self.known:
            self.known[key] = self.compute(expr, lazy)
        return self.known[key]

    def compute(self, expr, lazy):
        match expr:
            case Const():
                return np.asarray(expr.value, expr.dtype.numpy)
            case Index():
                return self.grids[expr.name]
            case Load():
                return self.load(expr, lazy)
            case Unary():
                return function(expr.op, expr.x.dtype)(self.value(expr.x, lazy))
            case Binary():
                return function(expr.op, expr.a.dtype)(self.value(expr.a, lazy), self.value(expr.b, lazy))
            case Fma():
                return fma(*(self.value(x, lazy) for x in (expr.a, expr.b, expr.c)), expr.dtype)
            case Cast():
                return convert(self.value(expr.x, lazy), expr.dtype)
            case Select():
                condition = self.value(expr.condition, lazy)
                return np.where(condition, self.value(expr.yes, True), self.value(expr.no, True))

    def load(self, load, lazy):
        tensor = self.tensors[load.buffer]
        indices = [np.asarray(self.value(index, lazy)) for index in load.indices]
        assert (len(indices), tensor.dtype) == (tensor.ndim, load.dtype.numpy), load
        mask = np.asarray(True)
        for index, extent in zip(indices, tensor.shape, strict=True):
            mask = mask & (index >= 0) & (index < extent)
        if mask.all():
            return tensor[tuple(indices)]
        if load.fill is None and not lazy:
            raise IndexError(f"a load outside of '{load.buffer}'")
        fill = np.asarray(load.fill if load.fill is not None else 0, tensor.dtype)
        if tensor.size == 0:
            return np.broadcast_to(fill, mask.shape)
        clipped = [np.clip(i, 0, n - 1) for i, n in zip(indices, tensor.shape, strict=True)]
        return np.where(mask, tensor[tuple(clipped)], fill)
