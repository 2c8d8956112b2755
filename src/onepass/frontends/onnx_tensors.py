"""ONNX tensors as read-only numpy arrays: viewed or mapped where they lie.

In: a `TensorProto` and the folder that the model file lies in. Out: an array. Sizes are checked
against the data before anything is allocated, and external files may not lie outside the folder.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from onepass.core.dtypes import DTYPES, DType
from onepass.core.errors import ModelError
from onepass.core.tensor import Shape
from onepass.frontends.onnx_wire import THIS_MODEL
from onepass.ops.opdef import Array

MAX_TENSOR_BYTES = 1 << 40
"""Larger tensors are refused before allocation: a size that no machine here holds is a broken file."""


def dtype_of(element_type: int) -> DType | None:
    """The `DType` of an ONNX element type, None for one that onepass does not compute with."""
    return dtype_named(dtype_name(element_type))


def dtype_named(name: str) -> DType | None:
    """The `DType` that ONNX calls `name`, None for one that onepass does not compute with."""
    return DTYPES.get({"float": "float32", "double": "float64"}.get(name, name))


def dtype_name(element_type: int) -> str:
    """How ONNX calls the element type, in lower case (`bfloat16`)."""
    if element_type in TensorProto.DataType.values():
        return str(TensorProto.DataType.Name(element_type)).lower()
    return f"element type {element_type}"


def check_shape(shape: Shape, dtype: DType, where: str) -> None:
    """Refuses negative dimensions and tensors above `MAX_TENSOR_BYTES`."""
    if any(extent < 0 for extent in shape):
        raise ModelError(f"a dimension of {list(shape)} is negative", where=where)
    if math.prod(shape) * dtype.size_bytes > MAX_TENSOR_BYTES:
        raise ModelError(
            f"a tensor of shape {list(shape)} and type {dtype} would need more than 1 TiB",
            where=where,
            why="nothing was allocated; the dimensions are probably damaged",
        )


class TensorReader:
    """Reads the tensors of one model; each external file is mapped once.

    `folder` is None for a model that did not come from a file: then external data is refused. `data` is
    the serialised model, in which the weights lie that `without_weights` took out.
    """

    def __init__(self, folder: Path | None, data: memoryview | None = None) -> None:
        self._folder = folder
        self._maps: dict[str, Array] = {} if data is None else {THIS_MODEL: np.frombuffer(data, np.uint8)}

    def read(self, tensor: TensorProto, where: str) -> Array:
        """The elements of `tensor`, read-only; raises `ModelError` for damaged or foreign data."""
        dtype = dtype_of(tensor.data_type)
        assert dtype is not None, "refuse_unsupported has looked"
        shape = tuple(tensor.dims)
        check_shape(shape, dtype, where)
        size = math.prod(shape)
        if tensor.data_location == TensorProto.EXTERNAL:
            data = self._external(tensor, size * dtype.size_bytes, where)
        elif tensor.HasField("raw_data"):
            data = np.frombuffer(tensor.raw_data, np.uint8)
        else:
            held = len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type)))
            if held != size:
                raise ModelError(f"the tensor declares {size} elements but holds {held}", where=where)
            # Older versions of onnx widen bfloat16.
            typed = numpy_helper.to_array(tensor).astype(dtype.numpy, copy=False)
            data = np.frombuffer(typed.tobytes(), np.uint8)
        if data.size != size * dtype.size_bytes:
            what = f"shape and type need {size * dtype.size_bytes} bytes, the tensor holds {data.size}"
            raise ModelError(what, where=where)
        array = np.require(data.view(dtype.numpy).reshape(shape), requirements="A").view(np.ndarray)
        array.setflags(write=False)
        return array

    def _external(self, tensor: TensorProto, size: int, where: str) -> Array:
        """The part of a side file, or of the model itself, that holds `tensor`."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        try:
            offset, length = int(entries.get("offset", "0")), int(entries.get("length", str(size)))
        except ValueError:
            raise ModelError(
                f"offset or length of external data '{location}' is not a number", where=where
            ) from None
        data = self._map(location, where)
        if not 0 <= offset <= offset + length <= data.size:
            raise ModelError(
                f"external data file '{location}' is too short: {data.size} bytes, "
                f"bytes {offset} to {offset + length} needed",
                where=where,
                remedy="copy the file again from where the model came from",
            )
        return data[offset : offset + length]

    def _map(self, location: str, where: str) -> Array:
        """The bytes of the side file `location`, which must lie in the model's folder."""
        if location in self._maps:
            return self._maps[location]
        if self._folder is None:
            raise ModelError(
                f"the weights lie in a side file ('{location}'), but the model was not loaded from a file",
                where=where,
                remedy="pass the path of the model",
            )
        try:
            self._maps[location] = self._opened(self._folder.resolve(), location, where)
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            raise ModelError(
                f"external data file '{location}' cannot be read", where=where, why=str(error)
            ) from None
        return self._maps[location]

    @staticmethod
    def _opened(folder: Path, location: str, where: str) -> Array:
        """The bytes of the file `location` in `folder`."""
        path = Path(os.path.realpath(folder / location))
        if not location or ".." in Path(location).parts or not path.is_relative_to(folder):
            raise ModelError(
                f"external data '{location}' lies outside the model's folder",
                where=where,
                why="a model may not read other files of this machine",
            )
        if not path.is_file():
            raise ModelError(
                f"external data file '{location}' is missing", where=where, remedy=f"put it into {folder}"
            )
        empty = path.stat().st_size == 0
        return np.empty(0, np.uint8) if empty else np.memmap(path, np.uint8, mode="r")
