"""The interpreter: every operation with its special values, every statement, every refusal."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from loop_interpreter import interpret
from numpy.typing import NDArray

from onepass.core.dtypes import BOOL, DTYPES, F16, F32, F64, I8, I32, I64, U8, DType, dtype_of_numpy
from onepass.core.errors import InternalError
from onepass.loops.build import add, binary, cast, const, fma, idx, loop, mul, select, unary
from onepass.loops.ir import (
    BINARY_OPS,
    UNARY_OPS,
    Alloc,
    Buffer,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Prefetch,
    Stmt,
    Store,
)

NAN, INF = math.nan, math.inf
i = idx("i")


def run_on(expr: Expr, *operands: NDArray[np.generic]) -> NDArray[np.generic]:
    """`expr` of `Load("x0", i)`, `Load("x1", i)`, ... for every i."""
    arrays = {f"x{k}": x for k, x in enumerate(operands)} | {
        "y": np.zeros(operands[0].shape, expr.dtype.numpy)
    }
    params = tuple(Buffer(name, dtype_of_numpy(x.dtype), x.shape) for name, x in arrays.items())
    kernel = Kernel("k", params, (loop("i", len(operands[0]), (Store("y", (i,), expr),)),))
    interpret(kernel, arrays)
    return arrays["y"]


def x(k: int, dtype: DType) -> Load:
    return Load(f"x{k}", (i,), dtype)


def same(got: NDArray[np.generic], want: list[float], dtype: DType) -> bool:
    """Equal bit for bit, but for the payload of NaN."""
    expected = np.array(want).astype(dtype.numpy)
    return bool(np.array_equal(got, expected, equal_nan=dtype.is_float)) and (
        not dtype.is_float
        or bool(np.array_equal(np.signbit(got), np.signbit(expected)) or np.isnan(got).any())
    )


FLOATS = [0.0, -0.0, 1.5, -2.5, INF, -INF, NAN]
UNARY_FLOAT: dict[str, list[float]] = {
    "neg": [-0.0, 0.0, -1.5, 2.5, -INF, INF, NAN],
    "abs": [0.0, 0.0, 1.5, 2.5, INF, INF, NAN],
    "sqrt": [0.0, -0.0, math.sqrt(1.5), NAN, INF, NAN, NAN],
    "floor": [0.0, -0.0, 1.0, -3.0, INF, -INF, NAN],
    "ceil": [0.0, -0.0, 2.0, -2.0, INF, -INF, NAN],
    "round": [0.0, -0.0, 2.0, -2.0, INF, -INF, NAN],
    "trunc": [0.0, -0.0, 1.0, -2.0, INF, -INF, NAN],
    "sign": [0.0, 0.0, 1.0, -1.0, 1.0, -1.0, NAN],
    "exp": [1.0, 1.0, math.exp(1.5), math.exp(-2.5), INF, 0.0, NAN],
    "log": [-INF, -INF, math.log(1.5), NAN, INF, NAN, NAN],
    "tanh": [0.0, -0.0, math.tanh(1.5), math.tanh(-2.5), 1.0, -1.0, NAN],
    "erf": [0.0, -0.0, math.erf(1.5), math.erf(-2.5), 1.0, -1.0, NAN],
    "sigmoid": [0.5, 0.5, 1 / (1 + math.exp(-1.5)), 1 / (1 + math.exp(2.5)), 1.0, 0.0, NAN],
    "sin": [0.0, -0.0, math.sin(1.5), math.sin(-2.5), NAN, NAN, NAN],
    "cos": [1.0, 1.0, math.cos(1.5), math.cos(-2.5), NAN, NAN, NAN],
    "tan": [0.0, -0.0, math.tan(1.5), math.tan(-2.5), NAN, NAN, NAN],
    "asin": [0.0, -0.0, NAN, NAN, NAN, NAN, NAN],
    "acos": [math.pi / 2, math.pi / 2, NAN, NAN, NAN, NAN, NAN],
    "atan": [0.0, -0.0, math.atan(1.5), math.atan(-2.5), math.pi / 2, -math.pi / 2, NAN],
    "sinh": [0.0, -0.0, math.sinh(1.5), math.sinh(-2.5), INF, -INF, NAN],
    "cosh": [1.0, 1.0, math.cosh(1.5), math.cosh(-2.5), INF, INF, NAN],
    "asinh": [0.0, -0.0, math.asinh(1.5), math.asinh(-2.5), INF, -INF, NAN],
    "acosh": [NAN, NAN, math.acosh(1.5), NAN, INF, NAN, NAN],
    "atanh": [0.0, -0.0, NAN, NAN, NAN, NAN, NAN],
}


@pytest.mark.parametrize("op", UNARY_FLOAT)
@pytest.mark.parametrize("dtype", [F16, F32], ids=str)
def test_unary_float(op: str, dtype: DType) -> None:
    got = run_on(unary(op, x(0, dtype)), np.array(FLOATS, dtype.numpy))  # type: ignore[arg-type]
    assert same(got, UNARY_FLOAT[op], dtype)


@pytest.mark.parametrize(
    ("op", "dtype", "values", "want"),
    [
        ("is_nan", F32, FLOATS, [False] * 6 + [True]),
        ("is_inf", F32, FLOATS, [False] * 4 + [True, True, False]),
        ("not", BOOL, [True, False], [False, True]),
        ("not", U8, [0, 200], [255, 55]),
        ("neg", I8, [5, -128], [-5, -128]),
        ("abs", I8, [-5, -128], [5, -128]),
        ("sign", I8, [-5, 0, 9], [-1, 0, 1]),
    ],
)
def test_other_unary(op: str, dtype: DType, values: list[float], want: list[float]) -> None:
    expr = unary(op, x(0, dtype))  # type: ignore[arg-type]
    assert same(run_on(expr, np.array(values, dtype.numpy)), want, expr.dtype)


def test_sigmoid_keeps_tiny_results() -> None:
    got = run_on(unary("sigmoid", x(0, F64)), np.array([-740.0, -800.0]))
    assert got[0] == math.exp(-740.0) > 0
    assert got[1] == 0


PAIRS_I8 = ([7, -7, 7, -7, 7, 0, -128, 100], [2, 2, -2, -2, 0, 0, -1, 100])
BINARY: list[tuple[str, DType, tuple[list[float], list[float]], list[float]]] = [
    ("add", I8, PAIRS_I8, [9, -5, 5, -9, 7, 0, 127, -56]),
    ("sub", I8, PAIRS_I8, [5, -9, 9, -5, 7, 0, -127, 0]),
    ("mul", I8, PAIRS_I8, [14, -14, -14, 14, 0, 0, -128, 16]),
    ("div", I8, PAIRS_I8, [3, -3, -3, 3, 0, 0, -128, 1]),
    ("rem", I8, PAIRS_I8, [1, -1, 1, -1, 0, 0, 0, 0]),
    ("floordiv", I8, PAIRS_I8, [3, -4, -4, 3, 0, 0, -128, 1]),
    ("mod", I8, PAIRS_I8, [1, 1, -1, -1, 0, 0, 0, 0]),
    ("pow", I8, ([2, 2, -1, 1, 0, 3, -2], [7, -1, -3, -9, 0, 5, 3]), [-128, 0, -1, 1, 1, -13, -8]),
    ("max", I8, PAIRS_I8, [7, 2, 7, -2, 7, 0, -1, 100]),
    ("min", I8, PAIRS_I8, [2, -7, -2, -7, 0, 0, -128, 100]),
    ("and", U8, ([12], [10]), [8]),
    ("or", U8, ([12], [10]), [14]),
    ("xor", U8, ([12], [10]), [6]),
    ("and", BOOL, ([True, True], [True, False]), [True, False]),
    ("or", BOOL, ([False, True], [False, False]), [False, True]),
    ("xor", BOOL, ([True, True], [True, False]), [False, True]),
    ("shl", U8, ([3, 255, 1], [2, 1, 8]), [12, 254, 0]),
    ("shr", I8, ([-5, 64, -5], [1, 3, 9]), [-3, 8, -1]),
    ("add", F32, ([1e38, INF], [3e38, -INF]), [INF, NAN]),
    ("sub", F32, ([1.0, INF], [3.0, INF]), [-2.0, NAN]),
    ("mul", F32, ([-0.0, INF], [3.0, 0.0]), [-0.0, NAN]),
    ("div", F32, ([1.0, -1.0, 0.0, 1.0], [0.0, 0.0, 0.0, -INF]), [INF, -INF, NAN, -0.0]),
    ("fmod", F32, ([5.5, -5.5, 5.5, 1.0], [2.0, 2.0, -2.0, 0.0]), [1.5, -1.5, 1.5, NAN]),
    ("mod", F32, ([5.5, -5.5, 5.5, 1.0], [2.0, 2.0, -2.0, 0.0]), [1.5, 0.5, -0.5, NAN]),
    ("floordiv", F32, ([5.5, -5.5, 1.0], [2.0, 2.0, 0.0]), [2.0, -3.0, INF]),
    ("pow", F32, ([2.0, NAN, -8.0, 0.0, -2.0], [0.5, 0.0, 1 / 3, -1.0, 3.0]), [2**0.5, 1.0, NAN, INF, -8.0]),
    ("max", F32, ([1.0, NAN, 1.0], [2.0, 1.0, NAN]), [2.0, NAN, NAN]),
    ("min", F32, ([1.0, NAN, 1.0], [2.0, 1.0, NAN]), [1.0, NAN, NAN]),
    ("eq", F32, ([0.0, NAN], [-0.0, NAN]), [True, False]),
    ("ne", F32, ([0.0, NAN], [-0.0, NAN]), [False, True]),
    ("lt", F32, ([1.0, NAN], [2.0, 1.0]), [True, False]),
    ("le", I8, ([1, 2], [1, 1]), [True, False]),
    ("gt", U8, ([200], [100]), [True]),
    ("ge", BOOL, ([True, False], [False, True]), [True, False]),
]


@pytest.mark.parametrize(("op", "dtype", "operands", "want"), BINARY, ids=[f"{b[0]}-{b[1]}" for b in BINARY])
def test_binary(op: str, dtype: DType, operands: tuple[list[float], list[float]], want: list[float]) -> None:
    expr = binary(op, x(0, dtype), x(1, dtype))  # type: ignore[arg-type]
    assert same(run_on(expr, *(np.array(values, dtype.numpy) for values in operands)), want, expr.dtype)


def test_every_operation_is_covered() -> None:
    assert {*UNARY_FLOAT, "is_nan", "is_inf", "not"} == set(UNARY_OPS)
    assert {case[0] for case in BINARY} == set(BINARY_OPS)


@pytest.mark.parametrize("dtype", [F16, F32, F64], ids=str)
def test_fma_rounds_once(dtype: DType) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(400).astype(dtype.numpy) for _ in range(2))
    # Near cancellation and far-apart exponents: where rounding the product first shows.
    c = (-(a * b) * rng.choice([1.0, 1.0 + 1e-3, 1e-5, 1e-8, 3e3], 400)).astype(dtype.numpy)
    got = run_on(fma(x(0, dtype), x(1, dtype), x(2, dtype)), a, b, c)
    for values in zip(a, b, c, got, strict=True):
        exact_a, exact_b, exact_c, result = (Fraction(float(v)) for v in values)
        error = abs(exact_a * exact_b + exact_c - result)
        for side in (-INF, INF):
            neighbour = Fraction(float(np.nextafter(values[3], np.array(side, dtype.numpy))))
            assert error <= abs(exact_a * exact_b + exact_c - neighbour)


def test_fma_specials() -> None:
    a = np.array([INF, 0.0, -0.0, 1e200, -1e200, 1.0, -0.0])
    b = np.array([0.0, INF, 1.0, 1e200, 1e200, 1.0, 1.0])
    c = np.array([1.0, 1.0, -0.0, -INF, 1.0, -1.0, 0.0])
    got = run_on(fma(x(0, F64), x(1, F64), x(2, F64)), a, b, c)
    assert same(got[2:], [-0.0, -INF, -INF, 0.0, 0.0], F64)
    assert np.isnan(got[:2]).all()


def test_fma_f32_double_rounding_case() -> None:
    # In float64 this sum lies a hair above a float32 tie; rounding twice would take the tie to even.
    a, b, c = (np.array([v], np.float32) for v in (1 + 2**-12, 1 + 2**-12, 2.0**-60))
    tie = float(a[0]) * float(b[0])
    assert run_on(fma(x(0, F32), x(1, F32), x(2, F32)), a, b, c)[0] == np.float32(np.nextafter(tie, INF))


@pytest.mark.parametrize(
    ("values", "source", "target", "want"),
    [
        ([2.9, -2.9], F32, I32, [2, -2]),
        ([0.0, -0.0, 0.1, NAN], F32, BOOL, [False, False, True, True]),
        ([300, -1], I32, U8, [44, 255]),
        ([True, False], BOOL, F32, [1.0, 0.0]),
        ([1e30, 1 + 2**-30], F64, F32, [1e30, 1.0]),
        ([2**24 + 1], I32, F32, [2.0**24]),
    ],
)
def test_cast(values: list[float], source: DType, target: DType, want: list[float]) -> None:
    assert same(run_on(cast(x(0, source), target), np.array(values, source.numpy)), want, target)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_loads_and_stores(name: str) -> None:
    data = np.array([0, 1, 1]).astype(name)
    np.testing.assert_array_equal(run_on(x(0, DTYPES[name]), data), data)


def test_select_is_lazy() -> None:
    data = np.arange(4, dtype=np.float32)
    guarded = select(binary("lt", i, const(3)), Load("x0", (add(i, 1),), F32), const(-1.0, F32))
    assert run_on(guarded, data).tolist() == [1.0, 2.0, 3.0, -1.0]


@pytest.mark.parametrize("offset", [-1, 1])
def test_access_outside_is_refused(offset: int) -> None:
    with pytest.raises(InternalError, match=r"access to x0\[(-1|2)\] lies outside shape \[2\]"):
        run_on(Load("x0", (add(i, offset),), F32), np.zeros(2, np.float32))


def test_store_outside_is_refused() -> None:
    kernel = Kernel("k", (Buffer("y", F32, (2,)),), (Store("y", (const(2),), const(0.0, F32)),))
    with pytest.raises(InternalError, match=r"access to y\[2\] lies outside"):
        interpret(kernel, {"y": np.zeros(2, np.float32)})


@pytest.mark.parametrize(
    "array", [None, np.zeros(3, np.float32), np.zeros(2)], ids=["absent", "shape", "dtype"]
)
def test_arrays_must_be_as_declared(array: NDArray[np.generic] | None) -> None:
    with pytest.raises(InternalError, match="no array fits parameter 'y'"):
        interpret(Kernel("k", (Buffer("y", F32, (2,)),), ()), {} if array is None else {"y": array})


def test_broken_kernel_is_refused() -> None:
    with pytest.raises(InternalError, match="not declared"):
        interpret(Kernel("k", (), (Store("y", (), const(0.0, F32)),)), {})


def run_body(*body: Stmt, workers: int = 1) -> list[int]:
    """What `body` leaves in `y`, eight int64 zeros at the start."""
    arrays = {"y": np.zeros(8, np.int64)}
    interpret(Kernel("k", (Buffer("y", I64, (8,)),), body), arrays, workers)
    return [int(value) for value in arrays["y"]]


def y(at: Expr) -> Load:
    return Load("y", (at,), I64)


def bump(at: Expr, by: Expr) -> Store:
    return Store("y", (at,), binary("add", y(at), by))


def test_loops_step_and_depend_on_outer_ones() -> None:
    inner = loop("j", 8, (bump(idx("j"), const(1)),), start=i)
    assert run_body(For("i", const(1), const(7), (inner,), step=3)) == [0, 1, 1, 1, 2, 2, 2, 2]


def test_loop_that_starts_beyond_its_stop_does_nothing() -> None:
    assert run_body(loop("i", 2, (bump(i, const(1)),), start=5)) == [0] * 8


def test_if_and_unroll() -> None:
    odd = binary("eq", binary("mod", i, const(2)), const(1))
    assert run_body(loop("i", 8, (If(odd, (bump(i, i),)),), "unroll")) == [0, 1, 0, 3, 0, 5, 0, 7]


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_parallel_iterations_run_once_each(workers: int) -> None:
    assert run_body(loop("i", 8, (bump(i, add(i, 1)),), "parallel"), workers=workers) == [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
    ]


def test_parallel_ranges_are_contiguous() -> None:
    # Each worker's scratch counts its own iterations.
    scratch = Buffer("count", I64, (), "cache")
    count = Load("count", (), I64)
    step = (Store("count", (), add(count, 1)), Store("y", (i,), count))
    body = Alloc(scratch, (Store("count", (), const(0)), loop("i", 8, step, "parallel")))
    assert run_body(body, workers=3) == [1, 2, 1, 2, 3, 1, 2, 3]


def test_no_barrier_between_loops() -> None:
    first = loop("i", 8, (Store("y", (i,), const(1)),), "parallel")
    mirrored = loop("i", 8, (bump(i, mul(y(binary("sub", const(7), i)), 10)),), "parallel")
    assert run_body(first, mirrored, workers=1) == [11, 11, 11, 11, 111, 111, 111, 111]
    assert run_body(first, mirrored, workers=2)[:4] == [1, 1, 1, 1]


def test_vector_lanes_read_before_they_write() -> None:
    fill = loop("i", 8, (Store("y", (i,), i),))
    v = idx("v")
    mirror = Store("y", (v,), y(binary("sub", const(7), v)))
    assert run_body(fill, loop("v", 8, (mirror, bump(v, const(1))), "vector")) == [8, 7, 6, 5, 4, 3, 2, 1]


def test_alloc_starts_undefined_each_time() -> None:
    acc = Buffer("acc", F32, (1,), "register")
    old = Load("acc", (const(0),), F32)
    check = Store("y", (i,), cast(unary("is_nan", old), I64))
    assert run_body(loop("i", 2, (Alloc(acc, (check, Store("acc", (const(0),), const(1.0, F32)))),)))[:2] == [
        1,
        1,
    ]


def test_prefetch_may_lie_outside() -> None:
    assert run_body(Prefetch("y", (const(-5),))) == [0] * 8
