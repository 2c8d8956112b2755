"""Ops that only move elements: their stages are one load at other indices, without arithmetic.

In: any dtype, with shapes and places as attributes (`shape`, `pads`, `starts`, ...). Out: one stage `out`
over `i0, i1, ...` (`split`: one for each output), so a planner can absorb the op as an index map.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from onepass.core.errors import ShapeError, UserError
from onepass.core.tensor import Shape, TensorType
from onepass.loops.build import add, const, floordiv, idx, mod, mul, select, sub
from onepass.loops.ir import Expr, Load, Scalar
from onepass.ops.opdef import Array, Attrs, Compute, InputTypes, Lowering, define
from onepass.ops.shapes import (
    Numbers,
    attr,
    calc,
    ints,
    literal,
    load,
    loop_axes,
    normalize_axis,
    own_place,
    reference,
    required,
    single,
)


def _moved(x: TensorType, places: Sequence[Expr], shape: Shape, fill: Scalar | None = None) -> Lowering:
    """One stage of `shape` that reads `x` at `places`."""
    return single(Load("in0", tuple(places), x.dtype, fill), shape)


def _matching_groups(old: Shape, new: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Splits two shapes of one size into the smallest runs of dimensions with equal products.

    Dimensions of size 1 belong to no run. Yields the positions in `old` and in `new`.
    """
    olds = [k for k, extent in enumerate(old) if extent != 1]
    news = [k for k, extent in enumerate(new) if extent != 1]
    a = b = 0
    while a < len(olds):
        first_a, first_b = a, b
        product_old, product_new, a, b = old[olds[a]], new[news[b]], a + 1, b + 1
        while product_old != product_new:
            if product_old < product_new:
                product_old, a = product_old * old[olds[a]], a + 1
            else:
                product_new, b = product_new * new[news[b]], b + 1
        yield olds[first_a:a], news[first_b:b]


def _reshape(types: InputTypes, attrs: Attrs) -> Lowering:
    """Elements keep their row-major order; runs of dimensions that match are mapped run by run."""
    x, shape = required(types, 0), ints(attrs, "shape")
    if math.prod(shape) != x.size:
        raise ShapeError(f"{x} cannot be reshaped to {shape}", why="the number of elements differs")
    places: list[Expr] = [const(0)] * x.rank
    for olds, news in _matching_groups(x.shape, shape) if x.size else ():
        flat: Expr = const(0)
        for k in news:
            flat = add(mul(flat, shape[k]), idx(f"i{k}"))
        inner = 1
        for k in reversed(olds):
            place = floordiv(flat, inner)
            places[k] = place if k == olds[0] else mod(place, x.shape[k])
            inner *= x.shape[k]
    return _moved(x, places, shape)


def _transpose(types: InputTypes, attrs: Attrs) -> Lowering:
    """Output dimension d is input dimension perm[d]; absent, the order is reversed."""
    x = required(types, 0)
    perm = ints(attrs, "perm", tuple(reversed(range(x.rank))))
    if sorted(perm) != list(range(x.rank)):
        raise ShapeError(f"{perm} is no permutation of the dimensions of {x}")
    return _moved(x, [idx(f"i{perm.index(d)}") for d in range(x.rank)], tuple(x.shape[d] for d in perm))


def _slice(types: InputTypes, attrs: Attrs) -> Lowering:
    """Elements starts, starts + steps, ... before ends of each axis; steps may be negative."""
    x = required(types, 0)
    places, shape = own_place(x.rank), list(x.shape)
    for axis, picked in _slice_ranges(attrs, x.rank):
        if len(picked) and not (0 <= picked[0] < shape[axis] and 0 <= picked[-1] < shape[axis]):
            raise ShapeError(f"slice {picked} leaves dimension {axis} of {x}")
        places[axis] = add(mul(idx(f"i{axis}"), picked.step), picked.start)
        shape[axis] = len(picked)
    return _moved(x, places, tuple(shape))


def _slice_ranges(attrs: Attrs, rank: int) -> Iterator[tuple[int, range]]:
    """The axes that are sliced and the places kept of each."""
    starts, ends = ints(attrs, "starts"), ints(attrs, "ends")
    axes, steps = ints(attrs, "axes", tuple(range(len(starts)))), ints(attrs, "steps", (1,) * len(starts))
    for axis, *cut in zip(axes, starts, ends, steps, strict=True):
        yield normalize_axis(axis, rank), range(*cut)


def _slice_reference(attrs: Attrs, x: Numbers) -> Numbers:
    for axis, picked in _slice_ranges(attrs, x.ndim):
        x = x.take(picked, axis)
    return x


def _mirrored(place: Expr, size: int) -> Expr:
    """`place` reflected at the first and the last of `size` elements, which are not repeated."""
    if size == 1:
        return const(0)
    turn = mod(place, 2 * (size - 1))
    return calc("min", turn, sub(2 * (size - 1), turn))


def _pad(types: InputTypes, attrs: Attrs) -> Lowering:
    """Negative pads crop, first; what is then added is a constant, or continues the cropped tensor."""
    x, mode, pads = required(types, 0), attr(attrs, "mode", "constant"), ints(attrs, "pads")
    places, shape = own_place(x.rank), list(x.shape)
    for axis, (before, after) in enumerate(zip(pads[: x.rank], pads[x.rank :], strict=True)):
        size = x.shape[axis] + min(before, 0) + min(after, 0)
        shape[axis] += before + after
        place = sub(places[axis], max(before, 0))
        if size < 0 or (size == 0 < shape[axis] and mode != "constant"):
            raise ShapeError(f"padding {before} and {after} of dimension {axis} of {x} in mode {mode}")
        if before > 0 or after > 0:
            place = _continued(place, size, mode)
        places[axis] = add(place, max(-before, 0))
    filled = mode == "constant" and any(pad > 0 for pad in pads)
    return _moved(x, places, tuple(shape), literal(attr(attrs, "value", 0.0), x.dtype) if filled else None)


def _continued(place: Expr, size: int, mode: str) -> Expr:
    """Where in a dimension of `size` the value at `place`, maybe outside, is read."""
    if mode == "constant":
        return place
    if mode == "reflect":
        return _mirrored(place, size)
    if mode == "edge":
        return calc("min", calc("max", place, 0), size - 1)
    if mode == "wrap":
        return mod(place, size)
    raise UserError(f"pad mode '{mode}' is not supported", remedy="use constant, reflect, edge or wrap")


def _pad_reference(attrs: Attrs, x: Numbers) -> Numbers:
    """Crops, then numpy's `pad`."""
    mode, pads = attr(attrs, "mode", "constant"), np.reshape(ints(attrs, "pads"), (2, x.ndim)).T
    x = x[tuple(slice(max(-b, 0), n - max(-a, 0)) for (b, a), n in zip(pads, x.shape, strict=True))]
    filling = {"constant_values": np.asarray(attr(attrs, "value", 0.0)).astype(x.dtype)}
    widths = np.maximum(pads, 0)
    return np.pad(x, widths, mode, **filling if mode == "constant" else {})  # type: ignore[call-overload, no-any-return]


def _expand(types: InputTypes, attrs: Attrs) -> Lowering:
    """numpy's broadcast to `shape`."""
    shape = ints(attrs, "shape")
    return single(load("in0", required(types, 0), loop_axes(shape)), shape)


def _tile(types: InputTypes, attrs: Attrs) -> Lowering:
    """The tensor beside itself, `repeats` times along each axis."""
    x, repeats = required(types, 0), ints(attrs, "repeats")
    if len(repeats) != x.rank:
        raise ShapeError(f"{len(repeats)} repeats for {x}")
    own, counts = own_place(x.rank), list(zip(x.shape, repeats, strict=True))
    places = [i if count == 1 else mod(i, max(1, n)) for i, (n, count) in zip(own, counts, strict=True)]
    return _moved(x, places, tuple(n * count for n, count in counts))


def _concat(types: InputTypes, attrs: Attrs) -> Lowering:
    """Chooses the input that holds the point; the others are not read."""
    inputs = [(f"in{k}", required(types, k)) for k in range(len(types))]
    first = inputs[0][1]
    axis = normalize_axis(attr(attrs, "axis", 0), first.rank)
    for _, x in inputs:
        if x.rank != first.rank or any(x.shape[d] != first.shape[d] for d in range(first.rank) if d != axis):
            raise ShapeError(f"{first} and {x} cannot be joined along dimension {axis}")
    filled = [(name, x) for name, x in inputs if x.shape[axis]] or inputs[:1]
    ends = list(itertools.accumulate(x.shape[axis] for _, x in filled))
    body: Expr | None = None
    for (name, x), end in zip(reversed(filled), reversed(ends), strict=True):
        places = own_place(x.rank)
        places[axis] = sub(places[axis], end - x.shape[axis])
        part: Expr = Load(name, tuple(places), x.dtype)
        body = part if body is None else select(calc("lt", idx(f"i{axis}"), end), part, body)
    assert body is not None
    return single(body, (*first.shape[:axis], ends[-1], *first.shape[axis + 1 :]))


def _split(types: InputTypes, attrs: Attrs) -> Lowering:
    """One stage for each part: `out0`, `out1`, ..."""
    x, sizes = required(types, 0), ints(attrs, "split")
    axis = normalize_axis(attr(attrs, "axis", 0), x.rank)
    if sum(sizes) != x.shape[axis]:
        raise ShapeError(f"parts {sizes} do not add up to dimension {axis} of {x}")
    stages, start = [], 0
    for part, size in enumerate(sizes):
        places = own_place(x.rank)
        places[axis] = add(places[axis], start)
        axes = loop_axes((*x.shape[:axis], size, *x.shape[axis + 1 :]))
        stages.append(Compute(f"out{part}", x.dtype, axes, Load("in0", tuple(places), x.dtype)))
        start += size
    return Lowering(tuple(stages), tuple(stage.name for stage in stages))


def _split_reference(inputs: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """numpy's `split` at the running sums."""
    cuts = list(itertools.accumulate(ints(attrs, "split")))[:-1]
    return tuple(np.split(np.asarray(inputs[0]), cuts, axis=attr(attrs, "axis", 0)))


def _depth_to_space(types: InputTypes, attrs: Attrs) -> Lowering:
    """Spreads b*b channels over a b-by-b block, outermost (mode DCR) or innermost (CRD) in the channels."""
    x, b = required(types, 0), attr(attrs, "blocksize", 1)
    if x.rank != 4 or x.shape[1] % (b * b):
        raise ShapeError(
            f"{x} has no whole number of {b}x{b} blocks of channels", why="[n, c, y, x] is needed"
        )
    n, depth, height, width = x.shape[0], x.shape[1] // (b * b), *x.shape[2:]
    spot = add(mul(mod(idx("i2"), b), b), mod(idx("i3"), b))
    outer = attr(attrs, "mode", "DCR") == "DCR"
    channel = add(mul(spot, depth), idx("i1")) if outer else add(mul(idx("i1"), b * b), spot)
    places = [idx("i0"), channel, floordiv(idx("i2"), b), floordiv(idx("i3"), b)]
    return _moved(x, places, (n, depth, height * b, width * b))


def _depth_to_space_reference(attrs: Attrs, x: Numbers) -> Numbers:
    """Reshape, transpose, reshape (as ONNX defines it)."""
    b, (n, channels, height, width) = attr(attrs, "blocksize", 1), x.shape
    depth = channels // (b * b)
    if attr(attrs, "mode", "DCR") == "DCR":
        x = x.reshape(n, b, b, depth, height, width).transpose(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(n, depth, b, b, height, width).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(n, depth, height * b, width * b)


def _concat_reference(attrs: Attrs, *arrays: Numbers) -> Numbers:
    return np.concatenate(arrays, axis=attr(attrs, "axis", 0))


define("reshape", _reshape, reference(lambda attrs, x: x.reshape(ints(attrs, "shape"))), view=True)
define("transpose", _transpose, reference(lambda attrs, x: x.transpose(attrs.get("perm"))))
define("slice", _slice, reference(_slice_reference))
define("pad", _pad, reference(_pad_reference))
define("expand", _expand, reference(lambda attrs, x: np.broadcast_to(x, ints(attrs, "shape"))))
define("tile", _tile, reference(lambda attrs, x: np.tile(x, ints(attrs, "repeats"))))
define("concat", _concat, reference(_concat_reference))
define("depth_to_space", _depth_to_space, reference(_depth_to_space_reference))
define("split", _split, _split_reference)
