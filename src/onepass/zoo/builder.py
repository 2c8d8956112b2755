"""Writes an ONNX model node by node, with names like those that exporters give.

In: calls such as `conv("layer1.0.conv1", x, 64, 64, 3)`. Out: a `ModelProto` with seeded random weights.
Every array goes straight into the model's protobuf: a copy of a 100 MB model costs as much as its weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from onepass.core.dtypes import F32, DType
from onepass.ops.opdef import Array

Attr = int | float | str | Sequence[int]
Dim = int | str


class ModelBuilder:
    """One model under construction; a method that adds nodes returns the name of their result."""

    def __init__(self, name: str, *, opset: int, seed: int) -> None:
        # SFC64 is numpy's fastest bit generator: drawing the weights is most of the build time.
        self._random = np.random.Generator(np.random.SFC64(seed))
        self._model = onnx.ModelProto(ir_version=8 if opset < 19 else 9, producer_name="onepass.zoo")
        self._model.graph.name = name
        self._model.opset_import.add(domain="", version=opset)
        self._constants: set[str] = set()

    def input(self, name: str, dtype: DType, shape: Sequence[Dim]) -> str:
        """A graph input; a dimension given as text is symbolic."""
        self._model.graph.input.append(_value_info(name, dtype, shape))
        return name

    def output(self, value: str, name: str, dtype: DType, shape: Sequence[Dim]) -> None:
        """Make `value`, the result of the newest node that writes it, a graph output called `name`."""
        for node in self._model.graph.node:
            for slots in (node.input, node.output):
                for i, used in enumerate(slots):
                    if used == value:
                        slots[i] = name
        self._model.graph.output.append(_value_info(name, dtype, shape))

    def node(self, path: str, op: str, inputs: Sequence[str], **attrs: Attr) -> str:
        """Add the node `/path/op` and return the name of its only result."""
        name = f"/{path.replace('.', '/')}/{op}" if path else f"/{op}"
        proto = self._model.graph.node.add(name=name, op_type=op, input=inputs)
        proto.attribute.extend(helper.make_attribute(key, value) for key, value in attrs.items())
        proto.output.append(f"{name}_output_0")
        return f"{name}_output_0"

    def constant(self, name: str, value: Array) -> str:
        """An initializer; a name that is there already is shared, not added again."""
        if name not in self._constants:
            self._constants.add(name)
            dtype = helper.np_dtype_to_tensor_dtype(value.dtype)
            self._model.graph.initializer.add(
                name=name, data_type=dtype, dims=value.shape, raw_data=value.tobytes()
            )
        return name

    def floats(self, name: str, value: float | Sequence[float]) -> str:
        """A float32 initializer."""
        return self.constant(name, np.asarray(value, np.float32))

    def ints(self, name: str, value: int | Sequence[int]) -> str:
        """An int64 initializer."""
        return self.constant(name, np.asarray(value, np.int64))

    def normal(self, name: str, shape: Sequence[int], std: float, mean: float = 0.0) -> str:
        """A float32 initializer drawn from a normal distribution."""
        values = self._random.standard_normal(shape, np.float32)
        values *= np.float32(std)
        if mean:
            values += np.float32(mean)
        return self.constant(name, values)

    def uniform(self, name: str, size: int, low: float, high: float) -> str:
        """A float32 vector initializer drawn from [low, high)."""
        return self.constant(name, self._random.uniform(low, high, size).astype(np.float32))

    def conv(self, path: str, x: str, channels: int, out: int, kernel: int, *, stride: int = 1,
             pad: int | None = None, groups: int = 1, bias: bool = False, gain: float = 2.0) -> str:
        """A square 2-D convolution; weights of variance `gain / fan_in` (He et al. 2015 for a ReLU: 2).

        `pad` defaults to the one that keeps the size at stride 1.
        """
        fan_in = channels // groups * kernel * kernel
        shape = (out, channels // groups, kernel, kernel)
        inputs = [x, self.normal(f"{path}.weight", shape, math.sqrt(gain / fan_in))]
        if bias:
            inputs.append(self.normal(f"{path}.bias", (out,), 0.05))
        edge = kernel // 2 if pad is None else pad
        return self.node(path, "Conv", inputs, dilations=[1, 1], group=groups, kernel_shape=[kernel] * 2,
                         pads=[edge] * 4, strides=[stride] * 2)

    def batch_norm(self, path: str, x: str, channels: int, *, scale: float = 1.0) -> str:
        """Batch normalisation as after training: no parameter is 0 or 1, mean gain is about `scale`."""
        return self.node(path, "BatchNormalization", [
            x,
            self.uniform(f"{path}.weight", channels, 0.6 * scale, 1.4 * scale),
            self.normal(f"{path}.bias", (channels,), 0.1),
            self.normal(f"{path}.running_mean", (channels,), 0.2),
            self.uniform(f"{path}.running_var", channels, 0.7, 1.5),
        ], epsilon=1e-5, momentum=0.9)

    def layer_norm(self, path: str, x: str, channels: int, epsilon: float) -> str:
        """Layer normalisation over the last axis."""
        weight = self.normal(f"{path}.weight", (channels,), 0.1, mean=1.0)
        bias = self.normal(f"{path}.bias", (channels,), 0.1)
        return self.node(path, "LayerNormalization", [x, weight, bias], axis=-1, epsilon=epsilon)

    def linear(self, path: str, x: str, channels: int, out: int, *, gain: float = 1.0) -> str:
        """`x @ W + b` on the last axis, as exporters write it for a rank above 2: MatMul, then Add."""
        weight = self.normal(f"{path}.weight", (channels, out), math.sqrt(gain / channels))
        product = self.node(path, "MatMul", [x, weight])
        return self.node(path, "Add", [self.normal(f"{path}.bias", (out,), 0.05), product])

    def gemm(self, path: str, x: str, channels: int, out: int) -> str:
        """`x @ W.T + b` for a matrix, as exporters write a classifier."""
        weight = self.normal(f"{path}.weight", (out, channels), math.sqrt(1.0 / channels))
        bias = self.normal(f"{path}.bias", (out,), 0.05)
        return self.node(path, "Gemm", [x, weight, bias], alpha=1.0, beta=1.0, transB=1)

    def gelu_chain(self, path: str, x: str) -> str:
        """Exact GELU in the five primitives that exporters wrote before opset 20."""
        ratio = self.node(path, "Div", [x, self.floats("sqrt_2", math.sqrt(2.0))])
        shifted = self.node(path, "Add", [self.node(path, "Erf", [ratio]), self.floats("one", 1.0)])
        product = self.node(path, "Mul", [x, shifted])
        return self.node(f"{path}.half", "Mul", [product, self.floats("half", 0.5)])

    def finish(self, metadata: dict[str, str]) -> onnx.ModelProto:
        """The model, with `metadata` as its properties."""
        for key, value in metadata.items():
            self._model.metadata_props.add(key=key, value=value)
        return self._model


def _value_info(name: str, dtype: DType, shape: Sequence[Dim]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype.numpy), shape)


def row_chain(seed: int = 0, width: int = 256) -> ModelBuilder:
    """LayerNorm, GELU, sigmoid and softmax over 65536 rows of 256: one pass over memory when fused."""
    b = ModelBuilder("row_chain", opset=20, seed=seed)
    x = b.layer_norm("norm", b.input("input", F32, ("N", width)), width, 1e-5)
    x = b.node("act", "Sigmoid", [b.node("gelu", "Gelu", [x], approximate="none")])
    b.output(b.node("softmax", "Softmax", [x], axis=-1), "output", F32, ("N", width))
    return b


def vector_add(seed: int = 0) -> ModelBuilder:
    """Sum of two vectors of 16 Mi floats: one operation for twelve bytes."""
    b = ModelBuilder("vector_add", opset=17, seed=seed)
    left, right = b.input("a", F32, ("N",)), b.input("b", F32, ("N",))
    b.output(b.node("", "Add", [left, right]), "output", F32, ("N",))
    return b
