"""Pointwise chains and windows: a tile of consecutive outputs, with a loop over the window for each.

Movement, broadcasts, pools, depthwise and small convolutions, and any sum of products that no dot serves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from onepass.forms.body import Body
from onepass.forms.nest import FormMismatch
from onepass.graph.ir import Graph
from onepass.graph.layout import Layout
from onepass.loops.build import cast, idx
from onepass.loops.ir import Binary, Expr
from onepass.loops.tile import Tile
from onepass.ops.opdef import Compute
from onepass.tiles.builder import Builder, TileBuilt
from onepass.tiles.printer import Text


def build_nest(body: Body, graph: Graph, layouts: Mapping[str, Layout], tile: Tile, title: str) -> TileBuilt:
    """The kernel of a region with at most one reduction; `tile.columns` outputs a program."""
    builder = Builder(body, graph, layouts, tile)
    resolver, printer = builder.resolver, builder.printer
    output = body.output.type
    order = builder.in_memory_order(body.outputs[0], range(output.rank))
    size = tile.columns
    printer.line(f"p = tl.program_id(0) * {size} + tl.arange(0, {size})")
    printer.shape = (size,)
    resolver.ranges["p"] = (0, max(0, output.size - 1))
    printer.variables["p"] = Text("p", frozenset({0}))
    if output.size % size:
        printer.line(f"inside = p < {output.size}")
        printer.masks[0] = Text("inside", frozenset({0}))
    places = builder.decoded(idx("p"), [output.shape[axis] for axis in order])
    point = tuple(place for _, place in sorted(zip(order, places, strict=True)))
    for root in body.reductions():
        if root.type.shape != output.shape:
            raise FormMismatch("the reduction has another shape than the output")
        _reduce(builder, root, point)
    builder.write(point)
    return builder.finish(title, (max(1, math.ceil(output.size / size)), 1, 1))


def _reduce(builder: Builder, root: Compute, point: tuple[Expr, ...]) -> None:
    """Loops over the window, one place a step, the total of each output in a register."""
    resolver, printer = builder.resolver, builder.printer
    assert root.combine is not None
    total = printer.name("total")
    builder.start(total, root.combine, root.dtype, f"({builder.tile.columns},)")
    values = {axis.name: place for axis, place in zip(root.axes, point, strict=True)}
    headers = []
    for number, axis in enumerate(root.reduce_axes):
        name = printer.name(f"r{number}")
        resolver.ranges[name] = (0, max(0, axis.extent - 1))
        printer.variables[name] = Text(name)
        values[axis.name] = idx(name)
        headers.append(f"for {name} in range(0, {axis.extent}):")
    term = resolver.simplify(resolver.resolve(root.body, values))
    _nested(builder, headers, root, term, total)
    printer.bind(root, Text(total, frozenset({0})), point)


def _nested(builder: Builder, headers: list[str], root: Compute, term: Expr, total: str) -> None:
    printer = builder.printer
    if headers:
        with printer.block(headers[0]):
            _nested(builder, headers[1:], root, term, total)
        return
    assert root.combine is not None
    if root.combine == "add" and isinstance(term, Binary) and term.op == "mul" and root.dtype.is_float:
        a, b = (printer.value(cast(e, root.dtype)) for e in (term.a, term.b))
        printer.line(f"{total} = tl.fma({a.text}, {b.text}, {total})")
        return
    value = printer.value(term)
    printer.line(f"{total} = {builder.combined(root.combine, total, value.text, root.dtype)}")
