"""Recompute instead of store: a cheap producer that several regions read is computed in each of them.

In: groups as the planner left them. Out: a graph in which each such producer has a copy for every reader, or
None where nothing gains. The price is exact: what all readers take with the producer inside, against
the producer's own launch and readers that load its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from onepass.forms.nest import FormMismatch
from onepass.forms.regions import shape_region
from onepass.forms.traffic import stage_instructions
from onepass.fuse.groups import Group, Groups
from onepass.fuse.plan import COPY
from onepass.graph.ir import Graph, Node
from onepass.graph.layout import PLAIN, Layout

CHEAP_INSTRUCTIONS = 4.0  # vector instructions a vector: less than a load from the second-level cache costs


@dataclass(frozen=True, slots=True)
class Repeat:
    """What computing a value again saves, all readers together; `is_first`: the original, not a copy."""

    numbers: str
    gain_s: float
    is_first: bool


@dataclass(frozen=True, slots=True)
class Copies:
    """A graph with copies, the layouts of its values, and the values that each reader now makes."""

    graph: Graph
    layouts: dict[str, Layout]
    repeated: dict[str, Repeat]


def copy_cheap_producers(groups: Groups, may_fuse: Callable[[Sequence[Node]], bool]) -> Copies | None:
    """Copies each producer that is cheaper to compute again than to keep and `may_fuse` with its readers."""
    graph = groups.graph
    nodes = list(graph.nodes)
    types, layouts = dict(graph.types), dict(groups.context.layouts)
    repeated: dict[str, Repeat] = {}
    inserted: dict[int, list[Node]] = {}
    for group in groups.all():
        readers = _readers(groups, group)
        if len(readers) < 2 or not _is_cheap(group):
            continue
        repeat = _repeat(groups, group, readers, may_fuse)
        if repeat is None:
            continue
        made, leaving = _outputs(groups, group), groups.leaving(group.members)
        repeated |= dict.fromkeys(leaving, repeat)
        for number, reader in enumerate(readers[1:], 1):
            renamed = {name: f"{name}{COPY}{number}" for name in made}
            types |= {new: types[old] for old, new in renamed.items()}
            layouts |= {new: layouts.get(old, PLAIN) for old, new in renamed.items()}
            repeated |= dict.fromkeys((renamed[name] for name in leaving), replace(repeat, is_first=False))
            copies = [_copy(node, renamed, number) for node in groups.nodes(group.members)]
            inserted.setdefault(max(group.members), []).extend(copies)
            for at in reader.members:
                inputs = tuple(renamed.get(name, name) for name in nodes[at].inputs)
                nodes[at] = replace(nodes[at], inputs=inputs)
    if not inserted:
        return None
    ordered = [node for at, old in enumerate(nodes) for node in (old, *inserted.get(at, ()))]
    return Copies(replace(graph, nodes=tuple(ordered), types=types), layouts, repeated)


def _copy(node: Node, renamed: dict[str, str], number: int) -> Node:
    return replace(
        node,
        name=f"{node.name}{COPY}{number}",
        inputs=tuple(renamed.get(name, name) for name in node.inputs),
        outputs=tuple(renamed.get(name, name) for name in node.outputs),
        origin=node.user_name,
    )


def _outputs(groups: Groups, group: Group) -> list[str]:
    return [name for node in groups.nodes(group.members) for name in node.outputs if name]


def _readers(groups: Groups, group: Group) -> list[Group]:
    """The groups that read what `group` makes, empty where the user reads it as well."""
    outputs = _outputs(groups, group)
    if any(name in groups.graph.outputs for name in outputs):
        return []
    found = {id(g): g for n in outputs for g in (groups.group_of[c] for c in groups.consumers_of[n])}
    found.pop(id(group), None)
    return sorted(found.values(), key=lambda g: min(g.members))


def _is_cheap(group: Group) -> bool:
    if group.shaped is None or group.shaped.form != "pointwise":
        return False
    stages = group.shaped.body.stages
    return sum(map(stage_instructions, stages)) <= CHEAP_INSTRUCTIONS * max(s.type.size for s in stages)


def _repeat(
    groups: Groups, group: Group, readers: list[Group], may_fuse: Callable[[Sequence[Node]], bool]
) -> Repeat | None:
    """What it saves that each reader computes the group for itself, None where it cannot or saves nothing."""
    apart = group.seconds + sum(reader.seconds for reader in readers)
    together = 0.0
    for reader in readers:
        nodes = groups.nodes(group.members | reader.members)
        read = dict(groups.edges_between(group, reader))
        if not may_fuse(nodes) or any(groups.refusal(group, reader, value, copied=True) for value in read):
            return None
        try:
            shaped = shape_region(groups.context, nodes, groups.leaving(reader.members))
        except FormMismatch:
            return None
        together += shaped.estimate.seconds
    numbers = f"{len(readers)} readers take {together * 1e6:.1f} µs instead of {apart * 1e6:.1f} µs"
    return Repeat(numbers, apart - together, True) if together < apart else None
