"""Takes the weights out of a serialised model before it is parsed, so that they are mapped, not copied.

In: the bytes of a `ModelProto`. Out: a small equivalent, in which each tensor with a large `raw_data` says
instead that its data lie elsewhere: in `THIS_MODEL`, with offset and length.
Source of the encoding: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TensorProto

Fields = Mapping[int, "Fields | None"]

THIS_MODEL = "\0"
"""No file can have this name."""
SMALL_BYTES = 4096
"""Messages up to a page are copied as they are."""

# Field numbers of onnx.proto: graph -> (node -> attribute -> tensor | initializer) -> raw_data.
_TENSOR: Fields = {9: None}
_FIELDS: Fields = {7: {1: {5: {5: _TENSOR}}, 5: _TENSOR}}


def without_weights(data: memoryview) -> bytes:
    """The model without its large weights; `ValueError` for damaged data."""
    return bytes(_rewritten(data, 0, len(data), _FIELDS))


def _rewritten(data: memoryview, start: int, end: int, fields: Fields) -> bytearray:
    """The message at [start, end) with the large `fields` rewritten."""
    out, last = bytearray(), b""
    position = copied = start
    while position < end:
        first = position
        key, position = _varint(data, position, end)
        kind, number = key & 7, key >> 3
        if kind == 2:
            size, begin = _varint(data, position, end)
            position = begin + size
            if size > SMALL_BYTES and number in fields and position <= end:
                inner = fields[number]
                out += data[copied:first]
                if inner is None:
                    # At the end, where no default that the model spells out can override it.
                    last = _elsewhere(begin, size)
                else:
                    content = _rewritten(data, begin, position, inner)
                    out += _encoded(key) + _encoded(len(content)) + content
                copied = position
        elif kind == 0:
            _, position = _varint(data, position, end)
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if position > end:
            raise ValueError("a field ends behind its message")
    return out + data[copied:end] + last


def _elsewhere(offset: int, length: int) -> bytes:
    """The fields of a `TensorProto` that stand for its data."""
    tensor = TensorProto(data_location=TensorProto.EXTERNAL)
    for key, value in (("location", THIS_MODEL), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return bytes(tensor.SerializeToString())


def _varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """A number of seven bits a byte, lowest first, and the place after it."""
    value = 0
    for shift, byte in enumerate(data[position : min(end, position + 10)]):
        value |= (byte & 127) << 7 * shift
        if byte < 128:
            return value, position + shift + 1
    raise ValueError("a number does not end")


def _encoded(value: int) -> bytes:
    """`value` as a varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))
