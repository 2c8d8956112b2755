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
from onepass.frontends.onnx_wire import Tickets
from onepass.ops.opdef import Array

MAX_TENSOR_BYTES = 1 << 40
"""Larger tensors are refused before allocation: a size that no machine here holds is a broken file."""

_DTYPES: dict[int, DType] = {
    TensorProto.FLOAT: DTYPES["float32"],
    TensorProto.DOUBLE: DTYPES["float64"],
    TensorProto.FLOAT16: DTYPES["float16"],
    TensorProto.INT8: DTYPES["int8"],
    TensorProto.INT16: DTYPES["int16"],
    TensorProto.INT32: DTYPES["int32"],
    TensorProto.INT64: DTYPES["int64"],
    TensorProto.UINT8: DTYPES["uint8"],
    TensorProto.UINT16: DTYPES["uint16"],
    TensorProto.UINT32: DTYPES["uint32"],
    TensorProto.UINT64: DTYPES["uint64"],
    TensorProto.BOOL: DTYPES["bool"],
}


def dtype_of(element_type: int) -> DType | None:
    """The `DType` of an ONNX element type, None for one that onepass does not compute with."""
    return _DTYPES.get(element_type)


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

    `folder` is None for a model that did not come from a file: then external data is refused.
    `tickets` gives back the weights that were not parsed.
    """

    def __init__(self, folder: Path | None, tickets: Tickets | None = None) -> None:
        self._folder, self._tickets = folder, tickets
        self._maps: dict[str, Array] = {}

    def read(self, tensor: TensorProto, where: str) -> Array:
        """The elements of `tensor`, read-only; raises `ModelError` for damaged or foreign data."""
        dtype = dtype_of(tensor.data_type)
        if dtype is None:
            raise ModelError(f"element type {dtype_name(tensor.data_type)} is not supported", where=where)
        shape = tuple(tensor.dims)
        check_shape(shape, dtype, where)
        if tensor.data_location == TensorProto.EXTERNAL:
            return self._external(tensor, shape, dtype, where)
        if tensor.HasField("raw_data"):
            raw = tensor.raw_data if self._tickets is None else self._tickets.redeem(tensor.raw_data)
            return view_bytes(np.frombuffer(raw, np.uint8), shape, dtype, where)
        size, held = math.prod(shape), len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type)))
        if held != size:
            raise ModelError(f"the tensor declares {size} elements but holds {held}", where=where)
        array = np.asarray(numpy_helper.to_array(tensor))
        array.setflags(write=False)
        return array

    def _external(self, tensor: TensorProto, shape: Shape, dtype: DType, where: str) -> Array:
        """Maps the part of a side file that holds `tensor`."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        size = math.prod(shape) * dtype.size_bytes
        try:
            offset, length = int(entries.get("offset", "0")), int(entries.get("length", str(size)))
        except ValueError:
            raise ModelError(
                f"offset or length of external data '{location}' is not a number", where=where
            ) from None
        if length != size:
            raise ModelError(
                f"external data '{location}' declares {length} bytes, shape and type need {size}", where=where
            )
        data = self._map(location, where)
        if offset < 0 or offset + size > data.size:
            raise ModelError(
                f"external data file '{location}' is too short: {data.size} bytes, "
                f"bytes {offset} to {offset + size} needed",
                where=where,
                remedy="copy the file again from where the model came from",
            )
        return view_bytes(data[offset : offset + size], shape, dtype, where)

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
        folder = self._folder.resolve()
        path = Path(os.path.realpath(folder / location))
        if (
            not location
            or Path(location).is_absolute()
            or ".." in Path(location).parts
            or not path.is_relative_to(folder)
        ):
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
        data: Array = np.empty(0, np.uint8) if empty else np.memmap(path, np.uint8, mode="r")
        self._maps[location] = data
        return data


def view_bytes(data: Array, shape: Shape, dtype: DType, where: str) -> Array:
    """`data` (uint8) as a read-only array of `shape`; copied only on a big-endian machine or unaligned."""
    size = math.prod(shape) * dtype.size_bytes
    if data.size != size:
        raise ModelError(f"the tensor needs {size} bytes but holds {data.size}", where=where)
    array: Array = data.view(dtype.numpy.newbyteorder("<")).reshape(shape)
    array = np.require(array, dtype.numpy, ["A"])
    array = array.view(np.ndarray)
    array.setflags(write=False)
    return array
