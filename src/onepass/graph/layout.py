"""How a tensor lies in memory: plain row-major, or with its channels in blocks, with a border of zeros.

A layout maps logical indices to physical ones. Lanes of a partly filled channel block hold
arbitrary values: nothing may read them across lanes. The border, where there is one, holds zeros.
A tensor may be a part of another: then its elements are stored among those of the whole, in the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from onepass.core.tensor import Shape
from onepass.loops.build import add, floordiv, mod
from onepass.loops.ir import Expr

Pads = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Place:
    """The part of the value `whole` from `start` on along `axis`, in which `whole` extends over `extent`."""

    whole: str
    axis: int
    start: int
    extent: int


@dataclass(frozen=True, slots=True)
class Layout:
    """`block` > 1: axis 1 (channels) is split, its inner part last: [N, C/block, ...spatial, block].

    `pads` (empty, or one (before, after) for each axis from 2 on) is the border of zeros. `place`: where
    the tensor lies in a larger one of the same block and border, None where it has a buffer of its own.
    """

    block: int = 1
    pads: Pads = ()
    place: Place | None = None

    @property
    def is_plain(self) -> bool:
        """Row-major without a border."""
        return self.block == 1 and not self.is_padded

    @property
    def is_padded(self) -> bool:
        return any(before or after for before, after in self.pads)

    def physical_shape(self, shape: Shape) -> Shape:
        """Shape of the buffer in which a tensor of `shape` is addressed from its first element on.

        That of a part with gaps is the whole's, so its end lies beyond the tensor's.
        """
        if self.place is None or self.is_dense(shape):
            return self.own_shape(shape)
        axis = self.place.axis
        return self.own_shape((*shape[:axis], self.place.extent, *shape[axis + 1 :]))

    def is_dense(self, shape: Shape) -> bool:
        """Whether nothing else lies between the first and the last element of a tensor of `shape`."""
        return self.place is None or math.prod(shape[: self.place.axis]) == 1

    def own_shape(self, shape: Shape) -> Shape:
        """Extents of a tensor of `shape` with its border and whole blocks."""
        spatial = list(shape[2:])
        for i, (before, after) in enumerate(self.pads):
            spatial[i] += before + after
        if self.block == 1:
            return (*shape[:2], *spatial)
        return (shape[0], -(-shape[1] // self.block), *spatial, self.block)

    def physical_size(self, shape: Shape) -> int:
        """Elements of a tensor of `shape`, its border and unused lanes included."""
        return math.prod(self.own_shape(shape))

    def offset(self, shape: Shape) -> int:
        """Elements between the start of the whole and that of the tensor."""
        if self.place is None:
            return 0
        axis = self.place.axis
        start = self.place.start // self.block if axis == 1 else self.place.start
        return start * math.prod(self.own_shape(shape)[axis + 1 :])

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
