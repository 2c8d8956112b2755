"""Ops whose places are data: gather and gather_elements.

In: data and an integer tensor of places, negative ones counted from the end. A place outside the data is
moved to its border, so that a kernel never reads outside a buffer. Out: one stage over `i0, i1, ...`.
"""

from __future__ import annotations

import numpy as np

from onepass.core.dtypes import I64
from onepass.core.errors import ShapeError
from onepass.core.tensor import Shape
from onepass.loops.build import cast, select
from onepass.loops.ir import Expr, Load
from onepass.ops.opdef import Attrs, InputTypes, Lowering, define
from onepass.ops.shapes import (
    Numbers,
    attr,
    calc,
    normalize_axis,
    own_place,
    reference,
    required,
    single,
)


def _position(place: Expr, size: int, output: Shape) -> Expr:
    """An index into a dimension of `size` that never leaves it; raises where there is nothing to read."""
    if size == 0 and 0 not in output:
        raise ShapeError("gather from a dimension of size 0")
    place = cast(place, I64)
    place = select(calc("lt", place, 0), calc("add", place, size), place)
    return calc("max", calc("min", place, size - 1), 0)


def _positions(places: Numbers, size: int) -> Numbers:
    """numpy's counterpart of `_position`."""
    places = places.astype(np.int64)
    return np.clip(np.where(places < 0, places + size, places), 0, max(0, size - 1))


def _gather(types: InputTypes, attrs: Attrs) -> Lowering:
    """out[before, places..., after] = data[before, in1[places...], after]."""
    data, places = required(types, 0), required(types, 1)
    axis = normalize_axis(attr(attrs, "axis", 0), data.rank)
    shape = (*data.shape[:axis], *places.shape, *data.shape[axis + 1 :])
    place = Load("in1", tuple(own_place(places.rank, axis)), places.dtype)
    after = own_place(data.rank - axis - 1, axis + places.rank)
    chosen = _position(place, data.shape[axis], shape)
    return single(Load("in0", (*own_place(axis), chosen, *after), data.dtype), shape)


def _gather_reference(attrs: Attrs, data: Numbers, places: Numbers) -> Numbers:
    axis = attr(attrs, "axis", 0)
    return np.asarray(np.take(data, _positions(places, data.shape[axis]), axis=axis))


def _gather_elements(types: InputTypes, attrs: Attrs) -> Lowering:
    """out[i] = data[i with component `axis` replaced by in1[i]]."""
    data, places = required(types, 0), required(types, 1)
    axis = normalize_axis(attr(attrs, "axis", 0), data.rank)
    if places.rank != data.rank or any(
        places.shape[d] > data.shape[d] for d in range(data.rank) if d != axis
    ):
        raise ShapeError(f"{places} does not index the elements of {data}")
    spots = own_place(data.rank)
    spots[axis] = _position(Load("in1", tuple(spots), places.dtype), data.shape[axis], places.shape)
    return single(Load("in0", tuple(spots), data.dtype), places.shape)


def _gather_elements_reference(attrs: Attrs, data: Numbers, places: Numbers) -> Numbers:
    axis = normalize_axis(attr(attrs, "axis", 0), data.ndim)
    within = tuple(slice(None if d == axis else n) for d, n in enumerate(places.shape))
    return np.take_along_axis(data[within], _positions(places, data.shape[axis]), axis)


define("gather", _gather, reference(_gather_reference))
define("gather_elements", _gather_elements, reference(_gather_elements_reference))
