"""The nest form: at most one reduction, computed for a register tile of outputs at a time.

Convolutions, matrix products, pools and pointwise chains are all this one nest; they differ in their
schedule. For each tile: accumulators start, the reduction loops update them (operands that do not change
along the tile are loaded once and kept), and the pointwise stages after the reduction run on the
accumulators while they are still in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from onepass.core.dtypes import F16, F32, DType
from onepass.forms.body import Body
from onepass.forms.border import zero_border
from onepass.forms.packing import Packed
from onepass.forms.resolve import Indices, Resolver
from onepass.forms.schedule import CHUNK, Schedule, Segment, segments
from onepass.graph.ir import Graph
from onepass.graph.layout import Layout
from onepass.loops.build import add, binary, cast, const, floordiv, fma, idx, loop, mod, mul
from onepass.loops.ir import (
    Alloc,
    Binary,
    Buffer,
    Const,
    Expr,
    For,
    Kernel,
    Load,
    LoopMode,
    Prefetch,
    Stmt,
    Store,
)
from onepass.loops.walk import index_names, loads, substitute
from onepass.loops.walk import statements as walk_statements
from onepass.ops.opdef import Axis, Combine, Compute

LANE, VECTOR, TILE, ROW = "lane", "vec", "pixel", "tile"
MIN_STEPS_TO_PREFETCH = 8


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel, the value or packed constant behind each parameter, and how to pack those.

    `kept` names the stages that it keeps in a scratch row.
    """

    kernel: Kernel
    args: tuple[str, ...]
    packed: dict[str, Packed]
    kept: frozenset[str] = frozenset()


class FormMismatch(Exception):
    """The region cannot take this form; the message says why."""


def build_nest(body: Body, graph: Graph, layouts: Mapping[str, Layout], schedule: Schedule) -> Built:
    """The kernel of `body` under `schedule`; raises `FormMismatch` where the form does not fit."""
    if body.stage(body.outputs[0]) is None:
        raise FormMismatch("the region has no output")
    padded_lanes = _NestBuilder(body, graph, layouts, schedule, whole_blocks=True)
    statements = padded_lanes.statements()
    if not padded_lanes.resolver.escapes:
        return padded_lanes.finish(statements)
    exact = _NestBuilder(body, graph, layouts, schedule, whole_blocks=False)
    return exact.finish(exact.statements())


def initial_value(combine: Combine, dtype: DType) -> Const:
    """The neutral element of a reduction."""
    if combine in ("add", "mul"):
        return const(0 if combine == "add" else 1, dtype)
    if dtype.is_float:
        return const(float("-inf") if combine == "max" else float("inf"), dtype)
    if dtype.kind == "bool":
        return const(combine == "min", dtype)
    low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
    high = (1 << (dtype.bits - (1 if dtype.kind == "int" else 0))) - 1
    return const(low if combine == "max" else high, dtype)


def accumulator_dtype(stage: Compute) -> DType:
    """Sums of float16 are kept in float32; everything else in its own type."""
    return F32 if stage.dtype == F16 and stage.combine in ("add", "mul") else stage.dtype


def accumulate(combine: Combine, accumulator: Expr, term: Expr) -> Expr:
    """`accumulator combined with term`; a float product fuses into a multiply-add."""
    dtype = accumulator.dtype
    if combine == "add" and isinstance(term, Binary) and term.op == "mul" and dtype.is_float:
        return fma(cast(term.a, dtype), cast(term.b, dtype), accumulator)
    return binary(combine, accumulator, cast(term, dtype))


def named_loops(order: Sequence[tuple[str, int]], body: tuple[Stmt, ...]) -> For:
    """One parallel loop over the product of `order`, its position decoded into the named variables."""
    total = 1
    for name, extent in reversed(order):
        position = mod(floordiv(idx("share"), total), extent)
        body = (For(name, position, add(position, 1), body),)
        total *= extent
    return loop("share", total, body, "parallel")


def finish(resolver: Resolver, statements: tuple[Stmt, ...], lanes: int) -> Built:
    """The kernel of `statements`, with the borders of its padded outputs."""
    borders: list[Stmt] = []
    for name in resolver.body.outputs:
        shape = resolver.graph.types[name].shape
        if name not in resolver.params:
            continue  # empty
        borders += zero_border(resolver.params[name], resolver.layout(name), shape, lanes)
    kernel = Kernel("kernel", tuple(resolver.params.values()), (*statements, *borders))
    return Built(kernel, tuple(resolver.params), resolver.packed)


class _NestBuilder:
    def __init__(
        self,
        body: Body,
        graph: Graph,
        layouts: Mapping[str, Layout],
        schedule: Schedule,
        *,
        whole_blocks: bool,
    ) -> None:
        self.body, self.graph, self.layouts, self.schedule = body, graph, layouts, schedule
        self.resolver = Resolver(body, graph, layouts)
        reductions = body.reductions()
        if len(reductions) > 1:
            raise FormMismatch("more than one reduction")
        self.root = reductions[0] if reductions else None
        output = body.stage(body.outputs[0])
        assert output is not None
        self.axes = output.axes
        # A scalar is computed as a vector of one.
        self.extents = [axis.extent for axis in output.axes] or [1]
        if whole_blocks and all(layouts.get(name, Layout()).block > 1 for name in body.outputs):
            block = layouts[body.outputs[0]].block
            if schedule.vector == 1 and schedule.lanes == block:
                self.extents[1] = -(-self.extents[1] // block) * block
        if self.root is not None:
            self.resolver.must_pack = frozenset(
                name for name in body.inputs if name in graph.constants and graph.constants[name].ndim > 1
            )

    def finish(self, statements: tuple[Stmt, ...]) -> Built:
        return finish(self.resolver, statements, self.schedule.lanes)

    def statements(self) -> tuple[Stmt, ...]:
        """One parallel loop for each segment of the vector axis."""
        schedule = self.schedule
        found: list[Stmt] = []
        step = schedule.vectors * schedule.lanes
        for part in segments(self.extents[schedule.vector], step):
            vectors, rest = divmod(part.width, schedule.lanes)
            if vectors:
                whole = Segment(part.start, part.count, vectors * schedule.lanes)
                found.append(self._segment(whole, vectors, schedule.lanes))
            if rest:
                tail = Segment(part.start + vectors * schedule.lanes, 1, rest)
                found.append(self._segment(tail, 1, rest))
        return tuple(found)

    def _type_shape(self, name: str) -> tuple[int, ...]:
        return self.graph.types[name].shape

    def _segment(self, part: Segment, vectors: int, lanes: int) -> Stmt:
        resolver, schedule = self.resolver, self.schedule
        names = {axis: f"i{axis}" for axis in range(len(self.extents))}
        extents = {axis: part.count if axis == schedule.vector else e for axis, e in enumerate(self.extents)}
        order: list[tuple[str, int]] = []
        point: list[Expr] = [idx(names[axis]) for axis in range(len(self.extents))]
        for axis in schedule.order:
            if schedule.order.count(axis) == 1:
                order.append((names[axis], extents[axis]))
            elif f"{names[axis]}_o" in dict(order):
                order.append((names[axis], schedule.block))
            else:
                order.append((f"{names[axis]}_o", extents[axis] // schedule.block))
                point[axis] = add(mul(idx(f"{names[axis]}_o"), schedule.block), idx(names[axis]))
        for name, extent in order:
            resolver.ranges[name] = (0, extent - 1)
        resolver.ranges |= {VECTOR: (0, vectors - 1), LANE: (0, lanes - 1)}
        block = add(mul(idx(names[schedule.vector]), vectors), idx(VECTOR))
        point[schedule.vector] = add(add(mul(block, lanes), idx(LANE)), part.start)
        outer_axes = tuple(order)
        inner: list[Stmt] = []
        tile_extent = self.extents[schedule.tile] if schedule.tile is not None else 1
        for piece in segments(tile_extent, schedule.tile_size):
            inner += self._tiles(piece, point, vectors, lanes, outer_axes)
        return named_loops(order, tuple(inner))

    def _tiles(
        self, piece: Segment, point: list[Expr], vectors: int, lanes: int, outer: tuple[tuple[str, int], ...]
    ) -> list[Stmt]:
        resolver, tile = self.resolver, self.schedule.tile
        resolver.ranges |= {ROW: (0, piece.count - 1), TILE: (0, piece.width - 1)}
        point = list(point)
        if tile is not None:
            point[tile] = add(add(mul(idx(ROW), piece.width), idx(TILE)), piece.start)
        statements = self._tile(tuple(point[: len(self.axes)]), piece.width, vectors, lanes, outer)
        return [loop(ROW, piece.count, statements)] if piece.count > 1 else list(statements)

    def _tile(
        self, point: Indices, pixels: int, vectors: int, lanes: int, outer: tuple[tuple[str, int], ...]
    ) -> tuple[Stmt, ...]:
        resolver = self.resolver
        point = tuple(resolver.simplify(index) for index in point)
        resolver.point, resolver.bound = point, {}
        if self.root is None:
            resolver.pack_axes = (*outer, (VECTOR, vectors), (LANE, lanes))
            return self._outputs(point, pixels, vectors, lanes)
        accumulators = Buffer("acc", accumulator_dtype(self.root), (pixels, vectors, lanes), "register")
        where = (idx(TILE), idx(VECTOR), idx(LANE))
        element = Load("acc", where, accumulators.dtype)
        start = Store("acc", where, initial_value(_combine(self.root), accumulators.dtype))
        sums = self._reduce(point, element, pixels, vectors, lanes, outer)
        resolver.bound = {self.root.name: self._accumulator_reader(point, element)}
        resolver.pack_axes = (*outer, (VECTOR, vectors), (LANE, lanes))
        outputs = self._outputs(point, pixels, vectors, lanes)
        fetch = self._prefetch(outputs, pixels, vectors) if _is_long(self.root) else ()
        body = (*fetch, _over_tile(pixels, vectors, lanes, (start,)), *sums, *outputs)
        return (Alloc(accumulators, body),)

    def _prefetch(self, outputs: tuple[Stmt, ...], pixels: int, vectors: int) -> tuple[Stmt, ...]:
        """Asks for the lines that the tile's end reads and writes, while its reduction computes."""
        values = {buffer.name for name, buffer in self.resolver.params.items() if name in self.graph.types}
        constants = {b.name for n, b in self.resolver.params.items() if n in self.graph.constants}
        stores = [stmt for stmt in walk_statements(outputs) if isinstance(stmt, Store)]
        places = [(stmt.buffer, stmt.indices) for stmt in stores]
        places += [(load.buffer, load.indices) for stmt in stores for load in loads(stmt.value)]
        found = []
        for buffer, indices in dict.fromkeys(places):
            if buffer in values - constants:
                first = tuple(self.resolver.simplify(substitute(e, {LANE: const(0)})) for e in indices)
                found.append(Prefetch(buffer, first))
        body = (loop(VECTOR, vectors, tuple(found), "unroll"),)
        return (loop(TILE, pixels, body, "unroll"),) if found else ()

    def _accumulator_reader(self, point: Indices, element: Load) -> Callable[[Indices], Expr]:
        root = self.root
        assert root is not None

        def read(indices: Indices) -> Expr:
            if indices != point:
                raise FormMismatch(f"'{root.name}' is read at another place than it is computed")
            return cast(element, root.dtype)

        return read

    def _outputs(self, point: Indices, pixels: int, vectors: int, lanes: int) -> tuple[Stmt, ...]:
        """Stores of every output for each element of the tile."""
        resolver = self.resolver
        resolver.start_temps(LANE)
        first_temp = len(resolver.temp_buffers)
        stores = []
        for name in self.body.outputs:
            value = resolver.simplify(resolver.value(name, point))
            layout = resolver.layout(name)
            buffer = resolver.param(name, layout.physical_shape(self._type_shape(name)))
            where = tuple(resolver.simplify(index) for index in layout.physical(point))
            stores.append(Store(buffer, where, value))
        body: tuple[Stmt, ...] = (loop(LANE, lanes, (*resolver.take_temps(), *stores), "vector"),)
        for temp in resolver.temp_buffers[first_temp:]:
            body = (Alloc(temp, body),)
        return (loop(TILE, pixels, (loop(VECTOR, vectors, body, "unroll"),), "unroll"),)

    def _reduce(
        self,
        point: Indices,
        element: Load,
        pixels: int,
        vectors: int,
        lanes: int,
        outer: tuple[tuple[str, int], ...],
    ) -> list[Stmt]:
        """The reduction loops; the innermost ones are written out."""
        root = self.root
        assert root is not None
        found: list[Stmt] = []
        for loops, reduced in reduction_loops(root.reduce_axes, self.schedule.unroll // (pixels * vectors)):
            for axis in loops:
                self.resolver.ranges[axis.name] = (axis.start, axis.start + axis.count - 1)
            self.resolver.pack_axes = (
                *outer,
                *((axis.name, axis.start + axis.count) for axis in loops),
                (VECTOR, vectors),
                (LANE, lanes),
            )
            values = {axis.name: index for axis, index in zip(root.axes, point, strict=True)} | reduced
            body = self._step(replace(root), values, element, pixels, vectors, lanes)
            for axis in reversed(loops):
                body = (axis.over(body),)
            found += body
        return found

    def _step(
        self, root: Compute, values: dict[str, Expr], element: Load, pixels: int, vectors: int, lanes: int
    ) -> tuple[Stmt, ...]:
        """One step of the reduction for the whole tile."""
        resolver = self.resolver
        term = resolver.simplify(resolver.resolve(root.body, values))
        staged: list[Stmt] = []
        buffers: list[Buffer] = []
        inner: list[Stmt] = []
        if isinstance(term, Binary) and term.op == "mul":
            operands = []
            for label, operand in (("a", term.a), ("b", term.b)):
                names = index_names(operand)
                if TILE not in names and names & {LANE, VECTOR}:
                    buffer = Buffer(f"{label}s", operand.dtype, (vectors, lanes), "register")
                    store = Store(buffer.name, (idx(VECTOR), idx(LANE)), operand)
                    staged.append(loop(VECTOR, vectors, (loop(LANE, lanes, (store,), "vector"),), "unroll"))
                    operand = Load(buffer.name, (idx(VECTOR), idx(LANE)), operand.dtype)
                    buffers.append(buffer)
                elif not names & {LANE, VECTOR} and vectors > 1:
                    buffer = Buffer(f"{label}s", operand.dtype, (1,), "register")
                    inner.append(Store(buffer.name, (const(0),), operand))
                    operand = Load(buffer.name, (const(0),), operand.dtype)
                    buffers.append(buffer)
                operands.append(operand)
            term = Binary("mul", operands[0], operands[1], term.dtype)
        update = Store("acc", element.indices, accumulate(_combine(root), element, term))
        lanes_loop = loop(LANE, lanes, (update,), "vector")
        inner.append(loop(VECTOR, vectors, (lanes_loop,), "unroll"))
        body: tuple[Stmt, ...] = (*staged, loop(TILE, pixels, tuple(inner), "unroll"))
        for buffer in buffers:
            body = (Alloc(buffer, body),)
        return body


def _is_long(root: Compute) -> bool:
    """Whether the reduction takes long enough to hide a fetch from memory behind it."""
    return math.prod(axis.extent for axis in root.reduce_axes) >= MIN_STEPS_TO_PREFETCH


def _combine(stage: Compute) -> Combine:
    assert stage.combine is not None
    return stage.combine


def _over_tile(pixels: int, vectors: int, lanes: int, body: tuple[Stmt, ...]) -> Stmt:
    inner = loop(VECTOR, vectors, (loop(LANE, lanes, body, "vector"),), "unroll")
    return loop(TILE, pixels, (inner,), "unroll")


@dataclass(frozen=True, slots=True)
class ReduceLoop:
    """One loop of the reduction, over [start, start + count)."""

    name: str
    start: int
    count: int
    unrolled: bool

    def over(self, body: tuple[Stmt, ...]) -> Stmt:
        """The loop around `body`."""
        mode: LoopMode = "unroll" if self.unrolled else "serial"
        return loop(self.name, self.start + self.count, body, mode, self.start)


def reduction_loops(
    axes: tuple[Axis, ...], budget: int
) -> list[tuple[tuple[ReduceLoop, ...], dict[str, Expr]]]:
    """Loop nests, one after another, that cover the reduction, and the axes in terms of their variables.

    A long first axis (input channels, the inner dimension of a product) is cut into chunks that are
    written out, inside the window's loops; a short one is written out with as much of the
    window as `budget` steps allow.
    """
    first, window = axes[0], axes[1:]
    if first.extent < CHUNK // 2 and window:
        return [_window_loops(axes, budget)]
    nests = []
    chunk = min(CHUNK, max(budget, 4))
    for part in segments(first.extent, chunk):
        outer, inner = f"{first.name}_o", f"{first.name}_i"
        loops = (
            ReduceLoop(outer, part.start // chunk, part.count, False),
            *(ReduceLoop(axis.name, 0, axis.extent, False) for axis in window),
            ReduceLoop(inner, 0, part.width, True),
        )
        index = add(mul(idx(outer), chunk), idx(inner))
        nests.append((loops, {first.name: index} | {axis.name: idx(axis.name) for axis in window}))
    return nests


def _window_loops(axes: tuple[Axis, ...], budget: int) -> tuple[tuple[ReduceLoop, ...], dict[str, Expr]]:
    written, loops = 1, []
    for axis in reversed(axes):
        unrolled = written * axis.extent <= budget
        written = written * axis.extent if unrolled else budget + 1
        loops.append(ReduceLoop(axis.name, 0, axis.extent, unrolled))
    return tuple(reversed(loops)), {axis.name: idx(axis.name) for axis in axes}
