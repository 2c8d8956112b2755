"""Every operation on every dtype, scalar and in vectors of several lengths, equals the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from native import run_interpreted, run_native, same, ulps

from onepass.core.dtypes import BF16, BOOL, DTYPES, F16, F32, F64, I64, U64, DType
from onepass.loops.build import add, cast, const, idx, loop, mul, select, unary
from onepass.loops.build import binary as binary_of
from onepass.loops.ir import (
    BINARY_OPS,
    COMPARISONS,
    UNARY_OPS,
    BinaryOp,
    Buffer,
    Expr,
    Fma,
    Kernel,
    Load,
    Store,
    UnaryOp,
)
from onepass.loops.printer import print_expr
from onepass.loops.walk import loads

CPU_DTYPES = [dtype for dtype in DTYPES.values() if dtype != BF16]

LANES = (1, 7, 16)
NUMBERS = [d for d in CPU_DTYPES if d != BOOL]
INTEGERS = [d for d in NUMBERS if d.is_integer]
FLOATS = [d for d in NUMBERS if d.is_float]
EXACT = ("neg", "abs", "sqrt", "floor", "ceil", "round", "trunc", "sign", "is_nan", "is_inf")


def kinds_of(op: str) -> list[DType]:
    if op in ("neg", "abs", "sign", "add", "sub", "mul", "div", "pow"):
        return NUMBERS
    if op in ("rem", "floordiv", "mod", "shl", "shr"):
        return INTEGERS
    if op in ("not", "and", "or", "xor"):
        return [*INTEGERS, BOOL]
    if op in ("max", "min") or op in COMPARISONS:
        return CPU_DTYPES
    return FLOATS


def samples(dtype: DType, count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == BOOL:
        return rng.integers(0, 2, count).astype(np.bool_)
    if dtype.is_float:
        special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.5, 2.5, -2.5, 3e4, -3e4, 1e-7]
        values = np.concatenate([special, rng.standard_normal(count) * 3])[:count]
        return rng.permutation(values).astype(dtype.numpy)
    info = np.iinfo(dtype.name)
    special = [0, 1, 2, 3, info.max, info.min, info.max - 1, info.min + 1]
    small = rng.integers(0 if info.min == 0 else -9, 9, count)
    values = [*special, *special, *small.tolist()][:count]
    return rng.permutation(np.array(values, dtype.numpy))


def operand(slot: str, dtype: DType) -> Load:
    """An element of the array `slot` of this dtype: at row i, lane v."""
    return Load(f"{slot}_{dtype}", (idx("i"), idx("v")), dtype)


def check(cases: list[tuple[Expr, int]], lanes: int) -> None:
    """Each expression over some rows of `lanes` elements, all in one kernel, within a bound in ulps."""
    rows = 96 // lanes
    inputs = sorted({(load.buffer, load.dtype) for expr, _ in cases for load in loads(expr)}, key=str)
    arrays = {
        name: samples(dtype, rows * lanes, seed).reshape(rows, lanes)
        for seed, (name, dtype) in enumerate(inputs)
    }
    outputs = [(f"y{n}", expr.dtype) for n, (expr, _) in enumerate(cases)]
    arrays |= {name: np.zeros((rows, lanes), dtype.numpy) for name, dtype in outputs}
    at = (idx("i"), idx("v"))
    stores = tuple(Store(f"y{n}", at, expr) for n, (expr, _) in enumerate(cases))
    params = tuple(Buffer(name, dtype, (rows, lanes)) for name, dtype in [*inputs, *outputs])
    kernel = Kernel("k", params, (loop("i", rows, (loop("v", lanes, stores, "vector"),)),))
    actual, expected = run_native(kernel, arrays), run_interpreted(kernel, arrays)
    for (name, _), (expr, bound) in zip(outputs, cases, strict=True):
        if bound:
            assert ulps(actual[name], expected[name]).max() <= bound, print_expr(expr)
        else:
            assert same(actual[name], expected[name]), print_expr(expr)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("op", UNARY_OPS)
def test_unary(op: UnaryOp, lanes: int) -> None:
    bound = 0 if op in (*EXACT, "not") else 4
    check([(unary(op, operand("a", dtype)), bound) for dtype in kinds_of(op)], lanes)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("op", BINARY_OPS)
def test_binary(op: BinaryOp, lanes: int) -> None:
    pairs = [(operand("a", dtype), operand("b", dtype)) for dtype in kinds_of(op)]
    check([(binary_of(op, a, b), bound_of(op, a.dtype)) for a, b in pairs], lanes)


def bound_of(op: str, dtype: DType) -> int:
    return 1 if op == "pow" and dtype.is_float else 0


@pytest.mark.parametrize("op", BINARY_OPS)
def test_binary_with_a_literal(op: BinaryOp) -> None:
    cases = []
    for dtype in kinds_of(op):
        for value in (2, 0, 1) if dtype != BOOL else (True, False):
            a, literal = operand("a", dtype), const(float(value) if dtype.is_float else value, dtype)
            for left, right in ((a, literal), (literal, a)):
                cases.append((binary_of(op, left, right), bound_of(op, dtype)))
    check(cases, 16)


@pytest.mark.parametrize("exponent", [0.5, -1.0, 3.0, -2.0])
def test_power_with_a_literal_exponent(exponent: float) -> None:
    check([(binary_of("pow", operand("a", d), const(exponent, d)), 2) for d in FLOATS], 16)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("source", CPU_DTYPES, ids=str)
def test_casts(source: DType, lanes: int) -> None:
    cases: list[tuple[Expr, int]] = []
    for target in CPU_DTYPES:
        x: Expr = operand("a", source)
        if source.is_float and target == U64:
            x = unary("abs", finite_of(x))  # what C leaves undefined depends on numpy's build
        cases.append((cast(x, target), 0))
    check(cases, lanes)


def finite_of(x: Expr) -> Expr:
    """`x`, and 1 where it is not finite."""
    is_finite = binary_of("lt", unary("abs", x), const(float("inf"), x.dtype))
    return select(is_finite, x, const(1.0, x.dtype))


def test_float64_to_float16_rounds_once() -> None:
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    ties = (halves[1:] + halves[:-1]) / 2
    x = np.concatenate([ties, np.nextafter(ties, 0), np.nextafter(ties, 1e9), -ties, halves, [65520, 1e300]])
    x = np.resize(x, (len(x) // 16, 16))
    at = (idx("i"), idx("v"))
    params = Buffer("x", F64, x.shape), Buffer("y", F16, x.shape)
    store = Store("y", at, cast(Load("x", at, F64), F16))
    kernel = Kernel("k", params, (loop("i", len(x), (loop("v", 16, (store,), "vector"),)),))
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    assert same(run_native(kernel, {"x": x, "y": np.zeros(x.shape, np.float16)})["y"], expected)


@pytest.mark.parametrize("lanes", LANES)
def test_fma_rounds_once(lanes: int) -> None:
    wide = [d for d in FLOATS if d.bits > 16]
    check([(Fma(operand("a", d), operand("b", d), operand("c", d), d), 0) for d in wide], lanes)


@pytest.mark.parametrize("lanes", LANES)
def test_select_and_mixed_scalars(lanes: int) -> None:
    a, b = operand("a", F32), operand("b", F32)
    row = Load("a_float32", (idx("i"), const(0)), F32)
    position = cast(add(mul(idx("i"), 3), idx("v")), F32)
    product, total = binary_of("mul", a, position), binary_of("add", b, row)
    check([(select(binary_of("lt", a, row), product, total), 0)], lanes)


@pytest.mark.parametrize("lanes", LANES)
def test_index_values_in_vectors(lanes: int) -> None:
    flat = add(mul(idx("i"), 5), idx("v"))
    value = add(binary_of("floordiv", flat, const(3)), binary_of("mod", flat, const(7)))
    check([(value, 0), (binary_of("add", operand("a", I64), value), 0)], lanes)
