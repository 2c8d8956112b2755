"""Recompute instead of store: a cheap producer that several regions read is computed in each of them.

In: groups as the planner left them. Out: a graph in which each such producer has a copy for every reader, or
None where nothing gains. The price is exact: what all readers take with the producer inside, against
the producer's own launch and readers that load its result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onepass.forms.nest import FormMismatch
from onepass.forms.regions import shape_region
from onepass.forms.traffic import stage_instructions
from onepass.fuse.groups import Group, Groups
from onepass.graph.ir import Graph, Node
from onepass.graph.layout import Layout

CHEAP_INSTRUCTIONS = 4.0  # vector instructions an element: less than a load from the second-level cache costs
COPY = "#again"


@dataclass(frozen=True, slots=True)
class Copies:
    """A graph with copies, and the layouts of their values."""

    graph: Graph
    layouts: dict[str, Layout]


def copy_cheap_producers(groups: Groups) -> Copies | None:
    """Copies every producer that is cheaper to compute again than to keep."""
    graph = groups.graph
    nodes = list(graph.nodes)
    types, layouts = dict(graph.types), dict(groups.context.layouts)
    inserted: dict[int, list[Node]] = {}
    for group in {id(g): g for g in groups.group_of.values()}.values():
        readers = _readers(groups, group)
        if len(readers) < 2 or not _is_cheap(groups, group) or not _gains(groups, group, readers):
            continue
        for number, reader in enumerate(readers[1:], 1):
            renamed = {n: f"{n}{COPY}{number}" for at in group.members for n in graph.nodes[at].outputs if n}
            for old, new in renamed.items():
                types[new] = types[old]
                layouts[new] = layouts.get(old, Layout())
            copies = [_copy(graph.nodes[at], renamed, number) for at in sorted(group.members)]
            inserted.setdefault(max(group.members), []).extend(copies)
            for at in reader.members:
                inputs = tuple(renamed.get(name, name) for name in nodes[at].inputs)
                nodes[at] = replace(nodes[at], inputs=inputs)
    if not inserted:
        return None
    ordered = [node for at, old in enumerate(nodes) for node in (old, *inserted.get(at, ()))]
    return Copies(replace(graph, nodes=tuple(ordered), types=types), layouts)


def _copy(node: Node, renamed: dict[str, str], number: int) -> Node:
    return replace(
        node,
        name=f"{node.name}{COPY}{number}",
        inputs=tuple(renamed.get(name, name) for name in node.inputs),
        outputs=tuple(renamed.get(name, name) for name in node.outputs),
    )


def _readers(groups: Groups, group: Group) -> list[Group]:
    """The groups that read what `group` makes, empty where the user reads it as well."""
    outputs = [n for at in group.members for n in groups.graph.nodes[at].outputs if n]
    if any(name in groups.graph.outputs for name in outputs):
        return []
    found = {id(g): g for n in outputs for g in (groups.group_of[c] for c in groups.consumers_of[n])}
    found.pop(id(group), None)
    return sorted(found.values(), key=lambda g: min(g.members))


def _is_cheap(groups: Groups, group: Group) -> bool:
    if group.shaped is None or group.shaped.form != "pointwise":
        return False
    body = group.shaped.body
    size = max(stage.type.size for stage in body.stages)
    return sum(stage_instructions(stage) for stage in body.stages) <= CHEAP_INSTRUCTIONS * size


def _gains(groups: Groups, group: Group, readers: list[Group]) -> bool:
    apart = group.seconds + sum(reader.seconds for reader in readers)
    together = 0.0
    for reader in readers:
        values = [n for at in group.members for n in groups.graph.nodes[at].outputs if n]
        read = [n for n in values if any(c in reader.members for c in groups.consumers_of[n])]
        if any(groups.refusal(group, reader, value, copied=True) for value in read):
            return False
        members = group.members | reader.members
        try:
            shaped = shape_region(groups.context, groups.nodes(members), groups.leaving(reader.members))
        except FormMismatch:
            return False
        together += shaped.estimate.seconds
    return together < apart
