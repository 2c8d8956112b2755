"""Ops whose places are data: gather, gather_elements, gather_nd, one_hot, top_k.

In: data and an integer tensor of places, negative ones counted from the end. A place outside the data is
moved to its border, so that a kernel never reads outside a buffer. Out: stages over `i0, i1, ...`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onepass.core.dtypes import I64
from onepass.core.errors import ShapeError
from onepass.core.tensor import Shape
from onepass.loops.build import binary, cast, const, idx, select, unary
from onepass.loops.ir import Const, Expr, Load
from onepass.ops.opdef import Array, Attrs, Axis, Compute, InputTypes, Lowering, OpDef, define
from onepass.ops.pooling import lowest
from onepass.ops.shapes import (
    Numbers,
    int_attr,
    loop_axes,
    normalize_axis,
    reference,
    required,
    single,
)


def wrapped(place: Expr, size: int) -> Expr:
    """`place` as int64, counted from the end of `size` elements where it is negative."""
    place = cast(place, I64)
    return select(binary("lt", place, const(0)), binary("add", place, const(size)), place)


def position(place: Expr, size: int, output: Shape) -> Expr:
    """An index into a dimension of `size` that never leaves it; raises where there is nothing to read."""
    if size == 0 and 0 not in output:
        raise ShapeError("gather from a dimension of size 0")
    return binary("max", binary("min", wrapped(place, size), const(size - 1)), const(0))


def positions(places: Numbers, size: int) -> Numbers:
    """numpy's counterpart of `position`."""
    places = places.astype(np.int64)
    return np.clip(np.where(places < 0, places + size, places), 0, max(0, size - 1))


def at(first: int, count: int) -> list[Expr]:
    """Loop variables `i<first>, ...`, `count` of them."""
    return [idx(f"i{k}") for k in range(first, first + count)]


def gather_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """out[before, places..., after] = data[before, in1[places...], after]."""
    data, places = required(types, 0), required(types, 1)
    axis = normalize_axis(int_attr(attrs, "axis", 0), data.rank)
    shape = (*data.shape[:axis], *places.shape, *data.shape[axis + 1 :])
    place = Load("in1", tuple(at(axis, places.rank)), places.dtype)
    before, after = at(0, axis), at(axis + places.rank, data.rank - axis - 1)
    chosen = position(place, data.shape[axis], shape)
    return single(Load("in0", (*before, chosen, *after), data.dtype), shape)


def gather_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """numpy's `take`."""
    axis = int_attr(attrs, "axis", 0)
    return np.asarray(np.take(arrays[0], positions(arrays[1], arrays[0].shape[axis]), axis=axis))


def gather_elements_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """out[i] = data[i with component `axis` replaced by in1[i]]."""
    data, places = required(types, 0), required(types, 1)
    axis = normalize_axis(int_attr(attrs, "axis", 0), data.rank)
    fits = places.rank == data.rank and all(
        places.shape[d] <= data.shape[d] for d in range(data.rank) if d != axis
    )
    if not fits:
        raise ShapeError(f"{places} does not index the elements of {data}")
    own = at(0, data.rank)
    spots = list(own)
    spots[axis] = position(Load("in1", tuple(own), places.dtype), data.shape[axis], places.shape)
    return single(Load("in0", tuple(spots), data.dtype), places.shape)


def gather_elements_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """Open indices, `axis` replaced by the places."""
    data, places = arrays[0], arrays[1]
    axis = normalize_axis(int_attr(attrs, "axis", 0), data.ndim)
    spots: list[Numbers] = list(np.ogrid[tuple(slice(extent) for extent in places.shape)])
    spots[axis] = positions(places, data.shape[axis])
    return data[tuple(spots)] if places.size else np.empty(places.shape, data.dtype)


def gather_nd_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """The last axis of in1 holds the leading indices of an element or slice of data, after the batch."""
    data, places = required(types, 0), required(types, 1)
    batch = int_attr(attrs, "batch_dims", 0)
    depth = places.shape[-1] if places.rank else 0
    if depth + batch > data.rank or places.rank <= batch or places.shape[:batch] != data.shape[:batch]:
        raise ShapeError(f"{places} does not index {data} after {batch} batch dimensions")
    shape = (*places.shape[:-1], *data.shape[batch + depth :])
    own = at(0, places.rank - 1)
    spots = [
        position(Load("in1", (*own, const(k)), places.dtype), data.shape[batch + k], shape)
        for k in range(depth)
    ]
    rest = at(places.rank - 1, data.rank - batch - depth)
    return single(Load("in0", (*own[:batch], *spots, *rest), data.dtype), shape)


def gather_nd_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """Fancy indexing with open batch indices."""
    data, places = arrays[0], arrays[1]
    batch, depth = int_attr(attrs, "batch_dims", 0), places.shape[-1]
    lead = places.shape[:-1]
    spots: list[Numbers] = [np.arange(lead[d]).reshape(-1, *(1,) * (len(lead) - d - 1)) for d in range(batch)]
    spots += [positions(places[..., k], data.shape[batch + k]) for k in range(depth)]
    shape = (*lead, *data.shape[batch + depth :])
    return (
        data[tuple(np.broadcast_to(s, lead) for s in spots)]
        if 0 not in shape
        else np.empty(shape, data.dtype)
    )


def one_hot_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """Of the inputs (places, values): values[1] where the new axis is at its place, values[0] elsewhere."""
    places, values, depth = required(types, 0), required(types, 1), int_attr(attrs, "depth", 0)
    axis = normalize_axis(int_attr(attrs, "axis", -1), places.rank + 1)
    own = (*at(0, axis), *at(axis + 1, places.rank - axis))
    hit = binary("eq", wrapped(Load("in0", own, places.dtype), depth), idx(f"i{axis}"))
    off, on = (Load("in1", (const(k),), values.dtype) for k in (0, 1))
    return single(select(hit, on, off), (*places.shape[:axis], depth, *places.shape[axis:]))


def one_hot_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """Compares the places with `arange(depth)` along the new axis."""
    places, values, depth = arrays[0].astype(np.int64), arrays[1], int_attr(attrs, "depth", 0)
    places = np.where(places < 0, places + depth, places)
    hit = places[..., None] == np.arange(depth)
    axis = int_attr(attrs, "axis", -1)
    return np.moveaxis(np.where(hit, values[1], values[0]), -1, axis)


def top_k_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """Stage `rank` counts what goes before each element; the outputs pick the element of each rank.

    Sorted, ties in order of place, NaN above every number. Steps: the square of the dimension's extent.
    """
    x = required(types, 0)
    axis, k = normalize_axis(int_attr(attrs, "axis", -1), x.rank), int_attr(attrs, "k", 1)
    size = x.shape[axis]
    if not 0 <= k <= size:
        raise ShapeError(f"the {k} extremes along dimension {axis} of {x}")
    own, other = at(0, x.rank), at(0, x.rank)
    other[axis] = idx("r0")
    mine, theirs = Load("in0", tuple(own), x.dtype), Load("in0", tuple(other), x.dtype)
    above, below = (theirs, mine) if int_attr(attrs, "largest", 1) else (mine, theirs)
    before, tie = binary("gt", above, below), binary("eq", mine, theirs)
    if x.dtype.is_float:
        before = binary(
            "or", before, binary("and", unary("is_nan", above), unary("not", unary("is_nan", below)))
        )
        tie = binary("or", tie, binary("and", unary("is_nan", mine), unary("is_nan", theirs)))
    before = binary("or", before, binary("and", tie, binary("lt", idx("r0"), own[axis])))
    along = (Axis("r0", size),)
    rank = Compute("rank", I64, loop_axes(x.shape), cast(before, I64), along, "add")
    kept = loop_axes((*x.shape[:axis], k, *x.shape[axis + 1 :]))
    hit = binary("eq", Load("rank", tuple(other), I64), own[axis])
    low = Const(lowest(x.dtype), x.dtype)
    values = Compute("values", x.dtype, kept, select(hit, theirs, low), along, "max")
    places = Compute("places", I64, kept, select(hit, idx("r0"), const(0)), along, "add")
    return Lowering((rank, values, places), ("values", "places"))


def top_k_reference(inputs: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """A stable sort; descending order is that of the reversed tensor, reversed."""
    x, axis, k = np.asarray(inputs[0]), int_attr(attrs, "axis", -1), int_attr(attrs, "k", 1)
    if int_attr(attrs, "largest", 1):
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    order = order.take(np.arange(k), axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int64)


define(OpDef("top_k", top_k_lower, top_k_reference, "Finds the largest or smallest elements, in order."))
for _name, _lower, _compute, _doc in (
    ("gather", gather_lower, gather_reference, "Picks slices along one dimension."),
    (
        "gather_elements",
        gather_elements_lower,
        gather_elements_reference,
        "Picks single elements along one dimension.",
    ),
    ("gather_nd", gather_nd_lower, gather_nd_reference, "Picks elements or slices by several indices."),
    ("one_hot", one_hot_lower, one_hot_reference, "Writes class numbers as rows with one entry on."),
):
    define(OpDef(_name, _lower, reference(_compute), _doc))
