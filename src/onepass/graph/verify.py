"""Checks the invariants of a graph after a step: a broken one is a bug of that step, never the user's."""

from __future__ import annotations

from onepass.core.dtypes import dtype_of_numpy
from onepass.core.errors import InternalError
from onepass.core.tensor import TensorType
from onepass.graph.ir import Graph
from onepass.ops.opdef import OPS


def verify(graph: Graph, step: str = "verify") -> None:
    """Raises `InternalError` naming `step` for the first rule that `graph` breaks.

    Rules: nodes in topological order; every value defined once and typed; types as the lowerings say;
    node names unique; outputs exist, once each, computed by nodes; constants dense and read-only.
    """

    def require(holds: bool, detail: str) -> None:
        if not holds:
            raise InternalError(step, detail)

    defined: set[str] = set()
    for name in (*graph.inputs, *graph.constants):
        require(name not in defined, f"value '{name}' is defined twice")
        require(name in graph.types, f"value '{name}' has no type")
        defined.add(name)
    for name, array in graph.constants.items():
        actual = TensorType(dtype_of_numpy(array.dtype), array.shape)
        require(actual == graph.types[name], f"constant '{name}' is {actual}, not {graph.types[name]}")
        require(not array.flags.writeable, f"constant '{name}' can be written")
        require(array.flags.c_contiguous, f"constant '{name}' is not dense")
    node_names: set[str] = set()
    for node in graph.nodes:
        require(node.name not in node_names, f"two nodes are called '{node.name}'")
        node_names.add(node.name)
        require(node.op in OPS, f"node '{node.name}' has unknown op '{node.op}'")
        for name in node.inputs:
            require(not name or name in defined, f"node '{node.name}' reads '{name}' before it is defined")
        types = graph.lowering(node).output_types
        require(len(node.outputs) <= len(types), f"node '{node.name}' has too many outputs")
        for name, expected in zip(node.outputs, types, strict=False):
            if not name:
                continue
            require(name not in defined, f"value '{name}' is defined twice")
            actual_type = graph.types.get(name)
            require(actual_type == expected, f"value '{name}' is {actual_type}, its lowering says {expected}")
            defined.add(name)
    computed = {name for node in graph.nodes for name in node.outputs}
    require(len(set(graph.outputs)) == len(graph.outputs), "an output is listed twice")
    for name in graph.outputs:
        require(name in computed, f"output '{name}' is not computed by a node")
