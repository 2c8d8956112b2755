"""Turns "this value at these indices" into loads from buffers, inlining the stages in between.

A `Resolver` belongs to one kernel. It gathers the kernel's parameters in order of first use (so equal
regions give equal kernels), packs constants, and turns loads that may leave their tensor into guards,
or into plain loads where the layout has a border of zeros.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from onepass.core.dtypes import BOOL, DType, dtype_of_numpy
from onepass.forms.body import Body
from onepass.forms.packing import Packed
from onepass.graph.ir import Graph
from onepass.graph.layout import PLAIN, Layout
from onepass.loops.affine import Range, range_of, simplify
from onepass.loops.build import binary, const, select
from onepass.loops.ir import Binary, Buffer, Const, Expr, Index, Load, Select, Store
from onepass.loops.walk import children, index_names, loads, rebuild, subexpressions

Indices = tuple[Expr, ...]


@dataclass(slots=True)
class Resolver:
    """Names, ranges and parameters of a kernel under construction.

    `bound` says how stages that are already computed are read; `point` is the output element in work.
    `escapes` tells whether some load may leave its buffer: only when lanes beyond the last channel are
    computed too, and then the kernel is built again without those. `pack_axes` lists the loop variables
    (outermost first, extents padded) over which constants may be packed; `must_pack` the constants that are.
    """

    body: Body
    graph: Graph
    layouts: Mapping[str, Layout]
    ranges: dict[str, Range] = field(default_factory=dict)
    bound: dict[str, Callable[[Indices], Expr]] = field(default_factory=dict)
    pack_axes: tuple[tuple[str, int], ...] = ()
    must_pack: frozenset[str] = frozenset()
    params: dict[str, Buffer] = field(default_factory=dict)
    packed: dict[str, Packed] = field(default_factory=dict)
    temps: list[Store] | None = None
    temp_lanes: str = ""
    temp_buffers: list[Buffer] = field(default_factory=list)
    point: Indices = ()
    escapes: bool = False
    kept: dict[str, Callable[[str, Indices, Load], Store | None]] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)
    _memo: dict[tuple[str, Indices], Expr] = field(default_factory=dict)

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
        stage = self.body.stage(name)
        if stage is None:
            return self.read(name, indices)
        if self.temps is not None and self._uses(name) > 1:
            return self._shared(name, indices)
        return self.inlined(name, indices)

    def read(self, name: str, indices: Indices) -> Expr:
        """A load of a value that the region reads, from memory."""
        dtype = self.graph.types[name].dtype if name in self.graph.types else None
        if name in self.body.constants or name in self.graph.constants:
            return self._constant(name, indices)
        assert dtype is not None
        layout, shape = self.layout(name), self.graph.types[name].shape
        buffer = self.param(name, layout.physical_shape(shape))
        physical = tuple(self.simplify(index) for index in layout.physical(indices))
        self._note_escape(physical, layout.physical_shape(shape))
        return Load(buffer, physical, dtype)

    def _note_escape(self, indices: Indices, shape: tuple[int, ...]) -> None:
        for index, extent in zip(indices, shape, strict=True):
            low, high = range_of(index, self.ranges)
            if (low < 0 or high >= extent) and high - low < 1 << 40:
                self.escapes = True

    def param(self, name: str, shape: tuple[int, ...]) -> str:
        """The kernel's name for parameter `name`, a value or packed constant."""
        if name not in self.params:
            dtype = self._array_dtype(name)
            self.params[name] = Buffer(f"p{len(self.params)}", dtype, shape)
        return self.params[name].name

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

    def at(self, stage: str, indices: Indices) -> Expr:
        """The body of `stage` at `indices`, resolved and simplified."""
        return self.simplify(self.inlined(stage, indices))

    def start_temps(self, lanes: str) -> None:
        """From here on stages used several times get a register each; `lanes` is the vector variable."""
        self.temps, self.temp_lanes = [], lanes
        self._memo.clear()

    def take_temps(self) -> tuple[Store, ...]:
        """The stores gathered since `start_temps`, in order."""
        taken = tuple(self.temps or ())
        self.temps = None
        self._memo.clear()
        return taken

    def inlined(self, name: str, indices: Indices) -> Expr:
        """The body of stage `name` at `indices`, resolved."""
        stage = self.body.stage(name)
        assert stage is not None
        return self.resolve(
            stage.body, {axis.name: index for axis, index in zip(stage.axes, indices, strict=True)}
        )

    def _shared(self, name: str, indices: Indices) -> Expr:
        key = (name, indices)
        if key not in self._memo:
            value = self.simplify(self.inlined(name, indices))
            lanes = self.ranges[self.temp_lanes][1] + 1
            buffer = Buffer(f"t{len(self.temp_buffers)}", value.dtype, (lanes,), "register")
            where = (Index(self.temp_lanes),)
            assert self.temps is not None
            self.temp_buffers.append(buffer)
            self.temps.append(Store(buffer.name, where, value))
            shared = self._memo[key] = Load(buffer.name, where, value.dtype)
            kept = self.kept[name](name, indices, shared) if name in self.kept else None
            self.temps += [kept] if kept else []
        return self._memo[key]

    def _uses(self, name: str) -> int:
        if not self._counts:
            self._counts.update(load.buffer for stage in self.body.stages for load in loads(stage.body))
        return self._counts[name]

    def _filled(self, name: str, indices: Indices, load: Load) -> Expr:
        """A load that gives `fill` outside: a plain load where it cannot leave the tensor or its border."""
        assert load.fill is not None
        indices = tuple(self.simplify(index) for index in indices)
        stage = self.body.stage(name)
        shape = stage.type.shape if stage else self.graph.types[name].shape
        border = self.layout(name).pads if stage is None and load.fill == 0 else ()
        pads = ((0, 0), (0, 0), *border) if border else ((0, 0),) * len(shape)
        inside: Expr = Const(True, BOOL)
        blocked = stage is None and self.layout(name).block > 1 and len(self.point) > 1
        for axis, (index, extent, (before, after)) in enumerate(zip(indices, shape, pads, strict=True)):
            low, high = range_of(index, self.ranges)
            if axis == 1 and blocked and index == self.point[1]:
                continue  # a lane of the block reads the same lane: those past the last channel are free
            if low < -before:
                inside = _both(inside, binary("ge", index, const(0)))
            if high >= extent + after:
                inside = _both(inside, binary("lt", index, const(extent)))
        if isinstance(inside, Const):
            return self.value(name, indices)
        if load.fill == 0 and name in self.must_pack and self._packing(indices) is not None:
            return self.value(name, indices)  # packed with zeros outside
        held, self.temps = self.temps, None
        value = self.value(name, indices)
        self.temps = held
        return select(inside, value, Const(load.fill, load.dtype))

    def _constant(self, name: str, indices: Indices) -> Expr:
        array = self.body.constants.get(name)
        shape = array.shape if array is not None else self.graph.types[name].shape
        inside = all(
            low >= 0 and high < extent
            for (low, high), extent in zip((range_of(i, self.ranges) for i in indices), shape, strict=True)
        )
        if name not in self.must_pack and inside:
            return Load(self.param(name, shape), indices, self._array_dtype(name))
        axes = self._packing(indices)
        if axes is None:
            self._note_escape(indices, shape)
            return Load(self.param(name, shape), indices, self._array_dtype(name))
        packed = Packed(name, indices, axes)
        label = f"{name}@{len(self.packed)}"
        label = next((key for key, old in self.packed.items() if old == packed), label)
        self.packed[label] = packed
        where = tuple(self.simplify(Index(axis)) for axis, _ in axes)
        return Load(self.param(label, packed.shape), where, self._array_dtype(name))

    def _packing(self, indices: Indices) -> tuple[tuple[str, int], ...] | None:
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
