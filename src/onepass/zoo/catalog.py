"""The built-in models: their names, default shapes and example inputs.

In: a name, or any ONNX model. Out: a `ModelProto` as an exporter would write it, and arrays to run it on.
A zoo model carries its default shapes as metadata, so that one exported to a file still has them.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from onepass.core.errors import OptionError, ShapeError, UserError
from onepass.core.tensor import Shape
from onepass.ops.opdef import Array
from onepass.zoo import chains, convolutional, transformers
from onepass.zoo.builder import ModelBuilder

SHAPE_KEY, BELOW_KEY = "onepass.shape.", "onepass.below."


@dataclass(frozen=True, slots=True)
class Entry:
    """One model: `build` takes a seed and sizes; `shapes` and `below` are by input.

    Example values of an integer input are drawn from [0, below).
    """

    build: Callable[..., ModelBuilder]
    shapes: Mapping[str, Shape]
    below: Mapping[str, int] = field(default_factory=dict)


_IMAGE = {"input": (1, 3, 224, 224)}

ENTRIES: dict[str, Entry] = {
    "resnet50": Entry(convolutional.resnet50, _IMAGE),
    "mobilenet_v2": Entry(convolutional.mobilenet_v2, _IMAGE),
    "convnext_tiny": Entry(convolutional.convnext_tiny, _IMAGE),
    "bert_base": Entry(
        transformers.bert_base,
        dict.fromkeys(("input_ids", "token_type_ids", "attention_mask"), (1, 128)),
        {"input_ids": transformers.VOCABULARY, "token_type_ids": 2, "attention_mask": 2},
    ),
    "vit_b16": Entry(transformers.vit_b16, _IMAGE),
    "unet": Entry(convolutional.unet, {"input": (1, 3, 256, 256)}),
    "dncnn": Entry(convolutional.dncnn, {"input": (1, 1, 256, 256)}),
    "espcn": Entry(convolutional.espcn, {"input": (1, 3, 540, 960)}),
    "row_chain": Entry(chains.row_chain, {"input": (65536, 256)}),
    "vector_add": Entry(chains.vector_add, {"a": (16 << 20,), "b": (16 << 20,)}),
}


def names() -> tuple[str, ...]:
    """The names of all models of the zoo."""
    return tuple(ENTRIES)


def describe(name: str) -> str:
    """One line about the model; raises UserError for an unknown name."""
    return (inspect.getdoc(_entry(name).build) or "").splitlines()[0]


def build(name: str, **options: int | tuple[int, ...]) -> onnx.ModelProto:
    """The model `name`; the same `seed` gives the same weights.

    Options are the parameters of the model's builder (`seed`, and sizes such as `layers`). Raises
    UserError for an unknown name, naming the closest, and OptionError for an unknown option.
    """
    entry = _entry(name)
    known = tuple(inspect.signature(entry.build).parameters)
    for option in options:
        if option not in known:
            raise OptionError(f"zoo:{name} has no option '{option}'", remedy=f"use one of {', '.join(known)}")
    metadata = {SHAPE_KEY + key: "x".join(map(str, shape)) for key, shape in entry.shapes.items()}
    metadata |= {BELOW_KEY + key: str(below) for key, below in entry.below.items()}
    return entry.build(**options).finish(metadata)


def default_shapes(model: str | onnx.ModelProto) -> dict[str, Shape]:
    """The input shapes that a zoo model (by name, or built, or read back from a file) is meant for.

    Empty for a model that carries none.
    """
    if isinstance(model, str):
        return dict(_entry(model).shapes)
    return {
        prop.key.removeprefix(SHAPE_KEY): tuple(map(int, prop.value.split("x")))
        for prop in model.metadata_props
        if prop.key.startswith(SHAPE_KEY)
    }


def example_inputs(
    model: str | onnx.ModelProto, shapes: Mapping[str, Shape] | None = None, seed: int = 0
) -> dict[str, Array]:
    """One array for each input that has no initializer: the same for the same seed.

    Floats are normal with mean 0 and deviation 1. Integers lie in [0, below) where the model says so,
    else they are 0 or 1, which is within range for any use as an index. Raises ShapeError when a
    dimension is symbolic and neither `shapes` nor the model's metadata gives its size.
    """
    proto = build(model) if isinstance(model, str) else model
    sizes = default_shapes(proto) | dict(shapes or {})
    below = {
        prop.key.removeprefix(BELOW_KEY): int(prop.value)
        for prop in proto.metadata_props
        if prop.key.startswith(BELOW_KEY)
    }
    constants = {tensor.name for tensor in proto.graph.initializer}
    random = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for value in proto.graph.input:
        if value.name not in constants:
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            shape = sizes.get(value.name) or _static_shape(value)
            found[value.name] = _draw(random, dtype, shape, below.get(value.name, 2))
    return found


def _draw(random: np.random.Generator, dtype: np.dtype[np.generic], shape: Shape, below: int) -> Array:
    if dtype.kind == "f":
        return random.standard_normal(shape, np.float32).astype(dtype, copy=False)
    return random.integers(0, below, shape).astype(dtype)


def _static_shape(value: onnx.ValueInfoProto) -> Shape:
    dims = value.type.tensor_type.shape.dim
    for axis, dim in enumerate(dims):
        if not dim.HasField("dim_value"):
            raise ShapeError(
                f"dimension {axis} of input '{value.name}' has no size",
                where=f"input '{value.name}'",
                why=f"the model declares it as '{dim.dim_param or '?'}'",
                remedy=f"give it, as in --shape {value.name}=1x3x224x224",
            )
    return tuple(dim.dim_value for dim in dims)


def _entry(name: str) -> Entry:
    if name not in ENTRIES:
        close = difflib.get_close_matches(name, ENTRIES, n=1, cutoff=0.4)
        raise UserError(
            f"no model named '{name}' in the zoo",
            why=f"it holds {', '.join(ENTRIES)}",
            remedy=f"did you mean zoo:{close[0]}?" if close else "see: onepass zoo list",
        )
    return ENTRIES[name]
