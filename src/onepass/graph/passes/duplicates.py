"""Computes once what the graph computes several times."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from onepass.graph.ir import Graph, Node
from onepass.graph.passes.dead import drop_dead_nodes


def merge_common_subexpressions(graph: Graph) -> Graph:
    """`graph` with later nodes of equal op, inputs and attributes replaced by the first; outputs stay."""
    first: dict[Hashable, Node] = {}
    replaced: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(replaced.get(name, name) for name in node.inputs)
        if inputs != node.inputs:
            node = replace(node, inputs=inputs)
        # repr keeps 0.0 and -0.0, and 1 and True, apart.
        key = (node.op, inputs, len(node.outputs), repr(sorted(node.attrs.items())))
        known = first.setdefault(key, node)
        if known is node or any(name in graph.outputs for name in node.outputs) or "" in known.outputs:
            nodes.append(node)
        else:
            replaced.update(zip(node.outputs, known.outputs, strict=True))
    return drop_dead_nodes(replace(graph, nodes=tuple(nodes))) if replaced else graph
