"""Resampling of any dimensions: nearest, linear, cubic.

In: final `sizes` and the `scales` they stand for. A sample's position in the input is an exact rational,
(slope * o + offset) / unit in integers, so rounding at a tie never hangs on a float error. Out: one load
for nearest, else one stage for each dimension that changes: a weighted sum of 2 or 4 neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

import numpy as np

from onepass.core.dtypes import DType
from onepass.core.errors import ShapeError, UserError
from onepass.core.tensor import Shape
from onepass.loops.build import add, binary, cast, const, floordiv, idx, mod, mul, select
from onepass.loops.ir import Const, Expr, Load
from onepass.ops.movement import ints
from onepass.ops.opdef import Attrs, Compute, InputTypes, Lowering, OpDef, define
from onepass.ops.shapes import Numbers, float_attr, int_attr, loop_axes, reference, required, single, str_attr

# A scale is taken to be the simple fraction that its float stands for: 0.6 is 3/5.
LARGEST_DENOMINATOR = 4096


@dataclass(frozen=True, slots=True)
class Sampling:
    """Output o of a dimension of `size` lies at (slope * o + offset) / unit in the input."""

    size: int
    output: int
    slope: int
    offset: int
    unit: int

    def rounded(self, mode: str) -> tuple[int, int, int]:
        """(a, b, c) such that the nearest input element is (a * o + b) // c before clamping."""
        a, b, c = self.slope, self.offset, self.unit
        if mode == "floor":
            return a, b, c
        if mode == "ceil":
            return a, b + c - 1, c
        if mode == "round_prefer_ceil":
            return 2 * a, 2 * b + c, 2 * c
        return 2 * a, 2 * b + c - 1, 2 * c

    def place(self, axis: str, a: int, b: int, c: int, shift: int = 0) -> Expr:
        """(a * o + b) // c + shift, clamped to the input where that can be needed."""
        common = math.gcd(a, c)
        a, b, c = a // common, b // common, c // common  # floor((a o + b) / c) only needs b to a's grain
        spot = add(floordiv(add(mul(idx(axis), a), b), c), shift)
        if (self.output - 1) * a + b + shift * c >= self.size * c:
            spot = binary("min", spot, const(self.size - 1))
        return binary("max", spot, const(0)) if b + shift * c < 0 else spot


def scale_fraction(scale: float, size: int, output: int) -> Fraction:
    """The scale as a fraction: output / size where it is that, else the simplest near `scale`."""
    if size and math.isclose(scale, output / size, rel_tol=1e-6):
        return Fraction(output, size)
    return Fraction(scale).limit_denominator(LARGEST_DENOMINATOR)


def sampling(mode: str, scale: float, size: int, output: int) -> Sampling:
    """ONNX's coordinate transformations, all of them affine in the output position."""
    ratio, half = scale_fraction(scale, size, output), Fraction(1, 2)
    step = 1 / ratio if ratio else Fraction(0)
    start = half * step - half
    if mode == "asymmetric":
        start = Fraction(0)
    elif mode == "align_corners":
        step, start = Fraction(size - 1, output - 1) if output > 1 else Fraction(0), Fraction(0)
    elif mode == "pytorch_half_pixel" and output == 1:
        step, start = Fraction(0), Fraction(0)
    elif mode == "half_pixel_symmetric":
        start += Fraction(size, 2) - output * step / 2
    elif mode not in ("half_pixel", "pytorch_half_pixel"):
        raise UserError(f"resize with coordinate_transformation_mode '{mode}' is not supported")
    unit = math.lcm(step.denominator, start.denominator)
    return Sampling(size, output, int(step * unit), int(start * unit), unit)


def samplings(attrs: Attrs, shape: Shape) -> dict[int, Sampling]:
    """The dimensions of `shape` that are resampled."""
    sizes, scales = ints(attrs, "sizes"), attrs.get("scales")
    if not len(sizes) == len(shape):
        raise ShapeError(f"resize of {len(shape)} dimensions to {sizes}")
    mode = str_attr(attrs, "coordinate_transformation_mode", "half_pixel")
    found = {}
    for axis, (size, output) in enumerate(zip(shape, sizes, strict=True)):
        scale = float(scales[axis]) if isinstance(scales, tuple) else output / max(1, size)
        if size == output and scale == 1:
            continue
        if size == 0 < output:
            raise ShapeError(f"resize of empty dimension {axis} to {output}")
        found[axis] = sampling(mode, scale, size, output)
    return found


def taps(attrs: Attrs) -> tuple[int, tuple[tuple[float, ...], ...]]:
    """Offset of the first neighbour, and each one's weight: a polynomial in the fraction, low powers first.

    Cubic: R. Keys, Cubic convolution interpolation, IEEE TASSP 1981, with its free parameter a.
    """
    if str_attr(attrs, "mode", "nearest") == "linear":
        return 0, ((1, -1), (0, 1))
    a = float_attr(attrs, "cubic_coeff_a", -0.75)
    return -1, ((0, a, -2 * a, a), (1, 0, -a - 3, a + 2), (0, -a, 2 * a + 3, -a - 2), (0, 0, a, -a))


def polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """Horner's rule, without multiplications by 1 or additions of 0."""
    value: Expr = Const(float(coefficients[-1]), x.dtype)
    for k, coefficient in enumerate(reversed(coefficients[:-1])):
        value = x if k == 0 and coefficients[-1] == 1 else binary("mul", value, x)
        if coefficient:
            value = binary("add", value, Const(float(coefficient), x.dtype))
    return value


def weights(sample: Sampling, axis: str, dtype: DType, attrs: Attrs) -> list[Expr]:
    """The weight of each neighbour of output `axis`."""
    first, polynomials = taps(attrs)
    place = add(mul(idx(axis), sample.slope), sample.offset)
    fraction = binary("div", cast(mod(place, sample.unit), dtype), Const(float(sample.unit), dtype))
    found = [polynomial(coefficients, fraction) for coefficients in polynomials]
    if not int_attr(attrs, "exclude_outside", 0):
        return found
    base = floordiv(place, sample.unit)
    for k, weight in enumerate(found):
        spot = add(base, first + k)
        inside = binary("and", binary("ge", spot, const(0)), binary("lt", spot, const(sample.size)))
        found[k] = select(inside, weight, Const(0.0, dtype))
    total = reduce(lambda a, b: binary("add", a, b), found)
    return [binary("div", weight, total) for weight in found]


def resize_lower(types: InputTypes, attrs: Attrs) -> Lowering:
    """Nearest: one load. Linear and cubic: dimension after dimension, as the weights are products."""
    x, mode = required(types, 0), str_attr(attrs, "mode", "nearest")
    found = samplings(attrs, x.shape)
    own = [idx(f"i{axis}") for axis in range(x.rank)]
    if mode == "nearest" or not found:
        rounding = str_attr(attrs, "nearest_mode", "round_prefer_floor")
        places = [
            found[d].place(f"i{d}", *found[d].rounded(rounding)) if d in found else own[d]
            for d in range(x.rank)
        ]
        shape = tuple(found[d].output if d in found else n for d, n in enumerate(x.shape))
        return single(Load("in0", tuple(places), x.dtype), shape)
    if mode not in ("linear", "cubic") or not x.dtype.is_float:
        raise UserError(f"resize of {x} in mode '{mode}' is not supported")
    stages: list[Compute] = []
    source, extents = "in0", list(x.shape)
    for axis, sample in found.items():
        extents[axis] = sample.output
        terms = []
        for k, weight in enumerate(weights(sample, f"i{axis}", x.dtype, attrs)):
            place = sample.place(f"i{axis}", sample.slope, sample.offset, sample.unit, taps(attrs)[0] + k)
            spots = (*own[:axis], place, *own[axis + 1 :])
            terms.append(binary("mul", weight, Load(source, spots, x.dtype)))
        body = reduce(lambda a, b: binary("add", a, b), terms)
        source = "out" if len(stages) == len(found) - 1 else f"along{axis}"
        stages.append(Compute(source, x.dtype, loop_axes(tuple(extents)), body))
    return Lowering(tuple(stages), ("out",))


def resize_reference(arrays: Sequence[Numbers], attrs: Attrs) -> Numbers:
    """numpy's `take` and a weighted sum for each dimension."""
    x, mode = arrays[0], str_attr(attrs, "mode", "nearest")
    for axis, sample in samplings(attrs, x.shape).items():
        outputs = np.arange(sample.output)
        if mode == "nearest":
            a, b, c = sample.rounded(str_attr(attrs, "nearest_mode", "round_prefer_floor"))
            x = x.take(np.clip((a * outputs + b) // c, 0, sample.size - 1), axis)
            continue
        first, polynomials = taps(attrs)
        base, rest = np.divmod(sample.slope * outputs + sample.offset, sample.unit)
        spots = base + first + np.arange(len(polynomials))[:, None]
        weight = np.stack([np.polynomial.polynomial.polyval(rest / sample.unit, p) for p in polynomials])
        if int_attr(attrs, "exclude_outside", 0):
            weight = np.where((spots >= 0) & (spots < sample.size), weight, 0)
            weight /= weight.sum(axis=0)
        aligned = weight.astype(x.dtype).reshape(*weight.shape, *(1,) * (x.ndim - axis - 1))
        spots = spots.clip(0, sample.size - 1)
        x = sum(x.take(spot, axis) * part for spot, part in zip(spots[1:], aligned[1:], strict=True)) + (
            x.take(spots[0], axis) * aligned[0]
        )
    return x


define(OpDef("resize", resize_lower, reference(resize_reference), "Resamples dimensions to other sizes."))
