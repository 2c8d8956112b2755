"""How a tensor lies in memory: plain row-major, or with its channels in blocks, with a border of zeros.

A layout maps logical indices to physical ones. Lanes of a partly filled channel block hold
arbitrary values: nothing may read them across lanes. The border, where there is one, holds zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from onepass.core.tensor import Shape
from onepass.loops.build import add, floordiv, mod
from onepass.loops.ir import Expr

Pads = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """`block` > 1: axis 1 (channels) is split, its inner part last: [N, C/block, ...spatial, block].

    `pads` (empty, or one (before, after) for each axis from 2 on) is the border of zeros.
    """

    block: int = 1
    pads: Pads = ()

    @property
    def is_plain(self) -> bool:
        return self.block == 1 and not self.is_padded

    @property
    def is_padded(self) -> bool:
        return any(before or after for before, after in self.pads)

    def physical_shape(self, shape: Shape) -> Shape:
        """Shape of the buffer that holds a tensor of `shape`."""
        spatial = list(shape[2:])
        for i, (before, after) in enumerate(self.pads):
            spatial[i] += before + after
        if self.block == 1:
            return (*shape[:2], *spatial)
        return (shape[0], -(-shape[1] // self.block), *spatial, self.block)

    def physical_size(self, shape: Shape) -> int:
        """Elements of that buffer."""
        return math.prod(self.physical_shape(shape))

    def physical(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Where the element at logical `indices` lies."""
        spatial = list(indices[2:])
        for i, (before, _) in enumerate(self.pads):
            spatial[i] = add(spatial[i], before)
        if self.block == 1:
            return (*indices[:2], *spatial)
        n, channel = indices[:2]
        return (n, floordiv(channel, self.block), *spatial, mod(channel, self.block))

    def __str__(self) -> str:
        border = "".join(f" +{before}/{after}" for before, after in self.pads) if self.is_padded else ""
        return ("plain" if self.block == 1 else f"blocked{self.block}") + border


PLAIN = Layout()
