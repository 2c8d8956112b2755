"""A loaded model as one serialised model again: every weight inside, and shapes fixed if wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto

from onepass.core.errors import UserError
from onepass.core.tensor import Shape
from onepass.frontends.onnx_model import OnnxModel


def self_contained(loaded: OnnxModel, shapes: Mapping[str, Shape] | None = None) -> bytes:
    """The model with its weights; `shapes` are declared for the inputs and outputs that they name.

    Raises UserError for a model of more than 2 GB, which is as much as one ONNX file can hold.
    """
    proto = ModelProto()
    proto.CopyFrom(loaded.proto)
    for tensor in _tensors(proto):
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.raw_data = loaded.reader.read(tensor, f"tensor '{tensor.name}'").tobytes()
            del tensor.external_data[:]
            tensor.data_location = TensorProto.DEFAULT
    if shapes:
        # What is declared for values in between may contradict the new shapes.
        del proto.graph.value_info[:]
    for value in (*proto.graph.input, *proto.graph.output):
        if shapes and value.name in shapes:
            declared = value.type.tensor_type.shape
            del declared.dim[:]
            for size in shapes[value.name]:
                declared.dim.add(dim_value=size)
    try:
        return bytes(proto.SerializeToString())
    except (EncodeError, ValueError) as error:
        raise UserError(
            "the model is too large for one file", why="an ONNX model is limited to 2 GB",
            remedy="keep the ONNX file with its side files; compiled code is cached anyway",
        ) from error  # fmt: skip


def _tensors(proto: ModelProto) -> Iterator[TensorProto]:
    yield from proto.graph.initializer
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
