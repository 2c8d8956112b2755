"""Which axis of a nest the vectors run along, and which one its register tile.

In: a region, its layouts. Out: positions among the output's axes. Vectors run along what the output stores
contiguously, except where the input is blocked. The tile runs along an axis that lets one vector
load serve all its positions, or that makes them share cache lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from onepass.forms.body import Body
from onepass.forms.resolve import Resolver
from onepass.graph.ir import Graph
from onepass.graph.layout import PLAIN, Layout
from onepass.loops.ir import Binary, Const, Index, Load
from onepass.loops.walk import index_names, loads, subexpressions
from onepass.ops.opdef import Compute

MIN_SHARED = 4  # positions that must share a vector before the tile leaves the axis next to it


def vector_axis(
    body: Body, layouts: Mapping[str, Layout], shape: tuple[int, ...], product: Compute | None
) -> int:
    """The axis of the vectors; `product` is the region's contraction."""
    # Channels of a blocked input of a product are broadcast one by one; along a row they would be gathered.
    read = loads(product.body) if product is not None and len(shape) > 2 else ()
    if any(layouts.get(name, PLAIN).block > 1 for name in (body.outputs[0], *(load.buffer for load in read))):
        return 1
    return max((axis for axis, extent in enumerate(shape) if extent > 1), default=max(0, len(shape) - 1))


def unbroken_lanes(body: Body, lanes: int) -> int:
    """The largest part of `lanes` channels that no joint of a concatenation, and no shift of them, cuts.

    A vector of them is one load from one part, where a cut one would be gathered. All of them where only
    less than a quarter is left.
    """
    part = lanes
    for stage in body.stages:
        channel = Index(stage.axes[1].name) if len(stage.axes) > 2 else None
        for expr in subexpressions(stage.body):
            match expr:
                case Binary(a=Index() as a, b=Const(value=int(offset))) if a == channel:
                    part = math.gcd(part, offset)
    return part if 4 * part >= lanes else lanes


def shared_tile(product: Compute, vector: int) -> tuple[int, int] | None:
    """For a grouped convolution in plain layout: the channels of a group as tile, and how many at most.

    All channels of a group read the same vectors of the input. None where channels are not grouped.
    """
    name, across = product.axes[1].name if len(product.axes) > 2 else "", product.axes[vector].name
    for load in loads(product.body):
        names = frozenset().union(*map(index_names, load.indices))
        if vector == 1 or across not in names or name not in names:
            continue
        for index in load.indices:
            for part in subexpressions(index):
                match part:
                    case Binary(op="floordiv", a=Index(name=of), b=Const(value=width)) if of == name:
                        return (1, int(width)) if width >= MIN_SHARED else None
    return None


def contiguous_axis(
    body: Body, graph: Graph, layouts: Mapping[str, Layout], shape: tuple[int, ...], vector: int
) -> int | None:
    """The axis along which a transposing region reads contiguously, None where that is `vector`.

    A tile along it reads whole cache lines before they are evicted.
    """
    resolver = Resolver(body, graph, layouts)
    names = {f"i{axis}": axis for axis in range(len(shape))}
    resolver.ranges |= {name: (0, max(0, shape[axis] - 1)) for name, axis in names.items()}
    value = resolver.value(body.outputs[0], tuple(Index(f"i{k}") for k in range(len(body.output.axes))))
    params = {buffer.name: buffer for buffer in resolver.params.values()}
    reads = [
        e for e in subexpressions(resolver.simplify(value))
        if isinstance(e, Load) and e.indices and e.buffer in params
    ]  # fmt: skip
    if not reads:
        return None
    largest = max(reads, key=lambda load: math.prod(params[load.buffer].shape))
    along = [names[name] for name in index_names(largest.indices[-1]) if name in names]
    if vector in along or len(along) != 1 or shape[along[0]] < MIN_SHARED:
        return None
    return along[0]


def phases(root: Compute) -> tuple[tuple[int, int], ...]:
    """Axes along which places a stride apart use the same weights: those of a transposed convolution."""
    found: dict[int, int] = {}
    names = {axis.name: position for position, axis in enumerate(root.axes)}
    for load in loads(root.body):
        for part in (part for index in load.indices for part in subexpressions(index)):
            match part:
                case Binary(op="mod", a=a, b=Const(value=stride)):
                    (name, *more) = index_names(a) or ("",)
                    axis = names.get(name, 0)
                    if axis > 1 and not more and root.axes[axis].extent % int(stride) == 0:
                        found[axis] = int(stride)
    return tuple(found.items())
