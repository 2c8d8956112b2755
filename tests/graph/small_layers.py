"""What the small graphs are made of: nodes from words, models, seeded data, layers in numpy float64."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onepass.core.tolerance import compare

Arrays = dict[str, np.ndarray]


@dataclass
class SmallGraph:
    """A model, inputs and what must come out: float64 results, or exact ones in the model's dtypes."""

    model: onnx.ModelProto
    inputs: Arrays
    expected: Arrays
    reduction_length: int = 64
    exact: bool = False
    more_runs: list[tuple[Arrays, Arrays]] = field(default_factory=list)


SMALL_GRAPHS: dict[str, Callable[[], SmallGraph]] = {}


def small_graph(build):
    """Registers a builder under its function's name."""
    SMALL_GRAPHS[build.__name__] = build
    return build


def check(graph: SmallGraph, outputs: Mapping[str, Any], expected: Arrays | None = None) -> None:
    """Asserts that `outputs` (name to array) are what they must be: names in order, dtype, shape, values."""
    expected = graph.expected if expected is None else expected
    assert list(outputs) == [value.name for value in graph.model.graph.output]
    declared = {value.name: value.type.tensor_type.elem_type for value in graph.model.graph.output}
    for name, want in expected.items():
        got = np.asarray(outputs[name])
        assert got.shape == want.shape, f"{name}: shape {got.shape}, not {want.shape}"
        assert got.dtype in (helper.tensor_dtype_to_np_dtype(declared[name]), np.float64), (
            f"{name}: {got.dtype}"
        )
        if graph.exact:
            np.testing.assert_array_equal(got, want, err_msg=name)
        else:
            comparison = compare(got.astype(want.dtype if want.dtype != np.float64 else np.float32), want,
                                 graph.reduction_length)  # fmt: skip
            assert comparison.within, f"{name}: {comparison}"


def node(op, inputs, outputs, **attrs):
    """A node from names separated by spaces; '_' is an input left out."""
    names = ["" if name == "_" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attrs)


def model(nodes, inputs, outputs, constants=None, opset=17, dims=None):
    """A model from nodes, input arrays and (name, dtype) or result arrays; `dims` overrides input shapes."""
    dims = dims or {}
    ins = [_value(name, array.dtype, dims.get(name, array.shape)) for name, array in inputs.items()]
    outs = [_value(name, dtype, None) for name, dtype in outputs.items()]
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "small", ins, outs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _value(name, dtype, shape):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def made(nodes, inputs, expected, constants=None, opset=17, dtypes=None, **options):
    """A `SmallGraph`; outputs are float32 unless `expected` holds no float64 or `dtypes` says otherwise."""
    dtypes = dtypes or {}
    outputs = {
        name: dtypes.get(name, np.float32 if array.dtype == np.float64 else array.dtype)
        for name, array in expected.items()
    }
    return SmallGraph(model(nodes, inputs, outputs, constants, opset), inputs, expected, **options)


def f32(seed, *shape):
    """Normally distributed float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def i64(*values):
    return np.array(values, np.int64)


def relu(x):
    return np.maximum(x, 0)


def conv(x, w, b=None, strides=None, pads=None, dilations=None, group=1):
    """Convolution of any rank in float64; pads begin, then end."""
    rank = x.ndim - 2
    strides, dilations, pads = strides or (1,) * rank, dilations or (1,) * rank, pads or (0,) * (2 * rank)
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    sizes = [
        (n - (d * (k - 1) + 1)) // s + 1
        for n, k, s, d in zip(padded.shape[2:], w.shape[2:], strides, dilations, strict=True)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *sizes))
    step_in, step_out = w.shape[1], w.shape[0] // group
    for tap in np.ndindex(*w.shape[2:]):
        spots = [
            slice(t * d, t * d + s * n, s) for t, d, s, n in zip(tap, dilations, strides, sizes, strict=True)
        ]
        seen = padded[(slice(None), slice(None), *spots)][(..., *(slice(n) for n in sizes))]
        for g in range(group):
            rows = slice(g * step_out, (g + 1) * step_out)
            part = seen[:, g * step_in : (g + 1) * step_in]
            y[:, rows] += np.einsum("nc...,oc->no...", part, w[(rows, slice(None), *tap)])
    return y if b is None else y + b.reshape(-1, *(1,) * rank)


def norm(x, scale, bias, mean, var, epsilon=1e-5):
    """Batch normalisation in float64."""
    shape = (-1, *(1,) * (x.ndim - 2))
    s, b, m, v = (np.asarray(a, np.float64).reshape(shape) for a in (scale, bias, mean, var))
    return (x - m) / np.sqrt(v + np.float32(epsilon)) * s + b


def softmax(x, axis=-1):
    with np.errstate(all="ignore"):
        e = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)


def statistics(seed, channels):
    """Scale, bias, mean and variance for a batch normalisation."""
    return (
        f32(seed, channels),
        f32(seed + 1, channels),
        f32(seed + 2, channels),
        abs(f32(seed + 3, channels)) + 0.1,
    )


def pool(x, kernel, strides, pads, reduce, dilations=(1, 1)):
    """Pooling in two dimensions with ceil_mode, over the real pixels of each window, in float64."""
    sizes = []
    for axis in range(2):
        size = x.shape[2 + axis] + pads[axis]
        room = size + pads[2 + axis] - dilations[axis] * (kernel[axis] - 1) - 1
        count = -(-room // strides[axis]) + 1
        sizes.append(count - ((count - 1) * strides[axis] >= size))
    y = np.zeros((*x.shape[:2], *sizes))
    for i, j in np.ndindex(*sizes):
        rows, columns = (
            [
                p
                for k in range(kernel[a])
                if 0 <= (p := o * strides[a] - pads[a] + k * dilations[a]) < x.shape[2 + a]
            ]
            for a, o in ((0, i), (1, j))
        )
        y[:, :, i, j] = reduce(x[:, :, rows][:, :, :, columns].astype(np.float64), axis=(2, 3))
    return y
