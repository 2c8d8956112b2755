"""Constants laid out in the order in which a kernel reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onepass.core.dtypes import I64
from onepass.core.tensor import Shape
from onepass.loops.affine import linear, range_of
from onepass.loops.ir import Binary, Const, Expr, Index
from onepass.loops.numerics import function
from onepass.ops.opdef import Array


@dataclass(frozen=True, slots=True)
class Packed:
    """`result[v0, v1, ...] = source[indices(v0, v1, ...)]`, and 0 where that lies outside.

    `axes`: names and extents of the loop variables, outermost first.
    """

    source: str
    indices: tuple[Expr, ...]
    axes: tuple[tuple[str, int], ...]

    @property
    def shape(self) -> Shape:
        return tuple(extent for _, extent in self.axes)

    def unpacked(self, source: Array) -> Array:
        """The elements of the packed copy, in order: a strided view where the map is affine and inside."""
        if 0 in self.shape or source.size == 0:
            return np.zeros(self.shape, source.dtype)
        strided = _strided_view(source, self)
        if strided is not None:
            return strided
        grid = {name: _along(i, extent, len(self.axes)) for i, (name, extent) in enumerate(self.axes)}
        where = [_numpy_index(index, grid) for index in self.indices]
        inside = np.ones((1,) * len(self.axes), dtype=bool)
        for position, extent in zip(where, source.shape, strict=True):
            inside = inside & np.greater_equal(position, 0) & np.less(position, extent)
        clipped = [np.clip(p, 0, extent - 1) for p, extent in zip(where, source.shape, strict=True)]
        gathered = np.where(inside, source[tuple(clipped)], source.dtype.type(0))
        return np.broadcast_to(gathered, self.shape)


def _along(position: int, extent: int, rank: int) -> Array:
    shape = [1] * rank
    shape[position] = extent
    return np.arange(extent, dtype=np.int64).reshape(shape)


def _strided_view(source: Array, packed: Packed) -> Array | None:
    """A view of `source`, its short dimensions padded with zeros, or None if the map is not affine."""
    ranges = {name: (0, extent - 1) for name, extent in packed.axes}
    strides = {name: 0 for name, _ in packed.axes}
    short: list[tuple[int, int]] = []
    forms = [linear(index, ranges) for index in packed.indices]
    for index, form, extent in zip(packed.indices, forms, source.shape, strict=True):
        low, high = range_of(index, ranges)
        if low < 0 or any(not isinstance(atom, Index) for atom, _ in form.terms):
            return None
        short.append((0, max(0, high + 1 - extent)))
    if any(after for _, after in short):
        source = np.pad(source, short)
    source = np.ascontiguousarray(source)
    offset = 0
    for form, step in zip(forms, source.strides, strict=True):
        offset += form.const * step
        for atom, coefficient in form.terms:
            assert isinstance(atom, Index)
            strides[atom.name] += coefficient * step
    flat = source.reshape(-1)[offset // source.itemsize :]
    return np.lib.stride_tricks.as_strided(flat, packed.shape, tuple(strides.values()), writeable=False)


def _numpy_index(index: Expr, grid: dict[str, Array]) -> Array:
    match index:
        case Const():
            return np.asarray(int(index.value))
        case Index():
            return grid[index.name]
        case Binary():
            a, b = _numpy_index(index.a, grid), _numpy_index(index.b, grid)
            return np.asarray(function(index.op, I64)(a, b))
        case _:
            raise TypeError(f"{type(index).__name__} in the index of a constant")
