"""Turns "this value at these indices" into loads from buffers, inlining the stages in between.

A `Resolver` belongs to one kernel. It gathers the kernel's parameters in order of first use (so equal
regions give equal kernels), packs constants, and turns loads that may leave their tensor into guards,
or into plain loads where the layout has a border of zeros.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from onepass.core.dtypes import BOOL, DType, dtype_of_numpy
from onepass.forms.body import Body
from onepass.forms.packing import Packed
from onepass.graph.ir import Graph
from onepass.graph.layout import PLAIN, Layout
from onepass.loops.affine import UNKNOWN, Range, range_of, simplify
from onepass.loops.build import binary, const, idx, loop, select
from onepass.loops.ir import Alloc, Binary, Buffer, Const, Expr, Index, Load, Select, Stmt, Store
from onepass.loops.walk import children, index_names, loads, rebuild, subexpressions

Indices = tuple[Expr, ...]
Loops = tuple[tuple[str, int], ...]  # names and extents, outermost first
LANE = "lane"  # the variable of every vector loop


@dataclass(slots=True)
class Resolver:
    """Names, ranges and parameters of a kernel under construction.

    `bound` says how stages that are already computed are read; `point` is the output element in work.
    `escapes` tells whether some load may leave its buffer: only when lanes beyond the last channel are
    computed too, and then the kernel is built again without those. `pack_axes` lists the loops over which
    constants may be packed, their extents padded; `must_pack` the constants that are. `kept` holds for a
    stage what stores it, once computed, in a scratch row.
    """

    body: Body
    graph: Graph
    layouts: Mapping[str, Layout]
    ranges: dict[str, Range] = field(default_factory=dict)
    bound: dict[str, Callable[[Indices], Expr]] = field(default_factory=dict)
    pack_axes: Loops = ()
    must_pack: frozenset[str] = frozenset()
    scratch: Mapping[str, Buffer] = field(default_factory=dict)
    params: dict[str, Buffer] = field(default_factory=dict)
    packed: dict[str, Packed] = field(default_factory=dict)
    point: Indices = ()
    escapes: bool = False
    kept: dict[str, Callable[[str, Indices, Load], Store | None]] = field(default_factory=dict)
    _temps: list[Store] | None = None
    _temp_buffers: list[Buffer] = field(default_factory=list)
    _memo: dict[tuple[str, Indices], Expr] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def layout(self, value: str) -> Layout:
        """Physical layout of a value."""
        return self.layouts.get(value, PLAIN)

    def simplify(self, expr: Expr) -> Expr:
        """`expr` simplified with the ranges of the loops around it."""
        return simplify(expr, self.ranges)

    def value(self, name: str, indices: Indices) -> Expr:
        """The element of stage or value `name` at logical `indices`."""
        indices = tuple(self.simplify(index) for index in indices)
        if name in self.bound:
            return self.bound[name](indices)
        if self.body.stage(name) is not None:
            return self._shared(name, indices) if self._is_shared(name) else self.inlined(name, indices)
        if name in self.body.constants or name in self.graph.constants:
            return self._constant(name, indices)
        layout, shape = self.layout(name), self.graph.types[name].shape
        buffer = self.param(name, layout.physical_shape(shape))
        where = tuple(self.simplify(index) for index in layout.physical(indices))
        return self._load(buffer, where, layout.own_shape(shape))

    def inlined(self, name: str, indices: Indices) -> Expr:
        """The body of stage `name` at `indices`, resolved."""
        stage = self.body.stage(name)
        assert stage is not None
        return self.resolve(
            stage.body, {axis.name: index for axis, index in zip(stage.axes, indices, strict=True)}
        )

    def resolve(self, expr: Expr, axes: Mapping[str, Expr]) -> Expr:
        """`expr` with every load of a stage or value resolved; `axes` (resolved) stand for its axes."""
        if isinstance(expr, Index):
            return axes.get(expr.name, expr)
        if isinstance(expr, Load):
            indices = tuple(self.resolve(index, axes) for index in expr.indices)
            if expr.fill is not None:
                return self._filled(expr.buffer, indices, expr)
            return self.value(expr.buffer, indices)
        operands = children(expr)
        return rebuild(expr, tuple(self.resolve(e, axes) for e in operands)) if operands else expr

    def param(self, name: str, shape: tuple[int, ...]) -> Buffer:
        """The kernel's parameter `name`, a value or packed constant, or the scratch that holds the value."""
        if name in self.scratch:
            return self.scratch[name]
        if name not in self.params:
            self.params[name] = Buffer(f"p{len(self.params)}", self._array_dtype(name), shape)
        return self.params[name]

    def vector_loop(self, lanes: int, stores: Callable[[], Sequence[Store]]) -> tuple[Stmt, ...]:
        """One vector of what `stores` makes; stages that it uses several times get a register each."""
        self._temps, first = [], len(self._temp_buffers)
        self._memo.clear()
        made = stores()
        body: tuple[Stmt, ...] = (loop(LANE, lanes, (*self._temps, *made), "vector"),)
        self._temps = None
        self._memo.clear()
        for temp in self._temp_buffers[first:]:
            body = (Alloc(temp, body),)
        return body

    def outputs(self, point: Indices) -> list[Store]:
        """Stores of every output of the region at `point`."""
        found = []
        for name in self.body.outputs:
            value, layout = self.simplify(self.value(name, point)), self.layout(name)
            buffer = self.param(name, layout.physical_shape(self.graph.types[name].shape))
            where = tuple(self.simplify(index) for index in layout.physical(point))
            found.append(Store(buffer.name, where, value))
        return found

    def _is_shared(self, name: str) -> bool:
        if not self._counts:
            self._counts.update(load.buffer for stage in self.body.stages for load in loads(stage.body))
        return self._temps is not None and self._counts[name] > 1

    def _shared(self, name: str, indices: Indices) -> Expr:
        key = (name, indices)
        if key not in self._memo:
            value = self.simplify(self.inlined(name, indices))
            lanes = self.ranges[LANE][1] + 1
            buffer = Buffer(f"t{len(self._temp_buffers)}", value.dtype, (lanes,), "register")
            assert self._temps is not None
            self._temp_buffers.append(buffer)
            self._temps.append(Store(buffer.name, (idx(LANE),), value))
            shared = self._memo[key] = Load(buffer.name, (idx(LANE),), value.dtype)
            kept = self.kept[name](name, indices, shared) if name in self.kept else None
            self._temps += [kept] if kept else []
        return self._memo[key]

    def _load(self, buffer: Buffer, indices: Indices, shape: tuple[int, ...]) -> Load:
        for index, extent in zip(indices, shape, strict=True):
            low, high = range_of(index, self.ranges)
            # A place that is data has no range; its op has clamped it.
            self.escapes |= (low < 0 or high >= extent) and high - low < UNKNOWN[1]
        return Load(buffer.name, indices, buffer.dtype)

    def _filled(self, name: str, indices: Indices, load: Load) -> Expr:
        """A load that gives `fill` outside: a plain load where it cannot leave the tensor or its border."""
        assert load.fill is not None
        indices = tuple(self.simplify(index) for index in indices)
        stage = self.body.stage(name)
        shape = stage.type.shape if stage else self.graph.types[name].shape
        layout = self.layout(name) if stage is None else PLAIN
        border = layout.pads if load.fill == 0 else ()
        pads = ((0, 0), (0, 0), *border) if border else ((0, 0),) * len(shape)
        inside: Expr = Const(True, BOOL)
        for axis, (index, extent, (before, after)) in enumerate(zip(indices, shape, pads, strict=True)):
            if axis == 1 and layout.block > 1 and self.point[1:2] == (index,):
                continue  # a lane of the block reads the same lane: those past the last channel are free
            low, high = range_of(index, self.ranges)
            if low < -before:
                inside = _both(inside, binary("ge", index, const(0)))
            if high >= extent + after:
                inside = _both(inside, binary("lt", index, const(extent)))
        # Constants are packed with zeros outside.
        is_packed = load.fill == 0 and name in self.must_pack and self._packing(indices) is not None
        if isinstance(inside, Const) or is_packed:
            return self.value(name, indices)
        held, self._temps = self._temps, None  # a register is computed always: not what a guard protects
        value = self.value(name, indices)
        self._temps = held
        return select(inside, value, Const(load.fill, load.dtype))

    def _constant(self, name: str, indices: Indices) -> Expr:
        array = self.body.constants.get(name)
        shape = array.shape if array is not None else self.graph.types[name].shape
        found = (range_of(index, self.ranges) for index in indices)
        inside = all(low >= 0 and high < extent for (low, high), extent in zip(found, shape, strict=True))
        axes = self._packing(indices) if name in self.must_pack or not inside else None
        if axes is None:
            return self._load(self.param(name, shape), indices, shape)
        packed = Packed(name, indices, axes)
        label = next((key for key, old in self.packed.items() if old == packed), f"{name}@{len(self.packed)}")
        self.packed[label] = packed
        buffer = self.param(label, packed.shape)
        return Load(buffer.name, tuple(self.simplify(Index(axis)) for axis, _ in axes), buffer.dtype)

    def _packing(self, indices: Indices) -> Loops | None:
        """The loops over which a constant read at `indices` is packed, None where it cannot be."""
        names = frozenset().union(*(index_names(index) for index in indices))
        axes = tuple(axis for axis in self.pack_axes if axis[0] in names)
        gathers = any(isinstance(e, Load | Select) for index in indices for e in subexpressions(index))
        return None if len(axes) != len(names) or gathers else axes

    def _array_dtype(self, name: str) -> DType:
        source = self.packed[name].source if name in self.packed else name
        if source in self.graph.types:
            return self.graph.types[source].dtype
        return dtype_of_numpy(self.body.constants[source].dtype)


def _both(a: Expr, b: Expr) -> Expr:
    return b if isinstance(a, Const) else Binary("and", a, b, BOOL)
