"""Takes the weights out of a serialised model before it is parsed, so that they are mapped, not copied.

In: the bytes of a `ModelProto`. Out: a small equivalent, in which each large `raw_data` of a tensor is
a ticket: a random token, then offset and size of the data in the original.
Source of the encoding: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass

Fields = Mapping[int, "Fields | None"]

SMALL_BYTES = 4096
"""Messages up to a page are copied as they are."""

# Field numbers of onnx.proto: graph -> (node -> attribute -> tensor | initializer) -> raw_data.
_TENSOR: Fields = {9: None}
_FIELDS: Fields = {7: {1: {5: {5: _TENSOR}}, 5: _TENSOR}}
_PLACE = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class Tickets:
    """Redeems tickets; the token is new for each model, so no file can forge one."""

    data: memoryview
    token: bytes

    def redeem(self, raw: bytes) -> memoryview | bytes:
        """The data that `raw` stands for: itself unless it is a ticket."""
        if len(raw) != len(self.token) + _PLACE.size or not raw.startswith(self.token):
            return raw
        offset, size = _PLACE.unpack_from(raw, len(self.token))
        return self.data[offset : offset + size]


def take_weights(data: memoryview) -> tuple[bytes, Tickets]:
    """The model without its large weights, and what gives them back; `ValueError` for damaged data."""
    tickets = Tickets(data, os.urandom(16))
    return bytes(_rewritten(tickets, 0, len(data), _FIELDS)), tickets


def _rewritten(tickets: Tickets, start: int, end: int, fields: Fields) -> bytearray:
    """The message at [start, end) with the large `fields` rewritten."""
    data, out = tickets.data, bytearray()
    position = copied = start
    while position < end:
        first = position
        key, position = _varint(data, position, end)
        kind, number = key & 7, key >> 3
        if kind == 2:
            size, position = _varint(data, position, end)
            begin, position = position, position + size
            if size > SMALL_BYTES and number in fields and position <= end:
                inner = fields[number]
                if inner is None:
                    content = bytearray(tickets.token + _PLACE.pack(begin, size))
                else:
                    content = _rewritten(tickets, begin, position, inner)
                out += data[copied:first]
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
    out += data[copied:end]
    return out


def _varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """A number of seven bits a byte, lowest first, and the place after it."""
    value = shift = 0
    while position < end and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise ValueError("a number does not end")


def _encoded(value: int) -> bytes:
    """`value` as a varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))
