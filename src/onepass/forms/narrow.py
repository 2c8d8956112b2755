"""The narrow form: a convolution to few channels, its vectors along the input's channels.

A nest's vectors run along output channels, and one to four of them would use as few lanes. The channels of a
blocked input lie side by side, so here each lane sums its own; at the end of a tile the lanes are added up,
and the pointwise stages run with vectors along the tile's places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from onepass.forms.axes import phases
from onepass.forms.body import Body
from onepass.forms.choose import is_product
from onepass.forms.nest import Built, FormMismatch, accumulate, finish, folded, named_loops
from onepass.forms.resolve import LANE, Indices, Resolver
from onepass.forms.schedule import Segment, segments
from onepass.graph.ir import Graph
from onepass.graph.layout import PLAIN, Layout
from onepass.loops.build import add, binary, const, idx, loop, mul
from onepass.loops.ir import Alloc, Buffer, Expr, Index, Load, LoopMode, Stmt, Store
from onepass.loops.walk import loads
from onepass.ops.opdef import Compute

OUT, PLACE, STEP, BLOCK = "out", "place", "step", "block"
MAX_ACCUMULATORS = 24
UNROLL = 512  # operations written out


def narrow_lanes(body: Body, layouts: Mapping[str, Layout]) -> int:
    """Lanes of the vectors of a convolution from a blocked value to few plain channels; else 0."""
    root = next(iter(body.reductions()), None)
    if root is None or len(root.axes) < 3 or not is_product(root):
        return 0
    channel = (Index(root.reduce_axes[0].name),)
    blocks = (
        layouts.get(load.buffer, PLAIN).block for load in loads(root.body) if load.indices[1:2] == channel
    )
    plain = all(layouts.get(name, PLAIN).block == 1 for name in body.outputs)
    lanes = max(blocks, default=1)
    return lanes if plain and lanes > 1 and is_few(root.axes[1].extent, lanes) else 0


def is_few(channels: int, lanes: int) -> bool:
    """Whether vectors along the input pay: with more channels, their sums cost what idle lanes would."""
    return channels <= lanes // 4


def instructions(root: Compute, lanes: int) -> float:
    """Instructions of a place and channel: multiply-adds of vectors, and the sum over their lanes."""
    steps = math.prod(axis.extent for axis in root.reduce_axes[1:]) * -(-root.reduce_axes[0].extent // lanes)
    return steps + 2 * math.log2(lanes)


def build_narrow(body: Body, graph: Graph, layouts: Mapping[str, Layout], lanes: int) -> Built:
    """The kernel of `body`, whose `narrow_lanes` are `lanes`."""
    resolver = Resolver(body, graph, layouts)
    (root,) = body.reductions()
    resolver.must_pack = frozenset(
        n for n in body.inputs if n in graph.constants and graph.constants[n].ndim > 1
    )
    apart = dict(phases(root))
    extents = [axis.extent // apart.get(place, 1) for place, axis in enumerate(root.axes)]
    order = [(root.axes[place].name, extents[place]) for place in (0, *range(2, len(extents) - 1))]
    order += [(_phase(place), count) for place, count in apart.items()]
    outs, width = extents[1], extents[-1]
    most = min(lanes, MAX_ACCUMULATORS // outs, max(1, width))
    most = next((n for n in range(most, most // 2, -1) if width % n == 0), most)
    resolver.ranges |= {name: (0, extent - 1) for name, extent in order} | {OUT: (0, outs - 1)}
    inner: list[Stmt] = []
    for piece in segments(width, most):
        resolver.ranges[STEP] = (0, piece.count - 1)
        tile = _tile(resolver, root, piece, lanes)
        inner.append(loop(STEP, piece.count, tile))
    return finish(resolver, [named_loops(order, tuple(inner))], lanes)


def _tile(resolver: Resolver, root: Compute, piece: Segment, lanes: int) -> tuple[Stmt, ...]:
    """Sums of one tile, and what follows them."""
    outs, places, dtype = root.axes[1].extent, piece.width, root.dtype
    start = add(mul(idx(STEP), places), piece.start)
    totals = Buffer("sum", dtype, (outs, places), "register")
    parts: list[Buffer] = []
    found: list[Stmt] = []
    # Lanes beyond the last channel hold anything: the last channels are a part of their own.
    for number, part in enumerate(segments(root.reduce_axes[0].extent, lanes)):
        buffer = Buffer(f"acc{number}", dtype, (places, outs, part.width), "register")
        parts.append(buffer)
        found += _sums(resolver, root, add(start, idx(PLACE)), part, buffer)
    for place in range(places):
        for out in range(outs):
            found.append(_total(parts, totals, place, out))
    found.append(_outputs(resolver, root, start, totals))
    for buffer in (totals, *parts):
        found = [Alloc(buffer, tuple(found))]
    return tuple(found)


def _phase(place: int) -> str:
    """The variable that tells which of the places a stride apart are computed, along the axis `place`."""
    return f"phase{place}"


def _point(root: Compute, last: Expr) -> Indices:
    middle = (idx(axis.name) for axis in root.axes[2:-1])
    point: list[Expr] = [idx(root.axes[0].name), idx(OUT), *middle, last]
    for place, count in phases(root):
        point[place] = add(mul(point[place], count), idx(_phase(place)))
    return tuple(point)


def _sums(resolver: Resolver, root: Compute, last: Expr, part: Segment, acc: Buffer) -> list[Stmt]:
    """The reduction over the channels of `part`, each lane its own."""
    places, outs, lanes = acc.shape
    channel, *window = root.reduce_axes
    resolver.ranges |= {PLACE: (0, places - 1), LANE: (0, lanes - 1), BLOCK: (0, part.count - 1)}
    resolver.ranges |= {axis.name: (0, axis.extent - 1) for axis in window}
    resolver.pack_axes = (
        *((_phase(place), count) for place, count in phases(root)),
        (BLOCK, part.count),
        *((a.name, a.extent) for a in window),
        (OUT, outs),
        (LANE, lanes),
    )
    resolver.point, resolver.bound = _point(root, last), {}
    values = {axis.name: index for axis, index in zip(root.axes, resolver.point, strict=True)}
    values[channel.name] = add(add(mul(idx(BLOCK), lanes), idx(LANE)), part.start)
    term = resolver.simplify(resolver.resolve(root.body, values))
    element = Load(acc.name, (idx(PLACE), idx(OUT), idx(LANE)), acc.dtype)

    def each(name: str, extent: int, *body: Stmt) -> Stmt:
        return loop(name, extent, (loop(LANE, lanes, body, "vector"),), "unroll")

    start = each(OUT, outs, Store(acc.name, element.indices, const(0.0, acc.dtype)))
    update = each(OUT, outs, Store(acc.name, element.indices, accumulate("add", element, term)))
    body: Stmt = loop(PLACE, places, (update,), "unroll")
    written = places * outs
    for axis in reversed(window):
        written *= axis.extent
        mode: LoopMode = "unroll" if written <= UNROLL else "serial"
        body = loop(axis.name, axis.extent, (body,), mode)
    return [loop(PLACE, places, (start,), "unroll"), loop(BLOCK, part.count, (body,))]


def _total(parts: Sequence[Buffer], totals: Buffer, place: int, out: int) -> Stmt:
    """The lanes of all parts added up: each time the upper half onto the lower one."""
    found: list[Stmt] = []
    terms: list[Expr] = []
    halves: list[Buffer] = []
    for buffer in parts:
        value = Load(buffer.name, (const(place), const(out), idx(LANE)), buffer.dtype)
        stores, buffers, left = folded("add", value, buffer.name, buffer.shape[-1], least=2)
        found += stores
        halves += buffers
        terms += left
    total = terms[0]
    for term in terms[1:]:
        total = binary("add", total, term)
    body: tuple[Stmt, ...] = (*found, Store(totals.name, (const(out), const(place)), total))
    for buffer in halves:
        body = (Alloc(buffer, body),)
    return body[0]


def _outputs(resolver: Resolver, root: Compute, start: Expr, totals: Buffer) -> Stmt:
    """Stores of every output, vectors along the places of the tile."""
    outs, places = totals.shape
    resolver.ranges[LANE] = (0, places - 1)
    point = tuple(resolver.simplify(index) for index in _point(root, add(start, idx(LANE))))
    resolver.point, resolver.pack_axes = point, ((OUT, outs), (LANE, places))

    def summed(indices: Indices) -> Expr:
        if indices != point:
            raise FormMismatch(f"'{root.name}' is read at another place than it is computed")
        return Load(totals.name, (idx(OUT), idx(LANE)), totals.dtype)

    resolver.bound = {root.name: summed}
    return loop(OUT, outs, resolver.vector_loop(places, lambda: resolver.outputs(point)), "unroll")
