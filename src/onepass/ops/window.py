"""A sliding window over the spatial axes of an `[n, c, spatial...]` tensor: convolution and pooling.

In: the ONNX attributes `strides`, `pads`, `dilations`. Out: output extents, index expressions over the
axes `y0, y1, ...` (output position) and `r0, r1, ...` (place in the window), and numpy slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from onepass.core.errors import ShapeError
from onepass.core.tensor import Shape
from onepass.loops.build import add, idx, mul, sub
from onepass.loops.ir import Expr, Scalar
from onepass.ops.opdef import Attrs, Axis
from onepass.ops.shapes import Numbers, ints, loop_axes


@dataclass(frozen=True, slots=True)
class Slide:
    """The window along spatial axis `number`; `begin` and `end` pad the tensor before and after."""

    number: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int

    @property
    def span(self) -> int:
        """Elements from the first to the last one that the window touches."""
        return self.dilation * (self.kernel - 1) + 1

    def output(self, size: int, ceil_mode: bool) -> int:
        """Output extent for an axis of `size`; raises `ShapeError` where no window fits.

        With `ceil_mode` the last window may overhang, but has to start inside the tensor or its
        padding before it (ONNX, opset 22).
        """
        room = size + self.begin + self.end - self.span
        if room < 0:
            raise ShapeError(
                f"a window of {self.span} does not fit spatial dimension {self.number} of size {size}",
                why=f"with padding {self.begin} and {self.end}",
            )
        if not ceil_mode:
            return room // self.stride + 1
        extent = -(-room // self.stride) + 1
        return extent - ((extent - 1) * self.stride >= size + self.begin)

    def past(self, output: int) -> int:
        """The coordinate after the last element that the windows of `output` positions touch."""
        return (output - 1) * self.stride - self.begin + self.span

    @property
    def start(self) -> Expr:
        """Coordinate of the window's first element, negative within the padding."""
        return sub(mul(idx(f"y{self.number}"), self.stride), self.begin)

    @property
    def index(self) -> Expr:
        """Coordinate `y*stride + r*dilation - begin` of an element of the window."""
        y, r = idx(f"y{self.number}"), idx(f"r{self.number}")
        return sub(add(mul(y, self.stride), mul(r, self.dilation)), self.begin)


class Window(tuple[Slide, ...]):
    """One `Slide` for each spatial axis."""

    __slots__ = ()

    @property
    def kernel(self) -> Shape:
        return tuple(slide.kernel for slide in self)

    @property
    def indices(self) -> tuple[Expr, ...]:
        return tuple(slide.index for slide in self)

    def outputs(self, sizes: Shape, ceil_mode: bool = False) -> Shape:
        """Output extents for the spatial `sizes`."""
        if len(sizes) != len(self):
            raise ShapeError(f"{len(self)}-D window on a tensor with {len(sizes)} spatial dimensions")
        return tuple(slide.output(size, ceil_mode) for slide, size in zip(self, sizes, strict=True))

    def axes(self, outputs: Shape) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
        """The axes `y0, ...` over `outputs` and `r0, ...` over the window."""
        return loop_axes(outputs, "y"), loop_axes(self.kernel, "r")

    def overhang(self, sizes: Shape, outputs: Shape) -> list[tuple[int, int]]:
        """Elements that windows touch before and after a tensor of spatial `sizes`."""
        found = zip(self, sizes, outputs, strict=True)
        return [(slide.begin, max(0, slide.past(output) - size)) for slide, size, output in found]

    def leaves(self, sizes: Shape, outputs: Shape) -> bool:
        """Whether any window reaches outside a tensor of spatial `sizes`."""
        return any(map(any, self.overhang(sizes, outputs)))

    def padded(self, x: Numbers, outputs: Shape, fill: Scalar) -> Numbers:
        """`x` with `fill` around it, as far as the windows of `outputs` reach."""
        widths = [(0, 0), (0, 0), *self.overhang(x.shape[2:], outputs)]
        return np.pad(x, widths, constant_values=fill)

    def taps(self, extents: Shape) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Index of every place in the window, and of the elements that `extents` positions have there."""
        for place in np.ndindex(self.kernel):
            spots = (
                slice(r * s.dilation, r * s.dilation + s.stride * extent, s.stride)
                for r, s, extent in zip(place, self, extents, strict=True)
            )
            yield (..., *place), (..., *spots)


def window(attrs: Attrs, kernel: Shape) -> Window:
    """The window of an op; absent attributes mean stride 1, dilation 1, no padding."""
    rank = len(kernel)
    pads = ints(attrs, "pads", (0,) * (2 * rank))
    strides, dilations = ints(attrs, "strides", (1,) * rank), ints(attrs, "dilations", (1,) * rank)
    if not len(pads) == 2 * rank == 2 * len(strides) == 2 * len(dilations):
        raise ShapeError(f"strides, pads or dilations do not match the {rank}-D window")
    return Window(map(Slide, range(rank), kernel, strides, dilations, pads[:rank], pads[rank:]))
