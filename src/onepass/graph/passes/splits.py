"""Makes a slice for each part of a split, so that each part can move into the loops that read it."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from onepass.graph.ir import Graph, Node


def split_to_slices(graph: Graph) -> Graph:
    """`graph` with each split replaced by slices called `NODE:0`, `NODE:1`, ..., one for each part."""
    if not any(node.op == "split" for node in graph.nodes):
        return graph
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += _slices(graph, node) if node.op == "split" else [node]
    return replace(graph, nodes=tuple(nodes))


def _slices(graph: Graph, node: Node) -> list[Node]:
    given, axis = node.attrs["split"], node.attrs.get("axis", 0)
    assert isinstance(given, tuple) and isinstance(axis, int)
    sizes = [int(size) for size in given]
    ends = list(accumulate(sizes))
    return [
        Node(
            f"{node.name}:{part}", "slice", node.inputs[:1], (name,),
            {"starts": (end - size,), "ends": (end,), "axes": (axis,), "steps": (1,)}, node.spelling,
        )
        for part, (name, size, end) in enumerate(zip(node.outputs, sizes, ends, strict=False))
        if name
    ]  # fmt: skip
