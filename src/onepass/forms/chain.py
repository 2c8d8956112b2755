"""The chain form: several nests over one image run row by row, what passes between them stays in cache.

Each worker takes a run of the last member's rows. For every few of those, each member computes just the rows
that the next one still lacks, into a ring of rows in scratch (home `cache`): a line buffer. Only at the start
of a worker's run are rows computed that another worker has too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from onepass.core.dtypes import BOOL
from onepass.core.tensor import Shape
from onepass.forms.body import Body
from onepass.forms.nest import Built, FormMismatch, NestBuilder, finish, named_loops
from onepass.forms.resolve import LANE, Indices
from onepass.forms.schedule import Schedule
from onepass.graph.ir import Graph
from onepass.graph.layout import Layout
from onepass.loops.affine import Ranges, linear, range_of
from onepass.loops.build import add, binary, const, floordiv, idx, loop, mod, mul
from onepass.loops.ir import Alloc, Buffer, Expr, For, If, Index, Stmt, Store, Unary
from onepass.loops.walk import loads

STEP, RUN, IMAGE, ROW = "step", "run", "image", "row"


@dataclass(frozen=True, slots=True)
class Ring(Layout):
    """Scratch for `rows` rows of one image: row y lies at y modulo `rows`.

    The border before and after a row holds zeros, as do rows above and below the image. A load whose value
    outside is not zero does not rely on either: it is guarded.
    """

    rows: int = 1

    def own_shape(self, shape: Shape) -> Shape:
        """Shape of the scratch for a tensor of `shape`."""
        before, after = self.pads[1] if self.pads else (0, 0)
        return (-(-shape[1] // self.block), self.rows, shape[3] + before + after, self.block)

    def physical(self, indices: Indices) -> Indices:
        """Where the element at logical `indices` lies."""
        _, channel, y, x = indices
        before = self.pads[1][0] if self.pads else 0
        return (floordiv(channel, self.block), self.row(y), add(x, before), mod(channel, self.block))

    def row(self, y: Expr) -> Expr:
        """Where row `y` lies, which may be above the image."""
        return mod(y, self.rows)


@dataclass(frozen=True, slots=True)
class Sweep:
    """How a window moves along rows: row y reads `span` rows from y * `stride` - `before` on."""

    stride: int
    before: int
    span: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one member: run r starts its first of so many steps at row r * steps * `each` + `base`.

    `ahead` rows are computed before that step, `each` in every step, and the ring holds the last `ring`.
    """

    base: int
    ahead: int
    each: int
    ring: int


def sweep_of(body: Body, value: str) -> Sweep | None:
    """How the one reduction of `body` reads the rows of `value`, None where it or another stage differs."""
    root = body.reductions()[0]
    found = [(stage, load) for stage in body.stages for load in loads(stage.body) if load.buffer == value]
    rows = {load.indices[2] for _, load in found}
    images = {load.indices[0] for _, load in found}
    if any(stage is not root for stage, _ in found) or len(rows) != 1:
        return None
    if images != {Index(root.axes[0].name)}:
        return None
    form = linear(rows.pop(), {})
    factors = {atom.name: factor for atom, factor in form.terms if isinstance(atom, Index)}
    stride = factors.pop(root.axes[2].name, 0)
    extents = {axis.name: axis.extent for axis in root.reduce_axes}
    if len(factors) + 1 != len(form.terms) or any(n not in extents or f < 0 for n, f in factors.items()):
        return None
    span = sum(factor * (extents[name] - 1) for name, factor in factors.items()) + 1
    return Sweep(stride, -form.const, span) if 1 <= stride <= span else None


def rows_of(bodies: Sequence[Body], each: int) -> list[Rows]:
    """The rows of all members, the last of which computes `each` rows a step; raises `FormMismatch`."""
    sweeps = [sweep_of(body, before.outputs[0]) for before, body in pairwise(bodies)]
    found = [Rows(0, 0, each, 0)]
    for sweep in reversed(sweeps):
        if sweep is None:
            raise FormMismatch("rows are not read in order, each by the window of one reduction")
        after = found[0]
        ahead = sweep.span - sweep.stride + after.ahead * sweep.stride
        base = after.base * sweep.stride - sweep.before + sweep.span - sweep.stride
        count = after.each * sweep.stride
        ring = max(count + sweep.span - sweep.stride, ahead)
        found.insert(0, Rows(base, ahead, count, ring))
    return found


def rings_of(bodies: Sequence[Body], layouts: Mapping[str, Layout], rows: Sequence[Rows]) -> dict[str, Ring]:
    """The ring of each value that passes from one member to the next."""
    return {
        body.outputs[0]: Ring(layout.block, layout.pads, rows=part.ring)
        for body, part in zip(bodies[:-1], rows, strict=False)
        for layout in (layouts[body.outputs[0]],)
    }


@dataclass(frozen=True, slots=True)
class ChainSchedule:
    """`each` rows of the last member a step, `steps` steps a run; each member's nest has its own schedule."""

    each: int
    steps: int
    members: tuple[Schedule, ...]


def build_chain(
    bodies: Sequence[Body], graph: Graph, layouts: Mapping[str, Layout], schedule: ChainSchedule
) -> Built:
    """One kernel for `bodies`, each of which reads the one output of that before, in layouts with blocks.

    `bodies` are nests, and no other one reads the value between two of them. Raises `FormMismatch` where
    `rows_of` does.
    """
    whole = _ChainBuilder(bodies, graph, layouts, schedule, whole_blocks=True)
    built = whole.build()
    if not any(member.resolver.escapes for member in whole.members):
        return built
    return _ChainBuilder(bodies, graph, layouts, schedule, whole_blocks=False).build()


class _ChainBuilder:
    """`rings` and `scratch` hold what passes between members; the members share their parameters."""

    def __init__(
        self,
        bodies: Sequence[Body],
        graph: Graph,
        layouts: Mapping[str, Layout],
        schedule: ChainSchedule,
        *,
        whole_blocks: bool,
    ) -> None:
        self.schedule = schedule
        self.rows = rows_of(bodies, schedule.each)
        self.rings = rings_of(bodies, layouts, self.rows)
        self.scratch: dict[str, Buffer] = {}
        for name, ring in self.rings.items():
            kind = graph.types[name]
            shape = ring.physical_shape(kind.shape)
            self.scratch[name] = Buffer(f"ring{len(self.scratch)}", kind.dtype, shape, "cache")
        self.images, _, height, _ = graph.types[bodies[-1].outputs[0]].shape
        self.runs = -(-height // (schedule.each * schedule.steps))
        layouts = {**layouts, **self.rings}
        self.members = [
            NestBuilder(body, graph, layouts, part, whole_blocks=whole_blocks)
            for body, part in zip(bodies, schedule.members, strict=True)
        ]
        first = self.members[0].resolver
        for member in self.members:
            member.resolver.params, member.resolver.packed = first.params, first.packed
            member.resolver.scratch = self.scratch

    def build(self) -> Built:
        """Runs of rows, shared among the workers."""
        first = [stmt for name in self.rings for stmt in self._zero_columns(name)]
        first += [stmt for k in range(len(self.rings)) for stmt in self._compute(k, None)]
        step = tuple(stmt for k in range(len(self.members)) for stmt in self._compute(k, idx(STEP)))
        body: tuple[Stmt, ...] = (*first, loop(STEP, self.schedule.steps, step))
        for buffer in self.scratch.values():
            body = (Alloc(buffer, body),)
        last = self.members[-1]
        runs = named_loops([(IMAGE, self.images), (RUN, self.runs)], body)
        return finish(last.resolver, [runs], last.schedule.lanes)

    def _compute(self, number: int, step: Expr | None) -> list[Stmt]:
        """The rows of a member in a step, or, where `step` is None, before the first one."""
        member, rows = self.members[number], self.rows[number]
        count = rows.ahead if step is None else rows.each
        if not count:
            return []
        height = member.body.output.axes[2].extent
        start = add(mul(idx(RUN), self.schedule.steps * rows.each), rows.base)
        start = add(start, -rows.ahead) if step is None else add(start, mul(step, rows.each))
        ranges = member.resolver.ranges
        ranges |= {IMAGE: (0, self.images - 1), RUN: (0, self.runs - 1), STEP: (0, self.schedule.steps - 1)}
        ranges |= {ROW: (0, height - 1), "i2": (0, count - 1)}
        member.extents[0], member.extents[2] = 1, count
        member.place = {0: idx(IMAGE), 2: idx(ROW)}
        place = add(start, idx("i2"))
        outside = _outside(place, height, ranges)
        member.around = partial(_serial, place, outside)
        found = member.segments()
        if outside is not None and number < len(self.rings) and self.rings[member.body.outputs[0]].pads:
            found.append(self._zero_rows(member.body.outputs[0], place, count, outside))
        return found

    def _zero_rows(self, name: str, place: Expr, count: int, outside: Expr) -> Stmt:
        """Zeros for the rows above and below the image."""
        buffer, ring = self.scratch[name], self.rings[name]
        where = (idx("b"), ring.row(place), idx("x"), idx(LANE))
        body = loop(LANE, ring.block, (Store(buffer.name, where, const(0, buffer.dtype)),), "vector")
        body = loop("b", buffer.shape[0], (loop("x", buffer.shape[2], (body,)),))
        return loop("i2", count, (If(outside, (body,)),))

    def _zero_columns(self, name: str) -> list[Stmt]:
        """Zeros before and after all rows of a ring."""
        buffer, ring = self.scratch[name], self.rings[name]
        found: list[Stmt] = []
        before, after = ring.pads[1] if ring.pads else (0, 0)
        for start, width in ((0, before), (buffer.shape[2] - after, after)):
            if width:
                where = (idx("b"), idx("y"), add(idx("x"), start), idx(LANE))
                zero = Store(buffer.name, where, const(0, buffer.dtype))
                body = loop("x", width, (loop(LANE, ring.block, (zero,), "vector"),))
                found.append(loop("b", buffer.shape[0], (loop("y", buffer.shape[1], (body,)),)))
        return found


def _outside(place: Expr, height: int, ranges: Ranges) -> Expr | None:
    """Whether the row `place` is none of the image's, None where it always is one."""
    low, high = range_of(place, ranges)
    tests = [binary("lt", place, const(0))] if low < 0 else []
    tests += [binary("ge", place, const(height))] if high >= height else []
    return (tests[0] if len(tests) == 1 else binary("or", *tests)) if tests else None


def _serial(
    place: Expr, outside: Expr | None, order: Sequence[tuple[str, int]], body: tuple[Stmt, ...]
) -> Stmt:
    """Serial loops; that over rows binds the row's place in the image, where it is inside."""
    for name, extent in reversed(order):
        if name == "i2":
            body = (For(ROW, place, add(place, 1), body),)
            body = body if outside is None else (If(Unary("not", outside, BOOL), body),)
        body = (loop(name, extent, body),)
    return body[0]
