"""Ops that only move elements: their stages are one load at other indices, without arithmetic.

In: any dtype, with shapes and places as attributes (`shape`, `pads`, `starts`, ...). Out: one stage `out`
over `i0, i1, ...` (`split`: one for each output), so a planner can absorb the op as an index map.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from onepass.core.dtypes import DType
from onepass.core.errors import ShapeError, UserError
from onepass.core.tensor import Shape, TensorType
from onepass.loops.build import add, binary, const, floordiv, idx, mod, mul, select, sub
from onepass.loops.ir import Const, Expr, Load, Scalar
from onepass.ops.opdef import Array, Attrs, Axis, Compute, InputTypes, Lower, Lowering, OpDef, define
from onepass.ops.shapes import (
    Numbers,
    broadcast_shape,
    float_attr,
    int_attr,
    ints_attr,
    load,
    loop_axes,
    normalize_axis,
    reference,
    required,
    single,
    str_attr,
)


def indices(rank: int) -> list[Expr]:
    """`i0, i1, ...`"""
    return [idx(f"i{k}") for k in range(rank)]


def ints(attrs: Attrs, name: str) -> tuple[int, ...]:
    """A tuple attribute that the op cannot do without."""
    value = ints_attr(attrs, name)
    if value is None:
        raise ShapeError(f"'{name}' is missing")
    return value


def scalar(value: float, dtype: DType) -> Scalar:
    """`value` as a literal of `dtype`."""
    return value if dtype.is_float else int(value) if dtype.is_integer else bool(value)


def moved(x: TensorType, places: Sequence[Expr], shape: Shape, fill: Scalar | None = None) -> Lowering:
    """One stage of `shape` that reads `x` at `places`."""
    return single(Load("in0", tuple(places), x.dtype, fill), shape)


def matching_groups(old: Shape, new: Shape) -> Iterator[tuple[list[int], list[int]]]:
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


def reshape_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """Elements keep their row-major order; runs of dimensions that match are mapped run by run."""
    x, shape = required(types, 0), ints(attrs, "shape")
    if math.prod(shape) != x.size:
        raise ShapeError(f"{x} cannot be reshaped to {shape}", why="the number of elements differs")
    places: list[Expr] = [const(0)] * x.rank
    for olds, news in matching_groups(x.shape, shape) if x.size else ():
        flat: Expr = const(0)
        for k in news:
            flat = add(mul(flat, shape[k]), idx(f"i{k}"))
        inner = 1
        for k in reversed(olds):
            place = floordiv(flat, inner)
            places[k] = place if k == olds[0] else mod(place, x.shape[k])
            inner *= x.shape[k]
    return moved(x, places, shape)


def transpose_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """Output dimension d is input dimension perm[d]; absent, the order is reversed."""
    x = required(types, 0)
    perm = ints_attr(attrs, "perm") or tuple(reversed(range(x.rank)))
    if sorted(perm) != list(range(x.rank)):
        raise ShapeError(f"{perm} is no permutation of the dimensions of {x}")
    return moved(x, [idx(f"i{perm.index(d)}") for d in range(x.rank)], tuple(x.shape[d] for d in perm))


def slice_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """Elements starts, starts + steps, ... before ends of each axis; steps may be negative."""
    x = required(types, 0)
    places, shape = indices(x.rank), list(x.shape)
    for axis, picked in slice_ranges(attrs, x.rank):
        if len(picked) and not (0 <= picked[0] < shape[axis] and 0 <= picked[-1] < shape[axis]):
            raise ShapeError(f"slice {picked} leaves dimension {axis} of {x}")
        places[axis] = add(mul(idx(f"i{axis}"), picked.step), picked.start)
        shape[axis] = len(picked)
    return moved(x, places, tuple(shape))


def slice_ranges(attrs: Attrs, rank: int) -> Iterator[tuple[int, range]]:
    """The axes that are sliced and the places kept of each."""
    starts, ends = ints(attrs, "starts"), ints(attrs, "ends")
    axes = ints_attr(attrs, "axes") or tuple(range(len(starts)))
    steps = ints_attr(attrs, "steps") or (1,) * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        yield normalize_axis(axis, rank), range(start, end, step)


def slice_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """numpy's slices; an end before the first element is spelled None."""
    x = arrays[0]
    cuts = [slice(None)] * x.ndim
    for axis, picked in slice_ranges(attrs, x.ndim):
        cuts[axis] = slice(picked.start, picked.stop if picked.stop >= 0 else None, picked.step)
        if not picked:
            cuts[axis] = slice(0, 0)
    return x[tuple(cuts)]


def mirrored(place: Expr, size: int) -> Expr:
    """`place` reflected at the first and the last of `size` elements, which are not repeated."""
    if size == 1:
        return const(0)
    turn = mod(place, 2 * (size - 1))
    return binary("min", turn, sub(2 * (size - 1), turn))


def pad_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """Negative pads crop, first; what is then added is a constant, or continues the cropped tensor."""
    x, mode = required(types, 0), str_attr(attrs, "mode", "constant")
    pads = ints(attrs, "pads")
    places, shape = indices(x.rank), list(x.shape)
    for axis, (before, after) in enumerate(zip(pads[: x.rank], pads[x.rank :], strict=True)):
        size = x.shape[axis] + min(before, 0) + min(after, 0)
        shape[axis] += before + after
        place = sub(idx(f"i{axis}"), max(before, 0))
        if size < 0 or (size == 0 < shape[axis] and mode != "constant"):
            raise ShapeError(f"padding {before} and {after} of dimension {axis} of {x} in mode {mode}")
        if before > 0 or after > 0:
            place = continued(place, size, mode)
        places[axis] = add(place, max(-before, 0))
    if mode != "constant" or all(pad <= 0 for pad in pads):
        return moved(x, places, tuple(shape))
    return moved(x, places, tuple(shape), scalar(float_attr(attrs, "value", 0.0), x.dtype))


def continued(place: Expr, size: int, mode: str) -> Expr:
    """Where in a dimension of `size` the value at `place`, maybe outside, is read."""
    if mode == "constant":
        return place
    if mode == "reflect":
        return mirrored(place, size)
    if mode == "edge":
        return binary("min", binary("max", place, const(0)), const(size - 1))
    if mode == "wrap":
        return mod(place, size)
    raise UserError(f"pad mode '{mode}' is not supported", remedy="use constant, reflect, edge or wrap")


def pad_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """Crops, then numpy's `pad`."""
    x, mode, pads = arrays[0], str_attr(attrs, "mode", "constant"), ints(attrs, "pads")
    before, after = pads[: x.ndim], pads[x.ndim :]
    x = x[tuple(slice(max(-b, 0), n - max(-a, 0)) for b, a, n in zip(before, after, x.shape, strict=True))]
    widths = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    if mode == "constant":
        value = np.asarray(float_attr(attrs, "value", 0.0)).astype(x.dtype)
        return np.pad(x, widths, constant_values=value)
    return np.pad(x, widths, mode=mode)  # type: ignore[call-overload, no-any-return]


def expand_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """numpy's broadcast to `shape`."""
    x, shape = required(types, 0), ints(attrs, "shape")
    if broadcast_shape(x.shape, shape) != shape:
        raise ShapeError(f"{x} cannot be expanded to {shape}")
    return single(load("in0", x, loop_axes(shape)), shape)


def tile_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """The tensor beside itself, `repeats` times along each axis."""
    x, repeats = required(types, 0), ints(attrs, "repeats")
    if len(repeats) != x.rank:
        raise ShapeError(f"{len(repeats)} repeats for {x}")
    places = [
        idx(f"i{k}") if count == 1 else mod(idx(f"i{k}"), max(1, x.shape[k]))
        for k, count in enumerate(repeats)
    ]
    return moved(x, places, tuple(n * count for n, count in zip(x.shape, repeats, strict=True)))


def concat_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """Chooses the input that holds the point; the others are not read."""
    inputs = [(f"in{k}", required(types, k)) for k in range(len(types))]
    first = inputs[0][1]
    axis = normalize_axis(int_attr(attrs, "axis", 0), first.rank)
    for _, x in inputs:
        if x.rank != first.rank or any(x.shape[d] != first.shape[d] for d in range(first.rank) if d != axis):
            raise ShapeError(f"{first} and {x} cannot be joined along dimension {axis}")
    filled = [(name, x) for name, x in inputs if x.shape[axis]] or inputs[:1]
    ends = list(itertools.accumulate(x.shape[axis] for _, x in filled))
    body: Expr | None = None
    for (name, x), end in zip(reversed(filled), reversed(ends), strict=True):
        places = indices(x.rank)
        places[axis] = sub(places[axis], end - x.shape[axis])
        part: Expr = Load(name, tuple(places), x.dtype)
        body = part if body is None else select(binary("lt", idx(f"i{axis}"), const(end)), part, body)
    assert body is not None
    return single(body, (*first.shape[:axis], ends[-1], *first.shape[axis + 1 :]))


def split_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """One stage for each part: `out0`, `out1`, ..."""
    x, sizes = required(types, 0), ints(attrs, "split")
    axis = normalize_axis(int_attr(attrs, "axis", 0), x.rank)
    if sum(sizes) != x.shape[axis]:
        raise ShapeError(f"parts {sizes} do not add up to dimension {axis} of {x}")
    stages, start = [], 0
    for part, size in enumerate(sizes):
        places = indices(x.rank)
        places[axis] = add(places[axis], start)
        axes = loop_axes((*x.shape[:axis], size, *x.shape[axis + 1 :]))
        stages.append(Compute(f"out{part}", x.dtype, axes, Load("in0", tuple(places), x.dtype)))
        start += size
    return Lowering(tuple(stages), tuple(stage.name for stage in stages))


def split_reference(inputs: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """numpy's `split` at the running sums."""
    cuts = list(itertools.accumulate(ints(attrs, "split")))[:-1]
    return tuple(np.split(np.asarray(inputs[0]), cuts, axis=int_attr(attrs, "axis", 0)))


def blocked(types: InputTypes, attrs: Attrs) -> tuple[TensorType, int]:
    """The `[n, c, y, x]` input and block size of a depth/space op."""
    x, block = required(types, 0), int_attr(attrs, "blocksize", 1)
    if x.rank != 4:
        raise ShapeError(f"blocks of {x}", why="it needs 4 dimensions")
    return x, block


def depth_to_space_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """Spreads b*b channels over a b-by-b block, outermost (mode DCR) or innermost (CRD) in the channels."""
    x, b = blocked(types, attrs)
    n, channels, height, width = x.shape
    if channels % (b * b):
        raise ShapeError(f"{x} has no whole number of {b}x{b} blocks of channels")
    depth = channels // (b * b)
    spot = add(mul(mod(idx("i2"), b), b), mod(idx("i3"), b))
    outer = str_attr(attrs, "mode", "DCR") == "DCR"
    channel = add(mul(spot, depth), idx("i1")) if outer else add(mul(idx("i1"), b * b), spot)
    places = [idx("i0"), channel, floordiv(idx("i2"), b), floordiv(idx("i3"), b)]
    return moved(x, places, (n, depth, height * b, width * b))


def depth_to_space_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """Reshape, transpose, reshape (as ONNX defines it)."""
    x, b = arrays[0], int_attr(attrs, "blocksize", 1)
    n, channels, height, width = x.shape
    depth = channels // (b * b)
    if str_attr(attrs, "mode", "DCR") == "DCR":
        x = x.reshape(n, b, b, depth, height, width).transpose(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(n, depth, b, b, height, width).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(n, depth, height * b, width * b)


def space_to_depth_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """Stacks each b-by-b block as channels; its place is outermost (mode DCR) or innermost (CRD) in them."""
    x, b = blocked(types, attrs)
    n, channels, height, width = x.shape
    if height % b or width % b:
        raise ShapeError(f"{x} has no whole number of {b}x{b} blocks")
    outer = str_attr(attrs, "mode", "DCR") == "DCR"
    inner = max(1, channels) if outer else b * b
    high, low = floordiv(idx("i1"), inner), mod(idx("i1"), inner)
    spot, channel = (high, low) if outer else (low, high)
    places = [
        idx("i0"),
        channel,
        add(mul(idx("i2"), b), floordiv(spot, b)),
        add(mul(idx("i3"), b), mod(spot, b)),
    ]
    return moved(x, places, (n, channels * b * b, height // b, width // b))


def space_to_depth_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """Reshape, transpose, reshape (as ONNX defines it)."""
    x, b = arrays[0], int_attr(attrs, "blocksize", 1)
    n, channels, height, width = x.shape
    order = (0, 3, 5, 1, 2, 4) if str_attr(attrs, "mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    x = x.reshape(n, channels, height // b, b, width // b, b).transpose(order)
    return x.reshape(n, channels * b * b, height // b, width // b)


def trilu_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """Keeps the last two dimensions on one side of diagonal `k`, zeros on the other."""
    x, k = required(types, 0), int_attr(attrs, "k", 0)
    if x.rank < 2:
        raise ShapeError(f"triangle of {x}", why="it needs 2 dimensions")
    axes: tuple[Axis, ...] = loop_axes(x.shape)
    row, column = idx(axes[-2].name), idx(axes[-1].name)
    kept = binary("ge" if int_attr(attrs, "upper", 1) else "le", column, add(row, k))
    return single(select(kept, load("in0", x, axes), Const(scalar(0, x.dtype), x.dtype)), x.shape)


def trilu_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """numpy's `triu` and `tril`."""
    keep = np.triu if int_attr(attrs, "upper", 1) else np.tril
    return keep(arrays[0], int_attr(attrs, "k", 0))


def _define(
    name: str,
    lower: Lower,
    compute: Callable[[Sequence[Numbers], Attrs], Numbers],
    doc: str,
    view: bool = False,
) -> None:
    define(OpDef(name, lower, reference(compute), doc, view))


_define(
    "reshape",
    reshape_lower,
    lambda arrays, attrs: arrays[0].reshape(ints(attrs, "shape")),
    "Gives the same elements another shape.",
    view=True,
)
_define(
    "transpose",
    transpose_lower,
    lambda arrays, attrs: arrays[0].transpose(ints_attr(attrs, "perm")),
    "Permutes the dimensions.",
)
_define("slice", slice_lower, slice_reference, "Keeps a regular part of each dimension.")
_define("pad", pad_lower, pad_reference, "Adds or crops elements at the borders.")
_define(
    "expand",
    expand_lower,
    lambda arrays, attrs: np.broadcast_to(arrays[0], ints(attrs, "shape")),
    "Repeats dimensions of size 1.",
)
_define(
    "tile",
    tile_lower,
    lambda arrays, attrs: np.tile(arrays[0], ints(attrs, "repeats")),
    "Repeats the whole tensor.",
)
_define(
    "concat",
    concat_lower,
    lambda arrays, attrs: np.concatenate(arrays, axis=int_attr(attrs, "axis", 0)),
    "Joins tensors along one dimension.",
)
_define("depth_to_space", depth_to_space_lower, depth_to_space_reference, "Spreads channels over pixels.")
_define("space_to_depth", space_to_depth_lower, space_to_depth_reference, "Stacks pixels as channels.")
_define("trilu", trilu_lower, trilu_reference, "Keeps the upper or lower triangle of matrices.")
define(OpDef("split", split_lower, split_reference, "Cuts a tensor along one dimension."))
