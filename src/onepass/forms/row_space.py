"""Rows as an index space: which reductions a region has, at which places, and along which axes.

In: the resolver of a region. Out: its passes, those that others need first, and the axes of its output
split into those that number the rows and those that run along one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from onepass.forms.nest import FormMismatch
from onepass.forms.resolve import Indices, Resolver
from onepass.loops.build import add, const, idx, mul
from onepass.loops.ir import Binary, Const, Expr
from onepass.loops.walk import index_names, subexpressions, substitute
from onepass.ops.opdef import Axis, Compute


@dataclass(frozen=True, slots=True)
class Pass:
    """A reduction at the place where the row needs it; `axes` are its loops, last one innermost."""

    stage: Compute
    at: Indices
    axes: tuple[Axis, ...]


class RowSpace:
    """`point` is the output's place in terms of `axes`; `outer` of these number rows, `inner` run along one.

    Raises `FormMismatch` for a region that no row at a time computes.
    """

    def __init__(self, resolver: Resolver) -> None:
        self.resolver, self.body = resolver, resolver.body
        self.axes = tuple(Axis(f"i{k}", axis.extent) for k, axis in enumerate(self.body.output.axes))
        self.point: Indices = tuple(idx(axis.name) for axis in self.axes)
        self._collect_passes()
        if self._split_groups():
            self._collect_passes()
        used = frozenset().union(*(index_names(e) for p in self.passes.values() for e in p.at))
        names = {axis.name for axis in self.axes}
        if used - names:
            raise FormMismatch("a reduction of a reduction along another axis")
        self.outer = [axis for axis in self.axes if axis.name in used]
        self.inner = [axis for axis in self.axes if axis.name not in used]

    def _collect_passes(self) -> None:
        """Finds each reduction's place in the row, those that others need first."""
        resolver = self.resolver
        self.passes: dict[str, Pass] = {}
        self.seen: list[Expr] = []
        for axis in self.axes:
            resolver.ranges[axis.name] = (0, axis.extent - 1)
        for stage in self.body.reductions():
            resolver.bound[stage.name] = partial(self._note, stage)
        for name in self.body.outputs:
            self.seen.append(resolver.value(name, self.point))

    def _split_groups(self) -> bool:
        """Cuts an axis in two where each `width` places share a total: the groups, and the places in one.

        Else each of the places would compute the total of its group again. Where channels are blocked they
        do: lanes of one vector may belong to several groups.
        """
        body, resolver = self.body, self.resolver
        if any(resolver.layout(name).block > 1 for name in (*body.inputs, *body.outputs)):
            return False
        found = [e for p in self.passes.values() for index in p.at for e in subexpressions(index)]
        for axis in self.axes:
            whole = idx(axis.name)
            groups = [e for e in found if isinstance(e, Binary) and e.op == "floordiv" and e.a == whole]
            divisors = {e.b.value for e in groups if isinstance(e.b, Const)}
            if len(divisors) != 1 or len(groups) != found.count(whole):
                continue
            width = int(divisors.pop())
            if axis.extent % width == 0:
                group = Axis(f"{axis.name}_group", axis.extent // width)
                place = add(mul(idx(group.name), width), whole)
                self.point = tuple(substitute(e, {axis.name: place}) for e in self.point)
                cut = (group, Axis(axis.name, width))
                self.axes = tuple(a for old in self.axes for a in (cut if old is axis else (old,)))
                return True
        return False

    def _note(self, stage: Compute, indices: Indices) -> Expr:
        known = self.passes.get(stage.name)
        if known is not None and known.at != indices:
            raise FormMismatch(f"'{stage.name}' is read at several places")
        if known is None:
            count = len(self.resolver.ranges)
            axes = tuple(Axis(f"r{count + j}", axis.extent) for j, axis in enumerate(stage.reduce_axes))
            for axis in axes:
                self.resolver.ranges[axis.name] = (0, axis.extent - 1)
            values = {a.name: index for a, index in zip(stage.axes, indices, strict=True)}
            values |= {a.name: idx(b.name) for a, b in zip(stage.reduce_axes, axes, strict=True)}
            self.seen.append(self.resolver.resolve(stage.body, values))
            self.passes[stage.name] = Pass(stage, indices, axes)
        return const(0, stage.dtype)
