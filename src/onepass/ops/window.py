"""A sliding window over the spatial axes of an `[n, c, spatial...]` tensor: convolution and pooling.

In: the ONNX attributes `strides`, `pads`, `dilations`. Out: output extents, index expressions over the
axes `y0, y1, ...` (output position) and `r0, r1, ...` (place in the window), and numpy window views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onepass.core.errors import ShapeError
from onepass.core.tensor import Shape
from onepass.loops.build import add, idx, mul, sub
from onepass.loops.ir import Expr, Scalar
from onepass.ops.opdef import Attrs, Axis
from onepass.ops.shapes import Numbers, ints_attr


@dataclass(frozen=True, slots=True)
class Window:
    """One entry a spatial axis; `begin` and `end` are the padding before and after the tensor."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def spans(self) -> tuple[int, ...]:
        """Elements from the first to the last one that a window touches."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def outputs(self, sizes: Shape, ceil_mode: bool = False) -> Shape:
        """Output extents for the spatial `sizes`; raises `ShapeError` where no window fits.

        With `ceil_mode` the last window may overhang, but has to start inside the tensor or its
        padding before it (ONNX, opset 22).
        """
        if len(sizes) != self.rank:
            raise ShapeError(f"{self.rank}-D window on a tensor with {len(sizes)} spatial dimensions")
        extents = []
        for axis, (size, span) in enumerate(zip(sizes, self.spans, strict=True)):
            stride, begin = self.strides[axis], self.begin[axis]
            room = size + begin + self.end[axis] - span
            extent = (-(-room // stride) if ceil_mode else room // stride) + 1
            if ceil_mode and (extent - 1) * stride >= size + begin:
                extent -= 1
            if room < 0:
                raise ShapeError(
                    f"a window of {span} does not fit spatial dimension {axis} of size {size}",
                    why=f"with padding {begin} and {self.end[axis]}",
                )
            extents.append(extent)
        return tuple(extents)

    def axes(self, outputs: Shape) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
        """The axes `y0, ...` over `outputs` and `r0, ...` over the window."""
        out = tuple(Axis(f"y{i}", extent) for i, extent in enumerate(outputs))
        return out, tuple(Axis(f"r{i}", extent) for i, extent in enumerate(self.kernel))

    def start(self, axis: int) -> Expr:
        """Coordinate of the window's first element, negative within the padding."""
        return sub(mul(idx(f"y{axis}"), self.strides[axis]), self.begin[axis])

    def indices(self) -> tuple[Expr, ...]:
        """Coordinates `y*stride + r*dilation - begin` of an element of the window."""
        return tuple(
            sub(add(mul(idx(f"y{i}"), self.strides[i]), mul(idx(f"r{i}"), self.dilations[i])), self.begin[i])
            for i in range(self.rank)
        )

    def leaves(self, sizes: Shape, outputs: Shape) -> bool:
        """Whether any window reaches outside a tensor of spatial `sizes`."""
        return any(
            begin > 0 or (extent - 1) * stride - begin + span > size
            for begin, extent, stride, span, size in zip(
                self.begin, outputs, self.strides, self.spans, sizes, strict=True
            )
        )

    def padded(self, x: Numbers, outputs: Shape, fill: Scalar) -> Numbers:
        """`x` with `fill` around it, as far as the windows of `outputs` reach."""
        sizes = x.shape[2:]
        after = [
            max(0, (extent - 1) * stride + span - begin - size)
            for extent, stride, span, begin, size in zip(
                outputs, self.strides, self.spans, self.begin, sizes, strict=True
            )
        ]
        if not any(self.begin) and not any(after):
            return x
        widths = [(0, 0), (0, 0), *zip(self.begin, after, strict=True)]
        return np.pad(x, widths, constant_values=fill)

    def views(self, padded: Numbers, outputs: Shape) -> Numbers:
        """`[n, c, outputs..., kernel...]` of a padded tensor, without a copy."""
        shape = (*padded.shape[:2], *outputs, *self.kernel)
        n, c, *steps = padded.strides
        strides = (n, c, *scaled(steps, self.strides), *scaled(steps, self.dilations))
        return np.lib.stride_tricks.as_strided(padded, shape, strides, writeable=False)


def scaled(steps: Sequence[int], factors: Sequence[int]) -> list[int]:
    """`steps` times `factors`, one by one."""
    return [step * factor for step, factor in zip(steps, factors, strict=True)]


def window(attrs: Attrs, kernel: Shape) -> Window:
    """The window of an op; absent attributes mean stride 1, dilation 1, no padding."""
    rank = len(kernel)
    pads = ints_attr(attrs, "pads") or (0,) * (2 * rank)
    strides = ints_attr(attrs, "strides") or (1,) * rank
    dilations = ints_attr(attrs, "dilations") or (1,) * rank
    if not len(pads) == 2 * rank == 2 * len(strides) == 2 * len(dilations):
        raise ShapeError(f"strides, pads or dilations do not match the {rank}-D window")
    return Window(kernel, strides, dilations, pads[:rank], pads[rank:])
