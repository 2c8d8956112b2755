"""Elementwise ops: dtypes, broadcasting, special values, integer rules."""

import numpy as np
import pytest
from op_checks import check, run

from onepass.core.dtypes import F32
from onepass.core.errors import ShapeError
from onepass.core.tensor import TensorType
from onepass.ops.registry import OPS

SPECIALS = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1.0, 0.5, 1.0, 2.5, -2.5], np.float32)
REAL_UNARY = [
    "abs", "neg", "sqrt", "exp", "log", "floor", "ceil", "round", "sign", "erf", "is_nan", "is_inf",
    "reciprocal", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh",
    "identity",
]  # fmt: skip
PAIRS = [
    ((2, 3, 4), (2, 3, 4)),
    ((2, 3, 4), (4,)),
    ((2, 1, 4), (3, 1)),
    ((), (2, 3)),
    ((0, 3), (1, 3)),
    ((1,), (1, 0)),
]


@pytest.mark.parametrize("op", REAL_UNARY)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_unary_values_and_specials(op, dtype):
    for x in (SPECIALS, np.random.default_rng(0).uniform(-4, 4, (2, 3)), np.empty((0, 2)), np.array(0.25)):
        check(op, [x.astype(dtype)])


@pytest.mark.parametrize(
    "op", ["add", "sub", "mul", "div", "max", "min", "sum", "mean", "greater", "equal", "less"]
)
@pytest.mark.parametrize("shapes", PAIRS, ids=str)
def test_binary_broadcasts(op, shapes):
    generator = np.random.default_rng(1)
    inputs = [np.asarray(generator.standard_normal(shape), np.float32) for shape in shapes]
    assert check(op, inputs).shape == np.broadcast_shapes(*shapes)


@pytest.mark.parametrize(
    "op", ["add", "sub", "mul", "div", "max", "min", "less_or_equal", "greater_or_equal", "equal"]
)
def test_binary_specials(op):
    check(op, [SPECIALS[:, None], SPECIALS])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64"])
@pytest.mark.parametrize(
    "op", ["add", "sub", "mul", "div", "mod", "max", "min", "bitwise_and", "bitwise_xor"]
)
def test_integers_wrap_and_divide_as_onnx_says(op, dtype):
    info = np.iinfo(dtype)
    values = np.array([info.min, info.min + 1, 0, 1, 2, 7, info.max - 1, info.max], dtype)
    if info.min < 0:
        values = np.concatenate([values, np.array([-1, -2, -7], dtype)])
    check(op, [values[:, None], values])
    check(op, [values[:, None], values], {"fmod": 1})


def test_integer_division_truncates_and_mod_follows_the_divisor():
    a, b = np.array([7, -7, 7, -7, 5], np.int32), np.array([2, 2, -2, -2, 0], np.int32)
    assert run("div", [a, b])[0].tolist() == [3, -3, -3, 3, 0]
    assert run("mod", [a, b])[0].tolist() == [1, 1, -1, -1, 0]
    assert run("mod", [a, b], {"fmod": 1})[0].tolist() == [1, -1, 1, -1, 0]


def test_pow_takes_the_type_of_the_base():
    base, exponent = np.array([2, -1, 1, 3, -2], np.int32), np.array([3, -3, -1, -1, 2], np.int64)
    assert check("pow", [base, exponent]).tolist() == [8, -1, 1, 0, 4]
    assert check("pow", [base, np.float32([0.5, 2, 2, 2.5, 2])]).tolist() == [1, 1, 1, 15, 4]
    assert check("pow", [np.float32([2, -8, 0]), np.array([3, 3, 0], np.int64)]).tolist() == [8, -512, 1]
    check("pow", [np.abs(SPECIALS[1:, None]), SPECIALS[1:]])


@pytest.mark.parametrize("op", ["and", "or", "xor", "equal"])
def test_logic(op):
    both = np.array([False, True])
    assert check(op, [both[:, None], both]).dtype == bool
    assert check("not", [both]).tolist() == [True, False]


@pytest.mark.parametrize("attrs", [{}, {"detect_positive": 0}, {"detect_negative": 0},
                                   {"detect_positive": 0, "detect_negative": 0}])  # fmt: skip
def test_is_inf_directions(attrs):
    check("is_inf", [SPECIALS], attrs)


def test_where_and_variadic():
    condition = np.array([[True], [False]])
    check("where", [condition, np.float32([1, np.nan]), np.float32(3)])
    three = [np.float32([1, np.nan, 3]), np.float32([[2], [0]]), np.float32(-1)]
    for op in ("max", "min", "sum", "mean"):
        check(op, three)
        check(op, three[:1])


@pytest.mark.parametrize("to", ["float16", "float64", "int8", "int64", "uint8", "bool"])
def test_cast(to):
    for x in (np.float32([0, -0.0, 1.9, 100.2]), np.array([0, 1, 3], np.int32), np.array([True, False])):
        check("cast", [x], {"to": to})
    if to == "bool":
        assert run("cast", [SPECIALS], {"to": to})[0].tolist() == [True] * 3 + [False] * 2 + [True] * 6


def test_shapes_that_do_not_fit_are_the_users_error():
    with pytest.raises(ShapeError, match="cannot be broadcast"):
        OPS["add"].lower([TensorType(F32, (2, 3)), TensorType(F32, (2,))], {})
    with pytest.raises(ShapeError, match="missing"):
        OPS["add"].lower([TensorType(F32, (2, 3))], {})
    with pytest.raises(ShapeError, match="element types"):
        OPS["add"].lower(
            [
                TensorType(F32, ()),
                TensorType(OPS["is_nan"].lower([TensorType(F32, ())], {}).output_types[0].dtype, ()),
            ],
            {},
        )
