"""The graph interpreter: node by node through the numpy references; in float64 it is the oracle.

In: a graph and arrays for its inputs. Out: its outputs by name. A value is dropped after its last use.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from onepass.core.errors import ShapeError
from onepass.core.tensor import TensorType
from onepass.graph.ir import Graph, Node
from onepass.ops.opdef import Array
from onepass.ops.shapes import is_float


def run_node(node: Node, inputs: Sequence[Array | None]) -> dict[str, Array]:
    """The outputs of `node` by its reference, by name."""
    with np.errstate(all="ignore"):
        outputs = node.opdef.reference(inputs, node.attrs)
    return {name: output for name, output in zip(node.outputs, outputs, strict=False) if name}


def fold_node(
    node: Node, constants: Mapping[str, Array], types: Mapping[str, TensorType]
) -> dict[str, Array]:
    """The outputs of `node`, whose inputs are all `constants`: in the model's dtypes, dense and read-only."""
    arrays = [constants[name] if name else None for name in node.inputs]
    folded = {}
    for name, array in run_node(node, arrays).items():
        folded[name] = frozen(array.astype(types[name].dtype.numpy, copy=False))
    return folded


def frozen(array: Array) -> Array:
    """`array` as a constant of a graph: row-major, dense, read-only; copied only where it is not dense."""
    dense: Array = np.require(array, requirements="C").view(np.ndarray)
    dense.setflags(write=False)
    return dense


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Array],
    dtype: type[np.float64] | None = None,
    keep: Collection[str] = (),
) -> dict[str, Array]:
    """The graph's outputs, and the values named in `keep`.

    With `dtype` float64 every float value, constants included, is computed in float64: the oracle.
    Otherwise each value has the dtype that the model declares. Integers and bools are never changed.
    Raises `ShapeError` for a missing input, a wrong shape or a wrong dtype.
    """
    values = {name: _widen(_checked(graph, name, inputs), dtype) for name in graph.inputs}
    last = {name: node for node in graph.nodes for name in (*node.inputs, *node.outputs)}
    kept = {*graph.outputs, *keep}

    def value(name: str) -> Array:
        return values[name] if name in values else _widen(graph.constants[name], dtype)

    for node in graph.nodes:
        arguments = [value(name) if name else None for name in node.inputs]
        values.update(_run(graph, node, arguments, dtype))
        for name in {*node.inputs, *node.outputs} - kept:
            if last[name] is node:
                values.pop(name, None)
    return {name: value(name) for name in (*graph.outputs, *keep)}


def _checked(graph: Graph, name: str, inputs: Mapping[str, Array]) -> Array:
    """The given array of input `name`."""
    expected = graph.types[name]
    if name not in inputs:
        raise ShapeError(f"input '{name}' is missing", remedy=f"pass {name}: {expected}")
    array = np.asarray(inputs[name])
    if array.shape != expected.shape or array.dtype != expected.dtype.numpy:
        raise ShapeError(f"input '{name}' is {array.dtype}{list(array.shape)}, the graph expects {expected}")
    return array


def _widen(array: Array, dtype: type[np.float64] | None) -> Array:
    """`array` in `dtype` where it holds floats."""
    return array.astype(dtype) if dtype is not None and is_float(array) else array


def _run(
    graph: Graph, node: Node, arguments: Sequence[Array | None], dtype: type[np.float64] | None
) -> dict[str, Array]:
    """The outputs of one node, in the dtypes that `evaluate` promises."""
    if dtype is not None and node.op == "cast":
        source, target = graph.types[node.inputs[0]].dtype, graph.types[node.outputs[0]].dtype
        widens = target == source or target.bits > source.bits
        if source.is_float and target.is_float and widens and arguments[0] is not None:
            # A widening cast rounds nothing: rounding the oracle's float64 here would be an artefact.
            return {node.outputs[0]: arguments[0]}
    outputs = run_node(node, arguments)
    if dtype is not None:
        return {name: _widen(array, dtype) for name, array in outputs.items()}
    return {name: array.astype(graph.types[name].dtype.numpy, copy=False) for name, array in outputs.items()}
