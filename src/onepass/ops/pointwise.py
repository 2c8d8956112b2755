"""Elementwise arithmetic, comparison and logic, with numpy's broadcasting.

Each op is one stage, `out`. Integers follow ONNX: division truncates, `mod` takes the sign of the
divisor, shifts past the width give 0, and division by zero gives 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from onepass.core.dtypes import BOOL, DTYPES, F64
from onepass.core.errors import ShapeError
from onepass.core.tensor import Shape
from onepass.loops.build import binary, cast, const, select, unary
from onepass.loops.ir import BinaryOp, Expr, UnaryOp
from onepass.ops.opdef import Attrs, InputTypes, Lowering, OpDef, define
from onepass.ops.shapes import (
    Numbers,
    broadcast_shape,
    int_attr,
    load,
    loop_axes,
    reference,
    required,
    single,
    str_attr,
)

Body = Callable[[list[Expr], Attrs], Expr]


def elementwise(name: str, arity: int | None, body: Body, compute: Callable[..., Any], doc: str) -> None:
    """Defines an op of `arity` inputs (None: one or more) that broadcast together.

    `body` gets the loaded inputs, `compute(attrs, *arrays)` the arrays.
    """

    def lower(types: InputTypes, attrs: Attrs) -> Lowering:
        inputs, shape = broadcast_inputs(types, len(types) if arity is None else arity)
        return single(body(inputs, attrs), shape)

    define(OpDef(name, lower, reference(lambda arrays, attrs: compute(attrs, *arrays)), doc))


def broadcast_inputs(types: InputTypes, arity: int) -> tuple[list[Expr], Shape]:
    """Loads of the first `arity` inputs at `i0`, `i1`, ..., and the shape they broadcast to."""
    given = [required(types, k) for k in range(arity)]
    shape = broadcast_shape(*(tensor.shape for tensor in given))
    axes = loop_axes(shape)
    return [load(f"in{k}", tensor, axes) for k, tensor in enumerate(given)], shape


def _unary(name: str, op: UnaryOp, compute: Callable[..., Any], doc: str) -> None:
    elementwise(name, 1, lambda x, _: unary(op, x[0]), lambda _, x: compute(x), doc)


def _binary(name: str, op: BinaryOp, compute: Callable[..., Any], doc: str) -> None:
    elementwise(name, 2, lambda x, _: binary(op, *_same_dtype(name, x)), lambda _, a, b: compute(a, b), doc)


def _same_dtype(name: str, inputs: list[Expr]) -> list[Expr]:
    if len({x.dtype for x in inputs}) > 1:
        listed = ", ".join(str(x.dtype) for x in inputs)
        raise ShapeError(f"the inputs of {name} have different element types: {listed}")
    return inputs


def _fold(op: BinaryOp, inputs: list[Expr]) -> Expr:
    return reduce(lambda a, b: binary(op, a, b), inputs)


def truncated_quotient(a: Numbers, b: Numbers) -> Numbers:
    """`a / b`; for integers rounded towards zero, and 0 where `b` is 0 (shapes broadcast)."""
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    floor = np.floor_divide(a, b)
    inexact = (floor * b != a) & (b != 0)
    return np.asarray(floor + (inexact & ((a < 0) != (b < 0))).astype(a.dtype))


def _mod(inputs: list[Expr], attrs: Attrs) -> Expr:
    if not int_attr(attrs, "fmod", 0):
        return binary("mod", *inputs)
    return binary("fmod" if inputs[0].dtype.is_float else "rem", *inputs)


def _mod_reference(attrs: Attrs, a: Numbers, b: Numbers) -> Numbers:
    return np.fmod(a, b) if int_attr(attrs, "fmod", 0) else np.mod(a, b)


def _pow(inputs: list[Expr], attrs: Attrs) -> Expr:
    """The result has the dtype of the base; integer bases raised to a real exponent go through float64."""
    x, y = inputs
    if x.dtype.is_float:
        return binary("pow", x, cast(y, x.dtype))
    if y.dtype.is_float:
        return cast(binary("pow", cast(x, F64), cast(y, F64)), x.dtype)
    return binary("pow", x, cast(y, x.dtype))


def _pow_reference(attrs: Attrs, x: Numbers, y: Numbers) -> Numbers:
    if x.dtype.kind == "f":
        return np.asarray(np.power(x, y.astype(x.dtype)))
    if y.dtype.kind == "f":
        real: Numbers = np.power(x.astype(np.float64), y.astype(np.float64))
        return real.astype(x.dtype)
    exponent = y.astype(x.dtype)
    # A negative exponent: the real power, truncated. Only 1 and -1 have one that is not 0.
    inverse = np.where(np.abs(x) == 1, np.where(exponent % 2 != 0, x, 1), 0)
    power: Numbers = np.where(exponent < 0, inverse, np.power(x, np.maximum(exponent, 0)))
    return power.astype(x.dtype)


def _bit_shift(inputs: list[Expr], attrs: Attrs) -> Expr:
    return binary("shl" if str_attr(attrs, "direction", "LEFT") == "LEFT" else "shr", *inputs)


def _bit_shift_reference(attrs: Attrs, x: Numbers, y: Numbers) -> Numbers:
    left = str_attr(attrs, "direction", "LEFT") == "LEFT"
    return np.left_shift(x, y) if left else np.right_shift(x, y)


def _is_inf(inputs: list[Expr], attrs: Attrs) -> Expr:
    x, zero = inputs[0], const(0.0, inputs[0].dtype)
    positive, negative = int_attr(attrs, "detect_positive", 1), int_attr(attrs, "detect_negative", 1)
    if positive and negative:
        return unary("is_inf", x)
    if not positive and not negative:
        return binary("and", unary("is_inf", x), const(False, BOOL))
    return binary("and", unary("is_inf", x), binary("gt" if positive else "lt", x, zero))


def _is_inf_reference(attrs: Attrs, x: Numbers) -> Numbers:
    positive, negative = int_attr(attrs, "detect_positive", 1), int_attr(attrs, "detect_negative", 1)
    return np.isinf(x) & (((x > 0) & bool(positive)) | ((x < 0) & bool(negative)))


def erf(x: Numbers) -> Numbers:
    """The error function in float64 (C library's), rounded to the dtype of `x`."""
    values = np.array([math.erf(v) for v in x.ravel().astype(np.float64)], np.float64)
    return values.reshape(x.shape).astype(x.dtype)


def _mean(inputs: list[Expr], attrs: Attrs) -> Expr:
    return binary("div", _fold("add", inputs), const(float(len(inputs)), inputs[0].dtype))


_Row = tuple[str, Any, Callable[..., Any], str]
_UNARY: tuple[_Row, ...] = (
    ("abs", "abs", np.abs, "Absolute value."),
    ("neg", "neg", np.negative, "Negation."),
    ("sqrt", "sqrt", np.sqrt, "Square root; NaN below zero."),
    ("exp", "exp", np.exp, "Exponential."),
    ("log", "log", np.log, "Natural logarithm."),
    ("floor", "floor", np.floor, "Rounds down to an integer."),
    ("ceil", "ceil", np.ceil, "Rounds up to an integer."),
    ("round", "round", np.rint, "Rounds to the nearest integer, halves to even."),
    ("sign", "sign", np.sign, "-1, 0 or 1; NaN stays NaN."),
    ("erf", "erf", erf, "Error function."),
    ("is_nan", "is_nan", np.isnan, "Whether each element is NaN."),
    ("not", "not", np.logical_not, "Logical negation."),
    ("bitwise_not", "not", np.invert, "Inverts every bit."),
    ("sin", "sin", np.sin, "Sine."),
    ("cos", "cos", np.cos, "Cosine."),
    ("tan", "tan", np.tan, "Tangent."),
    ("asin", "asin", np.arcsin, "Inverse sine."),
    ("acos", "acos", np.arccos, "Inverse cosine."),
    ("atan", "atan", np.arctan, "Inverse tangent."),
    ("sinh", "sinh", np.sinh, "Hyperbolic sine."),
    ("cosh", "cosh", np.cosh, "Hyperbolic cosine."),
    ("asinh", "asinh", np.arcsinh, "Inverse hyperbolic sine."),
    ("acosh", "acosh", np.arccosh, "Inverse hyperbolic cosine."),
    ("atanh", "atanh", np.arctanh, "Inverse hyperbolic tangent."),
)
_BINARY: tuple[_Row, ...] = (
    ("add", "add", np.add, "Sum of two tensors."),
    ("sub", "sub", np.subtract, "Difference of two tensors."),
    ("mul", "mul", np.multiply, "Product of two tensors, element by element."),
    ("div", "div", truncated_quotient, "Quotient; integers round towards zero."),
    ("and", "and", np.logical_and, "Logical and."),
    ("or", "or", np.logical_or, "Logical or."),
    ("xor", "xor", np.logical_xor, "Logical exclusive or."),
    ("bitwise_and", "and", np.bitwise_and, "And of every bit."),
    ("bitwise_or", "or", np.bitwise_or, "Or of every bit."),
    ("bitwise_xor", "xor", np.bitwise_xor, "Exclusive or of every bit."),
    ("equal", "eq", np.equal, "Whether two elements are equal."),
    ("greater", "gt", np.greater, "Whether the first element is greater."),
    ("greater_or_equal", "ge", np.greater_equal, "Whether the first element is greater or equal."),
    ("less", "lt", np.less, "Whether the first element is less."),
    ("less_or_equal", "le", np.less_equal, "Whether the first element is less or equal."),
)
for _row in _UNARY:
    _unary(*_row)
for _row in _BINARY:
    _binary(*_row)

elementwise("max", None, lambda x, _: _fold("max", _same_dtype("max", x)),
            lambda _, *x: reduce(np.maximum, x), "Largest of the inputs; NaN wins.")  # fmt: skip
elementwise("min", None, lambda x, _: _fold("min", _same_dtype("min", x)),
            lambda _, *x: reduce(np.minimum, x), "Smallest of the inputs; NaN wins.")  # fmt: skip
elementwise("sum", None, lambda x, _: _fold("add", _same_dtype("sum", x)),
            lambda _, *x: reduce(np.add, x), "Sum of all inputs.")  # fmt: skip
elementwise("mean", None, _mean, lambda _, *x: reduce(np.add, x) / len(x), "Mean of all inputs.")
elementwise("mod", 2, _mod, _mod_reference,
            "Remainder with the sign of the divisor, or of the dividend where `fmod` is set.")  # fmt: skip
elementwise("pow", 2, _pow, _pow_reference, "First input to the power of the second.")
elementwise("bit_shift", 2, _bit_shift, _bit_shift_reference, "Shifts bits left or right.")
elementwise("is_inf", 1, _is_inf, _is_inf_reference, "Whether each element is an infinity.")
elementwise("where", 3, lambda x, _: select(x[0], *_same_dtype("where", x[1:])),
            lambda _, c, x, y: np.where(c, x, y),
            "Second input where the first holds, else the third.")  # fmt: skip
elementwise("identity", 1, lambda x, _: x[0], lambda _, x: x, "The input itself.")
elementwise("reciprocal", 1, lambda x, _: binary("div", const(1.0, x[0].dtype), x[0]),
            lambda _, x: np.divide(1, x).astype(x.dtype), "One divided by each element.")  # fmt: skip
elementwise("cast", 1, lambda x, attrs: cast(x[0], DTYPES[str_attr(attrs, "to", "float32")]),
            lambda attrs, x: x.astype(str_attr(attrs, "to", "float32")),
            "Converts the element type.")  # fmt: skip
