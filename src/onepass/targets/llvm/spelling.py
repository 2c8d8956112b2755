"""How LLVM IR text spells element types and literals."""

from __future__ import annotations

import math
import struct

from onepass.core.dtypes import DType
from onepass.loops.ir import Scalar

_FLOATS = {16: "half", 32: "float", 64: "double"}
_PACK = {16: ">e", 32: ">f", 64: ">d"}


def scalar_type(dtype: DType) -> str:
    """Type of a value in a register: a bool is `i1`."""
    if dtype.is_float:
        return _FLOATS[dtype.bits]
    return "i1" if dtype.kind == "bool" else f"i{dtype.bits}"


def storage_type(dtype: DType) -> str:
    """Type of an element in memory: a bool is one byte."""
    return "i8" if dtype.kind == "bool" else scalar_type(dtype)


def suffix(dtype: DType, lanes: int) -> str:
    """How an overloaded intrinsic's name ends for this type: `f32`, `v16f32`; `lanes` 0 is a scalar."""
    bits = 1 if dtype.kind == "bool" else dtype.bits
    name = f"{'f' if dtype.is_float else 'i'}{bits}"
    return f"v{lanes}{name}" if lanes else name


def literal(value: Scalar, dtype: DType) -> str:
    """A scalar literal; floats in hexadecimal so that every bit is kept, integers wrapped to `dtype`."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if not dtype.is_float:
        wrapped = int(value) & ((1 << dtype.bits) - 1)
        return str(wrapped - (1 << dtype.bits) if wrapped >> (dtype.bits - 1) else wrapped)
    try:
        stored = struct.pack(_PACK[dtype.bits], value)
    except OverflowError:
        stored = struct.pack(_PACK[dtype.bits], math.copysign(math.inf, value))
    if dtype.bits == 16:
        return "0xH" + stored.hex().upper()
    return "0x" + struct.pack(">d", struct.unpack(_PACK[dtype.bits], stored)[0]).hex().upper()
