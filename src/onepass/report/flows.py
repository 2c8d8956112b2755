"""Who reads and writes what: the bytes that each node of a plan moves to and from memory.

In: a Plan. Out: for each region one `NodeFlow` a node, and totals of the plan. The counting rule: a
region reads each value from outside once, at the first node that needs it, and writes each of its
outputs once, as large as it lies in memory. A view (no launch) moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from onepass.forms.traffic import value_bytes
from onepass.fuse.plan import Plan, Region
from onepass.graph.ir import Node
from onepass.loops.ir import Home

Kind = Literal["intermediate", "weights", "model"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One read or write of `values`; `kind` `model` is an input or output of the model."""

    kind: Kind
    values: tuple[str, ...]
    size_bytes: int


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
    """What one node of a region reads from memory, writes to it, and takes from nodes of its region."""

    node: Node
    reads: tuple[Transfer, ...]
    writes: tuple[Transfer, ...]
    inner: tuple[InnerEdge, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a plan; `reads` and `writes` count transfers; the
    weights of one node are one read."""

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


def homes_of(plan: Plan) -> dict[tuple[str, str], Home]:
    """The home of each edge, by (value, consumer)."""
    return {(decision.value, decision.consumer): decision.home for decision in plan.decisions}


def region_flow(region: Region, plan: Plan, homes: dict[tuple[str, str], Home]) -> tuple[NodeFlow, ...]:
    """The flow of each node of `region`, in its order; `homes` are `homes_of(plan)`."""
    if region.estimate.traffic.launches == 0:
        return tuple(NodeFlow(node, (), (), ()) for node in region.nodes)
    made: dict[str, int] = {}
    seen: set[str] = set()
    flows = []
    for index, node in enumerate(region.nodes):
        inputs = [name for name in dict.fromkeys(node.inputs) if name]
        inner = tuple(
            InnerEdge(name, made[name], index, homes.get((name, node.name), "register"), _size(plan, [name]))
            for name in inputs
            if name in made
        )
        fresh = [name for name in inputs if name not in made and name not in seen]
        seen.update(fresh)
        flows.append(NodeFlow(node, _reads(fresh, plan), _writes(node, region, plan), inner))
        made.update((name, index) for name in node.outputs if name)
    return tuple(flows)


def totals(plan: Plan) -> Totals:
    """Counts and bytes of the whole plan."""
    homes = homes_of(plan)
    flows = [flow for region in plan.regions for flow in region_flow(region, plan, homes)]
    reads = [transfer for flow in flows for transfer in flow.reads]
    writes = [transfer for flow in flows for transfer in flow.writes]
    by_kind = {
        kind: sum(t.size_bytes for t in (*reads, *writes) if t.kind == kind)
        for kind in ("intermediate", "weights", "model")
    }
    return Totals(
        kernels=sum(region.estimate.traffic.launches for region in plan.regions),
        reads=len(reads),
        writes=len(writes),
        intermediate_bytes=by_kind["intermediate"],
        weight_bytes=by_kind["weights"],
        model_bytes=by_kind["model"],
    )


def _reads(names: Sequence[str], plan: Plan) -> tuple[Transfer, ...]:
    graph = plan.graph
    weights = tuple(name for name in names if name in graph.constants)
    found = [
        Transfer("model" if name in graph.inputs else "intermediate", (name,), _size(plan, [name]))
        for name in names
        if name not in graph.constants
    ]
    if weights:
        found.append(Transfer("weights", weights, _size(plan, weights)))
    return tuple(found)


def _writes(node: Node, region: Region, plan: Plan) -> tuple[Transfer, ...]:
    return tuple(
        Transfer("model" if name in plan.graph.outputs else "intermediate", (name,), _size(plan, [name]))
        for name in node.outputs
        if name and name in region.outputs
    )


def _size(plan: Plan, names: Sequence[str]) -> int:
    return sum(value_bytes(plan.graph, plan.layouts, name) for name in names)
