"""Removes what no output needs."""

from __future__ import annotations

from dataclasses import replace

from onepass.graph.ir import Graph, Node


def drop_dead_nodes(graph: Graph) -> Graph:
    """`graph` without nodes and constants that no graph output depends on; inputs stay."""
    needed = set(graph.outputs)
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            nodes.append(node)
            needed.update(node.inputs)
    constants = {name: array for name, array in graph.constants.items() if name in needed}
    if len(nodes) == len(graph.nodes) and len(constants) == len(graph.constants):
        return graph
    nodes.reverse()
    values = {*graph.inputs, *constants, *(name for node in nodes for name in node.outputs)}
    types = {name: tensor for name, tensor in graph.types.items() if name in values}
    return replace(graph, nodes=tuple(nodes), constants=constants, types=types)
