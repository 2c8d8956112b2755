"""Element types: the ones that the compiler computes with, and their numpy spelling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np

Kind = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type. `bits` counts storage bits; a bool is stored as one byte."""

    name: str
    kind: Kind
    bits: int

    @property
    def size_bytes(self) -> int:
        """Storage of one element, in bytes."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy dtype with the same storage; bfloat16 is that of `ml_dtypes`."""
        return np.dtype(ml_dtypes.bfloat16 if self.name == "bfloat16" else self.name)

    def __str__(self) -> str:
        return self.name


F16 = DType("float16", "float", 16)
BF16 = DType("bfloat16", "float", 16)
F32 = DType("float32", "float", 32)
F64 = DType("float64", "float", 64)
I8 = DType("int8", "int", 8)
I16 = DType("int16", "int", 16)
I32 = DType("int32", "int", 32)
I64 = DType("int64", "int", 64)
U8 = DType("uint8", "uint", 8)
U16 = DType("uint16", "uint", 16)
U32 = DType("uint32", "uint", 32)
U64 = DType("uint64", "uint", 64)
BOOL = DType("bool", "bool", 8)

DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (F16, BF16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, BOOL)
}


def dtype_of_numpy(dtype: np.dtype[np.generic]) -> DType:
    """The `DType` stored like `dtype`; raises `KeyError` for one that onepass does not compute with."""
    return DTYPES[np.dtype(dtype).name]


def finfo(dtype: DType) -> ml_dtypes.finfo:
    """`eps`, `tiny`, `max` of a float dtype, as `np.finfo`, which does not know bfloat16."""
    return ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
