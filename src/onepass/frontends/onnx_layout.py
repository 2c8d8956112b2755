"""Converters for ops that move or rename elements: their parameters become explicit attributes."""

from __future__ import annotations

import math

from onepass.core.errors import ShapeError
from onepass.core.tensor import Shape
from onepass.frontends.onnx_site import Converter, Site
from onepass.ops.shapes import broadcast_shape


def convert_reshape(site: Site) -> None:
    """Reshape: 0 copies a dimension (unless `allowzero`), one -1 is what remains."""
    wanted = site.ints(1, "shape")
    if wanted is None:
        raise site.error("the shape input is missing")
    shape = site.shape()
    copies = not site.int_attr("allowzero")
    if any(size < -1 for size in wanted) or wanted.count(-1) > 1:
        raise site.error(f"shape {list(wanted)} is not valid")
    sizes = []
    for axis, size in enumerate(wanted):
        if size == 0 and copies:
            if axis >= len(shape):
                what = f"shape {list(wanted)} copies dimension {axis}"
                raise site.error(f"{what} of a tensor of rank {len(shape)}")
            size = shape[axis]
        sizes.append(size)
    if -1 in sizes:
        rest = -math.prod(sizes)
        total = math.prod(shape)
        if rest == 0 and total:
            raise site.error(f"{list(shape)} cannot be reshaped to {list(wanted)}")
        sizes[sizes.index(-1)] = total // rest if rest else 0
    emit_reshape(site, tuple(sizes))


def emit_reshape(site: Site, shape: Shape) -> None:
    """Adds a reshape of the first input to `shape`."""
    if math.prod(shape) != math.prod(site.shape()):
        raise site.error(f"{list(site.shape())} cannot be reshaped to {list(shape)}")
    site.emit("reshape", site.inputs[:1], {"shape": shape})


def convert_flatten(site: Site) -> None:
    """Flatten: a matrix; the axes before `axis` make its rows."""
    shape = site.shape()
    axis = site.int_attr("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise site.error(f"axis {axis} does not exist in a tensor of rank {len(shape)}")
    axis = axis + len(shape) if axis < 0 else axis
    emit_reshape(site, (math.prod(shape[:axis]), math.prod(shape[axis:])))


def axes_of(site: Site, position: int = 1) -> tuple[int, ...] | None:
    """The axes of an op: an attribute in old opsets, an input in new ones; as written."""
    given = site.ints(position, "axes")
    return given if given is not None else site.ints_attr("axes")


def convert_squeeze(site: Site) -> None:
    """Squeeze: the named dimensions of size 1, or all of them."""
    shape = site.shape()
    given = axes_of(site)
    if given is None:
        dropped = {axis for axis, size in enumerate(shape) if size == 1}
    else:
        dropped = {site.axis(axis, len(shape)) for axis in given}
    for axis in sorted(dropped):
        if shape[axis] != 1:
            raise site.error(f"dimension {axis} of {list(shape)} is not 1 and cannot be dropped")
    emit_reshape(site, tuple(size for axis, size in enumerate(shape) if axis not in dropped))


def convert_unsqueeze(site: Site) -> None:
    """Unsqueeze: the axes count in the result."""
    given = axes_of(site)
    if given is None:
        raise site.error("the axes are missing")
    shape = site.shape()
    rank = len(shape) + len(given)
    added = {site.axis(axis, rank) for axis in given}
    if len(added) != len(given):
        raise site.error(f"axes {list(given)} repeat")
    rest = iter(shape)
    emit_reshape(site, tuple(1 if axis in added else next(rest) for axis in range(rank)))


def convert_transpose(site: Site) -> None:
    """Transpose: reverses the axes unless `perm` is given."""
    rank = len(site.shape())
    perm = tuple(site.axis(axis, rank) for axis in site.ints_attr("perm") or reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        raise site.error(f"perm {list(perm)} is not a permutation of {rank} axes")
    site.emit("transpose", site.inputs, {"perm": perm})


def convert_slice(site: Site) -> None:
    """Slice: clamped as numpy's, for every axis; attributes before opset 10, inputs since."""
    shape = site.shape()
    starts = site.ints(1, "starts") if site.opset >= 10 else site.ints_attr("starts")
    ends = site.ints(2, "ends") if site.opset >= 10 else site.ints_attr("ends")
    if starts is None or ends is None or len(starts) != len(ends):
        raise site.error("starts and ends are missing or differ in length")
    axes = axes_of(site, 3) if site.opset >= 10 else site.ints_attr("axes")
    steps = (site.ints(4, "steps") if site.opset >= 10 else None) or (1,) * len(starts)
    axes = tuple(range(len(starts))) if axes is None else tuple(site.axis(axis, len(shape)) for axis in axes)
    if len(axes) != len(starts) or len(steps) != len(starts) or 0 in steps:
        raise site.error("axes and steps do not match starts, or a step is 0")
    full = [slice(None)] * len(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        full[axis] = slice(start, end, step)
    ranges = [range(*part.indices(size)) for part, size in zip(full, shape, strict=True)]
    attrs = {
        "starts": tuple(part.start for part in ranges), "ends": tuple(part.stop for part in ranges),
        "axes": tuple(range(len(shape))), "steps": tuple(part.step for part in ranges),
    }  # fmt: skip
    site.emit("slice", site.inputs[:1], attrs)


def convert_pad(site: Site) -> None:
    """Pad: full rank; attributes before opset 11; some axes only since 18."""
    shape = site.shape()
    rank = len(shape)
    pads = site.ints(1, "pads") if site.opset >= 11 else site.ints_attr("pads")
    axes = tuple(site.axis(axis, rank) for axis in site.ints(3, "axes") or range(rank))
    if pads is None or len(pads) != 2 * len(axes):
        raise site.error(f"pads {pads} do not fit {len(axes)} axes")
    full = [0] * (2 * rank)
    for i, axis in enumerate(axes):
        full[axis], full[rank + axis] = pads[i], pads[len(axes) + i]
    fill = site.array(2, "value") if site.opset >= 11 else None
    value = site.attrs.get("value") if fill is None else fill.reshape(-1)[0].item()
    mode = site.attrs.get("mode") or "constant"
    site.emit("pad", site.inputs[:1], {"pads": tuple(full), "mode": mode, "value": value or 0})


def convert_expand(site: Site) -> None:
    """Expand: broadcasts both ways."""
    wanted = site.ints(1, "shape")
    if wanted is None or any(size < 0 for size in wanted):
        raise site.error(f"shape {wanted} is not valid")
    try:
        shape = broadcast_shape(site.shape(), wanted)
    except ShapeError as error:
        raise site.error(error.what, error.why) from None
    site.emit("expand", site.inputs[:1], {"shape": shape})


def convert_tile(site: Site) -> None:
    """Tile: how often each axis repeats."""
    repeats = site.ints(1, "repeats")
    if repeats is None or len(repeats) != len(site.shape()) or any(count < 0 for count in repeats):
        raise site.error(f"repeats {repeats} do not fit rank {len(site.shape())}")
    site.emit("tile", site.inputs[:1], {"repeats": repeats})


def convert_split(site: Site) -> None:
    """Split: explicit sizes; equal ones (a smaller last one since opset 18) where none are given."""
    shape = site.shape()
    axis = site.axis(site.int_attr("axis"), len(shape))
    split = site.ints(1, "split sizes") if site.opset >= 13 else site.ints_attr("split")
    outputs = len(site.node.output)
    if not split:
        parts = site.int_attr("num_outputs") or outputs
        size = -(-shape[axis] // parts)
        if site.opset < 18 and shape[axis] % parts:
            raise site.error(f"{shape[axis]} elements cannot be split into {parts} equal parts")
        split = (*(size,) * (parts - 1), shape[axis] - size * (parts - 1))
    if sum(split) != shape[axis] or len(split) != outputs or min(split) < 0:
        what = f"dimension {axis} of {list(shape)} and {outputs} outputs"
        raise site.error(f"split {list(split)} does not fit {what}")
    site.emit("split", site.inputs[:1], {"axis": axis, "split": split}, tuple(site.node.output))


def convert_axis_op(op: str) -> Converter:
    """A converter for an op with an `axis` counted in its first input, made non-negative."""

    def convert(site: Site) -> None:
        axis = site.axis(site.int_attr("axis"), len(site.shape()))
        site.emit(op, site.inputs, {**site.attrs, "axis": axis})

    return convert
