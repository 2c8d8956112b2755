"""Evaluates nodes whose inputs are all known, by their references, in the model's own dtypes."""

from __future__ import annotations

from dataclasses import replace

from onepass.graph.interpret import fold_node
from onepass.graph.ir import Graph, Node
from onepass.graph.passes.dead import drop_dead_nodes

MAX_GROWTH_BYTES = 1 << 20
"""A folded result may exceed its inputs by this much: expanding a scalar to a big tensor is left to run."""


def fold_constants(graph: Graph) -> Graph:
    """`graph` with each node that reads only constants replaced by its result, unless it is an output."""
    constants, types, nodes = dict(graph.constants), graph.types, list[Node]()
    for node in graph.nodes:
        known = all(name in constants for name in node.inputs if name)
        input_bytes = sum(types[name].size_bytes for name in node.inputs if name)
        output_bytes = sum(types[name].size_bytes for name in node.outputs if name)
        is_output = any(name in graph.outputs for name in node.outputs)
        if is_output or not known or output_bytes > input_bytes + MAX_GROWTH_BYTES:
            nodes.append(node)
            continue
        constants.update(fold_node(node, constants, types))
    if len(nodes) == len(graph.nodes):
        return graph
    return drop_dead_nodes(replace(graph, nodes=tuple(nodes), constants=constants))
