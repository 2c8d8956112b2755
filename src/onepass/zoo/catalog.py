"""The built-in models: their names, default shapes and example inputs.

In: a name, or any ONNX model. Out: a `ModelProto` as an exporter would write it, and arrays to run it on.
A zoo model carries its default shapes as metadata, so that one exported to a file still has them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from onepass.core.errors import UserError
from onepass.core.tensor import Shape
from onepass.ops.opdef import Array
from onepass.zoo.builder import ModelBuilder, row_chain, vector_add
from onepass.zoo.convolutional import convnext_tiny, dncnn, espcn, mobilenet_v2, resnet50, unet
from onepass.zoo.transformers import VOCABULARY, bert_base, vit_b16

SHAPE_KEY, BELOW_KEY = "onepass.shape.", "onepass.below."


@dataclass(frozen=True, slots=True)
class Entry:
    """One model: `build` takes a seed and sizes; `shapes` and `below` are by input.

    Example values of an integer input are drawn from [0, below).
    """

    build: Callable[..., ModelBuilder]
    shapes: Mapping[str, Shape]
    below: Mapping[str, int] = field(default_factory=dict)

    @property
    def about(self) -> str:
        """One line about the model."""
        return (self.build.__doc__ or "").splitlines()[0]


_IMAGE = {"input": (1, 3, 224, 224)}

ENTRIES: dict[str, Entry] = {
    "resnet50": Entry(resnet50, _IMAGE),
    "mobilenet_v2": Entry(mobilenet_v2, _IMAGE),
    "convnext_tiny": Entry(convnext_tiny, _IMAGE),
    "bert_base": Entry(
        bert_base,
        dict.fromkeys(("input_ids", "token_type_ids", "attention_mask"), (1, 128)),
        {"input_ids": VOCABULARY, "token_type_ids": 2, "attention_mask": 2},
    ),
    "vit_b16": Entry(vit_b16, _IMAGE),
    "unet": Entry(unet, {"input": (1, 3, 256, 256)}),
    "dncnn": Entry(dncnn, {"input": (1, 1, 256, 256)}),
    "espcn": Entry(espcn, {"input": (1, 3, 540, 960)}),
    "row_chain": Entry(row_chain, {"input": (65536, 256)}),
    "vector_add": Entry(vector_add, {"a": (16 << 20,), "b": (16 << 20,)}),
}


def build(name: str, **options: int | tuple[int, ...]) -> onnx.ModelProto:
    """The model `name`; the same `seed` gives the same weights.

    Options are the parameters of the model's builder (`seed`, and sizes such as `layers`). Raises
    UserError for an unknown name, naming the closest.
    """
    if name not in ENTRIES:
        close = difflib.get_close_matches(name, ENTRIES, n=1, cutoff=0.4)
        raise UserError(
            f"no model named '{name}' in the zoo",
            why=f"it holds {', '.join(ENTRIES)}",
            remedy=f"did you mean zoo:{close[0]}?" if close else "see: onepass zoo list",
        )
    entry = ENTRIES[name]
    metadata = {SHAPE_KEY + key: "x".join(map(str, shape)) for key, shape in entry.shapes.items()}
    metadata |= {BELOW_KEY + key: str(below) for key, below in entry.below.items()}
    return entry.build(**options).finish(metadata)


def default_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    """The input shapes that a zoo model is meant for; empty for a model that carries none.

    Raises ValueError where they are damaged.
    """
    return {name: tuple(map(int, text.split("x"))) for name, text in _metadata(model, SHAPE_KEY)}


def example_inputs(
    model: onnx.ModelProto, shapes: Mapping[str, Shape], seed: int = 0
) -> dict[str, Array]:
    """One array for each input in `shapes`: the same for the same seed.

    Floats are normal with mean 0 and deviation 1. Integers lie in [0, below) where the model says so,
    else they are 0 or 1, which is within range for any use as an index.
    """
    below = dict(_metadata(model, BELOW_KEY))
    random = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for value in model.graph.input:
        if value.name in shapes:
            shape = shapes[value.name]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            if dtype.kind == "f":
                drawn: Array = random.standard_normal(shape, np.float32)
            else:
                drawn = random.integers(0, int(below.get(value.name, 2)), shape)
            found[value.name] = drawn.astype(dtype, copy=False)
    return found


def _metadata(model: onnx.ModelProto, prefix: str) -> list[tuple[str, str]]:
    props = ((prop.key, prop.value) for prop in model.metadata_props)
    return [(key.removeprefix(prefix), value) for key, value in props if key.startswith(prefix)]
