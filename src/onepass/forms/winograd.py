"""The Winograd form: a 3x3 convolution as transform, small matrix products, and inverse transform.

F(m x m, 3x3) computes a tile of m x m outputs from (m + 2)^2 inputs with as many multiplications, 2.25 times
fewer than the direct sum for m = 2, four times fewer for m = 4 (Winograd 1980; Lavin and Gray 2015). A
block of tiles is transformed into scratch (home `cache`), multiplied there, and transformed back; what
follows the convolution runs on the tile while it is in registers. The transforms round differently from
the direct sum, and an infinite input spreads over its whole tile: the rewrite `winograd`, which `--exact`
switches off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
from numpy.polynomial.polynomial import polyfromroots

from onepass.forms.body import Body
from onepass.forms.choose import operand_loads
from onepass.forms.nest import Built, finish, named_loops
from onepass.forms.resolve import LANE, Indices, Resolver
from onepass.forms.schedule import CHUNK, segments
from onepass.graph.ir import Graph
from onepass.graph.layout import Layout
from onepass.loops.build import add, binary, const, floordiv, fma, idx, loop, mod, mul
from onepass.loops.ir import Alloc, BinaryOp, Buffer, Const, Expr, For, If, Load, Prefetch, Stmt, Store
from onepass.ops.opdef import Array, Compute

POINTS: Mapping[int, tuple[float, ...]] = {2: (1.0,), 4: (0.75, 1.5)}
"""By m: the points besides 0 and infinity at which polynomials are evaluated, each with its negative.

Their powers are exact in float32. With ±3/4 and ±3/2 the error is half of that with the usual ±1 and ±2
(measured on normal data, 64 and 512 channels; on the choice of points: Barabasz et al. 2020).
"""
# How far ahead weights are asked for, into the second level: over the end of a page, where the processor's
# own prefetching stops. Where they come from memory, on Zen 4: 0.67 of the time on 512 channels of 7x7, 0.70
# on 256 of 14x14, one image. Into the first level, whose few outstanding misses then hold up all else: 0.98.
AHEAD_BYTES = 4096
Matrix = npt.NDArray[np.float64]
TILE, ROW, COLUMN, GROUP, VECTOR = "tile", "row", "column", "group", "vec"


@dataclass(frozen=True, slots=True)
class WinogradSchedule:
    """How the form is cut.

    A block is `tiles` tiles of `edge` x `edge` outputs, whose products are summed for `rows` tiles times
    `vectors` channel vectors of `lanes` at a time. `parts`: the workers also share the output channels in
    so many parts, each of which transforms the inputs for itself.
    """

    edge: int
    tiles: int
    rows: int
    vectors: int
    parts: int
    lanes: int

    def __str__(self) -> str:
        cut = f"{self.tiles} tiles, {self.rows} x {self.vectors} vectors, {self.parts} parts"
        return f"Winograd F({self.edge}x{self.edge}), {cut}"


@dataclass(frozen=True, slots=True)
class Shape3x3:
    """A 3x3 convolution of stride 1 as the form sees it: `pads` before rows and columns."""

    images: int
    channels: int
    outputs: int
    height: int
    width: int
    pads: tuple[int, int]

    def tiles(self, edge: int) -> tuple[int, int]:
        """Tiles of `edge` down and across one image."""
        return -(-self.height // edge), -(-self.width // edge)

    def count(self, edge: int) -> int:
        """Tiles of `edge` in all images."""
        return self.images * math.prod(self.tiles(edge))


def shape_of(root: Compute) -> Shape3x3 | None:
    """The shape of a 2-D convolution with a dense 3x3 window and stride 1, None for anything else."""
    reduced = [axis.extent for axis in root.reduce_axes]
    if [axis.name for axis in root.axes] != ["n", "c", "y0", "y1"] or reduced[1:] != [3, 3]:
        return None
    operands = operand_loads(root)
    if operands is None or root.dtype.name != "float32" or operands[0].indices[1] != idx("k"):
        return None
    data = operands[0]
    pads = []
    for number, index in enumerate(data.indices[2:]):
        start = add(idx(f"y{number}"), idx(f"r{number}"))
        before = next((p for p in range(3) if index == (add(start, -p) if p else start)), None)
        if before is None:
            return None
        pads.append(before)
    n, c, y, x = (axis.extent for axis in root.axes)
    return Shape3x3(n, reduced[0], c, y, x, (pads[0], pads[1]))


def reaches(shape: Shape3x3, edge: int, layout: Layout, sizes: Sequence[int]) -> bool:
    """Whether the tiles of `edge` stay within an input of spatial `sizes` and its border."""
    borders = layout.pads or ((0, 0), (0, 0))
    places = zip(shape.tiles(edge), shape.pads, sizes, borders, strict=True)
    return all(
        pad <= before and tiles * edge + 2 - pad <= size + after
        for tiles, pad, size, (before, after) in places
    )


@lru_cache(maxsize=8)
def matrices(edge: int) -> tuple[Matrix, Matrix, Matrix]:
    """B^T (n x n), G (n x 3) and A^T (m x n), n = m + 2, of Cook and Toom's construction at `POINTS`.

    Points: 0, each of POINTS and its negative, infinity. B^T holds the coefficients of the products of the
    other points' linear factors, A^T the points' powers, G those divided by the value of that product.
    """
    finite = [0.0, *(sign * p for p in POINTS[edge] for sign in (1.0, -1.0))]
    size = edge + 2
    inputs, weights, outputs = np.zeros((size, size)), np.zeros((size, 3)), np.zeros((edge, size))
    for i, point in enumerate(finite):
        others = [p for p in finite if p != point]
        inputs[i, : size - 1] = polyfromroots(others)
        weights[i] = np.power(point, range(3)) / np.prod([point - p for p in others])
        outputs[:, i] = np.power(point, range(edge))
    inputs[-1] = polyfromroots(finite)
    weights[-1, 2] = outputs[-1, -1] = 1.0
    return inputs, weights, outputs


def transformed_weights(weights: Array, schedule: WinogradSchedule) -> Array:
    """G w G^T of `[outputs, channels, 3, 3]`, computed in float64, in the order in which it is read.

    `[output groups, (m + 2)^2, channels, vectors, lanes]`, zero past the last output.
    """
    g, lanes = matrices(schedule.edge)[1], schedule.lanes
    outputs, channels = weights.shape[:2]
    groups = -(-outputs // (schedule.vectors * lanes))
    both = np.kron(g, g)  # (m + 2)^2 x 9
    made = np.zeros((groups * schedule.vectors * lanes, channels, len(both)), np.float32)
    made[:outputs] = weights.reshape(outputs, channels, 9).astype(np.float64) @ both.T
    split = made.reshape(groups, schedule.vectors, lanes, channels, len(both))
    return np.ascontiguousarray(split.transpose(0, 4, 3, 1, 2))


def build_winograd(
    body: Body, graph: Graph, layouts: Mapping[str, Layout], schedule: WinogradSchedule
) -> Built:
    """The kernel of `body`, whose one reduction `shape_of` accepts."""
    builder = _Builder(body, graph, layouts, schedule)
    built = finish(builder.resolver, [builder.blocks()], schedule.lanes)
    return replace(built, made={builder.weights: builder.resolver.body.constants[builder.weights]})


def _sum(terms: Sequence[tuple[float, Expr]]) -> Expr:
    """The sum of coefficient times term; it starts from a coefficient of 1 where there is one."""
    terms = [(c, term) for c, term in terms if c]
    first = next((i for i, (c, _) in enumerate(terms) if c == 1), 0)
    c, total = terms[first]
    total = total if c == 1 else binary("mul", total, const(c, total.dtype))
    for coefficient, term in (*terms[:first], *terms[first + 1 :]):
        total = _plus(total, coefficient, term)
    return total


def _plus(total: Expr, coefficient: float, term: Expr) -> Expr:
    if abs(coefficient) == 1:
        return binary("add" if coefficient > 0 else "sub", total, term)
    return fma(term, const(coefficient, term.dtype), total)


Column = Callable[[int], Expr]


def _input_rows(edge: int, at: Column) -> list[Expr]:
    """B^T d for a column d: what the rows of a point and its negative share is written alike."""
    inputs, size = matrices(edge)[0].tolist(), edge + 2
    rows = [_sum([(inputs[0][k], at(k)) for k in range(size)])]
    for pair, point in enumerate(POINTS[edge]):
        row = inputs[1 + 2 * pair]
        even = _sum([(row[k], at(k)) for k in range(0, size, 2)])
        odd = _sum([(row[k] / point, at(k)) for k in range(1, size, 2)])
        rows += [_plus(even, point, odd), _plus(even, -point, odd)]
    return [*rows, _sum([(inputs[-1][k], at(k)) for k in range(size)])]


def _output_rows(edge: int, at: Column) -> list[Expr]:
    """A^T m for a column m, by sums and differences of the two rows of a point."""
    outputs, last = matrices(edge)[2].tolist(), edge + 1
    rows = []
    for k in range(edge):
        op: BinaryOp = "sub" if k % 2 else "add"
        pairs = [(outputs[k][p], binary(op, at(p), at(p + 1))) for p in range(1, last, 2)]
        rows.append(_sum([*pairs, *((outputs[k][end], at(end)) for end in (0, last))]))
    return rows


class _Builder:
    """`weights` names the transformed weights among the constants of the resolver's body."""

    def __init__(
        self, body: Body, graph: Graph, layouts: Mapping[str, Layout], schedule: WinogradSchedule
    ) -> None:
        self.root, self.schedule = body.reductions()[0], schedule
        shape, operands = shape_of(self.root), operand_loads(self.root)
        assert shape is not None and operands is not None
        self.shape, self.data, source = shape, operands[0].buffer, operands[1].buffer
        self.weights = f"{source}#F{schedule.edge}x{schedule.vectors}"
        made = transformed_weights(graph.constants[source], schedule)
        body = replace(body, constants={**body.constants, self.weights: made})
        self.resolver = Resolver(body, graph, layouts)
        self.size, self.lanes, self.dtype = schedule.edge + 2, schedule.lanes, self.root.dtype
        self.blocks_in, self.total = -(-shape.channels // self.lanes), shape.count(schedule.edge)
        # An odd number of lines in a plane: with a power of two, all planes would share one set of the cache.
        lines = self.blocks_in * schedule.tiles | 1, schedule.vectors * schedule.tiles | 1
        self.inputs = Buffer("inputs", self.dtype, (self.size**2, lines[0], self.lanes), "cache")
        self.products = Buffer("products", self.dtype, (self.size**2, lines[1], self.lanes), "cache")
        down, across = shape.tiles(schedule.edge)
        extents = {LANE: self.lanes, VECTOR: schedule.vectors, "image": shape.images, "down": down}
        extents |= {"across": across, COLUMN: self.size, "channels": self.blocks_in}
        self.resolver.ranges |= {name: (0, extent - 1) for name, extent in extents.items()}

    def blocks(self) -> Stmt:
        """Blocks of tiles and parts of the channels, shared among the workers."""
        schedule = self.schedule
        blocks = -(-self.total // schedule.tiles)
        groups = -(-self.shape.outputs // self.lanes) // schedule.vectors
        share = groups // schedule.parts
        self.resolver.ranges |= {"block": (0, blocks - 1), GROUP: (0, groups - 1)}
        self.resolver.pack_axes = ((GROUP, groups), (VECTOR, schedule.vectors), (LANE, self.lanes))
        first = mul(idx("part"), share)
        outputs = loop(VECTOR, schedule.vectors, (self._each_tile(self._outputs()),))
        group = For(GROUP, first, add(first, share), (self._products(), outputs))
        body: tuple[Stmt, ...] = (self._each_tile((self._transform(),)), group)
        for buffer in (self.inputs, self.products):
            body = (Alloc(buffer, body),)
        return named_loops([("part", schedule.parts), ("block", blocks)], body)

    def _each_tile(self, body: tuple[Stmt, ...]) -> Stmt:
        """`body` for each tile of the block, its image, row and column bound; the last tile may repeat."""
        down, across = self.shape.tiles(self.schedule.edge)
        place = idx("place")
        image, row = floordiv(place, down * across), mod(floordiv(place, across), down)
        for name, index in (("image", image), ("down", row), ("across", mod(place, across))):
            body = (For(name, index, add(index, 1), body),)
        position = add(mul(idx("block"), self.schedule.tiles), idx(TILE))
        position = binary("min", position, const(self.total - 1))
        return loop(TILE, self.schedule.tiles, (For("place", position, add(position, 1), body),))

    def _point(self, channel: Expr, row: Expr | int, column: Expr | int) -> Indices:
        """Indices of an element that lies at `row` and `column` of the tile."""
        edge = self.schedule.edge
        return idx("image"), channel, add(mul(idx("down"), edge), row), add(mul(idx("across"), edge), column)

    def _vector(self, *stores: Stmt) -> For:
        return loop(LANE, self.lanes, stores, "vector")

    def _column(self, buffer: Buffer, *leading: Expr) -> Column:
        """Element k of a register buffer, after the indices `leading`."""
        return lambda k: Load(buffer.name, (*leading, const(k), idx(LANE)), buffer.dtype)

    def _transform(self) -> Stmt:
        """B^T d B of one tile, for each block of input channels."""
        size, resolver, schedule = self.size, self.resolver, self.schedule
        d = Buffer("d", self.dtype, (size, self.lanes), "register")
        t = Buffer("t", self.dtype, (size, size, self.lanes), "register")
        channel = add(mul(idx("channels"), self.lanes), idx(LANE))
        rows, columns = self.shape.pads
        reads = []
        for k in range(size):
            point = self._point(channel, k - rows, add(idx(COLUMN), -columns))
            reads.append(Store("d", (const(k), idx(LANE)), resolver.value(self.data, point)))
        down = [
            Store("t", (const(i), idx(COLUMN), idx(LANE)), e)
            for i, e in enumerate(_input_rows(schedule.edge, self._column(d)))
        ]
        line = add(mul(idx("channels"), schedule.tiles), idx(TILE))
        across = [
            Store("inputs", (add(mul(idx(COLUMN), size), j), line, idx(LANE)), e)
            for j, e in enumerate(_input_rows(schedule.edge, self._column(t, idx(COLUMN))))
        ]
        first = loop(COLUMN, size, (self._vector(*reads), self._vector(*down)), "unroll")
        second = loop(COLUMN, size, (self._vector(*across),), "unroll")
        return loop("channels", self.blocks_in, (Alloc(d, (Alloc(t, (first, second)),)),))

    def _products(self) -> Stmt:
        """For each place of a transformed tile, the tiles' product with the group's weights."""
        schedule, found = self.schedule, list[Stmt]()
        for part in segments(schedule.tiles, schedule.rows):
            acc = Buffer("acc", self.dtype, (part.width, schedule.vectors, self.lanes), "register")
            tile = add(add(mul(idx("run"), part.width), idx(ROW)), part.start)
            element = Load("acc", (idx(ROW), idx(VECTOR), idx(LANE)), self.dtype)
            start = Store("acc", element.indices, const(0.0, self.dtype))
            line = add(mul(idx(VECTOR), schedule.tiles), tile)
            end = Store("products", (idx("plane"), line, idx(LANE)), element)
            inner = (self._each(part.width, start), *self._steps(tile, part.width, element))
            body = Alloc(acc, (*inner, self._each(part.width, end)))
            found.append(loop("run", part.count, (body,)))
        return loop("plane", self.size**2, tuple(found))

    def _vectors(self, store: Store) -> For:
        return loop(VECTOR, self.schedule.vectors, (self._vector(store),), "unroll")

    def _each(self, rows: int, store: Store) -> Stmt:
        return loop(ROW, rows, (self._vectors(store),), "unroll")

    def _steps(self, tile: Expr, rows: int, element: Load) -> list[Stmt]:
        """The sum over the input channels, a chunk of them written out."""
        schedule, dtype, found = self.schedule, self.dtype, list[Stmt]()
        w = Buffer("w", dtype, (schedule.vectors, self.lanes), "register")
        x = Buffer("x", dtype, (1,), "register")
        weights = self.resolver.param(self.weights, self.resolver.body.constants[self.weights].shape)
        ahead = AHEAD_BYTES // (4 * self.lanes * schedule.vectors)
        scalar, vector = Load("x", (const(0),), dtype), Load("w", (idx(VECTOR), idx(LANE)), dtype)
        update = Store("acc", element.indices, fma(scalar, vector, element))
        for part in segments(self.shape.channels, min(CHUNK, self.lanes)):
            self.resolver.ranges |= {"chunk": (0, part.count - 1), "c": (0, part.width - 1)}
            channel = self.resolver.simplify(add(add(mul(idx("chunk"), part.width), idx("c")), part.start))
            block = self.resolver.simplify(floordiv(channel, self.lanes))
            lane = self.resolver.simplify(mod(channel, self.lanes))
            read = Load("inputs", (idx("plane"), add(mul(block, schedule.tiles), tile), lane), dtype)
            weight = Load(weights.name, (idx(GROUP), idx("plane"), channel, idx(VECTOR), idx(LANE)), dtype)
            later = (idx(GROUP), idx("plane"), add(channel, ahead), idx(VECTOR), const(0))
            fetch = loop(VECTOR, schedule.vectors, (Prefetch(weights.name, later, far=True),), "unroll")
            each = loop(ROW, rows, (Store("x", scalar.indices, read), self._vectors(update)), "unroll")
            body = Alloc(w, (Alloc(x, (fetch, self._vectors(Store("w", vector.indices, weight)), each)),))
            found.append(loop("chunk", part.count, (loop("c", part.width, (body,), "unroll"),)))
        return found

    def _outputs(self) -> tuple[Stmt, ...]:
        """A^T m A of one tile and one vector, and what follows the convolution."""
        edge, size, dtype = self.schedule.edge, self.size, self.dtype
        m = Buffer("m", dtype, (size, self.lanes), "register")
        e = Buffer("e", dtype, (edge, size, self.lanes), "register")
        line = add(mul(idx(VECTOR), self.schedule.tiles), idx(TILE))
        reads = [
            Store(
                "m",
                (const(k), idx(LANE)),
                Load("products", (add(idx(COLUMN), k * size), line, idx(LANE)), dtype),
            )
            for k in range(size)
        ]
        down = [
            Store("e", (const(i), idx(COLUMN), idx(LANE)), value)
            for i, value in enumerate(_output_rows(edge, self._column(m)))
        ]
        body: list[Stmt] = [loop(COLUMN, size, (self._vector(*reads), self._vector(*down)), "unroll")]
        for i in range(edge):
            body += self._output_row(i, _output_rows(edge, self._column(e, const(i))))
        return (Alloc(m, (Alloc(e, tuple(body)),)),)

    def _output_row(self, row: int, values: Sequence[Expr]) -> tuple[Stmt, ...]:
        """The region's outputs in one row of the tile, where it lies inside the tensor."""
        resolver, found = self.resolver, list[Stmt]()
        y = Buffer(f"y{row}", self.dtype, (len(values), self.lanes), "register")
        element = self._column(y)
        found.append(self._vector(*(
            Store(y.name, (const(j), idx(LANE)), value) for j, value in enumerate(values)
        )))  # fmt: skip
        channel = add(mul(add(mul(idx(GROUP), self.schedule.vectors), idx(VECTOR)), self.lanes), idx(LANE))
        for j in range(len(values)):
            point = tuple(resolver.simplify(e) for e in self._point(channel, row, j))
            resolver.point, resolver.bound = point, {self.root.name: partial(_element, element(j))}
            stores = resolver.vector_loop(self.lanes, partial(resolver.outputs, point))
            found += self._inside(point[3], self.shape.width, stores)
        return self._inside(self._point(channel, row, 0)[2], self.shape.height, (Alloc(y, tuple(found)),))

    def _inside(self, index: Expr, extent: int, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        condition = self.resolver.simplify(binary("lt", index, const(extent)))
        if isinstance(condition, Const):  # the tensor ends with a tile, or is smaller than one
            return body if condition.value else ()
        return (If(condition, body),)


def _element(value: Expr, indices: Indices) -> Expr:
    return value
