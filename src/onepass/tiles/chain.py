"""Two products in one kernel: what passes between them never leaves the program that makes it.

A program computes `tile.middle` columns of the first product's rows, what follows on them (bias, activation,
scale, mask, softmax), and multiplies that tile by its part of the second product's right operand at once.
Where a row of what passes between fits, all reductions along it are those of the op itself. Else it must
be a softmax, and the rewrite `online_softmax` makes it block by block: maximum and total of a row are those
so far, and what has been summed is scaled down when the maximum grows (Milakov and Gimelshein 2018, Online
normalizer calculation for softmax; Dao et al. 2022, FlashAttention).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from onepass.core.dtypes import F32
from onepass.forms.body import Body
from onepass.forms.nest import FormMismatch
from onepass.forms.resolve import Indices, Resolver
from onepass.graph.ir import Graph
from onepass.graph.layout import Layout
from onepass.loops.affine import Range
from onepass.loops.build import const, idx
from onepass.loops.ir import Const, Expr
from onepass.loops.tile import Tile
from onepass.loops.walk import index_names
from onepass.ops.opdef import Compute
from onepass.tiles.builder import TileBuilt
from onepass.tiles.printer import Printer, Text
from onepass.tiles.product import (
    COLUMN,
    ROW,
    Product,
    ProductBuilder,
    Sums,
    as_operand,
    is_moved,
    match_product,
)


@dataclass(frozen=True, slots=True)
class Link:
    """Two products; `passes`: reductions along the rows of what passes between, in order.

    `length`: columns of that. `softmax`: whether it is what a softmax makes, with nothing after it.
    """

    first: Product
    second: Product
    passes: tuple[Compute, ...]
    length: int
    softmax: bool


class _Trace:
    """Where the second product at `point`, whose sum runs over `j`, reads each reduction before it: `at`.

    `output` is the place of the output that reads this point. Raises `FormMismatch` where a reduction is read
    at several places, or one before the second by anything but its left operand.
    """

    def __init__(
        self, body: Body, graph: Graph, layouts: Mapping[str, Layout], second: Product, point: Indices,
        ranges: Mapping[str, Range],
    ) -> None:  # fmt: skip
        self.at: dict[str, Indices] = {}
        resolver = self.resolver = Resolver(body, graph, layouts, dict(ranges))
        Printer(resolver)  # stages are read as tiles
        for stage in body.reductions():
            resolver.bound[stage.name] = partial(self._note, stage)
        self.axes = dict(zip((axis.name for axis in second.root.axes), point, strict=True))
        self.axes |= along(second.root)
        resolver.resolve(second.left, self.axes)
        if len(self.at) != len(body.reductions()) - 1:
            raise FormMismatch("the second product's left operand is not what the first one makes")
        for stage in body.reductions():
            resolver.bound[stage.name] = self._refuse
        resolver.resolve(second.right, self.axes)
        resolver.bound[second.root.name] = partial(self._note, second.root)
        shape = body.output.type.shape
        places = tuple(idx(f"q{at}") for at, _ in enumerate(shape))
        resolver.ranges |= {f"q{at}": (0, extent - 1) for at, extent in enumerate(shape)}
        for name in body.outputs:
            resolver.value(name, places)
        read = zip(self.at.pop(second.root.name), point, second.root.axes, strict=True)
        moved = {index: at for index, at, axis in read if axis.extent > 1}
        if moved.keys() != {place for place, extent in zip(places, shape, strict=True) if extent > 1}:
            raise FormMismatch("what follows reads the second product at other places than it computes")
        self.output = tuple(moved.get(place, Const(0)) for place in places)

    def _note(self, stage: Compute, indices: Indices) -> Expr:
        if self.at.setdefault(stage.name, indices) != indices:
            raise FormMismatch("what passes between is read at several places")
        if match_product(stage) is None:
            names = dict(zip((axis.name for axis in stage.axes), indices, strict=True))
            self.resolver.resolve(stage.body, names | along(stage))
        return const(0, stage.dtype)

    def _refuse(self, indices: Indices) -> Expr:
        raise FormMismatch("what passes between is read by more than the second product")


def along(stage: Compute) -> dict[str, Expr]:
    """The places of the axes that `stage` reduces: `j` for the one that has more than one place."""
    long = [axis for axis in stage.reduce_axes if axis.extent > 1] or list(stage.reduce_axes[:1])
    if len(long) != 1:
        raise FormMismatch("a sum over several dimensions of what passes between")
    return {axis.name: idx("j") if axis is long[0] else Const(0) for axis in stage.reduce_axes}


def match_link(body: Body, graph: Graph, layouts: Mapping[str, Layout]) -> Link:
    """The two products of `body`; raises `FormMismatch` where it has no two that can share a kernel."""
    reductions = body.reductions()
    products = [found for found in map(match_product, reductions) if found is not None]
    if len(products) != 2 or products[1].root is not reductions[-1] or any(p.width for p in products):
        raise FormMismatch("")
    first, second = products
    length = math.prod(axis.extent for axis in second.root.reduce_axes)
    names = [f"o{at}" for at, _ in enumerate(second.root.axes)]
    ranges = {name: (0, axis.extent - 1) for name, axis in zip(names, second.root.axes, strict=True)}
    point = tuple(map(idx, names))
    trace = _Trace(body, graph, layouts, second, point, {**ranges, "j": (0, length - 1)})
    batch = {names[at] for at in second.batch}
    rows = batch | {names[at] for at in second.rows}
    allowed = {place: of for axes, of in ((first.batch, batch), (first.rows, rows), (first.columns, {"j"}))
               for place in axes}  # fmt: skip
    for place, index in enumerate(trace.at[first.root.name]):
        if index_names(index) - allowed[place]:
            raise FormMismatch("what passes between is read in another order than it is made")
    batches, m, columns, _ = first.sizes
    if 0 in (*first.sizes, *second.sizes):
        raise FormMismatch("there is nothing to sum, or to compute")
    if columns != length or batches * m != second.sizes[0] * second.sizes[1]:
        raise FormMismatch("the second product reads only a part, or again and again")
    if not (is_moved(body, first.right.buffer) and is_moved(body, second.right.buffer)):
        raise FormMismatch("every tile of rows would compute a right operand again")
    passes = tuple(stage for stage in reductions if match_product(stage) is None)
    for stage in passes:
        if {name for index in trace.at[stage.name] for name in index_names(index)} - rows:
            raise FormMismatch("a reduction along another dimension than the second product's sum")
        if math.prod(axis.extent for axis in stage.reduce_axes) != length:
            raise FormMismatch("a reduction of a part of the row")
    return Link(first, second, passes, length, _is_softmax(body, second, passes))


def _is_softmax(body: Body, second: Product, passes: tuple[Compute, ...]) -> bool:
    value = second.left.buffer
    names = tuple(stage.name for stage in passes)
    return names == (f"{value}#max", f"{value}#sum") and body.stage(f"{value}#inverse") is not None


class _ChainBuilder(ProductBuilder):
    def __init__(
        self, body: Body, graph: Graph, layouts: Mapping[str, Layout], tile: Tile, link: Link
    ) -> None:
        sums = Sums(link.first, "j", tile.middle, tile.depth)
        super().__init__(body, graph, layouts, tile, link.second, sums)
        self.link = link

    def build(self, title: str) -> TileBuilt:
        tile, printer, link, blocks = self.tile, self.printer, self.link, self.blocks("j")
        if blocks > 1 and link.passes and not link.softmax:
            raise FormMismatch("a row of what passes between does not fit, and is no softmax")
        point = self.point()
        ranges = {**self.resolver.ranges, "j": (0, link.length - 1)}
        trace = _Trace(self.body, self.graph, self.layouts, link.second, point, ranges)
        self.at, self.axes = trace.at, trace.axes
        printer.shape = (tile.rows, tile.columns)
        printer.hold("acc", ROW | COLUMN, F32)
        printer.line(f"acc = tl.zeros({printer.shape}, tl.float32)")
        first = self.at[link.first.root.name]
        left = self.left(first) if self.sums.is_single else None
        online = blocks > 1 and bool(link.passes)
        if online:
            printer.line(f'top = tl.full(({tile.rows}, 1), float("-inf"), tl.float32)')
            printer.line(f"denominator = tl.zeros(({tile.rows}, 1), tl.float32)")
        header = f"for block in range(0, {blocks}):"
        with printer.block(header, tile.stages if left else 1) if blocks > 1 else nullcontext():
            self.span("j", "block" if blocks > 1 else "0")
            self.accumulate("first", first, left)
            held = self._online() if online else self._held()
            views = {"j": Text("j[:, None]", ROW), "n": Text("n[None, :]", COLUMN)}
            with printer.view(views, self.masks("j", "n")):
                right = self.operand(link.second.right, self.axes, (tile.middle, tile.columns), ROW)
            self.dot("acc", held, right, link.second.left.dtype)
        if online:
            printer.line("acc = acc * tl.div_rn(1.0, denominator)")
        return self.finished(title, point, trace.output)

    def _held(self) -> Text:
        """The tile of what passes between, its rows whole where anything is reduced along them."""
        printer, link = self.printer, self.link
        with self._between():
            for stage in link.passes:
                total = printer.name(stage.name)
                printer.line(f"{total} = {self.reduced(stage, self.masked(stage, self._term(stage)))}")
                printer.bind(stage, Text(total, ROW), self.at[stage.name])
            return self._operand(printer.value(self._resolved(link.second.left, self.axes)))

    def _online(self) -> Text:
        """exp(score - maximum so far): a row's total of it, and what has been summed, are kept in step."""
        printer, top = self.printer, self.link.passes[0]
        with self._between():
            score = f"({self.masked(top, self._term(top))}).to(tl.float32)"
            printer.functions |= {"exp", "larger"}
            printer.hold("weight", ROW | COLUMN, F32)
            printer.line(f"score = {score}")
            printer.line("higher = larger(top, tl.reduce(score, 1, larger)[:, None])")
            # Nothing but -inf so far: weights of 0, and NaN at last where all of the row is so.
            printer.line('base = tl.where(higher == float("-inf"), 0.0, higher)')
            printer.line("scale = exp(top - base)")
            printer.line("weight = exp(score - base)")
            printer.line("denominator = denominator * scale + tl.sum(weight, 1)[:, None]")
            printer.line("acc = acc * scale")
            printer.line("top = higher")
            return Text(f"weight{as_operand(self.link.second.left.dtype)}", ROW | COLUMN)

    @contextmanager
    def _between(self) -> Iterator[None]:
        """The view in which the first product's sums are what they are: a tile of `m` by `j`."""
        printer, root = self.printer, self.link.first.root
        printer.shape = (self.tile.rows, self.tile.middle)
        views = {"m": Text("m[:, None]", ROW), "j": Text("j[None, :]", COLUMN)}
        with printer.view(views, self.masks("m", "j")):
            printer.bind(root, Text("first", ROW | COLUMN), self.at[root.name])
            yield

    def _term(self, stage: Compute) -> Expr:
        """What a reduction along the row combines, at `j`."""
        names = dict(zip((axis.name for axis in stage.axes), self.at[stage.name], strict=True))
        return self._resolved(stage.body, names | along(stage))

    def _resolved(self, expr: Expr, axes: Mapping[str, Expr]) -> Expr:
        return self.resolver.simplify(self.resolver.resolve(expr, axes))

    def _operand(self, found: Text) -> Text:
        """What passes between as operand of the second product: nothing beyond its last column counts."""
        mask = self.printer.mask(COLUMN)
        if mask is not None:
            found = Text(f"tl.where({mask.text}, {found.text}, 0.0)", found.dims | COLUMN)
        if found.dims != ROW | COLUMN:
            found = Text(f"tl.broadcast_to({found.text}, {self.printer.shape})")
        return Text(f"{found.text}{as_operand(self.link.second.left.dtype)}", ROW | COLUMN)


def build_chain(body: Body, graph: Graph, layouts: Mapping[str, Layout], tile: Tile, title: str) -> TileBuilt:
    """The kernel of two products; raises `FormMismatch` where these, or the tile, have no such form."""
    return _ChainBuilder(body, graph, layouts, tile, match_link(body, graph, layouts)).build(title)
