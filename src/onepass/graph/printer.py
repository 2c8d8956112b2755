"""The text form of a graph, one line a node, for golden tests and dumps.

graph tiny(x: float32[1,3]) -> (y)
  w: float32[3,2] constant
  y: float32[1,2] = matmul(x, w) {attribute=value}  # 'name' MatMul
"""

from __future__ import annotations

from onepass.graph.ir import Graph, Node
from onepass.ops.opdef import AttrValue

SHOWN_ELEMENTS = 8


def print_graph(graph: Graph) -> str:
    """`graph` as text; small constants with their elements, attributes that are None left out."""
    inputs = ", ".join(f"{name}: {graph.types[name]}" for name in graph.inputs)
    lines = [f"graph {graph.name}({inputs}) -> ({', '.join(graph.outputs)})"]
    for name, array in graph.constants.items():
        shown = f" {array.tolist()}" if array.size <= SHOWN_ELEMENTS else ""
        lines.append(f"  {name}: {graph.types[name]} constant{shown}")
    lines += [f"  {_print_node(graph, node)}" for node in graph.nodes]
    return "\n".join(lines) + "\n"


def _print_node(graph: Graph, node: Node) -> str:
    """One node on one line."""
    outputs = ", ".join(f"{name}: {graph.types[name]}" if name else "_" for name in node.outputs)
    inputs = ", ".join(name or "_" for name in node.inputs)
    shown = [f"{key}={_print_value(value)}" for key, value in sorted(node.attrs.items()) if value is not None]
    attrs = f" {{{', '.join(shown)}}}" if shown else ""
    return f"{outputs} = {node.op}({inputs}){attrs}  # '{node.name}' {node.spelling}".rstrip()


def _print_value(value: AttrValue) -> str:
    """An attribute's value, floats as short as they stay exact."""
    if isinstance(value, tuple):
        return "[" + ",".join(map(str, value)) + "]"
    return str(value)
