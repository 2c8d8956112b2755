"""The row form: reductions along rows and everything pointwise around them, one row at a time.

Softmax, layer norm, means over space and chains of them. The rows are shared among the workers; for each
row the reductions run one after another, then the output is written. A costly stage that several of
these passes need is kept in a scratch row (home `cache`); a cheap one is computed again. Vectors lie
along the row, or across rows where that is what is contiguous in memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from onepass.forms.body import Body
from onepass.forms.nest import Built, FormMismatch, accumulate, finish, folded, initial_value, named_loops
from onepass.forms.resolve import LANE, Indices, Resolver
from onepass.forms.row_space import Pass, RowSpace
from onepass.forms.schedule import Segment, segments, steps
from onepass.forms.traffic import COSTLY_INSTRUCTIONS, operation_instructions
from onepass.graph.ir import Graph
from onepass.graph.layout import Layout
from onepass.loops.build import add, binary, const, idx, loop, mul
from onepass.loops.ir import Alloc, Buffer, Expr, For, Load, Prefetch, Stmt, Store
from onepass.loops.walk import index_names, loads, statements, subexpressions, substitute
from onepass.ops.opdef import Axis, Combine, Compute

STEP, UNROLLED = "step", "u"
UNROLL = 8  # independent accumulators: an addition takes 4 cycles on Zen 4 and Skylake, two start in each
AHEAD_BYTES = 16 * 1024  # of the next row that are asked for: half of a first level of 32 KiB
SCRATCH_LIMIT_BYTES = 256 * 1024  # a quarter of a 1 MiB L2; a longer row is computed again instead
LONG_SUM = 128  # additions to one accumulator


def build_row(body: Body, graph: Graph, layouts: Mapping[str, Layout], lanes: int) -> Built:
    """The kernel of `body` with vectors of `lanes`; raises `FormMismatch` where the form does not fit."""
    builder = _RowBuilder(body, graph, layouts, lanes)
    built = finish(builder.resolver, builder.statements(), lanes)
    return replace(built, kept=frozenset(builder.scratch))


@dataclass(frozen=True, slots=True)
class _Kept:
    """A scratch row: which axes of its stage run along the row, and the other indices, fixed for a row."""

    buffer: Buffer
    places: tuple[int, ...]
    rest: Indices


class _RowBuilder(RowSpace):
    def __init__(self, body: Body, graph: Graph, layouts: Mapping[str, Layout], lanes: int) -> None:
        super().__init__(Resolver(body, graph, layouts))
        self.lanes = lanes
        self.lane_axis = self._lane_axis()
        self.rows = 1  # computed at a time
        self.scratch: dict[str, _Kept] = {}
        uses = Counter(load.buffer for stage in body.stages for load in loads(stage.body))
        self.costly = [
            stage.name for stage in body.stages
            if not stage.reduce_axes and _is_costly(stage) and uses[stage.name] > 1
        ]  # fmt: skip

    def _lane_axis(self) -> Axis | None:
        """The outer axis that is contiguous in memory, None where the row itself is."""
        outer = {axis.name: axis for axis in self.outer}
        inner = {axis.name for axis in self.inner} | {a.name for p in self.passes.values() for a in p.axes}
        params = {buffer.name: buffer for buffer in self.resolver.params.values()}
        found = [load for e in reversed(self.seen) for load in loads(e)]
        big = [load for load in found if load.buffer in params and load.indices]
        big.sort(key=lambda load: -len(load.indices))
        for load in big:
            names = index_names(load.indices[-1])
            if names & inner:
                return None
            if names & set(outer):
                return outer[min(names & set(outer))]
        return None

    def statements(self) -> list[Stmt]:
        """One parallel loop over rows for each segment of the lane axis."""
        if self.lane_axis is None:
            return [self._rows(Segment(0, 1, 1))]
        return [self._rows(part) for part in segments(self.lane_axis.extent, self.lanes)]

    def _rows(self, part: Segment) -> Stmt:
        resolver, self.rows = self.resolver, part.width
        order = [(axis.name, axis.extent) for axis in self.outer]
        at: dict[str, Expr] = {}
        if self.lane_axis is not None:
            own = self.lane_axis.name
            order = [(f"{own}_o", part.count) if name == own else (name, extent) for name, extent in order]
            at[own] = add(add(mul(idx(f"{own}_o"), part.width), idx(LANE)), part.start)
            resolver.ranges[LANE] = (0, self.rows - 1)
        resolver.ranges |= {name: (0, extent - 1) for name, extent in order}
        resolver.pack_axes = (*order, (LANE, self.rows))
        resolver.bound, self.scratch = {}, {}
        found: list[Stmt] = []
        totals: list[Buffer] = []
        self.ahead = self._next_row(order) if self.lane_axis is None else {}
        for name, p in self.passes.items():
            total = Buffer(f"total{len(totals)}", p.stage.dtype, (self.rows,), "register")
            place = tuple(resolver.simplify(substitute(e, at)) for e in p.at)
            found += self._pass(p, place, total)
            self.ahead = {}
            resolver.bound[name] = partial(_read_total, p.stage, place, total)
            totals.append(total)
        found += self._write(at)
        body = tuple(found)
        for buffer in [*totals, *(kept.buffer for kept in self.scratch.values())]:
            body = (Alloc(buffer, body),)
        return named_loops(order, body)

    def _next_row(self, order: Sequence[tuple[str, int]]) -> dict[str, Expr]:
        """The indices that give the row after this one, {} where it is too long to be fetched now."""
        size = max((math.prod(axis.extent for axis in p.axes) * p.stage.dtype.size_bytes
                    for p in self.passes.values()), default=0)  # fmt: skip
        name = next((name for name, extent in reversed(order) if extent > 1), None)
        return {} if name is None or size > AHEAD_BYTES else {name: add(idx(name), 1)}

    def _fetch(self, body: tuple[Stmt, ...]) -> Iterator[Stmt]:
        """While a row is first read, asks for the same places of the next one, which then waits less."""
        moved = {**self.ahead, LANE: const(0)}
        read = (load for s in statements(body) if isinstance(s, Store) for load in loads(s.value))
        for load in dict.fromkeys(read):
            if any(index_names(e) & set(self.ahead) for e in load.indices):
                where = (self.resolver.simplify(substitute(e, moved)) for e in load.indices)
                yield Prefetch(load.buffer, tuple(where))

    def _pass(self, p: Pass, place: Indices, total: Buffer) -> list[Stmt]:
        """One reduction over the row: accumulators, loops, and their sum in `total`."""
        row: dict[str, Expr] = {axis.name: idx(axis.name) for axis in p.axes}
        values = {a.name: index for a, index in zip(p.stage.axes, place, strict=True)}
        combine = p.stage.combine
        assert combine is not None
        accumulators: list[Buffer] = []
        parts: list[Buffer] = []
        body: list[Stmt] = []
        outer = math.prod(axis.extent for axis in p.axes[:-1])
        for piece, count, lanes in self._cuts(p.axes[-1].extent):
            buffer = Buffer(f"acc{len(accumulators)}", p.stage.dtype, (count, lanes), "register")
            element = Load(buffer.name, (idx(UNROLLED), idx(LANE)), buffer.dtype)
            accumulators.append(buffer)
            fold = None
            if combine == "add" and buffer.dtype.is_float and outer * piece.count > LONG_SUM:
                part = replace(buffer, name=f"part{len(parts)}")
                parts.append(part)
                total_so_far, element = element, replace(element, buffer=part.name)
                store = Store(buffer.name, element.indices, binary("add", total_so_far, element))
                fold = (_start(part, combine), _over(part, store))

            def update(exprs: dict[str, Expr], element: Load = element) -> list[Store]:
                names = {a.name: exprs[b.name] for a, b in zip(p.stage.reduce_axes, p.axes, strict=True)}
                term = self.resolver.simplify(self.resolver.resolve(p.stage.body, values | names))
                return [Store(element.buffer, element.indices, accumulate(combine, element, term))]

            body += self._loops(p.axes, piece, count, lanes, row, update, fold)
        start = [_start(buffer, combine) for buffer in accumulators]
        found: tuple[Stmt, ...] = (*start, *body, *self._total(combine, accumulators, total))
        for buffer in (*accumulators, *parts):
            found = (Alloc(buffer, found),)
        return list(found)

    def _cuts(self, extent: int) -> Iterator[tuple[Segment, int, int]]:
        """The last axis as (segment, independent accumulators, lanes along it)."""
        if self.lane_axis is None:
            yield from steps(extent, UNROLL, self.lanes)
        else:
            yield from ((piece, count, self.rows) for piece, count, _ in steps(extent, UNROLL, 1))

    def _loops(
        self,
        axes: tuple[Axis, ...],
        piece: Segment,
        count: int,
        lanes: int,
        row: dict[str, Expr],
        make: Callable[[dict[str, Expr]], list[Store]],
        fold: tuple[Stmt, Stmt] | None = None,
    ) -> list[Stmt]:
        """Loops over `axes`, the last one cut as `piece` says; `make` gives the store for one element.

        `fold`: what stands before and after each stretch of a long sum.
        """
        resolver = self.resolver
        resolver.ranges |= {STEP: (0, piece.count - 1), UNROLLED: (0, count - 1), LANE: (0, lanes - 1)}
        position = add(mul(idx(STEP), piece.width), piece.start)
        if self.lane_axis is None:
            position = add(position, add(mul(idx(UNROLLED), lanes), idx(LANE)))
        else:
            position = add(position, idx(UNROLLED))
        exprs = row | ({axes[-1].name: resolver.simplify(position)} if axes else {})
        self.row_places = {exprs[axis.name]: axis.extent for axis in axes if axis.extent > 1}
        resolver.kept = {name: self._keep for name in self.costly if name not in resolver.bound}
        body = resolver.vector_loop(lanes, lambda: make(exprs))
        body = (loop(UNROLLED, count, (*self._fetch(body), *body), "unroll"),)
        loops = [(STEP, piece.count), *((axis.name, axis.extent) for axis in reversed(axes[:-1]))]
        return list(_nested(loops, body, fold))

    def _keep(self, name: str, indices: Indices, value: Load) -> Store | None:
        """Keeps a costly stage in the scratch row as it is first computed."""
        stage = self.body.stage(name)
        assert stage is not None
        places = tuple(k for k, index in enumerate(indices) if index in self.row_places)
        rest = tuple(index for k, index in enumerate(indices) if k not in places)
        moving = frozenset().union(*map(index_names, self.row_places))
        whole = all(self.row_places[indices[k]] == stage.axes[k].extent for k in places)
        if len(places) != len({indices[k] for k in places}) or not places or not whole:
            return None
        if any(index_names(index) & moving for index in rest):
            return None
        shape = tuple(stage.axes[k].extent for k in places)
        if self.lane_axis is not None:
            shape = (*shape, self.rows)
        if math.prod(shape) * stage.dtype.size_bytes > SCRATCH_LIMIT_BYTES:
            return None
        if name not in self.scratch:
            buffer = Buffer(f"row{len(self.scratch)}", stage.dtype, shape, "cache")
            self.scratch[name] = _Kept(buffer, places, rest)
        kept = self.scratch[name]
        if (places, rest) != (kept.places, kept.rest):
            return None
        return Store(kept.buffer.name, self._with_lane(tuple(indices[k] for k in places)), value)

    def _with_lane(self, where: Indices) -> Indices:
        return where if self.lane_axis is None else (*where, idx(LANE))

    def _bind_scratch(self) -> None:
        """From the next pass on, kept stages are read from their scratch rows."""
        for name, kept in self.scratch.items():
            if name not in self.resolver.bound:
                self.resolver.bound[name] = partial(self._read_kept, name, kept)

    def _read_kept(self, name: str, kept: _Kept, indices: Indices) -> Expr:
        """An element of a kept stage; computed again where it belongs to another row."""
        if tuple(index for k, index in enumerate(indices) if k not in kept.places) != kept.rest:
            return self.resolver.inlined(name, indices)
        where = self._with_lane(tuple(indices[k] for k in kept.places))
        return Load(kept.buffer.name, where, kept.buffer.dtype)

    def _total(self, combine: Combine, accumulators: list[Buffer], total: Buffer) -> list[Stmt]:
        """`total` = all accumulators together: lane by lane first, then, along a row, across lanes."""
        self._bind_scratch()
        found: list[Stmt] = []
        terms: list[Expr] = []
        halves: list[Buffer] = []
        for buffer in accumulators:
            count, lanes = buffer.shape
            parts = [Load(buffer.name, (const(u), idx(LANE)), buffer.dtype) for u in range(count)]
            if self.lane_axis is not None:
                terms += parts
                continue
            stores, buffers, left = folded(combine, _balanced(combine, parts), buffer.name, lanes)
            found += stores
            halves += buffers
            terms += left
        value = _balanced(combine, terms) if terms else initial_value(combine, total.dtype)
        found.append(loop(LANE, total.shape[0], (Store(total.name, (idx(LANE),), value),), "vector"))
        body = tuple(found)
        for half in halves:
            body = (Alloc(half, body),)
        return list(body)

    def _write(self, at: dict[str, Expr]) -> list[Stmt]:
        """The last pass: every output at every place of the row."""
        resolver = self.resolver
        found: list[Stmt] = []
        row: dict[str, Expr] = {axis.name: idx(axis.name) for axis in self.axes} | at

        def stores(exprs: dict[str, Expr]) -> list[Store]:
            return resolver.outputs(tuple(resolver.simplify(substitute(e, exprs)) for e in self.point))

        if not self.inner:
            return self._loops((), Segment(0, 1, 1), 1, self.rows, row, stores)
        for piece, count, lanes in self._cuts(self.inner[-1].extent):
            found += self._loops(tuple(self.inner), piece, count, lanes, row, stores)
        return found


def _balanced(combine: Combine, terms: Sequence[Expr]) -> Expr:
    """All terms combined as a balanced tree: short chains, small rounding errors."""
    while len(terms) > 1:
        half = (len(terms) + 1) // 2
        pairs = [binary(combine, a, b) for a, b in zip(terms, terms[half:], strict=False)]
        terms = [*pairs, *terms[len(pairs) : half]]
    return terms[0]


def _read_total(stage: Compute, place: Indices, total: Buffer, indices: Indices) -> Expr:
    if indices != place:
        raise FormMismatch(f"'{stage.name}' is read at several places")
    return Load(total.name, (const(0) if total.shape == (1,) else idx(LANE),), total.dtype)


def _is_costly(stage: Compute) -> bool:
    values = (e for e in subexpressions(stage.body) if e.dtype.is_float)  # not the indices of loads
    return any(operation_instructions(e) >= COSTLY_INSTRUCTIONS for e in values)


def _nested(
    loops: list[tuple[str, int]], body: tuple[Stmt, ...], fold: tuple[Stmt, Stmt] | None
) -> tuple[Stmt, ...]:
    """`loops`, innermost first, around `body`.

    A long sum is taken in stretches of about the square root of its length, and those are summed: its error
    then grows with the root (Higham 2002, section 4.2, blocked summation).
    """
    stretch, inner = math.isqrt(math.prod(count for _, count in loops)), 1
    for name, count in loops:
        if fold is not None and inner * count > max(stretch, LONG_SUM):
            width = max(1, max(stretch, LONG_SUM) // inner)
            start = mul(idx("stretch"), width)
            stop = binary("min", add(start, width), const(count))
            body = (loop("stretch", -(-count // width), (fold[0], For(name, start, stop, body), fold[1])),)
            fold = None
        else:
            body = (loop(name, count, body),)
        inner *= count
    return body


def _start(accumulators: Buffer, combine: Combine) -> Stmt:
    where = (idx(UNROLLED), idx(LANE))
    return _over(accumulators, Store(accumulators.name, where, initial_value(combine, accumulators.dtype)))


def _over(accumulators: Buffer, store: Store) -> Stmt:
    count, lanes = accumulators.shape
    return loop(UNROLLED, count, (loop(LANE, lanes, (store,), "vector"),), "unroll")
