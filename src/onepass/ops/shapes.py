"""What every family of ops needs to write its stages: axes, broadcast loads, attributes.

In: input types and attributes as an importer gives them. Out: axes and expressions for `Compute`
stages, or a `ShapeError` that says what does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onepass.core.dtypes import F16, F32, F64, DType
from onepass.core.errors import ShapeError
from onepass.core.tensor import Shape, TensorType
from onepass.loops.build import binary, idx
from onepass.loops.ir import BinaryOp, Const, Expr, Load
from onepass.ops.opdef import Array, Attrs, Axis, Compute, InputTypes, Lowering, Reference

Numbers = NDArray[Any]


def loop_axes(shape: Shape, prefix: str = "i") -> tuple[Axis, ...]:
    """One axis a dimension: `i0`, `i1`, ..."""
    return tuple(Axis(f"{prefix}{k}", extent) for k, extent in enumerate(shape))


def broadcast_shape(*shapes: Shape) -> Shape:
    """The shape that `shapes` broadcast to by numpy's rules; raises `ShapeError`."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        listed = ", ".join(map(str, shapes))
        raise ShapeError(
            f"the shapes {listed} cannot be broadcast together",
            why="aligned from the right, sizes must be equal or 1",
        ) from None


def load(name: str, tensor: TensorType, axes: Sequence[Axis]) -> Load:
    """The element of buffer `name` that belongs to the point of `axes`.

    `tensor` is aligned to `axes` from the right; its dimensions of size 1 are read at 0.
    """
    own = axes[len(axes) - tensor.rank :]
    indices = tuple(
        idx(axis.name) if size == axis.extent else Const(0)
        for axis, size in zip(own, tensor.shape, strict=True)
    )
    return Load(name, indices, tensor.dtype)


def calc(op: BinaryOp, a: Expr | float, b: Expr | float) -> Expr:
    """`a op b`, where one of the two may be a number: it takes the dtype of the other."""
    if isinstance(a, Expr):
        return binary(op, a, b if isinstance(b, Expr) else _number(b, a.dtype))
    assert isinstance(b, Expr), "two numbers need no expression"
    return binary(op, _number(a, b.dtype), b)


def _number(value: float, dtype: DType) -> Const:
    return Const(float(value) if dtype.is_float else int(value), dtype)


def load_stage(stage: Compute) -> Load:
    """The element of an earlier stage at the loop variables that carry its axes' names."""
    return Load(stage.name, tuple(idx(axis.name) for axis in stage.axes), stage.dtype)


def required(types: InputTypes, position: int) -> TensorType:
    """The type of an input that may not be left out; raises `ShapeError`."""
    tensor = types[position] if position < len(types) else None
    if tensor is None:
        raise ShapeError(f"input {position} is missing", why="the op needs it")
    return tensor


def optional(types: InputTypes, position: int) -> TensorType | None:
    """The type of an input, None where it is left out."""
    return types[position] if position < len(types) else None


def single(body: Expr, shape: Shape) -> Lowering:
    """An op of one elementwise stage, `out`, over the axes `i0`, `i1`, ..."""
    return Lowering((Compute("out", body.dtype, loop_axes(shape), body),), ("out",))


def normalize_axis(axis: int, rank: int) -> int:
    """`axis` counted from the front; raises `ShapeError` where it lies outside."""
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} does not exist", why=f"the tensor has {rank} dimensions")
    return axis % rank


def wide(dtype: DType) -> DType:
    """The dtype in which long sums of `dtype` run: float16 sums in float32."""
    return F32 if dtype == F16 else dtype


def as_float(dtype: DType) -> DType:
    """The dtype in which a real function of `dtype` runs: integers go through float64."""
    return wide(dtype) if dtype.is_float else F64


def float_attr(attrs: Attrs, name: str, default: float) -> float:
    """Attribute `name` as a float."""
    value = attrs.get(name)
    return default if value is None else float(value)  # type: ignore[arg-type]


def int_attr(attrs: Attrs, name: str, default: int) -> int:
    """Attribute `name` as an int."""
    value = attrs.get(name)
    return default if value is None else int(value)  # type: ignore[arg-type]


def str_attr(attrs: Attrs, name: str, default: str) -> str:
    """Attribute `name` as a string."""
    value = attrs.get(name)
    return default if value is None else str(value)


def ints_attr(attrs: Attrs, name: str) -> tuple[int, ...] | None:
    """Attribute `name` as a tuple of ints (one int makes a tuple of one), None where it is absent."""
    value = attrs.get(name)
    if value is None:
        return None
    return tuple(int(v) for v in value) if isinstance(value, tuple) else (int(value),)


def reference(compute: Callable[[Sequence[Numbers], Attrs], Numbers]) -> Reference:
    """A `Reference` from a function of the arrays that are present; floating-point warnings are off."""

    def run(inputs: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            return (np.asarray(compute([x for x in inputs if x is not None], attrs)),)

    return run


def count(shape: Shape, axes: Sequence[int]) -> int:
    """Number of elements along `axes`."""
    return math.prod(shape[axis] for axis in axes)
