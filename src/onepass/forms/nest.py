"""The nest form: at most one reduction, computed for a register tile of outputs at a time.

Convolutions, matrix products, pools and pointwise chains are all this one nest; they differ in their
schedule. For each tile: accumulators start, the reduction loops update them (operands that do not change
along the tile are loaded once and kept), and the pointwise stages after the reduction run on the
accumulators while they are still in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from onepass.core.dtypes import DType
from onepass.forms.body import Body
from onepass.forms.border import zero_border
from onepass.forms.packing import Packed
from onepass.forms.resolve import LANE, Indices, Loops, Resolver
from onepass.forms.schedule import CHUNK, Schedule, Segment, segments, steps
from onepass.graph.ir import Graph
from onepass.graph.layout import Layout
from onepass.loops.build import add, binary, const, floordiv, fma, idx, loop, mod, mul, sub
from onepass.loops.ir import (
    Alloc,
    Binary,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Load,
    LoopMode,
    Prefetch,
    Stmt,
    Store,
)
from onepass.loops.numerics import limits
from onepass.loops.walk import index_names, loads, statements, substitute
from onepass.ops.opdef import Array, Axis, Combine, Compute

VECTOR, TILE, ROW, SLICE = "vec", "pixel", "tile", "slice"
SUMS = "sums"  # of all tiles, from one slice of the reduction to the next
MIN_STEPS_TO_PREFETCH = 8  # of a reduction: one that is shorter ends before the line is there


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel, the value or packed constant behind each parameter, and how to pack those.

    `kept` names the stages that it keeps in a scratch row; `made` holds constants that it brings along.
    """

    kernel: Kernel
    args: tuple[str, ...]
    packed: dict[str, Packed]
    kept: frozenset[str] = frozenset()
    made: Mapping[str, Array] = field(default_factory=dict)


class FormMismatch(Exception):
    """The region cannot take this form; the message says why."""


def build_nest(body: Body, graph: Graph, layouts: Mapping[str, Layout], schedule: Schedule) -> Built:
    """The kernel of `body` under `schedule`; raises `FormMismatch` where the form does not fit."""
    whole = NestBuilder(body, graph, layouts, schedule, whole_blocks=True)
    exact = NestBuilder(body, graph, layouts, schedule, whole_blocks=False)
    built = whole.build()
    return exact.build() if whole.resolver.escapes and exact.extents != whole.extents else built


def initial_value(combine: Combine, dtype: DType) -> Const:
    """The neutral element of a reduction."""
    if combine in ("add", "mul"):
        return const(0 if combine == "add" else 1, dtype)
    least, greatest = limits(dtype)
    return const(least if combine == "max" else greatest, dtype)


def accumulate(combine: Combine, accumulator: Expr, term: Expr) -> Expr:
    """`accumulator combined with term`; a float product fuses into a multiply-add."""
    if combine == "add" and isinstance(term, Binary) and term.op == "mul" and term.dtype.is_float:
        return fma(term.a, term.b, accumulator)
    return binary(combine, accumulator, term)


def folded(
    combine: Combine, value: Expr, name: str, lanes: int, least: int = 1
) -> tuple[list[Stmt], list[Buffer], list[Expr]]:
    """`value` of each lane combined, the upper half onto the lower one, down to `least` or an odd number.

    The vector loops, the register buffers `NAME_LANES` that they use, and what is left to combine.
    """
    found, halves = list[Stmt](), list[Buffer]()
    while lanes > 1:
        half = Buffer(f"{name}_{lanes}", value.dtype, (lanes,), "register")
        halves.append(half)
        found.append(loop(LANE, lanes, (Store(half.name, (idx(LANE),), value),), "vector"))
        if lanes % 2 or lanes <= least:
            return found, halves, [Load(half.name, (const(lane),), half.dtype) for lane in range(lanes)]
        lanes //= 2
        low, high = (Load(half.name, (add(idx(LANE), at),), half.dtype) for at in (0, lanes))
        value = binary(combine, low, high)
    return found, halves, [substitute(value, {LANE: const(0)})]


def named_loops(order: Sequence[tuple[str, int]], body: tuple[Stmt, ...]) -> For:
    """One parallel loop over the product of `order`, its position decoded into the named variables."""
    total = 1
    for name, extent in reversed(order):
        position = mod(floordiv(idx("share"), total), extent)
        body = (For(name, position, add(position, 1), body),)
        total *= extent
    return loop("share", total, body, "shared")


def finish(resolver: Resolver, body: Sequence[Stmt], lanes: int) -> Built:
    """The kernel of `body`, with the borders of its padded outputs; an empty output is no parameter."""
    borders: list[Stmt] = []
    for name in resolver.body.outputs:
        if name in resolver.params:
            shape = resolver.graph.types[name].shape
            borders += zero_border(resolver.params[name], resolver.layout(name), shape, lanes)
    kernel = Kernel("kernel", tuple(resolver.params.values()), (*body, *borders))
    return Built(kernel, tuple(resolver.params), resolver.packed)


@dataclass(frozen=True, slots=True)
class _Tile:
    """A register tile: `pixels` places times `vectors` of `lanes`, within the loops `outer`.

    `point` is its element in terms of their variables, TILE, VECTOR and LANE. It begins at `start` of the
    `places` that all tiles along the tile's axis have.
    """

    point: Indices
    pixels: int
    vectors: int
    lanes: int
    outer: Loops
    start: Expr
    places: int
    slices: int

    def each_vector(self, *body: Stmt) -> For:
        """`body` for each vector of a place, by lanes."""
        return loop(VECTOR, self.vectors, (loop(LANE, self.lanes, body, "vector"),), "unroll")

    def each_place(self, *body: Stmt) -> For:
        """`body` for each place."""
        return loop(TILE, self.pixels, body, "unroll")

    def loops(self, *inner: tuple[str, int]) -> Loops:
        """The loops around an element, with those of a reduction within."""
        return (*self.outer, *inner, (VECTOR, self.vectors), (LANE, self.lanes))


class NestBuilder:
    """Builds the loops of one nest.

    `whole_blocks`: the lanes past the last channel of a blocked output are computed too. `place` says
    where along an axis the tile is, if not at the axis's own loop variable, and `around` puts the outer loops
    around a tile: a form of several nests sets both.
    """

    def __init__(
        self,
        body: Body,
        graph: Graph,
        layouts: Mapping[str, Layout],
        schedule: Schedule,
        *,
        whole_blocks: bool,
    ) -> None:
        self.body, self.graph, self.schedule = body, graph, schedule
        self.resolver = resolver = Resolver(body, graph, layouts)
        self.place: dict[int, Expr] = {}
        self.around: Callable[[Sequence[tuple[str, int]], tuple[Stmt, ...]], Stmt] = named_loops
        reductions = body.reductions()
        if len(reductions) > 1:
            raise FormMismatch("more than one reduction")
        self.root = reductions[0] if reductions else None
        # A scalar is computed as a vector of one.
        self.axes = body.output.axes
        self.extents = [axis.extent for axis in self.axes] or [1]
        for axis, apart in schedule.phases:
            self.extents[axis] //= apart
        blocks = {resolver.layout(name).block for name in body.outputs}
        if whole_blocks and schedule.vector == 1 and blocks == {schedule.lanes} != {1}:
            self.extents[1] = -(-self.extents[1] // schedule.lanes) * schedule.lanes
        if self.root is not None:
            resolver.must_pack = frozenset(
                name for name in body.inputs if name in graph.constants and graph.constants[name].ndim > 1
            )

    def build(self) -> Built:
        """The kernel."""
        return finish(self.resolver, self.segments(), self.schedule.lanes)

    def segments(self) -> list[Stmt]:
        """One parallel loop for each segment of the vector axis."""
        extent, schedule = self.extents[self.schedule.vector], self.schedule
        return [
            self._segment(part, vectors, lanes)
            for part, vectors, lanes in steps(extent, schedule.vectors, schedule.lanes)
        ]

    def _segment(self, part: Segment, vectors: int, lanes: int) -> Stmt:
        resolver, schedule, extents = self.resolver, self.schedule, list(self.extents)
        extents[schedule.vector] = part.count
        point: list[Expr] = [idx(f"i{axis}") for axis in range(len(extents))]
        order = [(f"phase{axis}", apart) for axis, apart in schedule.phases]
        for place, axis in enumerate(schedule.order):
            name, blocks = f"i{axis}", f"i{axis}_o"
            if axis in schedule.order[:place]:
                order.append((name, schedule.block))
            elif axis in schedule.order[place + 1 :]:
                order.append((blocks, extents[axis] // schedule.block))
                point[axis] = add(mul(idx(blocks), schedule.block), idx(name))
            else:
                order.append((name, extents[axis]))
        resolver.ranges |= {name: (0, extent - 1) for name, extent in order}
        resolver.ranges |= {VECTOR: (0, vectors - 1), LANE: (0, lanes - 1)}
        vector = add(mul(idx(f"i{schedule.vector}"), vectors), idx(VECTOR))
        point[schedule.vector] = add(add(mul(vector, lanes), idx(LANE)), part.start)
        for at, spot in self.place.items():
            point[at] = spot
        tile, inner = schedule.tile, list[Stmt]()
        width = extents[tile] if tile is not None else 1
        places = width * (extents[tile - 1] if tile is not None and schedule.flat else 1)
        slices = self._slices()
        inside = (*order, (SLICE, slices)) if slices > 1 else tuple(order)
        resolver.ranges[SLICE] = (0, slices - 1)
        for piece in segments(places, schedule.tile_size):
            resolver.ranges |= {ROW: (0, piece.count - 1), TILE: (0, piece.width - 1)}
            start = add(mul(idx(ROW), piece.width) if piece.count > 1 else const(0), piece.start)
            if tile is not None:
                point[tile] = mod(add(start, idx(TILE)), width)
            if tile is not None and schedule.flat:
                point[tile - 1] = floordiv(add(start, idx(TILE)), width)
            apart = [*point]
            for axis, step in schedule.phases:
                apart[axis] = add(mul(point[axis], step), idx(f"phase{axis}"))
            where = tuple(resolver.simplify(index) for index in apart[: len(self.axes)])
            body = self._tile(_Tile(where, piece.width, vectors, lanes, inside, start, places, slices))
            inner += [loop(ROW, piece.count, body)] if piece.count > 1 else body
        if schedule.whole:
            inner = [loop(*order.pop(), tuple(inner))]
        if slices > 1:
            assert self.root is not None, "only reductions are sliced"
            sums = Buffer(SUMS, self.root.dtype, (places, vectors, lanes), "cache")
            inner = [Alloc(sums, (loop(SLICE, slices, tuple(inner)),))]
        return self.around(order, tuple(inner))

    def _slices(self) -> int:
        """Into how many runs the reduction is cut, each done by all tiles before the next."""
        if self.root is None or not self.schedule.depth:
            return 1
        return self.root.reduce_axes[0].extent // (CHUNK * self.schedule.depth)

    def _tile(self, tile: _Tile) -> tuple[Stmt, ...]:
        resolver, root = self.resolver, self.root
        resolver.point, resolver.bound = tile.point, {}
        if root is None:
            return (self._outputs(tile),)
        accumulators = Buffer("acc", root.dtype, (tile.pixels, tile.vectors, tile.lanes), "register")
        element = Load("acc", (idx(TILE), idx(VECTOR), idx(LANE)), root.dtype)
        start = Store("acc", element.indices, initial_value(_combine(root), root.dtype))
        sums = self._reduce(root, tile, element)

        def accumulated(indices: Indices) -> Expr:
            if indices != tile.point:
                raise FormMismatch(f"'{root.name}' is read at another place than it is computed")
            return element

        resolver.bound = {root.name: accumulated}
        outputs = self._outputs(tile)
        fetch = self._prefetch(outputs, tile) if _length(root) >= MIN_STEPS_TO_PREFETCH else ()
        begin: tuple[Stmt, ...] = (tile.each_place(tile.each_vector(start)),)
        if tile.slices == 1:
            return (Alloc(accumulators, (*fetch, *begin, *sums, outputs)),)
        where = (add(tile.start, idx(TILE)), idx(VECTOR), idx(LANE))
        resume = Store("acc", element.indices, Load(SUMS, where, root.dtype))
        keep = Store(SUMS, where, element)
        last = binary("eq", idx(SLICE), const(tile.slices - 1))
        more = binary("lt", idx(SLICE), const(tile.slices - 1))
        begin = (*begin, If(binary("lt", const(0), idx(SLICE)), (tile.each_place(tile.each_vector(resume)),)))
        ends = (If(more, (tile.each_place(tile.each_vector(keep)),)), If(last, (outputs,)))
        early = (If(last, fetch),) if fetch else ()
        return (Alloc(accumulators, (*early, *begin, *sums, *ends)),)

    def _prefetch(self, outputs: Stmt, tile: _Tile) -> tuple[Stmt, ...]:
        """Asks for the lines that the tile's end reads and writes, while its reduction computes.

        Into the second level: so many at once would hold up the first one's other misses.
        """
        graph, params = self.graph, self.resolver.params.items()
        values = {buffer.name for n, buffer in params if n in graph.types and n not in graph.constants}
        stores = [stmt for stmt in statements((outputs,)) if isinstance(stmt, Store)]
        places = [(stmt.buffer, stmt.indices) for stmt in stores]
        places += [(load.buffer, load.indices) for stmt in stores for load in loads(stmt.value)]
        found = []
        for buffer, indices in dict.fromkeys(places):
            if buffer in values:
                first = tuple(self.resolver.simplify(substitute(e, {LANE: const(0)})) for e in indices)
                found.append(Prefetch(buffer, first, far=True))
        return (tile.each_place(loop(VECTOR, tile.vectors, tuple(found), "unroll")),) if found else ()

    def _outputs(self, tile: _Tile) -> Stmt:
        """Stores of every output for each element of the tile."""
        self.resolver.pack_axes = tile.loops()
        body = self.resolver.vector_loop(tile.lanes, lambda: self.resolver.outputs(tile.point))
        return tile.each_place(loop(VECTOR, tile.vectors, body, "unroll"))

    def _reduce(self, root: Compute, tile: _Tile, element: Load) -> list[Stmt]:
        """The reduction loops; the innermost ones are written out."""
        found: list[Stmt] = []
        budget = self.schedule.unroll // (tile.pixels * tile.vectors)
        for loops, reduced in _reduction_loops(root.reduce_axes, budget, self.schedule.depth):
            self.resolver.ranges |= {axis.name: (axis.start, axis.stop - 1) for axis in loops}
            self.resolver.pack_axes = tile.loops(*((axis.name, axis.stop) for axis in loops))
            values = {axis.name: index for axis, index in zip(root.axes, tile.point, strict=True)} | reduced
            body = self._step(root, values, tile, element)
            for axis in reversed(loops):
                mode: LoopMode = "unroll" if axis.unrolled else "serial"
                if self.schedule.ahead is not None and axis is loops[-1]:
                    body = (*self._ahead(body, tile, self.schedule.ahead, loops), *body)
                body = (loop(axis.name, axis.stop, body, mode, axis.start),)
            found += body
        return found

    def _ahead(
        self, body: tuple[Stmt, ...], tile: _Tile, axis: int, loops: Sequence[_ReduceLoop]
    ) -> tuple[Stmt, ...]:
        """Asks for this tile's share of the lines that the next step along `axis` will read.

        All tiles within one step read the same. Of weights each asks for a run of lines one after another,
        as its pages and those of memory lie. Of the input, where a line holds all steps of the innermost loop
        (of channels), each asks for those at its place.
        """
        name, turns = SLICE if tile.slices > 1 else f"i{axis}", 1
        turn: Expr = const(0)
        for other, extent in tile.outer[[outer for outer, _ in tile.outer].index(name) + 1 :]:
            turn, turns = add(mul(turn, extent), idx(other)), turns * extent
        *around, inner = loops
        weights, step, steps = axis == self.schedule.vector, idx(inner.name), inner.stop
        line, lines, part, chunks = TILE, tile.pixels, 1, 1
        chunk: Expr = const(0)
        moved: dict[str, Expr] = {name: add(idx(name), 1), inner.name: const(0)}
        moved |= {VECTOR: const(0), LANE: const(0)}  # the outputs of a vector read one group
        if weights:
            turn, turns = add(mul(turn, tile.places), tile.start), turns * tile.places
            line, lines, part = VECTOR, steps * tile.vectors, tile.pixels
            for outer in around:
                extent = outer.stop - outer.start
                chunk = add(mul(chunk, extent), sub(idx(outer.name), outer.start))
                chunks *= extent
                moved[outer.name] = const(outer.start)
        share = -(-lines * part // turns)
        past = floordiv(mul(add(step, 1), share), steps)
        packed = {self.resolver.params[label].name for label in self.resolver.packed}
        first = add(floordiv(mul(turn, lines * chunks), turns), mul(chunk, share))
        found: dict[Stmt, None] = {}
        stores = (stmt for stmt in statements(body) if isinstance(stmt, Store))
        for load in (load for store in stores for load in loads(store.value)):
            names = frozenset().union(*map(index_names, load.indices))
            if not {name, line} <= names or (load.buffer in packed) != weights:
                continue
            if not weights and inner.name not in index_names(load.indices[-1]):
                continue
            for k in range(-(-share // steps)):
                mine = add(floordiv(mul(step, share), steps), k)
                moved[line] = add(first, mine)
                where = tuple(substitute(index, moved) for index in load.indices)
                found[If(binary("lt", mine, past), (Prefetch(load.buffer, where, far=True),))] = None
        return tuple(found)

    def _step(
        self, root: Compute, values: Mapping[str, Expr], tile: _Tile, element: Load
    ) -> tuple[Stmt, ...]:
        """One step of the reduction for the whole tile.

        Operands that do not change along the tile are loaded before it, those that do not change along
        its vectors once for each place.
        """
        term = self.resolver.simplify(self.resolver.resolve(root.body, values))
        before: list[Stmt] = []
        inner: list[Stmt] = []
        buffers: list[Buffer] = []

        def staged(name: str, operand: Expr) -> Expr:
            names = index_names(operand)
            along_vectors = bool(names & {LANE, VECTOR})
            if TILE in names if along_vectors else tile.vectors == 1:
                return operand
            shape = (tile.vectors, tile.lanes) if along_vectors else (1,)
            where: Indices = (idx(VECTOR), idx(LANE)) if along_vectors else (const(0),)
            buffers.append(Buffer(name, operand.dtype, shape, "register"))
            store = Store(name, where, operand)
            if along_vectors:
                before.append(tile.each_vector(store))
            else:
                inner.append(store)
            return Load(name, where, operand.dtype)

        if isinstance(term, Binary) and term.op == "mul":
            term = replace(term, a=staged("as", term.a), b=staged("bs", term.b))
        update = Store("acc", element.indices, accumulate(_combine(root), element, term))
        inner.append(tile.each_vector(update))
        body: tuple[Stmt, ...] = (*before, tile.each_place(*inner))
        for buffer in buffers:
            body = (Alloc(buffer, body),)
        return body


def _length(root: Compute) -> int:
    return math.prod(axis.extent for axis in root.reduce_axes)


def _combine(stage: Compute) -> Combine:
    assert stage.combine is not None
    return stage.combine


@dataclass(frozen=True, slots=True)
class _ReduceLoop:
    """One loop of the reduction, over [start, stop)."""

    name: str
    start: int
    stop: int
    unrolled: bool


def _reduction_loops(
    axes: tuple[Axis, ...], budget: int, depth: int = 0
) -> list[tuple[tuple[_ReduceLoop, ...], dict[str, Expr]]]:
    """Loop nests, one after another, that cover the reduction, and the axes in terms of their variables.

    A long first axis (input channels, the inner dimension of a product) is cut into chunks that are
    written out, inside the window's loops; a short one is written out with as much of the
    window as `budget` steps allow.
    """
    first, window = axes[0], axes[1:]
    own: dict[str, Expr] = {axis.name: idx(axis.name) for axis in axes}
    if first.extent < CHUNK // 2 and window:
        loops, written = list[_ReduceLoop](), 1
        for axis in reversed(axes):
            written *= axis.extent
            loops.insert(0, _ReduceLoop(axis.name, 0, axis.extent, written <= budget))
        return [(tuple(loops), own)]
    nests = []
    chunk = min(CHUNK, max(budget, 4))
    assert not depth or (chunk == CHUNK and first.extent % (CHUNK * depth) == 0), "slices are of whole chunks"
    outer, inner = f"{first.name}_o", f"{first.name}_i"
    for part in segments(first.extent, chunk):
        start = part.start // chunk
        many, whole = (depth, add(mul(idx(SLICE), depth), idx(outer))) if depth else (part.count, idx(outer))
        loops = [
            _ReduceLoop(outer, start, start + many, False),
            *(_ReduceLoop(axis.name, 0, axis.extent, False) for axis in window),
            _ReduceLoop(inner, 0, part.width, True),
        ]
        nests.append((tuple(loops), own | {first.name: add(mul(whole, chunk), idx(inner))}))
    return nests
