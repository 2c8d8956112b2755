"""A float32 graph in float16 or bfloat16: half the bytes, for targets that have the arithmetic.

In: a graph. Out: the same nodes over narrower values, its inputs and outputs among them. It changes
results by far more than rounding of float32 does, so it runs only where it was asked for.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onepass.core.dtypes import BF16, F16, F32, DType, finfo
from onepass.core.errors import ModelError
from onepass.core.tensor import TensorType
from onepass.graph.interpret import frozen
from onepass.graph.ir import Graph
from onepass.ops.opdef import Array


def lower_precision(graph: Graph, dtype: DType) -> Graph:
    """`graph` with each float32 value as `dtype`, float16 or bfloat16; other element types stay.

    Constants are rounded to nearest, tiny ones to 0. The greatest and least float32 stand for "beyond all
    others" in masks and become those of `dtype`. A cast to float32 becomes one to `dtype`, which is none
    where its input has that type already. Raises `ModelError` for a constant with another finite element
    that `dtype` cannot hold.
    """
    if dtype not in (F16, BF16):
        raise ValueError(f"{dtype} is not a narrower float than float32")
    types = {
        name: TensorType(dtype, tensor.shape) if tensor.dtype == F32 else tensor
        for name, tensor in graph.types.items()
    }
    constants = {
        name: _rounded(graph, name, array, dtype) if graph.types[name].dtype == F32 else array
        for name, array in graph.constants.items()
    }
    nodes = tuple(
        replace(node, attrs={**node.attrs, "to": dtype.name})
        if node.op == "cast" and graph.types[node.outputs[0]].dtype == F32 else node
        for node in graph.nodes
    )  # fmt: skip
    return replace(graph, nodes=nodes, types=types, constants=constants)


def _rounded(graph: Graph, name: str, array: Array, dtype: DType) -> Array:
    """The float32 constant `name` in `dtype`."""
    limit, bound = float(finfo(dtype).max), float(finfo(F32).max)
    with np.errstate(over="ignore"):
        result = np.where(np.abs(array) == bound, np.copysign(limit, array), array).astype(dtype.numpy)
    lost = np.isinf(result) & np.isfinite(array)
    if lost.any():
        value = array[lost].reshape(-1)[0]
        readers = ", ".join(f"'{node.user_name}' ({node.spelling})" for node in graph.consumers()[name][:3])
        raise ModelError(
            f"constant '{name}' holds {value:.9g}, which {dtype} cannot",
            where=f"read by node {readers}" if readers else f"constant '{name}'",
            why=f"the greatest {dtype} is {limit:.9g}; {lost.sum()} of {array.size} elements are beyond",
            remedy="choose bfloat16, with the range of float32" if dtype == F16 else "compile in float32",
        )  # fmt: skip
    return frozen(result)
