"""Elementwise arithmetic, comparison and logic, with numpy's broadcasting.

Each op is one stage, `out`. Integers follow ONNX: division truncates, `mod` takes the sign of the
divisor, and division by zero gives 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np

from onepass.core.dtypes import DTYPES, F32, F64
from onepass.core.errors import ShapeError
from onepass.loops.build import binary, cast, select, unary
from onepass.loops.ir import BinaryOp, Expr, UnaryOp
from onepass.loops.walk import arithmetic
from onepass.ops.opdef import Attrs, InputTypes, Lowering, define
from onepass.ops.shapes import (
    Numbers,
    attr,
    broadcast_shape,
    calc,
    is_float,
    load,
    loop_axes,
    reference,
    required,
    single,
)


def elementwise(name: str, arity: int | None, body: Callable[..., Expr], compute: Callable[..., Any]) -> None:
    """Defines an op of `arity` inputs (None: one or more) that broadcast together.

    `body(attrs, *inputs)` gets the loaded inputs, `compute(attrs, *arrays)` the arrays. Several operations
    on 16-bit floats are done in float32, and the result is rounded: 1 + erf(x) would lose all that is small.
    """

    def lower(types: InputTypes, attrs: Attrs) -> Lowering:
        given = [required(types, k) for k in range(len(types) if arity is None else arity)]
        shape = broadcast_shape(*(tensor.shape for tensor in given))
        axes = loop_axes(shape)
        inputs = [load(f"in{k}", x, axes) for k, x in enumerate(given)]
        made = body(attrs, *inputs)
        if made.dtype.is_float and made.dtype.bits == 16 and arithmetic(made) > 1:
            wide = (cast(x, F32) if x.dtype == made.dtype else x for x in inputs)
            made = cast(body(attrs, *wide), made.dtype)
        return single(made, shape)

    define(name, lower, reference(compute))


def _unary(name: str, op: UnaryOp, compute: Callable[..., Any]) -> None:
    elementwise(name, 1, lambda _, x: unary(op, x), lambda _, x: compute(x))


def _folded(name: str, arity: int | None, op: BinaryOp, compute: Callable[..., Any]) -> None:
    """Defines an op that combines its inputs from left to right."""
    elementwise(
        name, arity, lambda _, *x: reduce(partial(binary, op), _alike(*x)), lambda _, *x: reduce(compute, x)
    )


def _alike(*inputs: Expr) -> tuple[Expr, ...]:
    if len({x.dtype for x in inputs}) > 1:
        listed = ", ".join(str(x.dtype) for x in inputs)
        raise ShapeError(f"the inputs have different element types: {listed}")
    return inputs


def truncated_quotient(a: Numbers, b: Numbers) -> Numbers:
    """`a / b`; for integers rounded towards zero, and 0 where `b` is 0."""
    return np.asarray(a / b if is_float(a) else np.floor_divide(a - np.fmod(a, b), b))


def _mod(attrs: Attrs, a: Expr, b: Expr) -> Expr:
    if not attr(attrs, "fmod", 0):
        return binary("mod", a, b)
    return binary("fmod" if a.dtype.is_float else "rem", a, b)


def _pow(attrs: Attrs, x: Expr, y: Expr) -> Expr:
    """The result has the dtype of the base; integer bases raised to a real exponent go through float64."""
    through = F64 if y.dtype.is_float and not x.dtype.is_float else x.dtype
    return cast(binary("pow", cast(x, through), cast(y, through)), x.dtype)


def _pow_reference(attrs: Attrs, x: Numbers, y: Numbers) -> Numbers:
    if is_float(x):
        return np.asarray(np.power(x, y.astype(x.dtype)))
    if is_float(y):
        return np.asarray(np.power(x.astype(np.float64), y.astype(np.float64)).astype(x.dtype))
    y = y.astype(x.dtype)
    # A negative exponent: the real power, truncated. Only 1 and -1 have one that is not 0.
    inverse = np.where(np.abs(x) == 1, np.where(y % 2 != 0, x, 1), 0)
    return np.asarray(np.where(y < 0, inverse, np.power(x, np.maximum(y, 0))).astype(x.dtype))


def _is_inf(attrs: Attrs, x: Expr) -> Expr:
    found: Expr = unary("is_inf", x)
    without: tuple[tuple[str, BinaryOp], ...] = (("detect_positive", "lt"), ("detect_negative", "gt"))
    for flag, side in without:
        found = found if attr(attrs, flag, 1) else binary("and", found, calc(side, x, 0.0))
    return found


def _is_inf_reference(attrs: Attrs, x: Numbers) -> Numbers:
    positive, negative = attr(attrs, "detect_positive", 1), attr(attrs, "detect_negative", 1)
    return (np.isposinf(x) & bool(positive)) | (np.isneginf(x) & bool(negative))


def erf(x: Numbers) -> Numbers:
    """The error function in float64 (C library's), rounded to the dtype of `x`."""
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64)).astype(x.dtype))


_UNARY: dict[str, tuple[UnaryOp, Callable[..., Any]]] = {
    "abs": ("abs", np.abs), "neg": ("neg", np.negative), "sign": ("sign", np.sign),
    "sqrt": ("sqrt", np.sqrt), "exp": ("exp", np.exp), "log": ("log", np.log), "erf": ("erf", erf),
    "floor": ("floor", np.floor), "ceil": ("ceil", np.ceil), "round": ("round", np.rint),
    "is_nan": ("is_nan", np.isnan), "not": ("not", np.logical_not), "bitwise_not": ("not", np.invert),
    "sin": ("sin", np.sin), "cos": ("cos", np.cos), "tan": ("tan", np.tan), "asin": ("asin", np.arcsin),
    "acos": ("acos", np.arccos), "atan": ("atan", np.arctan), "sinh": ("sinh", np.sinh),
    "cosh": ("cosh", np.cosh), "asinh": ("asinh", np.arcsinh), "acosh": ("acosh", np.arccosh),
    "atanh": ("atanh", np.arctanh), "tanh": ("tanh", np.tanh),
}  # fmt: skip
_BINARY: dict[str, tuple[BinaryOp, Callable[..., Any]]] = {
    "add": ("add", np.add), "sub": ("sub", np.subtract), "mul": ("mul", np.multiply),
    "div": ("div", truncated_quotient), "equal": ("eq", np.equal), "greater": ("gt", np.greater),
    "greater_or_equal": ("ge", np.greater_equal), "less": ("lt", np.less),
    "less_or_equal": ("le", np.less_equal), "and": ("and", np.logical_and), "or": ("or", np.logical_or),
    "xor": ("xor", np.logical_xor), "bitwise_and": ("and", np.bitwise_and),
    "bitwise_or": ("or", np.bitwise_or), "bitwise_xor": ("xor", np.bitwise_xor),
}  # fmt: skip
_VARIADIC: dict[str, tuple[BinaryOp, Callable[..., Any]]] = {
    "sum": ("add", np.add), "max": ("max", np.maximum), "min": ("min", np.minimum),
}  # fmt: skip
for _name, _unary_row in _UNARY.items():
    _unary(_name, *_unary_row)
for _name, _row in _BINARY.items():
    _folded(_name, 2, *_row)
for _name, _row in _VARIADIC.items():
    _folded(_name, None, *_row)

elementwise("mean", None, lambda _, *x: calc("div", reduce(partial(binary, "add"), _alike(*x)), len(x)),
            lambda _, *x: reduce(np.add, x) / len(x))  # fmt: skip
elementwise("mod", 2, _mod, lambda attrs, a, b: (np.fmod if attr(attrs, "fmod", 0) else np.mod)(a, b))
elementwise("is_inf", 1, _is_inf, _is_inf_reference)
elementwise("pow", 2, _pow, _pow_reference)
elementwise("where", 3, lambda _, c, x, y: select(c, *_alike(x, y)), lambda _, c, x, y: np.where(c, x, y))
elementwise("identity", 1, lambda _, x: x, lambda _, x: x)
elementwise("reciprocal", 1, lambda _, x: calc("div", 1.0, x), lambda _, x: np.divide(1, x).astype(x.dtype))
elementwise("cast", 1, lambda attrs, x: cast(x, DTYPES[attr(attrs, "to", "float32")]),
            lambda attrs, x: x.astype(DTYPES[attr(attrs, "to", "float32")].numpy))  # fmt: skip
