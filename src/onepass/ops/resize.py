"""Resampling of any dimensions: nearest or linear.

In: final `sizes` and the `scales` they stand for. A sample's position in the input is an exact rational,
(slope * o + offset) / unit in integers, so rounding at a tie never hangs on a float error. Out: one load
for nearest, else one stage for each dimension that changes: a weighted sum of 2 neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from onepass.core.errors import ModelError, ShapeError
from onepass.core.tensor import Shape
from onepass.loops.build import add, binary, cast, floordiv, idx, mod, mul
from onepass.loops.ir import Expr, Load
from onepass.ops.opdef import Attrs, Compute, InputTypes, Lowering, define
from onepass.ops.shapes import (
    Numbers,
    attr,
    calc,
    ints,
    loop_axes,
    own_place,
    reference,
    required,
    single,
)

# A scale is taken to be the simple fraction that its float stands for: 0.6 is 3/5.
_LARGEST_DENOMINATOR = 4096


@dataclass(frozen=True, slots=True)
class Sampling:
    """Output o of a dimension of `size` lies at (slope * o + offset) / unit in the input."""

    size: int
    output: int
    slope: int
    offset: int
    unit: int

    @property
    def exact(self) -> tuple[int, int, int]:
        return self.slope, self.offset, self.unit

    def rounded(self, mode: str) -> tuple[int, int, int]:
        """(a, b, c) such that the nearest input element is (a * o + b) // c before clamping."""
        a, b, c = self.exact
        if mode == "floor":
            return a, b, c
        if mode == "ceil":
            return a, b + c - 1, c
        if mode == "round_prefer_ceil":
            return 2 * a, 2 * b + c, 2 * c
        return 2 * a, 2 * b + c - 1, 2 * c

    def place(self, axis: int, a: int, b: int, c: int, shift: int = 0) -> Expr:
        """(a * o + b) // c + shift, clamped to the input where that can be needed."""
        common = math.gcd(a, c)
        a, b, c = a // common, b // common, c // common  # floor((a o + b) / c) only needs b to a's grain
        spot = add(floordiv(add(mul(idx(f"i{axis}"), a), b), c), shift)
        if (self.output - 1) * a + b + shift * c >= self.size * c:
            spot = calc("min", spot, self.size - 1)
        return calc("max", spot, 0) if b + shift * c < 0 else spot


def _scale_fraction(scale: float, size: int, output: int) -> Fraction:
    """The scale as a fraction: output / size where it is that, else the simplest near `scale`."""
    if size and math.isclose(scale, output / size, rel_tol=1e-6):
        return Fraction(output, size)
    return Fraction(scale).limit_denominator(_LARGEST_DENOMINATOR)


def _sampling(mode: str, scale: float, size: int, output: int) -> Sampling:
    """ONNX's coordinate transformations, all of them affine in the output position."""
    ratio, half = _scale_fraction(scale, size, output), Fraction(1, 2)
    step, zero = 1 / ratio if ratio else Fraction(0), Fraction(0)
    start = half * step - half
    if mode == "asymmetric":
        start = zero
    elif mode == "align_corners":
        step, start = Fraction(size - 1, output - 1) if output > 1 else zero, zero
    elif mode == "pytorch_half_pixel" and output == 1:
        step, start = zero, zero
    elif mode == "half_pixel_symmetric":
        start += Fraction(size, 2) - output * step / 2
    elif mode not in ("half_pixel", "pytorch_half_pixel"):
        raise ModelError(f"resize with coordinate_transformation_mode '{mode}' is not supported")
    unit = math.lcm(step.denominator, start.denominator)
    return Sampling(size, output, int(step * unit), int(start * unit), unit)


def _samplings(attrs: Attrs, shape: Shape) -> dict[int, Sampling]:
    """The dimensions of `shape` that are resampled."""
    sizes, scales = ints(attrs, "sizes"), attrs.get("scales")
    if not len(sizes) == len(shape):
        raise ShapeError(f"resize of {len(shape)} dimensions to {sizes}")
    mode = attr(attrs, "coordinate_transformation_mode", "half_pixel")
    found = {}
    for axis, (size, output) in enumerate(zip(shape, sizes, strict=True)):
        scale = float(scales[axis]) if isinstance(scales, tuple) else output / max(1, size)
        if size == output and scale == 1:
            continue
        if size == 0 < output:
            raise ShapeError(f"resize of empty dimension {axis} to {output}")
        found[axis] = _sampling(mode, scale, size, output)
    return found


def _resize(types: InputTypes, attrs: Attrs) -> Lowering:
    """Nearest: one load. Linear: dimension after dimension, as the weights are products."""
    x, mode = required(types, 0), attr(attrs, "mode", "nearest")
    found = _samplings(attrs, x.shape)
    own, extents = own_place(x.rank), list(x.shape)
    if mode == "nearest" or not found:
        for axis, sample in found.items():
            extents[axis] = sample.output
            own[axis] = sample.place(axis, *sample.rounded(attr(attrs, "nearest_mode", "round_prefer_floor")))
        return single(Load("in0", tuple(own), x.dtype), tuple(extents))
    if mode != "linear" or not x.dtype.is_float or attr(attrs, "exclude_outside", 0):
        raise ModelError(f"resize of {x} in mode '{mode}' is not supported", remedy="use nearest or linear")
    stages: list[Compute] = []
    source = "in0"
    for axis, sample in found.items():
        extents[axis] = sample.output
        first, second = (
            Load(source, (*own[:axis], sample.place(axis, *sample.exact, shift), *own[axis + 1 :]), x.dtype)
            for shift in (0, 1)
        )
        # How far the position lies from the first neighbour to the second, 0 to 1.
        place = add(mul(idx(f"i{axis}"), sample.slope), sample.offset)
        fraction = calc("div", cast(mod(place, sample.unit), x.dtype), sample.unit)
        body = binary(
            "add", binary("mul", calc("sub", 1.0, fraction), first), binary("mul", fraction, second)
        )
        source = "out" if len(stages) == len(found) - 1 else f"along{axis}"
        stages.append(Compute(source, x.dtype, loop_axes(tuple(extents)), body))
    return Lowering(tuple(stages), ("out",))


def _resize_reference(attrs: Attrs, x: Numbers) -> Numbers:
    """numpy's `take` and, for linear, a weighted sum for each dimension."""
    for axis, sample in _samplings(attrs, x.shape).items():
        outputs, mode = np.arange(sample.output), attr(attrs, "nearest_mode", "round_prefer_floor")
        linear = attr(attrs, "mode", "nearest") == "linear"
        a, b, c = sample.exact if linear else sample.rounded(mode)
        base, rest = np.divmod(a * outputs + b, c)
        first, second = (x.take((base + k).clip(0, sample.size - 1), axis) for k in (0, 1))
        weight = (rest / c).astype(x.dtype).reshape(-1, *(1,) * (x.ndim - axis - 1))
        x = first * (1 - weight) + second * weight if linear else first
    return x


define("resize", _resize, reference(_resize_reference))
