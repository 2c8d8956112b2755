"""Loops that write the border of zeros around a padded tensor."""

from __future__ import annotations

from onepass.core.tensor import Shape
from onepass.forms.schedule import segments
from onepass.graph.layout import Layout
from onepass.loops.build import add, const, floordiv, idx, loop, mod, mul
from onepass.loops.ir import Buffer, Expr, For, Stmt, Store


def zero_border(buffer: Buffer, layout: Layout, shape: Shape, lanes: int) -> tuple[Stmt, ...]:
    """Parallel loops over planes that store zero where `layout` has its border; none without one."""
    if not layout.is_padded or 0 in shape:
        return ()
    images, channels, *rest = layout.own_shape(shape)
    spatial = rest[: len(layout.pads)]
    plane = [floordiv(idx("plane"), channels), mod(idx("plane"), channels)]
    found: list[Stmt] = []
    for axis, (before, after) in enumerate(layout.pads):
        for start, width in ((0, before), (spatial[axis] - after, after)):
            if width:
                found += _slab(buffer, plane, layout, axis, start, width, lanes)
    return (loop("plane", images * channels, tuple(found), "parallel"),)


def _slab(
    buffer: Buffer, plane: list[Expr], layout: Layout, axis: int, start: int, width: int, lanes: int
) -> tuple[Stmt, ...]:
    """Zeros for `width` positions of spatial `axis` of a `plane`; earlier axes only in their interior."""
    rank = len(layout.pads)
    spatial = buffer.shape[2 : 2 + rank]
    where = list(plane)
    loops: list[tuple[str, int, int]] = []
    for i in range(rank):
        low, high = (start, start + width) if i == axis else (0, spatial[i])
        if i < axis:
            low, high = layout.pads[i][0], spatial[i] - layout.pads[i][1]
        where.append(idx(f"b{i}"))
        loops.append((f"b{i}", low, high))
    zero = const(0, buffer.dtype)
    if layout.block > 1:
        body: tuple[Stmt, ...] = (_vector(buffer, where, layout.block, zero),)
    else:
        name, low, high = loops.pop()
        body = _run(buffer, where[:-1], low, high, lanes, zero)
    for name, low, high in reversed(loops):
        body = (For(name, const(low), const(high), body),)
    return body


def _vector(buffer: Buffer, where: list[Expr], width: int, zero: Expr, start: Expr | None = None) -> Stmt:
    last = idx("lane") if start is None else add(start, idx("lane"))
    return loop("lane", width, (Store(buffer.name, (*where, last), zero),), "vector")


def _run(buffer: Buffer, where: list[Expr], low: int, high: int, lanes: int, zero: Expr) -> tuple[Stmt, ...]:
    found: list[Stmt] = []
    for part in segments(high - low, lanes):
        if part.width == lanes:
            start = add(mul(idx("step"), lanes), low)
            found.append(loop("step", part.count, (_vector(buffer, where, lanes, zero, start),)))
        else:
            found.append(_vector(buffer, where, part.width, zero, const(low + part.start)))
    return tuple(found)
