"""Graph passes: `name(graph) -> graph`, the same object where nothing changed; no value changes by a bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from onepass.graph.interpret import fold_node
from onepass.graph.ir import Graph, Node
from onepass.graph.parts import cut_of
from onepass.ops.shapes import attr, normalize_axis

MAX_GROWTH_BYTES = 1 << 20
"""A folded result may exceed its inputs by this much: expanding a scalar to a big tensor is left to run."""


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
            node.user_name,
        )
        for part, (name, size, end) in enumerate(zip(node.outputs, sizes, ends, strict=False))
        if name
    ]  # fmt: skip


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


def simplify_concats(graph: Graph) -> Graph:
    """`graph` with a concat of all slices of x read from x, and concat(a, b, c) from an earlier concat(a, b).

    So that more values are parts of one concatenation only, where they can be written in place.
    """
    slices = {node.outputs[0]: node for node in graph.nodes if node.op == "slice"}
    made: dict[tuple[int, tuple[str, ...]], str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op == "concat":
            axis = normalize_axis(attr(node.attrs, "axis", 0), graph.types[node.outputs[0]].rank)
            inputs = tuple(_unsliced(graph, slices, node.inputs, axis))
            longest = next((n for n in range(len(inputs) - 1, 1, -1) if (axis, inputs[:n]) in made), 0)
            made.setdefault((axis, inputs), node.outputs[0])
            if longest:
                inputs = (made[axis, inputs[:longest]], *inputs[longest:])
            node = node if inputs == node.inputs else replace(node, inputs=inputs)
        nodes.append(node)
    same = all(new is old for new, old in zip(nodes, graph.nodes, strict=True))
    return graph if same else drop_dead_nodes(replace(graph, nodes=tuple(nodes)))


def _unsliced(graph: Graph, slices: Mapping[str, Node], inputs: Sequence[str], axis: int) -> Iterator[str]:
    """`inputs`, with all of a value where its slices along `axis` follow one another."""
    at = 0
    while at < len(inputs):
        source = slices[inputs[at]].inputs[0] if inputs[at] in slices else ""
        extent, end, stop = graph.types[source].shape[axis] if source else 0, 0, at
        while stop < len(inputs) and source and end < extent:
            node = slices.get(inputs[stop])
            if node is None or node.inputs[0] != source or cut_of(graph, node) != (axis, end):
                break
            end, stop = end + graph.types[inputs[stop]].shape[axis], stop + 1
        whole = bool(source) and end == extent and stop > at
        yield source if whole else inputs[at]
        at = stop if whole else at + 1


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
