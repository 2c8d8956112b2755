"""Activation functions: one elementwise stage each, attributes as ONNX names them.

NaN goes through every one of them, except where ONNX's formula drops it (`thresholded_relu`,
`shrink`). Formulas that overflow as ONNX writes them are rewritten to ones that do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from onepass.core.dtypes import F32
from onepass.core.errors import ShapeError
from onepass.loops.build import binary, cast, const, select, unary
from onepass.loops.ir import BinaryOp, Const, Expr, Load
from onepass.ops.opdef import Array, Attrs, InputTypes, Lowering, OpDef, define
from onepass.ops.pointwise import elementwise, erf
from onepass.ops.shapes import (
    Numbers,
    broadcast_shape,
    calc,
    float_attr,
    load,
    loop_axes,
    optional,
    reference,
    required,
    single,
    str_attr,
)

SELU_ALPHA = 1.67326319217681884765625  # ONNX Selu's defaults, float32 values
SELU_GAMMA = 1.05070102214813232421875


def _activation(
    name: str,
    body: Callable[[Expr, Attrs], Expr],
    compute: Callable[[Numbers, Attrs], Numbers],
    doc: str,
) -> None:
    elementwise(name, 1, lambda x, attrs: body(x[0], attrs), lambda attrs, x: compute(x, attrs), doc)


def _where_negative(x: Expr, no: Expr, yes: Expr) -> Expr:
    return select(calc("lt", x, 0.0), yes, no)


def _exp_minus_1(x: Expr) -> Expr:
    return calc("sub", unary("exp", x), 1.0)


def _elu(x: Expr, attrs: Attrs) -> Expr:
    return _where_negative(x, x, calc("mul", _exp_minus_1(x), float_attr(attrs, "alpha", 1.0)))


def _selu(x: Expr, attrs: Attrs) -> Expr:
    alpha, gamma = float_attr(attrs, "alpha", SELU_ALPHA), float_attr(attrs, "gamma", SELU_GAMMA)
    return calc("mul", _where_negative(x, x, calc("mul", _exp_minus_1(x), alpha)), gamma)


def _selu_reference(x: Numbers, attrs: Attrs) -> Numbers:
    alpha, gamma = float_attr(attrs, "alpha", SELU_ALPHA), float_attr(attrs, "gamma", SELU_GAMMA)
    return gamma * np.where(x < 0, alpha * np.expm1(x), x)


def _celu(x: Expr, attrs: Attrs) -> Expr:
    alpha = float_attr(attrs, "alpha", 1.0)
    return _where_negative(x, x, calc("mul", _exp_minus_1(calc("div", x, alpha)), alpha))


def _celu_reference(x: Numbers, attrs: Attrs) -> Numbers:
    alpha = float_attr(attrs, "alpha", 1.0)
    return np.where(x < 0, alpha * np.expm1(x / alpha), x)


def _leaky(x: Expr, attrs: Attrs) -> Expr:
    return _where_negative(x, x, calc("mul", x, float_attr(attrs, "alpha", 0.01)))


def _hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    return calc("max", calc("min", calc("add", calc("mul", x, alpha), beta), 1.0), 0.0)


def _hard_sigmoid_reference(x: Numbers, attrs: Attrs) -> Numbers:
    return np.clip(x * float_attr(attrs, "alpha", 0.2) + float_attr(attrs, "beta", 0.5), 0, 1)


def _swish(x: Expr, attrs: Attrs) -> Expr:
    alpha = float_attr(attrs, "alpha", 1.0)
    return calc("mul", x, unary("sigmoid", x if alpha == 1.0 else calc("mul", x, alpha)))


def _softplus(x: Expr, attrs: Attrs) -> Expr:
    """`log(1 + exp(x))` as `max(x, 0) + log(1 + exp(-|x|))`, which does not overflow."""
    tail = unary("log", calc("add", unary("exp", unary("neg", unary("abs", x))), 1.0))
    return calc("add", calc("max", x, 0.0), tail)


def _mish(x: Expr, attrs: Attrs) -> Expr:
    """`x tanh(log(1 + exp(x)))`, where the hyperbolic tangent is a quotient of polynomials of `exp(-|x|)`.

    With e = exp(x) it is e (e + 2) / (e (e + 2) + 2); for x > 0 both are divided by e^2.
    """
    e = unary("exp", unary("neg", unary("abs", x)))
    positive = calc("gt", x, 0.0)
    above = select(positive, calc("add", calc("mul", e, 2.0), 1.0), calc("mul", e, calc("add", e, 2.0)))
    rest = calc("mul", select(positive, calc("mul", e, e), const(1.0, x.dtype)), 2.0)
    return calc("mul", x, calc("div", above, calc("add", above, rest)))


def _gelu(x: Expr, attrs: Attrs) -> Expr:
    if str_attr(attrs, "approximate", "none") == "tanh":
        cube = calc("mul", calc("mul", x, x), x)
        inner = calc("mul", calc("add", x, calc("mul", cube, 0.044715)), math.sqrt(2 / math.pi))
        bend = unary("tanh", inner)
    else:
        bend = unary("erf", calc("mul", x, math.sqrt(0.5)))
    return calc("mul", calc("mul", x, 0.5), calc("add", bend, 1.0))


def _gelu_reference(x: Numbers, attrs: Attrs) -> Numbers:
    if str_attr(attrs, "approximate", "none") == "tanh":
        bend = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
    else:
        bend = erf(x * math.sqrt(0.5))
    return np.asarray(0.5 * x * (1 + bend))


def _shrink(x: Expr, attrs: Attrs) -> Expr:
    """Integers go through float32, as bias and threshold need not be whole."""
    bias, threshold = float_attr(attrs, "bias", 0.0), float_attr(attrs, "lambd", 0.5)
    real = x if x.dtype.is_float else cast(x, F32)
    upper = select(calc("gt", real, threshold), calc("sub", real, bias), const(0.0, real.dtype))
    return cast(select(calc("lt", real, -threshold), calc("add", real, bias), upper), x.dtype)


def _shrink_reference(x: Numbers, attrs: Attrs) -> Numbers:
    bias, threshold = float_attr(attrs, "bias", 0.0), float_attr(attrs, "lambd", 0.5)
    shrunk = np.where(x < -threshold, x + bias, np.where(x > threshold, x - bias, 0))
    return shrunk.astype(x.dtype)


def _sigmoid_reference(x: Numbers) -> Numbers:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, e) / (1 + e))


def _lower_clip(types: InputTypes, attrs: Attrs) -> Lowering:
    x = required(types, 0)
    axes = loop_axes(x.shape)
    body: Expr = load("in0", x, axes)
    limits: tuple[tuple[int, BinaryOp], ...] = ((1, "max"), (2, "min"))
    for position, op in limits:
        limit = optional(types, position)
        if limit is None:
            continue
        if limit.size != 1:
            raise ShapeError(
                f"input {position} of clip has the shape {limit.shape}", why="a limit is one number"
            )
        body = binary(op, body, Load(f"in{position}", (Const(0),) * limit.rank, limit.dtype))
    return single(body, x.shape)


def _clip_reference(inputs: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    x, low, high = (*inputs, None, None)[:3]
    assert x is not None
    y = x if low is None else np.maximum(x, low.reshape(()))
    return (np.asarray(y if high is None else np.minimum(y, high.reshape(()))),)


def _lower_prelu(types: InputTypes, attrs: Attrs) -> Lowering:
    x, slope = required(types, 0), required(types, 1)
    if broadcast_shape(x.shape, slope.shape) != x.shape:
        raise ShapeError(f"the slope's shape {slope.shape} does not broadcast to {x.shape}")
    axes = loop_axes(x.shape)
    value = load("in0", x, axes)
    return single(_where_negative(value, value, calc("mul", value, load("in1", slope, axes))), x.shape)


_activation("relu", lambda x, _: calc("max", x, 0), lambda x, _: np.maximum(x, 0), "max(x, 0).")
_activation("leaky_relu", _leaky, lambda x, attrs: np.where(x < 0, x * float_attr(attrs, "alpha", 0.01), x),
            "x, times `alpha` below zero.")  # fmt: skip
_activation("elu", _elu, lambda x, attrs: np.where(x < 0, float_attr(attrs, "alpha", 1.0) * np.expm1(x), x),
            "x, below zero `alpha` (exp(x) - 1).")  # fmt: skip
_activation("selu", _selu, _selu_reference, "`gamma` times elu, which keeps mean and variance.")
_activation("celu", _celu, _celu_reference, "x, below zero `alpha` (exp(x / alpha) - 1).")
_activation(
    "sigmoid", lambda x, _: unary("sigmoid", x), lambda x, _: _sigmoid_reference(x), "1 / (1 + exp(-x))."
)
_activation("hard_sigmoid",
            lambda x, attrs: _hard_sigmoid(
                x, float_attr(attrs, "alpha", 0.2), float_attr(attrs, "beta", 0.5)),
            _hard_sigmoid_reference, "`alpha` x + `beta`, clipped to [0, 1].")  # fmt: skip
_activation("hard_swish", lambda x, _: calc("mul", x, _hard_sigmoid(x, 1 / 6, 0.5)),
            lambda x, _: x * np.clip(x / 6 + 0.5, 0, 1), "x times clip(x / 6 + 1/2, 0, 1).")  # fmt: skip
_activation("tanh", lambda x, _: unary("tanh", x), lambda x, _: np.tanh(x), "Hyperbolic tangent.")
_activation("softplus", _softplus, lambda x, _: np.logaddexp(x, 0), "log(1 + exp(x)).")
_activation("softsign", lambda x, _: calc("div", x, calc("add", unary("abs", x), 1.0)),
            lambda x, _: x / (1 + np.abs(x)), "x / (1 + |x|).")  # fmt: skip
_activation(
    "gelu", _gelu, _gelu_reference, "x times the normal distribution function of x, or its tanh form."
)
_activation("mish", _mish, lambda x, _: x * np.tanh(np.logaddexp(x, 0)), "x tanh(softplus(x)).")
_activation("swish", _swish,
            lambda x, attrs: x * _sigmoid_reference(x * float_attr(attrs, "alpha", 1.0)),
            "x sigmoid(`alpha` x).")  # fmt: skip
_activation("thresholded_relu",
            lambda x, attrs: select(calc("gt", x, float_attr(attrs, "alpha", 1.0)), x, const(0.0, x.dtype)),
            lambda x, attrs: np.where(x > float_attr(attrs, "alpha", 1.0), x, 0),
            "x where it is above `alpha`, else 0.")  # fmt: skip
_activation("shrink", _shrink, _shrink_reference, "x moved towards zero by `bias`, 0 within `lambd` of it.")
define(OpDef("clip", _lower_clip, _clip_reference, "min(max(x, lowest), highest); NaN stays NaN."))
define(OpDef("prelu", _lower_prelu, reference(lambda x, _: np.where(x[0] < 0, x[0] * x[1], x[0])),
             "x, below zero times a slope that is an input."))  # fmt: skip
