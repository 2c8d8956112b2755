"""Where to split a region that does not fit one kernel: at the edge that costs least.

In: the nodes of a region. Out: two parts of them, the first of which reads nothing of the second. The price
of a split is what it moves through memory, exactly. It must also help: what lives at once fills registers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from onepass.forms.regions import Context, Cut
from onepass.forms.traffic import value_bytes
from onepass.fuse.plan import COPY
from onepass.graph.ir import Graph, Node
from onepass.graph.layout import Layout

HELPS = 0.75  # of what a region holds at once a part holds no more than this


def names_of(nodes: Sequence[Node]) -> frozenset[str]:
    """Names of `nodes`; of a copy that of the node that it repeats."""
    return frozenset(node.name.partition(COPY)[0] for node in nodes)


def cut_through(context: Context, nodes: Sequence[Node]) -> Cut | None:
    """What keeps `nodes` from running as one kernel."""
    return next((cut for cut in context.cuts if cut.parts(names_of(nodes))), None)


def leaving(graph: Graph, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Values that `nodes` make and others, or the user, read."""
    own = {node.name for node in nodes}
    outside = {name for node in graph.nodes if node.name not in own for name in node.inputs}
    made = [name for node in nodes for name in node.outputs if name]
    return tuple(name for name in made if name in outside or name in graph.outputs)


def cheapest_split(
    graph: Graph, layouts: Mapping[str, Layout], nodes: Sequence[Node], between: Collection[str] = ()
) -> tuple[list[Node], list[Node]]:
    """The parts of `nodes`, at least two in topological order; a chain is split at a value `between`."""
    most = HELPS * _live_bytes(graph, layouts, nodes)

    def price(parts: tuple[list[Node], list[Node]]) -> tuple[bool, float, int, int]:
        first, second = parts
        live = max(_live_bytes(graph, layouts, part) for part in parts)
        made = {name for node in first for name in node.outputs}
        again = {name for node in second for name in node.inputs if name} & (
            made | {name for node in first for name in node.inputs}
        )  # read by both, or written by one and read by the other
        written = (made & again) - set(leaving(graph, nodes))
        moved = sum(value_bytes(graph, layouts, name) for part in (again, written) for name in part
                    if name in graph.types)  # fmt: skip
        elsewhere = bool(between) and not made & again <= set(between)
        return elsewhere, max(live, most), moved, abs(len(first) - len(second))

    return min(_splits(nodes), key=price)


def _splits(nodes: Sequence[Node]) -> Iterator[tuple[list[Node], list[Node]]]:
    """At each edge: all that its value needs first, or all that needs it last."""
    maker = {name: at for at, node in enumerate(nodes) for name in node.outputs if name}
    before: list[set[int]] = []
    after: list[set[int]] = [set() for _ in nodes]
    edges = []
    for at, node in enumerate(nodes):
        sources = {maker[name] for name in node.inputs if name in maker}
        before.append({at}.union(*(before[source] for source in sources)))
        edges += [(source, at) for source in sources]
    for at in reversed(range(len(nodes))):
        after[at] |= {at}
        for source, reader in edges:
            if reader == at:
                after[source] |= after[at]
    everything = set(range(len(nodes)))
    firsts = [before[source] for source, _ in edges] + [everything - after[reader] for _, reader in edges]
    for first in dict.fromkeys(map(frozenset, firsts)):
        if first and first != everything:
            yield [nodes[at] for at in sorted(first)], [nodes[at] for at in sorted(everything - first)]


def _live_bytes(graph: Graph, layouts: Mapping[str, Layout], nodes: Sequence[Node]) -> int:
    """The most bytes of values at once where each is loaded or made when it is first needed."""
    maker = {name: node for node in nodes for name in node.outputs if name}
    order: list[Node] = []
    done: set[str] = set()
    for output in leaving(graph, nodes):
        pending = [maker[output]]
        while pending:
            node = pending[-1]
            missing = [maker[n] for n in node.inputs if n in maker and maker[n].name not in done]
            pending += reversed(missing)
            if not missing:
                pending.pop()
                if node.name not in done:
                    done.add(node.name)
                    order.append(node)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for at, node in enumerate(order):
        for name in (*node.inputs, *node.outputs):
            if name in graph.types:
                first.setdefault(name, at)
                last[name] = at
    changes = [0] * (len(order) + 1)
    for name, at in first.items():
        size = value_bytes(graph, layouts, name)
        changes[at] += size
        changes[last[name] + 1] -= size
    live = most = 0
    for change in changes:
        live += change
        most = max(most, live)
    return most
