"""Loading an ONNX model: from a path, bytes or a `ModelProto`, to a checked proto and its declared inputs."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto, ValueInfoProto

from onepass.core.dtypes import DType
from onepass.core.errors import ModelError
from onepass.frontends.onnx_tensors import TensorReader, dtype_name, dtype_of
from onepass.frontends.onnx_wire import without_weights

OLDEST_OPSET, NEWEST_OPSET = 7, 23
ONNX_DOMAINS = ("", "ai.onnx")

ModelSource = str | Path | bytes | ModelProto


@dataclass(frozen=True, slots=True)
class InputDescription:
    """A declared input. A dimension is a size, a symbol's name, or '?' where the model leaves it open.

    `dims` is None where the model does not even declare the rank.
    """

    name: str
    dtype: DType
    dims: tuple[int | str, ...] | None

    def __str__(self) -> str:
        dims = "?" if self.dims is None else ",".join(map(str, self.dims))
        return f"{self.name}: {self.dtype}[{dims}]"


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A parsed model, its opset of the standard domain, and the reader of its tensors."""

    proto: ModelProto
    opset: int
    reader: TensorReader


def load_onnx(model: ModelSource) -> OnnxModel:
    """Reads and parses `model`; `ModelError` for anything that is not an ONNX model of opset 7 to 23."""
    folder, data, label = None, None, "model"
    if isinstance(model, ModelProto):
        proto = model
    else:
        if isinstance(model, bytes):
            data, label = memoryview(model), "bytes"
        else:
            folder, label = Path(model).parent, str(model)
            data = _mapped(Path(model))
        proto = _parse(data, label)
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelError(
            "the file is not a complete ONNX model: it holds no graph or no opset",
            where=label,
            remedy="check that the file was fully copied and is an ONNX model",
        )
    return OnnxModel(proto, _opset(proto), TensorReader(folder, data))


def describe_inputs(model: ModelSource | OnnxModel) -> tuple[InputDescription, ...]:
    """The inputs that a caller must give (initializers excluded), in the model's order."""
    loaded = model if isinstance(model, OnnxModel) else load_onnx(model)
    graph = loaded.proto.graph
    initializers = {tensor.name for tensor in graph.initializer}
    return tuple(_describe(value) for value in graph.input if value.name not in initializers)


def unsupported_inputs(values: Sequence[ValueInfoProto]) -> list[str]:
    """One line for each graph input or output whose type onepass does not compute with."""
    found = []
    for value in values:
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            if kind is not None:
                found.append(f"{value.name}: {kind.removesuffix('_type')} type")
        elif value.type.tensor_type.elem_type and dtype_of(value.type.tensor_type.elem_type) is None:
            found.append(f"{value.name}: element type {dtype_name(value.type.tensor_type.elem_type)}")
    return found


def _mapped(path: Path) -> memoryview:
    """The bytes of a model file, mapped."""
    try:
        if path.is_dir():
            raise ModelError("the model path is a folder, not a file", where=str(path))
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise ModelError("the model file does not exist", where=str(path)) from None
    except (OSError, ValueError) as error:
        raise ModelError("the model file cannot be read", where=str(path), why=str(error)) from None


def _parse(data: memoryview, label: str) -> ModelProto:
    """Decodes a serialised `ModelProto`, its large weights left where they are."""
    if not data:
        raise ModelError("the model is empty (0 bytes)", where=label)
    proto = ModelProto()
    try:
        proto.ParseFromString(without_weights(data))
    except (ValueError, DecodeError):
        raise ModelError(
            "the file is not an ONNX model, or it is damaged",
            where=label,
            why=f"its {len(data)} bytes do not decode as a ModelProto",
            remedy="check that the file was fully copied and is an ONNX model",
        ) from None
    return proto


def _opset(proto: ModelProto) -> int:
    """The opset of the standard domain."""
    versions = [int(entry.version) for entry in proto.opset_import if entry.domain in ONNX_DOMAINS]
    if not versions:
        raise ModelError("the model imports no opset of the standard ONNX domain")
    if not OLDEST_OPSET <= versions[0] <= NEWEST_OPSET:
        raise ModelError(
            f"the model uses opset {versions[0]}",
            why=f"opsets {OLDEST_OPSET} to {NEWEST_OPSET} are supported",
            remedy="export it again, or convert it with onnx.version_converter",
        )
    return versions[0]


def _describe(value: ValueInfoProto) -> InputDescription:
    """Name, dtype and dimensions of a declared input."""
    tensor = value.type.tensor_type
    dtype = dtype_of(tensor.elem_type)
    if dtype is None:
        name = dtype_name(tensor.elem_type) if tensor.elem_type else "no tensor type"
        raise ModelError(f"an input has {name}, which is not supported", where=f"input '{value.name}'")
    if not tensor.HasField("shape"):
        return InputDescription(value.name, dtype, None)
    dims: list[int | str] = []
    for dim in tensor.shape.dim:
        if dim.WhichOneof("value") == "dim_value":
            if dim.dim_value < -1:
                raise ModelError(
                    f"a declared dimension is negative ({dim.dim_value})", where=f"input '{value.name}'"
                )
            dims.append(dim.dim_value if dim.dim_value > 0 else "?")
        else:
            dims.append("?" if dim.dim_param in ("", "?", "-1") else dim.dim_param)
    return InputDescription(value.name, dtype, tuple(dims))
