"""Every operation on every dtype, scalar and in vectors of several lengths, equals the interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from native import run_interpreted, run_native, same, ulps

from onepass.core.dtypes import BOOL, DTYPES, F16, F32, F64, I64, U64, DType
from onepass.loops.build import add, cast, const, idx, loop, mul, select, unary
from onepass.loops.build import binary as binary_of
from onepass.loops.ir import BINARY_OPS, COMPARISONS, UNARY_OPS, Buffer, Expr, Fma, Kernel, Load, Store

LANES = (1, 7, 16)
NUMBERS = [d for d in DTYPES.values() if d != BOOL]
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
        return list(DTYPES.values())
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


def check(expr_of: object, dtypes: tuple[DType, ...], lanes: int, bound: int = 0, seed: int = 0) -> None:
    """`expr_of(loads)` over some rows of `lanes` elements."""
    rows = 96 // lanes
    at = (idx("i"), idx("v"))
    loads = [Load(f"x{k}", at, dtype) for k, dtype in enumerate(dtypes)]
    expr: Expr = expr_of(*loads)  # type: ignore[operator]
    arrays = {f"x{k}": samples(d, rows * lanes, seed + k).reshape(rows, lanes) for k, d in enumerate(dtypes)}
    arrays["y"] = np.zeros((rows, lanes), expr.dtype.numpy)
    buffers = [Buffer(f"x{k}", d, (rows, lanes)) for k, d in enumerate(dtypes)]
    store = Store("y", at, expr)
    kernel = Kernel(
        "k", (*buffers, Buffer("y", expr.dtype, (rows, lanes))),
        (loop("i", rows, (loop("v", lanes, (store,), "vector"),)),),
    )  # fmt: skip
    actual, expected = run_native(kernel, arrays)["y"], run_interpreted(kernel, arrays)["y"]
    if bound:
        assert ulps(actual, expected).max() <= bound
    else:
        assert same(actual, expected), np.argwhere(actual != expected)[:5]


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("op", UNARY_OPS)
def test_unary(op: str, lanes: int) -> None:
    for dtype in kinds_of(op):
        bound = 0 if op in (*EXACT, "not") else 4
        check(lambda x: unary(op, x), (dtype,), lanes, bound)  # type: ignore[arg-type]


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("op", BINARY_OPS)
def test_binary(op: str, lanes: int) -> None:
    for dtype in kinds_of(op):
        bound = 1 if op == "pow" and dtype.is_float else 0
        check(lambda a, b: binary_of(op, a, b), (dtype, dtype), lanes, bound)  # type: ignore[arg-type]


@pytest.mark.parametrize("op", BINARY_OPS)
def test_binary_with_a_literal(op: str) -> None:
    for dtype in kinds_of(op):
        for value in (2, 0, 1) if dtype != BOOL else (True, False):
            literal = const(float(value) if dtype.is_float else value, dtype)
            bound = 1 if op == "pow" and dtype.is_float else 0
            check(lambda a, c=literal: binary_of(op, a, c), (dtype,), 16, bound)  # type: ignore[arg-type,misc]
            check(lambda a, c=literal: binary_of(op, c, a), (dtype,), 16, bound)  # type: ignore[arg-type,misc]


@pytest.mark.parametrize("exponent", [0.5, -1.0, 3.0, -2.0])
def test_power_with_a_literal_exponent(exponent: float) -> None:
    for dtype in FLOATS:
        check(lambda a, d=dtype: binary_of("pow", a, const(exponent, d)), (dtype,), 16, 2)  # type: ignore[misc]


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("source", DTYPES.values(), ids=str)
def test_casts(source: DType, lanes: int) -> None:
    for target in DTYPES.values():
        if source.is_float and target == U64:
            # What C leaves undefined depends on numpy's build.
            check(lambda x, t=target: cast(unary("abs", finite_of(x)), t), (source,), lanes)  # type: ignore[misc]
            continue
        check(lambda x, t=target: cast(x, t), (source,), lanes)  # type: ignore[misc]


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
    for dtype in (d for d in FLOATS if d.bits > 16):
        check(lambda a, b, c, d=dtype: Fma(a, b, c, d), (dtype,) * 3, lanes)  # type: ignore[misc]


@pytest.mark.parametrize("lanes", LANES)
def test_select_and_mixed_scalars(lanes: int) -> None:
    def expr(a: Expr, b: Expr) -> Expr:
        row = Load("x0", (idx("i"), const(0)), F32)
        position = cast(add(mul(idx("i"), 3), idx("v")), F32)
        return select(binary_of("lt", a, row), binary_of("mul", a, position), binary_of("add", b, row))

    check(expr, (F32, F32), lanes)


def test_index_values_in_vectors() -> None:
    def expr(a: Expr) -> Expr:
        flat = add(mul(idx("i"), 5), idx("v"))
        return add(binary_of("floordiv", flat, const(3)), binary_of("mod", flat, const(7)))

    check(expr, (I64,), 16)
    check(lambda a: binary_of("add", a, expr(a)), (I64,), 7)
