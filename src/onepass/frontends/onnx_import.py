"""From an ONNX model to a static graph: unsupported things listed first, shape arithmetic folded away.

In: a model and sizes for its open dimensions. Out: a `Graph` of real work, in the user's names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, defs

from onepass.core.errors import ModelError
from onepass.core.tensor import Shape
from onepass.frontends import onnx_model
from onepass.frontends.onnx_model import ONNX_DOMAINS, ModelSource, OnnxModel
from onepass.frontends.onnx_shapes import bind_shapes
from onepass.frontends.onnx_site import Building, Site, unique
from onepass.frontends.onnx_spelling import SPELLINGS, row_of
from onepass.frontends.onnx_tensors import dtype_name, dtype_of
from onepass.graph.interpret import frozen
from onepass.graph.ir import Graph, Node
from onepass.graph.passes import drop_dead_nodes
from onepass.ops.registry import OPS


def import_onnx(model: ModelSource | OnnxModel, shapes: Mapping[str, Shape] | None = None) -> Graph:
    """The graph of `model`, every size known; `shapes` gives whole shapes of inputs.

    Raises `ModelError` (damaged, unsupported, data-dependent), `ShapeError` (contradicting sizes) or
    `OptionError` (open dimensions without a size).
    """
    loaded = model if isinstance(model, OnnxModel) else onnx_model.load_onnx(model)
    proto = loaded.proto.graph
    refuse_unsupported(loaded)
    inputs = onnx_model.describe_inputs(loaded)
    building = Building(loaded.opset, loaded.reader)
    for tensor in proto.initializer:
        building.define(tensor.name, loaded.reader.read(tensor, f"initializer '{tensor.name}'"))
    nodes = _ordered(proto)
    building.used_names |= {name for name, _ in _reads(proto)}
    building.value_names |= building.used_names | {name for node in proto.node for name in node.output}
    building.types.update(bind_shapes(inputs, shapes or {}))
    for node in nodes:
        _convert(building, node)
    outputs = [value.name for value in proto.output]
    return _finish(building, str(proto.name) or "graph", tuple(item.name for item in inputs), outputs)


def _convert(building: Building, node: NodeProto) -> None:
    """Lets the node's converter add what it becomes."""
    label = node.name or f"{node.op_type}_{next((name for name in node.output if name), 'unused')}"
    row = row_of(node.op_type, building.opset)
    assert row is not None, "refuse_unsupported has looked"
    # Names of nodes that fold away stay free for their successors.
    row[1](Site(building, node, label))


@lru_cache(maxsize=1024)
def _missing(op_type: str, opset: int) -> str:
    """Why the op cannot be imported in a model of `opset`, '' where it can."""
    row = row_of(op_type, opset)
    if row is None or (row[0] and row[0] not in OPS):
        return "is not supported"
    try:
        schema = defs.get_schema(op_type, opset, "")
    except defs.SchemaError:
        return f"does not exist in opset {opset}"
    # GroupNormalization-18 is deprecated but in use: a deprecated version needs a row of its own.
    removed = schema.deprecated and schema.since_version not in dict(SPELLINGS[op_type])
    return f"was removed before opset {opset}" if removed else ""


def refuse_unsupported(model: OnnxModel) -> None:
    """Raises one `ModelError` that lists everything in the model that onepass cannot compute."""
    proto, opset = model.proto.graph, model.opset
    found: dict[str, list[str]] = {}

    def note(reason: str, name: str) -> None:
        found.setdefault(reason, []).append(name)

    for node in proto.node:
        spelled = f"{node.domain}.{node.op_type}" if node.domain not in ONNX_DOMAINS else node.op_type
        reason = ""
        if any(attribute.type in _SUBGRAPHS for attribute in node.attribute):
            reason = "runs a subgraph, which is not supported"
        elif node.domain not in ONNX_DOMAINS:
            reason = "is not an op of the standard ONNX domain"
        else:
            reason = _missing(node.op_type, opset) or _refused_types(node)
        if reason:
            note(f"{spelled} {reason}", _label(node))
    for tensor in proto.initializer:
        if dtype_of(tensor.data_type) is None:
            note(f"initializer of element type {dtype_name(tensor.data_type)}", tensor.name)
    for sparse in proto.sparse_initializer:
        note("sparse initializer", sparse.values.name)
    for value in onnx_model.unsupported_inputs([*proto.input, *proto.output]):
        note("input or output", value)
    if found:
        count = sum(len(names) for names in found.values())
        lines = [f"{reason}: {_listed(names)}" for reason, names in found.items()]
        raise ModelError(
            f"the model has {count} node{'s' if count > 1 else ''} or tensors that onepass does not support",
            where=str(proto.name),
            why="\n  ".join(["", *lines]),
            remedy="export the model without them, for inference, with standard ONNX ops",
        )


_SUBGRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
LISTED_NAMES = 20


def _listed(names: Sequence[str]) -> str:
    """Names in quotes, the first `LISTED_NAMES` of them."""
    more = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
    return ", ".join(f"'{name}'" for name in names[:LISTED_NAMES]) + more


def _refused_types(node: NodeProto) -> str:
    """Why an element type that the node names is refused, '' where none is."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.SPARSE_TENSOR:
            return "holds a sparse tensor"
        code = attribute.t.data_type or (attribute.i if attribute.name == "to" else 0)
        if attribute.name in ("value_string", "value_strings"):
            code = TensorProto.STRING
        if code and dtype_of(code) is None:
            return f"uses element type {dtype_name(code)}"
    return ""


OUTPUTS = "the graph's outputs"


def _ordered(proto: GraphProto) -> list[NodeProto]:
    """The nodes in an order in which each follows what it reads.

    Raises `ModelError` for a value that is computed twice or nowhere, and for a cycle.
    """
    declared = Counter([f"input '{value.name}'" for value in proto.input])
    declared.update(f"initializer '{tensor.name}'" for tensor in proto.initializer)
    for what, count in declared.items():
        if count > 1:
            raise ModelError(f"{what} is declared {count} times")
    ready = {""} | {value.name for value in proto.input} | {tensor.name for tensor in proto.initializer}
    producers: dict[str, NodeProto] = {}
    for node in proto.node:
        for name in node.output:
            if name and (name in producers or name in ready):
                other = (
                    f"node '{_label(producers[name])}'" if name in producers else "an input or initializer"
                )
                where = f"node '{_label(node)}' and {other}"
                raise ModelError(f"value '{name}' is computed twice", where=where)
            if name:
                producers[name] = node
    for name, reader in _reads(proto):
        if name not in producers and (name not in ready or (not name and reader == OUTPUTS)):
            raise ModelError(f"value '{name}' is never computed", where=reader)
    # Most models come in order, and keep theirs.
    seen = set(ready)
    for node in proto.node:
        if not seen.issuperset(node.input):
            break
        seen.update(node.output)
    else:
        return list(proto.node)
    nodes = list(proto.node)
    number = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    sources = {i: {number[name] for name in node.input if name in number} for i, node in enumerate(nodes)}
    try:
        return [nodes[i] for i in TopologicalSorter(sources).static_order()]
    except CycleError as error:
        names = _listed([_label(nodes[i]) for i in error.args[1][1:]])
        why = "each needs the other's result"
        raise ModelError("the graph has a cycle", where=f"nodes {names}", why=why) from None


def _label(node: NodeProto) -> str:
    """The node's name, or the first value that it computes."""
    return node.name or (node.output[0] if node.output else node.op_type)


def _reads(proto: GraphProto) -> Iterable[tuple[str, str]]:
    """Each value that is read, and who reads it."""
    for node in proto.node:
        for name in node.input:
            yield name, f"node '{_label(node)}'"
    for value in proto.output:
        yield value.name, OUTPUTS


def _finish(building: Building, name: str, inputs: tuple[str, ...], outputs: list[str]) -> Graph:
    """The graph, with every output under its own name computed by a node of its own."""
    if not outputs:
        raise ModelError("the model has no outputs", remedy="declare what it computes as its outputs")
    if len(set(outputs)) != len(outputs):
        raise ModelError("an output is listed twice", where=OUTPUTS)
    renamed: dict[str, str] = {}
    produced = {output for node in building.nodes for output in node.outputs}
    copies: list[Node] = []
    for output in outputs:
        source = building.resolve(output)
        if source == output and output in produced:
            continue
        if source in produced and source not in renamed and source not in outputs:
            renamed[source] = output
            continue
        # An input, a known value or another output under a second name: copied.
        if output in inputs:
            raise ModelError(f"'{output}' is an input and an output", remedy="put an Identity between them")
        own = unique(f"Identity_{output}", building.node_names)
        copies.append(Node(own, "identity", (source,), (output,), {}, "Identity"))
    types = {**building.types, **{output: building.types[building.resolve(output)] for output in outputs}}
    constants = dict(building.known)
    nodes = [_renamed(node, renamed) for node in (*building.nodes, *copies)]
    for output in outputs:
        if output in constants:
            stored = building.new_value(f"{output}:value")
            constants[stored], types[stored] = constants.pop(output), types[output]
            nodes = [
                replace(node, inputs=tuple(stored if x == output else x for x in node.inputs))
                for node in nodes
            ]
    graph = Graph(name, tuple(nodes), inputs, tuple(outputs), types, constants)
    values = {*inputs, *constants, *(value for node in nodes for value in node.outputs)}
    graph = drop_dead_nodes(replace(graph, types={key: types[key] for key in types if key in values}))
    return replace(graph, constants={key: frozen(array) for key, array in graph.constants.items()})


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    """`node` with values renamed."""
    if names.keys().isdisjoint((*node.inputs, *node.outputs)):
        return node
    return replace(
        node,
        inputs=tuple(names.get(value, value) for value in node.inputs),
        outputs=tuple(names.get(value, value) for value in node.outputs),
    )
