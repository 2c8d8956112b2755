"""Who reads and writes what: the bytes that each node of a plan moves to and from memory.

In: a Plan. Out: for each region one `NodeFlow` a node, and totals of the plan. The counting rule: a
region reads each value from outside once, at the first node that needs it, and writes each of its
outputs once, as large as it lies in memory. A view (no launch) moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from onepass.forms.traffic import value_bytes
from onepass.fuse.plan import Plan, Region
from onepass.graph.ir import Node
from onepass.loops.ir import Home
from onepass.report.units import bytes_text, plural

Kind = Literal["intermediate", "weights", "model"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes between memory and an operator, `values` in one go; `kind` `model` is an input or output of the
    model. `copies` counts the operators that it stands for, when several are drawn as one."""

    kind: Kind
    values: tuple[str, ...]
    size_bytes: int
    is_write: bool
    copies: int = 1

    @property
    def label(self) -> str:
        """What is written on the arrow."""
        names = {"weights": "weights ", "model": "output " if self.is_write else "input ", "intermediate": ""}
        return names[self.kind] + bytes_text(self.size_bytes)

    @property
    def title(self) -> str:
        """What the arrow's tooltip says."""
        more = f" and {plural(len(self.values) - 3, 'more value')}" if len(self.values) > 3 else ""
        what = "write" if self.is_write else "read"
        return f"{what} {', '.join(self.values[:3])}{more}: {bytes_text(self.size_bytes)}"


@dataclass(frozen=True, slots=True)
class InnerEdge:
    """A value that stays inside its region, from the node at `source` to the one at `target`."""

    value: str
    source: int
    target: int
    home: Home
    size_bytes: int


@dataclass(frozen=True, slots=True)
class NodeFlow:
    """What one node of a region reads from memory and then writes to it, and takes from its region."""

    node: Node
    transfers: tuple[Transfer, ...]
    inner: tuple[InnerEdge, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a plan; `reads` and `writes` count transfers; the weights of one node are one read."""

    kernels: int
    reads: int
    writes: int
    intermediate_bytes: int
    weight_bytes: int
    model_bytes: int

    @property
    def all_bytes(self) -> int:
        """Everything that goes to or comes from memory."""
        return self.intermediate_bytes + self.weight_bytes + self.model_bytes


def plan_flows(plan: Plan) -> list[tuple[NodeFlow, ...]]:
    """For each region of `plan` the flow of each node."""
    homes = {(decision.value, decision.consumer): decision.home for decision in plan.decisions}
    return [tuple(_region_flow(region, plan, homes)) for region in plan.regions]


def totals(plan: Plan) -> Totals:
    """Counts and bytes of the whole plan."""
    moved = [t for region in plan_flows(plan) for flow in region for t in flow.transfers]
    writes = sum(t.is_write for t in moved)
    kinds: tuple[Kind, ...] = ("intermediate", "weights", "model")
    sizes = (sum(t.size_bytes for t in moved if t.kind == kind) for kind in kinds)
    kernels = sum(region.estimate.traffic.launches for region in plan.regions)
    return Totals(kernels, len(moved) - writes, writes, *sizes)


def _region_flow(
    region: Region, plan: Plan, homes: Mapping[tuple[str, str], Home]
) -> Iterator[NodeFlow]:
    made: dict[str, int] = {}
    seen: set[str] = set()
    for index, node in enumerate(region.nodes):
        if region.estimate.traffic.launches == 0:
            yield NodeFlow(node, (), ())
            continue
        inputs = [name for name in dict.fromkeys(node.inputs) if name]
        inner = (
            InnerEdge(name, made[name], index, homes.get((name, node.name), "register"), _size(plan, [name]))
            for name in inputs
            if name in made
        )
        fresh = [name for name in inputs if name not in made and name not in seen]
        writes = [name for name in node.outputs if name and name in region.outputs]
        yield NodeFlow(node, (*_transfers(fresh, plan, False), *_transfers(writes, plan, True)), tuple(inner))
        seen.update(fresh)
        made.update((name, index) for name in node.outputs if name)


def _transfers(names: Sequence[str], plan: Plan, is_write: bool) -> Iterator[Transfer]:
    graph = plan.graph
    ends = graph.outputs if is_write else graph.inputs
    for name in names:
        if name not in graph.constants:
            kind: Kind = "model" if name in ends else "intermediate"
            yield Transfer(kind, (name,), _size(plan, [name]), is_write)
    weights = tuple(name for name in names if name in graph.constants)
    if weights:
        yield Transfer("weights", weights, _size(plan, weights), is_write)


def _size(plan: Plan, names: Sequence[str]) -> int:
    return sum(value_bytes(plan.graph, plan.layouts, name) for name in names)
