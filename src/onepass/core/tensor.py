"""The type of a tensor: element type and static shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onepass.core.dtypes import DType

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape of a tensor. Sizes are known: a symbolic size is bound at import."""

    dtype: DType
    shape: Shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements (1 for a scalar, 0 when a dimension is empty)."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the dense tensor."""
        return self.size * self.dtype.size_bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"
