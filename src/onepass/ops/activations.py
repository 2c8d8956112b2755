"""Activation functions: one elementwise stage each, attributes as ONNX names them.

NaN goes through every one of them. Formulas that overflow as ONNX writes them are rewritten to ones that
do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from onepass.core.errors import ShapeError
from onepass.loops.build import binary, select, unary
from onepass.loops.ir import BinaryOp, Const, Expr, Load
from onepass.ops.opdef import Array, Attrs, InputTypes, Lowering, define
from onepass.ops.pointwise import elementwise, erf
from onepass.ops.shapes import Numbers, attr, calc, load, loop_axes, optional, reference, required, single

SELU = 1.67326319217681884765625, 1.05070102214813232421875  # ONNX's alpha and gamma, float32 values


def _below_zero(x: Expr, value: Expr) -> Expr:
    return select(calc("lt", x, 0.0), value, x)


def _elu(x: Expr, alpha: float) -> Expr:
    return _below_zero(x, calc("mul", calc("sub", unary("exp", x), 1.0), alpha))


def _elu_reference(x: Numbers, alpha: float) -> Numbers:
    return np.where(x < 0, alpha * np.expm1(x), x)


def _selu(attrs: Attrs) -> tuple[float, float]:
    return attr(attrs, "alpha", SELU[0]), attr(attrs, "gamma", SELU[1])


def _line(attrs: Attrs) -> tuple[float, float]:
    """Slope and offset of hard_sigmoid."""
    return attr(attrs, "alpha", 0.2), attr(attrs, "beta", 0.5)


def _hard_sigmoid(x: Expr, slope: float, offset: float) -> Expr:
    return calc("max", calc("min", calc("add", calc("mul", x, slope), offset), 1.0), 0.0)


def _softplus(x: Expr) -> Expr:
    """`log(1 + exp(x))` as `max(x, 0) + log(1 + exp(-|x|))`, which does not overflow."""
    tail = unary("log", calc("add", unary("exp", unary("neg", unary("abs", x))), 1.0))
    return calc("add", calc("max", x, 0.0), tail)


def _gelu(attrs: Attrs, x: Expr) -> Expr:
    if attr(attrs, "approximate", "none") == "tanh":
        cube = calc("mul", calc("mul", x, x), x)
        inner = calc("mul", calc("add", x, calc("mul", cube, 0.044715)), math.sqrt(2 / math.pi))
        bend = unary("tanh", inner)
    else:
        bend = unary("erf", calc("mul", x, math.sqrt(0.5)))
    return calc("mul", calc("mul", x, 0.5), calc("add", bend, 1.0))


def _gelu_reference(attrs: Attrs, x: Numbers) -> Numbers:
    if attr(attrs, "approximate", "none") == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))))
    return np.asarray(0.5 * x * (1 + erf(x * math.sqrt(0.5))))


def _sigmoid_reference(x: Numbers) -> Numbers:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, e) / (1 + e))


def _lower_clip(types: InputTypes, attrs: Attrs) -> Lowering:
    x = required(types, 0)
    body: Expr = load("in0", x, loop_axes(x.shape))
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
    axes = loop_axes(x.shape)
    value = load("in0", x, axes)
    return single(_below_zero(value, calc("mul", value, load("in1", slope, axes))), x.shape)


Stage = Callable[[Attrs, Expr], Expr]
Compute = Callable[[Attrs, Numbers], Numbers]
_ACTIVATIONS: dict[str, tuple[Stage, Compute]] = {
    "relu": (lambda _, x: calc("max", x, 0), lambda _, x: np.maximum(x, 0)),
    "leaky_relu": (
        lambda attrs, x: _below_zero(x, calc("mul", x, attr(attrs, "alpha", 0.01))),
        lambda attrs, x: np.where(x < 0, x * attr(attrs, "alpha", 0.01), x),
    ),
    "elu": (
        lambda attrs, x: _elu(x, attr(attrs, "alpha", 1.0)),
        lambda attrs, x: _elu_reference(x, attr(attrs, "alpha", 1.0)),
    ),
    "selu": (
        lambda attrs, x: calc("mul", _elu(x, _selu(attrs)[0]), _selu(attrs)[1]),
        lambda attrs, x: _selu(attrs)[1] * _elu_reference(x, _selu(attrs)[0]),
    ),
    "sigmoid": (lambda _, x: unary("sigmoid", x), lambda _, x: _sigmoid_reference(x)),
    "hard_sigmoid": (
        lambda attrs, x: _hard_sigmoid(x, *_line(attrs)),
        lambda attrs, x: np.clip(x * _line(attrs)[0] + _line(attrs)[1], 0, 1),
    ),
    "hard_swish": (
        lambda _, x: calc("mul", x, _hard_sigmoid(x, 1 / 6, 0.5)),
        lambda _, x: x * np.clip(x / 6 + 0.5, 0, 1),
    ),
    "softplus": (lambda _, x: _softplus(x), lambda _, x: np.logaddexp(x, 0)),
    "softsign": (
        lambda _, x: calc("div", x, calc("add", unary("abs", x), 1.0)),
        lambda _, x: x / (1 + np.abs(x)),
    ),
    "gelu": (_gelu, _gelu_reference),
    "mish": (
        lambda _, x: calc("mul", x, unary("tanh", _softplus(x))),
        lambda _, x: x * np.tanh(np.logaddexp(x, 0)),
    ),
}
for _name, (_stage, _compute) in _ACTIVATIONS.items():
    elementwise(_name, 1, _stage, _compute)
define("clip", _lower_clip, _clip_reference)
define("prelu", _lower_prelu, reference(lambda _, x, slope: np.where(x < 0, x * slope, x)))
