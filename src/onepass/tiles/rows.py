"""Rows: reductions along rows and everything pointwise around them, some rows a program.

A row that fits is held as one tile, read once: softmax and LayerNorm move no more than their compulsory
bytes. A longer one is walked in chunks, once for each reduction that needs the one before, and once to write.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from onepass.forms.body import Body
from onepass.forms.nest import FormMismatch
from onepass.forms.resolve import Resolver
from onepass.forms.row_space import Pass, RowSpace
from onepass.graph.ir import Graph
from onepass.graph.layout import Layout
from onepass.loops.build import idx
from onepass.loops.ir import Expr
from onepass.loops.tile import Tile
from onepass.loops.walk import substitute
from onepass.ops.opdef import Axis
from onepass.tiles.builder import Builder, TileBuilt, power_of_two
from onepass.tiles.printer import Printer, Text

ROW, ALONG = frozenset({0}), frozenset({1})


def row_space(body: Body, graph: Graph, layouts: Mapping[str, Layout]) -> RowSpace:
    """The rows of `body`; raises `FormMismatch` where it has none."""
    resolver = Resolver(body, graph, layouts)
    Printer(resolver)  # stages are read as tiles: each is resolved once, however often it is read
    return RowSpace(resolver)


def row_lengths(space: RowSpace) -> tuple[int, int]:
    """Rows, and the elements of the longest pass over one."""
    lengths = [math.prod(axis.extent for axis in p.axes) for p in space.passes.values()]
    lengths.append(math.prod(axis.extent for axis in space.inner))
    return math.prod(axis.extent for axis in space.outer), max(lengths)


class _RowBuilder(Builder):
    def __init__(self, body: Body, graph: Graph, layouts: Mapping[str, Layout], tile: Tile) -> None:
        super().__init__(body, graph, layouts, tile)
        self.space = row_space(body, graph, layouts)
        self.count, _ = row_lengths(self.space)

    def build(self, title: str) -> TileBuilt:
        space, tile, printer = self.space, self.tile, self.printer
        if self.count == 0 or any(axis.extent == 0 for axis in space.inner):
            raise FormMismatch("a row without elements")
        printer.line(f"i = tl.program_id(0) * {tile.rows} + tl.arange(0, {tile.rows})[:, None]")
        self.resolver.ranges["i"] = (0, self.count - 1)
        printer.variables["i"] = Text("i", ROW)
        if self.count % tile.rows:
            printer.line(f"i_inside = i < {self.count}")
            printer.masks[0] = Text("i_inside", ROW)
        names = [axis.name for axis in space.axes]
        order = self.in_memory_order(self.body.outputs[0], range(len(names))) if len(names) == len(
            self.body.output.axes) else range(len(names))  # fmt: skip
        outer = [axis for k in order for axis in space.outer if axis.name == names[k]]
        places = self.decoded(idx("i"), [axis.extent for axis in outer])
        self.at: dict[str, Expr] = dict(zip((axis.name for axis in outer), places, strict=True))
        self.along = [axis for k in order for axis in space.inner if axis.name == names[k]]
        for p in space.passes.values():
            self._pass(p)
        length = math.prod(axis.extent for axis in self.along)
        for _ in self._walk(length):
            values = self.at | self._decoded_along(self.along, length)
            self.write(tuple(self.resolver.simplify(substitute(e, values)) for e in space.point))
        return self.finish(title, (math.ceil(self.count / tile.rows), 1, 1))

    def _decoded_along(self, axes: Sequence[Axis], length: int) -> dict[str, Expr]:
        places = self.decoded(idx(f"j{length}"), [axis.extent for axis in axes])
        return dict(zip((axis.name for axis in axes), places, strict=True))

    def _walk(self, length: int) -> Iterator[None]:
        """Once with the whole row at hand or, where that is too long, in a loop over its chunks."""
        width = self.tile.depth or max(1, power_of_two(length))
        if self.tile.depth and length > width:
            header = f"for start in range(0, {length}, {width}):"
            with self.printer.block(header), self._row(length, width, "start + "):
                yield
        else:
            width = max(1, power_of_two(length))
            with self._row(length, width, ""):
                yield

    @contextmanager
    def _row(self, length: int, width: int, start: str) -> Iterator[None]:
        """The variable along the row, named after its length, and its mask."""
        printer, name = self.printer, f"j{length}"
        printer.shape = (self.tile.rows, width)
        if name not in printer.variables or start:
            printer.line(f"{name} = {start}tl.arange(0, {width})[None, :]")
            if length % width:
                printer.line(f"{name}_inside = {name} < {length}")
        self.resolver.ranges[name] = (0, max(0, length - 1))
        printer.variables[name] = Text(name, ALONG)
        held = dict(printer.masks)
        if length % width:
            printer.masks[1] = Text(f"{name}_inside", ALONG)
        else:
            printer.masks.pop(1, None)
        yield
        printer.masks = held

    def _pass(self, p: Pass) -> None:
        """One reduction: its total, a column of one value a row, is known from here on."""
        printer, resolver, stage = self.printer, self.resolver, p.stage
        assert stage.combine is not None
        place = tuple(resolver.simplify(substitute(e, self.at)) for e in p.at)
        length = math.prod(axis.extent for axis in p.axes)
        values = {axis.name: index for axis, index in zip(stage.axes, place, strict=True)}
        looped = bool(self.tile.depth) and length > self.tile.depth
        total = printer.name(stage.name)
        if not length:
            self.start(total, stage.combine, stage.dtype, str((self.tile.rows, 1)))
            printer.bind(stage, Text(total, ROW), place)
            return
        printer.shape = (self.tile.rows, self.tile.depth if looped else power_of_two(length))
        wide = str(printer.shape)
        if looped:
            self.start(f"{total}_part", stage.combine, stage.dtype, wide)
        for _ in self._walk(length):
            inner = self._decoded_along(self._like_outputs(p), length)
            names = {a.name: inner[b.name] for a, b in zip(stage.reduce_axes, p.axes, strict=True)}
            term = self.masked(stage, resolver.simplify(resolver.resolve(stage.body, values | names)))
            if looped:
                combined = self.combined(stage.combine, f"{total}_part", term, stage.dtype)
                printer.line(f"{total}_part = {combined}")
        found = self.reduced(stage, f"{total}_part" if looped else term)
        printer.line(f"{total} = {found}")
        printer.bind(stage, Text(total, ROW), place)

    def _like_outputs(self, p: Pass) -> list[Axis]:
        """The axes of a pass, in the memory order of the output's where they are the same."""
        if [axis.extent for axis in p.axes] == [axis.extent for axis in self.space.inner]:
            order = [self.space.inner.index(axis) for axis in self.along]
            return [p.axes[k] for k in order]
        return list(p.axes)


def build_rows(body: Body, graph: Graph, layouts: Mapping[str, Layout], tile: Tile, title: str) -> TileBuilt:
    """The kernel of a region that works row by row; raises `FormMismatch` where that does not fit."""
    return _RowBuilder(body, graph, layouts, tile).build(title)
