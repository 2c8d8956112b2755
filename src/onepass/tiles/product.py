"""Sums of products on `tl.dot`: matrix products, and convolutions as implicit matrix products.

Of the axes of the output those that only the left operand has are the rows of the product, those that only
the right one has its columns, and those of both number a batch of products. A convolution's rows are
pixels, its columns channels: no patches are ever written out (Chetlur et al. 2014, cuDNN). Window taps are an
outer loop and channels the inner one, unless there are too few of these to fill a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onepass.core.dtypes import BF16, F16, F32
from onepass.forms.body import Body
from onepass.forms.nest import FormMismatch
from onepass.graph.ir import Graph
from onepass.graph.layout import Layout
from onepass.loops.build import add, idx, mul
from onepass.loops.ir import Binary, Cast, Const, Expr, Index, Load
from onepass.loops.tile import Tile
from onepass.loops.walk import index_names, subexpressions
from onepass.ops.opdef import Compute
from onepass.tiles.builder import Builder, TileBuilt
from onepass.tiles.printer import Text, accumulator_type

MIN_DEPTH = 16  # least inner step of a dot
ROW, COLUMN = frozenset({0}), frozenset({1})


@dataclass(frozen=True, slots=True)
class Product:
    """A sum of products as matrices: positions of the output's axes, and its two operands.

    `width`: of a convolution in groups the output channels of one group, which are the columns; 0 else.
    """

    root: Compute
    left: Load
    right: Load
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    width: int = 0

    def extent(self, axes: tuple[int, ...]) -> int:
        """Places along `axes` together; of a grouped convolution its columns are those of a group."""
        shape = self.root.type.shape
        whole = math.prod(shape[axis] for axis in axes)
        if self.width and axes == self.columns:
            return self.width
        return whole // self.width if self.width and axes == self.batch else whole

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Batch, rows, columns, and products a sum."""
        steps = math.prod(axis.extent for axis in self.root.reduce_axes)
        return self.extent(self.batch), self.extent(self.rows), self.extent(self.columns), steps


def match_product(root: Compute) -> Product | None:
    """`root` as a matrix product, None where it is not one or too thin for tensor tiles."""
    body = root.body
    if root.combine != "add" or not isinstance(body, Binary) or body.op != "mul" or root.dtype != F32:
        return None
    operands = [e.x if isinstance(e, Cast) else e for e in (body.a, body.b)]
    left, right = operands
    if not isinstance(left, Load) or not isinstance(right, Load) or left.dtype != right.dtype:
        return None
    if left.dtype not in (F16, BF16, F32):
        return None
    names = [frozenset().union(*map(index_names, load.indices)) for load in (left, right)]
    batch, rows, columns = list[int](), list[int](), list[int]()
    for place, axis in enumerate(root.axes):
        a, b = (axis.name in found for found in names)
        (batch if a and b else rows if a or not b else columns).append(place)
    width = 0
    if not columns and len(root.axes) > 2 and 1 in batch:
        width = _group_width(left, root.axes[1].name)
        if width < MIN_DEPTH // 2 or root.reduce_axes[0].extent == 1:
            return None
        columns = [1]
    if not columns or not rows:
        return None
    return Product(root, left, right, tuple(batch), tuple(rows), tuple(columns), width)


def _group_width(load: Load, channel: str) -> int:
    for index in load.indices:
        for part in subexpressions(index):
            match part:
                case Binary(op="floordiv", a=Index(name=name), b=Const(value=width)) if name == channel:
                    return int(width)
    return 0


class ProductBuilder(Builder):
    """A program computes `tile.rows` x `tile.columns` of one product of the batch."""

    def __init__(
        self, body: Body, graph: Graph, layouts: Mapping[str, Layout], tile: Tile, found: Product
    ) -> None:
        super().__init__(body, graph, layouts, tile)
        self.found = found
        self.batches, self.m, self.n, _ = found.sizes
        reduce_axes = found.root.reduce_axes
        first = reduce_axes[0].extent
        # Channels inside, taps outside; where there are few channels all of them in one.
        channels_alone = first >= MIN_DEPTH or len(reduce_axes) == 1
        self.inner = reduce_axes[:1] if channels_alone else reduce_axes[1:] + reduce_axes[:1]
        self.taps = tuple(axis for axis in reduce_axes if axis not in self.inner)
        self.k = math.prod(axis.extent for axis in self.inner)
        self.steps = math.ceil(self.k / tile.depth)
        self.n_blocks = math.ceil(self.n / tile.columns)

    def build(self, title: str) -> TileBuilt:
        """The kernel."""
        tile, printer = self.tile, self.printer
        point = self._point()
        taps = math.prod(axis.extent for axis in self.taps)
        printer.shape = (tile.rows, tile.columns)
        printer.hold("acc", ROW | COLUMN, F32)
        printer.line(f"acc = tl.zeros({printer.shape}, tl.float32)")
        with printer.block(f"for step in range(0, {taps * self.steps}):", tile.stages):
            self._step(point, taps)
        printer.variables |= {"m": Text("m[:, None]", ROW), "n": Text("n[None, :]", COLUMN)}
        printer.masks = self._masks(("m", 0, "[:, None]"), ("n", 1, "[None, :]"))
        printer.shape = (tile.rows, tile.columns)
        printer.bind(self.found.root, Text("acc", ROW | COLUMN), point)
        self.write(point)
        grid = (math.ceil(self.m / tile.rows), self.n_blocks, self.batches)
        return self.finish(title, grid)

    def _point(self) -> tuple[Expr, ...]:
        """Names this program's rows, columns and batch; the output's place in terms of them."""
        tile, printer, ranges, found = self.tile, self.printer, self.resolver.ranges, self.found
        printer.line(f"m = tl.program_id(0) * {tile.rows} + tl.arange(0, {tile.rows})")
        printer.line(f"n = tl.program_id(1) * {tile.columns} + tl.arange(0, {tile.columns})")
        ranges |= {"m": (0, self.m - 1), "n": (0, self.n - 1), "b": (0, self.batches - 1)}
        if self.batches > 1:
            printer.line("b = tl.program_id(2)")
        printer.variables["b"] = Text("b")
        for name, extent, size in (("m", self.m, tile.rows), ("n", self.n, tile.columns)):
            if extent % size:
                printer.line(f"{name}_inside = {name} < {extent}")
        shape, places = found.root.type.shape, dict[int, Expr]()
        for axes, name in ((found.batch, "b"), (found.rows, "m"), (found.columns, "n")):
            order = self.in_memory_order(self.body.outputs[0], axes)
            extents = [
                shape[axis] // found.width if axis == 1 and found.width else shape[axis] for axis in order
            ]
            if found.width and name == "n":
                places[1] = add(mul(places[1], found.width), idx("n"))
            else:
                places |= dict(zip(order, self.decoded(idx(name), extents), strict=True))
        return tuple(self.resolver.simplify(places[axis]) for axis in range(len(shape)))

    def _masks(self, *spans: tuple[str, int, str]) -> dict[int, Text]:
        tile = self.tile
        sizes = {"m": (self.m, tile.rows), "n": (self.n, tile.columns), "k": (self.k, tile.depth)}
        return {
            dim: Text(f"{name}_inside{index}", frozenset({dim}))
            for name, dim, index in spans
            if sizes[name][0] % sizes[name][1]
        }

    def _step(self, point: tuple[Expr, ...], taps: int) -> None:
        """One step along the sum: a tile of each operand, and their product."""
        printer, resolver, tile, found = self.printer, self.resolver, self.tile, self.found
        first = "step" if taps == 1 else f"step % {self.steps}" if self.steps > 1 else "0"
        start = f"({first}) * {tile.depth} + " if first != "0" else ""
        printer.line(f"k = {start}tl.arange(0, {tile.depth})")
        if self.k % tile.depth:
            printer.line(f"k_inside = k < {self.k}")
        if taps > 1:
            printer.line(f"tap = step // {self.steps}" if self.steps > 1 else "tap = step")
        resolver.ranges |= {"k": (0, self.k - 1), "tap": (0, taps - 1)}
        printer.variables["tap"] = Text("tap")
        places = {axis.name: place for axis, place in zip(found.root.axes, point, strict=True)}
        inner = self.decoded(idx("k"), [axis.extent for axis in self.inner])
        outer = self.decoded(idx("tap"), [axis.extent for axis in self.taps])
        places |= {axis.name: place for axis, place in zip(self.inner, inner, strict=True)}
        places |= {axis.name: place for axis, place in zip(self.taps, outer, strict=True)}
        left = {"m": Text("m[:, None]", ROW), "k": Text("k[None, :]", COLUMN)}
        right = {"k": Text("k[:, None]", ROW), "n": Text("n[None, :]", COLUMN)}
        with printer.view(left, self._masks(("m", 0, "[:, None]"), ("k", 1, "[None, :]"))):
            a = self._operand(found.left, places, (tile.rows, tile.depth))
        with printer.view(right, self._masks(("k", 0, "[:, None]"), ("n", 1, "[None, :]"))):
            b = self._operand(found.right, places, (tile.depth, tile.columns))
        precision = ', input_precision="ieee"' if found.left.dtype == F32 else ""
        printer.line(f"acc = tl.dot({a}, {b}, acc{precision})")

    def _operand(self, load: Load, places: Mapping[str, Expr], shape: tuple[int, int]) -> str:
        """The text of an operand's tile, zero where it does not exist."""
        resolver, printer = self.resolver, self.printer
        if load.buffer in self.body.constants or load.buffer in self.graph.constants:
            resolver.must_pack = frozenset({load.buffer})
            tile = self.tile
            resolver.pack_axes = (
                ("b", self.batches), ("tap", math.prod(axis.extent for axis in self.taps)),
                ("m", math.ceil(self.m / tile.rows) * tile.rows),
                ("k", self.steps * tile.depth), ("n", self.n_blocks * tile.columns),
            )  # fmt: skip
        printer.shape = shape
        value = resolver.simplify(resolver.resolve(load, places))
        printer.whole |= {resolver.params[label].name for label in resolver.packed}
        found = printer.value(value)
        resolver.must_pack, resolver.pack_axes = frozenset(), ()
        along = COLUMN if load is self.found.left else ROW
        mask = printer.mask(along)
        # The same at every step: only steps that exist count.
        if not along <= found.dims and mask is not None:
            found = Text(f"tl.where({mask.text}, {found.text}, 0.0)", found.dims | along)
        if found.dims != ROW | COLUMN:
            whole = "tl.broadcast_to" if found.dims else "tl.full"
            kind = "" if found.dims else f", {accumulator_type(load.dtype)}"
            order = (found.text, str(shape)) if found.dims else (str(shape), found.text)
            found = Text(f"{whole}({', '.join(order)}{kind})")
        dtype = {F16: "", BF16: ".to(tl.bfloat16)", F32: ""}[load.dtype]
        return f"{found.text}{dtype}"


def build_product(
    body: Body, graph: Graph, layouts: Mapping[str, Layout], tile: Tile, title: str
) -> TileBuilt:
    """The kernel of a region with one product; raises `FormMismatch` where that is no matrix product."""
    found = match_product(body.reductions()[0])
    if found is None:
        raise FormMismatch("not a product of matrices")
    return ProductBuilder(body, graph, layouts, tile, found).build(title)
