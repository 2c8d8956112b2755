"""What each scalar operation of the loop IR computes, in numpy; on scalars and on arrays alike.

In: operands of the operation's dtype. Out: the result, in the dtype that the expression has. The
interpreter and the evaluation of op stages share these, so they define every target's meaning.
Callers silence numpy's floating-point warnings (`np.errstate(all="ignore")`): NaN and inf are data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import cast

import numpy as np
from numpy.typing import NDArray

from onepass.core.dtypes import BOOL, F64, DType
from onepass.loops.ir import COMPARISONS, PREDICATES

Value = NDArray[np.generic] | np.generic
Function = Callable[..., Value]

_ERF = np.frompyfunc(math.erf, 1, 1)


def _sigmoid(x: Value) -> Value:
    # The numerator exp(-|x|) keeps the tiny results that 1 / (1 + exp(-x)) loses to overflow.
    z = np.exp(np.negative(np.abs(x)))
    return cast(Value, np.where(np.signbit(x), z, np.ones_like(z)) / np.add(z, 1.0))


def _integer_div(a: Value, b: Value) -> Value:
    # numpy's integer fmod and floor_divide give 0 for a zero divisor, so this does too.
    return cast(Value, np.floor_divide(np.subtract(a, np.fmod(a, b)), b))


def _integer_pow(a: Value, b: Value) -> Value:
    # A negative exponent means 1 / a**-b rounded towards zero: only a = 1 and a = -1 leave anything.
    unit = np.where(np.equal(np.abs(a), 1), np.power(a, np.bitwise_and(b, 1)), 0)
    return np.where(np.less(b, 0), unit, np.power(a, np.maximum(b, 0)))


# Computed in float64, then rounded to the dtype: nearly always the correctly rounded result where
# the dtype is narrower, so a target's error in ulps can be measured against it.
_THROUGH_F64: dict[str, Function] = {
    "exp": np.exp, "log": np.log, "tanh": np.tanh, "sigmoid": _sigmoid, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "erf": _ERF,
}  # fmt: skip
_DIRECT: dict[str, Function] = {
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "trunc": np.trunc, "not": np.invert, "is_nan": np.isnan, "is_inf": np.isinf, "sign": np.sign,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "fmod": np.fmod,
    "rem": np.fmod, "floordiv": np.floor_divide, "mod": np.remainder,
    "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": np.left_shift, "shr": np.right_shift,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def convert(x: Value, dtype: DType) -> Value:
    """`x` as `dtype`, as numpy's `astype`."""
    return cast(Value, np.asarray(x).astype(dtype.numpy, copy=False)[()])


def function(op: str, dtype: DType) -> Function:
    """The unary or binary operation `op` on operands of `dtype`.

    `round` ties to even; `not`, `and`, `or`, `xor` are bitwise on integers and logical on bools; a
    shift by the width or more (or a negative amount) gives what shifting bit by bit would: 0, or -1 for
    `shr` of a negative number. Raises `KeyError` for a name that is no operation.
    """
    if op in COMPARISONS or op in PREDICATES:
        return _DIRECT[op]
    if op == "div" and dtype.is_integer:
        return lambda a, b: convert(_integer_div(a, b), dtype)
    if op == "pow":
        if dtype.is_integer:
            return lambda a, b: convert(_integer_pow(a, b), dtype)
        return lambda a, b: convert(np.power(_widened(a), _widened(b)), dtype)
    if op in _THROUGH_F64:
        wide = _THROUGH_F64[op]
        return lambda x: convert(wide(_widened(x)), dtype)
    return _DIRECT[op]


def _widened(x: Value) -> Value:
    return cast(Value, np.asarray(x, np.float64))


def fma(a: Value, b: Value, c: Value, dtype: DType) -> Value:
    """`a * b + c` rounded once, exactly so for every float dtype."""
    scalar: Function = _FMA_F64 if dtype == F64 else _FMA_NARROW
    return convert(scalar(_widened(a), _widened(b), _widened(c)), dtype)


def _fma_narrow(a: float, b: float, c: float) -> float:
    """`a * b + c` of float32 (or float16) values, in float64 rounded to odd.

    The product is exact in float64. Rounding the sum to odd makes the second rounding, to at most 24
    bits, the only one that counts: S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded
    sums: proved algorithms using rounding to odd", IEEE Trans. Computers 57(4), 2008.
    """
    product = a * b
    total = product + c
    if not math.isfinite(total):
        return total
    shift = total - product
    error = (product - (total - shift)) + (c - shift)  # Knuth's TwoSum: exact
    if error and not np.float64(total).view(np.int64) & 1:
        return math.nextafter(total, math.copysign(math.inf, error))
    return total


def _fma_f64(a: float, b: float, c: float) -> float:
    """`a * b + c` of float64 values, by exact rationals."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c  # even where a * b alone would overflow
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return math.copysign(0.0, a) * math.copysign(1.0, b) + c if a == 0 or b == 0 else 0.0
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


_FMA_NARROW = np.frompyfunc(_fma_narrow, 3, 1)
_FMA_F64 = np.frompyfunc(_fma_f64, 3, 1)


def limits(dtype: DType) -> tuple[float | int | bool, float | int | bool]:
    """Least and greatest value of `dtype`; infinities for floats."""
    if dtype.is_float:
        return -math.inf, math.inf
    if dtype == BOOL:
        return False, True
    info = np.iinfo(dtype.name)
    return int(info.min), int(info.max)
