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

from onepass.core.dtypes import BF16, F16, F32, DType
from onepass.forms.body import Body
from onepass.forms.nest import FormMismatch
from onepass.forms.resolve import Indices
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


class Sums:
    """How the sums of a product are cut: `width` columns, called `column`, `depth` products a step."""

    def __init__(self, found: Product, column: str, width: int, depth: int) -> None:
        self.found, self.column, self.width, self.depth = found, column, width, depth
        reduce_axes = found.root.reduce_axes
        # Channels inside, taps outside; where there are few channels all of them in one.
        channels_alone = reduce_axes[0].extent >= MIN_DEPTH or len(reduce_axes) == 1
        self.inner = reduce_axes[:1] if channels_alone else reduce_axes[1:] + reduce_axes[:1]
        self.outer = tuple(axis for axis in reduce_axes if axis not in self.inner)
        self.k = math.prod(axis.extent for axis in self.inner)
        self.taps = math.prod(axis.extent for axis in self.outer)
        self.steps = math.ceil(self.k / depth)

    @property
    def is_single(self) -> bool:
        """Whether one step does."""
        return self.taps * self.steps == 1


class ProductBuilder(Builder):
    """A program computes `tile.rows` x `tile.columns` of one product of the batch.

    `cuts`: extent and tile of each variable. `sums`: those that the kernel makes first.
    """

    def __init__(
        self, body: Body, graph: Graph, layouts: Mapping[str, Layout], tile: Tile, found: Product, sums: Sums
    ) -> None:
        super().__init__(body, graph, layouts, tile)
        self.found, self.sums = found, sums
        self.batches, m, n, _ = found.sizes
        self.cuts = {"m": (m, tile.rows), "k": (sums.k, sums.depth)}
        self.cuts |= {sums.column: (sums.found.sizes[2], sums.width), "n": (n, tile.columns)}

    def build(self, title: str) -> TileBuilt:
        """The kernel."""
        point = self.point()
        self.accumulate("acc", point)
        return self.finished(title, point)

    def finished(self, title: str, point: Indices, output: Indices | None = None) -> TileBuilt:
        """The rest of the kernel once `acc` is complete; `output`: the place in the output if not `point`."""
        tile, printer = self.tile, self.printer
        printer.variables |= {"m": Text("m[:, None]", ROW), "n": Text("n[None, :]", COLUMN)}
        printer.masks = self.masks("m", "n")
        printer.shape = (tile.rows, tile.columns)
        printer.bind(self.found.root, Text("acc", ROW | COLUMN), point)
        self.write(output or point)
        return self.finish(title, (self.blocks("m"), self.blocks("n"), self.batches))

    def blocks(self, name: str) -> int:
        """Tiles along a variable."""
        extent, size = self.cuts[name]
        return math.ceil(extent / size)

    def point(self) -> Indices:
        """Names this program's rows, columns and batch; the output's place in terms of them."""
        printer, ranges, found = self.printer, self.resolver.ranges, self.found
        self.span("m", "tl.program_id(0)")
        self.span("n", "tl.program_id(1)")
        ranges["b"] = (0, self.batches - 1)
        if self.batches > 1:
            printer.line("b = tl.program_id(2)")
        printer.variables["b"] = Text("b")
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

    def span(self, name: str, block: str) -> None:
        """Names the places of tile `block` (a number or an expression) along a variable."""
        (extent, size), printer = self.cuts[name], self.printer
        start = f"{block} * {size} + " if block != "0" else ""
        printer.line(f"{name} = {start}tl.arange(0, {size})")
        if extent % size:
            printer.line(f"{name}_inside = {name} < {extent}")
        self.resolver.ranges[name] = (0, extent - 1)

    def masks(self, row: str, column: str) -> dict[int, Text]:
        """Which places of a tile exist that has these variables along its rows and columns."""
        return {
            dim: Text(f"{name}_inside{index}", frozenset({dim}))
            for dim, (name, index) in enumerate(((row, "[:, None]"), (column, "[None, :]")))
            if self.cuts[name][0] % self.cuts[name][1]
        }

    def accumulate(self, name: str, point: Indices, left: Text | None = None) -> None:
        """The tile `name` of `self.sums` at `point`; `left`: its left operand, where that is known."""
        printer, sums = self.printer, self.sums
        printer.shape = (self.tile.rows, sums.width)
        printer.hold(name, ROW | COLUMN, F32)
        printer.line(f"{name} = tl.zeros({printer.shape}, tl.float32)")
        if sums.is_single:
            self._step(name, point, left or self.left(point))
            return
        with printer.block(f"for step in range(0, {sums.taps * sums.steps}):", self.tile.stages):
            self._step(name, point, self.left(point))

    def left(self, point: Indices) -> Text:
        """The left operand of a step, whose place it names."""
        printer, resolver, sums, tile = self.printer, self.resolver, self.sums, self.tile
        first = "step" if sums.taps == 1 else f"(step % {sums.steps})" if sums.steps > 1 else "0"
        self.span("k", "0" if sums.is_single else first)
        if sums.taps > 1:
            printer.line(f"tap = step // {sums.steps}" if sums.steps > 1 else "tap = step")
        resolver.ranges["tap"] = (0, sums.taps - 1)
        printer.variables["tap"] = Text("tap")
        along = {"m": Text("m[:, None]", ROW), "k": Text("k[None, :]", COLUMN)}
        with printer.view(along, self.masks("m", "k")):
            return self.operand(sums.found.left, self._places(point), (tile.rows, sums.depth), COLUMN)

    def _places(self, point: Indices) -> dict[str, Expr]:
        sums = self.sums
        found = dict(zip((axis.name for axis in sums.found.root.axes), point, strict=True))
        for axes, name in ((sums.inner, "k"), (sums.outer, "tap")):
            places = self.decoded(idx(name), [axis.extent for axis in axes])
            found |= dict(zip((axis.name for axis in axes), places, strict=True))
        return found

    def _step(self, name: str, point: Indices, left: Text) -> None:
        """One step along the sum: a tile of each operand, and their product."""
        sums, column = self.sums, self.sums.column
        along = {"k": Text("k[:, None]", ROW), column: Text(f"{column}[None, :]", COLUMN)}
        with self.printer.view(along, self.masks("k", column)):
            right = self.operand(sums.found.right, self._places(point), (sums.depth, sums.width), ROW)
        self.dot(name, left, right, sums.found.left.dtype)

    def dot(self, name: str, left: Text, right: Text, dtype: DType) -> None:
        """Adds a product of two tiles of `dtype` to `name`."""
        precision = ', input_precision="ieee"' if dtype == F32 else ""
        self.printer.line(f"{name} = tl.dot({left.text}, {right.text}, {name}{precision})")

    def operand(
        self, load: Load, places: Mapping[str, Expr], shape: tuple[int, int], along: frozenset[int]
    ) -> Text:
        """An operand's tile, summed over the dimension `along`, zero where it does not exist."""
        resolver, printer = self.resolver, self.printer
        if load.buffer in self.body.constants or load.buffer in self.graph.constants:
            resolver.must_pack = frozenset({load.buffer})
            padded = tuple((name, self.blocks(name) * size) for name, (_, size) in self.cuts.items())
            resolver.pack_axes = (("b", self.batches), ("tap", self.sums.taps), *padded)
        printer.shape = shape
        value = resolver.simplify(resolver.resolve(load, places))
        printer.whole |= {resolver.params[label].name for label in resolver.packed}
        found = printer.value(value)
        resolver.must_pack, resolver.pack_axes = frozenset(), ()
        mask = printer.mask(along)
        # Loads give 0 where nothing is; of what is computed, or the same at every step, what exists counts.
        if mask is not None and (not along <= found.dims or not is_moved(self.body, load.buffer)):
            found = Text(f"tl.where({mask.text}, {found.text}, 0.0)", found.dims | along)
        if found.dims != ROW | COLUMN:
            whole = "tl.broadcast_to" if found.dims else "tl.full"
            kind = "" if found.dims else f", {accumulator_type(load.dtype)}"
            order = (found.text, str(shape)) if found.dims else (str(shape), found.text)
            found = Text(f"{whole}({', '.join(order)}{kind})")
        computed = not is_moved(self.body, load.buffer) or isinstance(value, Const)
        narrowed = load.dtype == BF16 or computed
        return Text(f"{found.text}{as_operand(load.dtype) if narrowed else ''}", ROW | COLUMN)


def is_moved(body: Body, name: str) -> bool:
    """Whether each element of `name` is one that lies in memory."""
    stage = body.stage(name)
    return stage is None or (isinstance(stage.body, Load) and is_moved(body, stage.body.buffer))


def as_operand(dtype: DType) -> str:
    """What makes a computed tile of `dtype` an operand of a dot."""
    return {BF16: ".to(tl.bfloat16)", F16: ".to(tl.float16)"}.get(dtype, "")


def build_product(
    body: Body, graph: Graph, layouts: Mapping[str, Layout], tile: Tile, title: str
) -> TileBuilt:
    """The kernel of a region with one product; raises `FormMismatch` where that is no matrix product."""
    found = match_product(body.reductions()[0])
    if found is None:
        raise FormMismatch("not a product of matrices")
    sums = Sums(found, "n", tile.columns, tile.depth)
    return ProductBuilder(body, graph, layouts, tile, found, sums).build(title)
