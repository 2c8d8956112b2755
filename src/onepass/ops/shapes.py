"""What every family of ops needs to write its stages: axes, broadcast loads, attributes, references.

In: input types and attributes as an importer gives them. Out: axes and expressions for `Compute`
stages, or a `ShapeError` that says what does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from onepass.core.dtypes import BF16, F16, F32, F64, DType, dtype_of_numpy
from onepass.core.errors import ShapeError
from onepass.core.tensor import Shape, TensorType
from onepass.loops.build import binary, idx
from onepass.loops.ir import BinaryOp, Const, Expr, Load, Scalar
from onepass.ops.opdef import Array, Attrs, Axis, Compute, InputTypes, Lowering, Reference

Numbers = NDArray[Any]
Value = TypeVar("Value", int, float, str)


def loop_axes(shape: Shape, prefix: str = "i") -> tuple[Axis, ...]:
    """One axis a dimension: `i0`, `i1`, ..."""
    return tuple(Axis(f"{prefix}{k}", extent) for k, extent in enumerate(shape))


def own_place(rank: int, first: int = 0) -> list[Expr]:
    """`rank` loop variables from `i<first>` on: the place of an element of the output."""
    return [idx(f"i{k}") for k in range(first, first + rank)]


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

    `tensor` is aligned to `axes` from the right, its dimensions of size 1 are read at 0; raises `ShapeError`
    where it does not broadcast to the axes.
    """
    shape = tuple(axis.extent for axis in axes)
    if broadcast_shape(shape, tensor.shape) != shape:
        raise ShapeError(f"input {name[2:]} of shape {tensor.shape} does not broadcast to {shape}")
    own = axes[len(axes) - tensor.rank :]
    indices = tuple(
        idx(axis.name) if size == axis.extent else Const(0)
        for axis, size in zip(own, tensor.shape, strict=True)
    )
    return Load(name, indices, tensor.dtype)


def load_stage(stage: Compute) -> Load:
    """The element of an earlier stage at the loop variables that carry its axes' names."""
    return Load(stage.name, tuple(idx(axis.name) for axis in stage.axes), stage.dtype)


def literal(value: float, dtype: DType) -> Scalar:
    """`value` as a literal of `dtype`."""
    return float(value) if dtype.is_float else int(value) if dtype.is_integer else bool(value)


def calc(op: BinaryOp, a: Expr | float, b: Expr | float) -> Expr:
    """`a op b`, where one of the two may be a number: it takes the dtype of the other."""
    if isinstance(a, Expr):
        return binary(op, a, b if isinstance(b, Expr) else Const(literal(b, a.dtype), a.dtype))
    assert isinstance(b, Expr), "two numbers need no expression"
    return binary(op, Const(literal(a, b.dtype), b.dtype), b)


def required(types: InputTypes, position: int) -> TensorType:
    """The type of an input that may not be left out; raises `ShapeError`."""
    tensor = optional(types, position)
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
    """The dtype in which long sums of `dtype` run: those of float16 and bfloat16 in float32."""
    return F32 if dtype in (F16, BF16) else dtype


def as_float(dtype: DType) -> DType:
    """The dtype in which a real function of `dtype` runs: integers go through float64."""
    return wide(dtype) if dtype.is_float else F64


def is_float(array: Numbers) -> bool:
    """Whether `array` holds floats; numpy's own `kind` is another for bfloat16."""
    return dtype_of_numpy(array.dtype).is_float


def attr(attrs: Attrs, name: str, default: Value) -> Value:
    """Attribute `name` with the type of `default`, which it has where it is absent."""
    value = attrs.get(name)
    return default if value is None else type(default)(value)  # type: ignore[arg-type]


def ints(attrs: Attrs, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Attribute `name` as a tuple of ints; raises `ShapeError` where it is absent and has no default."""
    value = attrs.get(name)
    value = default if value is None else value
    if value is None:
        raise ShapeError(f"'{name}' is missing")
    return tuple(int(v) for v in value) if isinstance(value, tuple) else (int(value),)


def reference(compute: Callable[..., Any], working: Callable[[DType], DType] | None = None) -> Reference:
    """A `Reference` from `compute(attrs, *arrays that are present)`, floating-point warnings off.

    With `working` the arrays are converted to `working(dtype of the first)`, and the result back.
    """

    def run(inputs: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
        arrays: list[Numbers] = [x for x in inputs if x is not None]
        dtype = arrays[0].dtype
        with np.errstate(all="ignore"):
            if working is None:
                return (np.asarray(compute(attrs, *arrays)),)
            work = working(dtype_of_numpy(dtype)).numpy
            return (np.asarray(compute(attrs, *(x.astype(work) for x in arrays))).astype(dtype),)

    return run
