"""Removes nodes that compute nothing: no-op views and casts, and all but the last of a chain of reshapes."""

from __future__ import annotations

from dataclasses import replace

from onepass.graph.ir import Graph, Node
from onepass.graph.passes.dead import drop_dead_nodes


def simplify_views(graph: Graph) -> Graph:
    """`graph` with no-op nodes bypassed and reshape(reshape(x)) read from x; outputs keep their nodes."""
    producers: dict[str, Node] = {}
    replaced: dict[str, str] = {}
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        inputs = tuple(replaced.get(name, name) for name in node.inputs)
        producer = producers.get(inputs[0]) if node.op == "reshape" else None
        if producer is not None and producer.op == "reshape":
            inputs = (producer.inputs[0],)
        if inputs != node.inputs:
            node, changed = replace(node, inputs=inputs), True
        output = node.outputs[0]
        if _computes_nothing(graph, node) and output not in graph.outputs:
            replaced[output] = inputs[0]
            changed = True
            continue
        producers.update(dict.fromkeys(node.outputs, node))
        nodes.append(node)
    return drop_dead_nodes(replace(graph, nodes=tuple(nodes))) if changed else graph


def _computes_nothing(graph: Graph, node: Node) -> bool:
    """Whether the node's one output is its first input, bit for bit."""
    if node.op == "identity":
        return True
    if node.op not in ("reshape", "transpose", "cast", "expand"):
        return False
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    if source != result:
        return False
    if node.op == "transpose":
        perm = node.attrs.get("perm")
        moved = [axis for axis in perm if source.shape[int(axis)] != 1] if isinstance(perm, tuple) else [1, 0]
        return moved == sorted(moved)
    return True
