"""Addresses: every way that an index can depend on lanes, unrolled and run-time variables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native import run_interpreted, run_native, same

from onepass.core.dtypes import BF16, BOOL, DTYPES, F32, I32, I64, DType
from onepass.loops.build import add, binary, const, floordiv, idx, loop, mod, mul, select, sub
from onepass.loops.ir import Buffer, Expr, Kernel, Load, LoopMode, Store

CPU_DTYPES = [dtype for dtype in DTYPES.values() if dtype != BF16]

ROWS, LANES, SIZE = 3, 13, 1000
LANE_COUNTS = (1, 2, 3, 5, 8, 13, 16, 33)


def check_copy(
    at: Expr, guard: Expr | None = None, dtype: DType = F32, lanes: int = LANES, mode: LoopMode = "serial"
) -> None:
    """`y[i, v] = x[at]`, where `at` may be a function of i, v, and of tables."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 100, SIZE).astype(dtype.numpy)
    table = rng.integers(0, SIZE - 100, (ROWS, lanes)).astype(np.int64)
    value: Expr = Load("x", (at,), dtype)
    if guard is not None:
        value = select(guard, value, const(True if dtype == BOOL else 7.0 if dtype.is_float else 7, dtype))
    store = Store("y", (idx("i"), idx("v")), value)
    kernel = Kernel(
        "k",
        (Buffer("x", dtype, (SIZE,)), Buffer("t", I64, (ROWS, lanes)), Buffer("y", dtype, (ROWS, lanes))),
        (loop("i", ROWS, (loop("v", lanes, (store,), "vector"),), mode),),
    )
    arrays = {"x": x, "t": table, "y": np.zeros((ROWS, lanes), dtype.numpy)}
    actual, expected = run_native(kernel, arrays)["y"], run_interpreted(kernel, arrays)["y"]
    assert same(actual, expected)


ROW, V = idx("i"), idx("v")
FLAT = add(mul(ROW, 20), V)
INDICES: dict[str, Expr] = {
    "unit": add(FLAT, 3),
    "uniform": mul(ROW, 7),
    "reversed": sub(200, FLAT),
    "stride 2": add(mul(V, 2), ROW),
    "stride 3": mul(FLAT, 3),
    "stride -2": sub(300, mul(V, 2)),
    "stride 4": add(mul(V, 4), 5),
    "stride 11": mul(V, 11),
    "division": floordiv(FLAT, 3),
    "remainder": mod(FLAT, 7),
    "blocks": add(mul(floordiv(FLAT, 16), 100), mod(FLAT, 16)),
    "product": binary("mul", ROW, V),
    "table": Load("t", (ROW, V), I64),
    "row of table": add(Load("t", (ROW, const(0)), I64), V),
    "table, strided": add(Load("t", (sub(2, ROW), const(0)), I64), mul(V, 2)),
    "minimum": binary("min", FLAT, const(17)),
    "row minimum": add(binary("min", mul(ROW, 9), const(10)), V),
}
GUARDS: dict[str, Expr] = {
    "row": binary("lt", ROW, const(1)),
    "lane": binary("lt", V, const(4)),
    "flat": binary("ge", FLAT, const(25)),
    "both": binary("and", binary("gt", ROW, const(0)), binary("lt", V, const(9))),
    "data": binary("lt", Load("t", (ROW, V), I64), const(SIZE // 2)),
    "always": binary("ge", FLAT, const(0)),
}


@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("mode", ["serial", "unroll"])
def test_loads(name: str, mode: LoopMode) -> None:
    for lanes in (1, 13, 16):
        check_copy(INDICES[name], lanes=lanes, mode=mode)


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("name", INDICES)
def test_guarded_loads_stay_inside(name: str, guard: str) -> None:
    outside = select(GUARDS[guard], INDICES[name], const(1 << 50))
    check_copy(outside, GUARDS[guard])
    check_copy(add(INDICES[name], 0), GUARDS[guard], lanes=16, mode="unroll")


def test_padding_reads_nothing_outside() -> None:
    at = sub(FLAT, 1 << 40)
    check_copy(at, binary("ge", at, const(0)))
    check_copy(at, binary("ge", at, const(0)), mode="unroll")
    at = sub(FLAT, 30)
    check_copy(at, binary("ge", at, const(0)))


@pytest.mark.parametrize("dtype", CPU_DTYPES, ids=str)
def test_dtypes(dtype: DType) -> None:
    for name in ("unit", "stride 2", "stride 11", "reversed", "uniform"):
        check_copy(INDICES[name], None, dtype)
        check_copy(INDICES[name], GUARDS["lane"], dtype)


@pytest.mark.parametrize("lanes", LANE_COUNTS)
def test_lane_counts(lanes: int) -> None:
    for name in ("unit", "stride 2", "stride 3", "stride -2", "reversed", "table"):
        check_copy(INDICES[name], lanes=lanes)


STORES: dict[str, Expr] = {
    "unit": add(FLAT, 1),
    "stride 2": mul(FLAT, 2),
    "reversed": sub(99, FLAT),
    "table": Load("t", (ROW, V), I64),
    "blocks": add(mul(floordiv(FLAT, 16), 100), mod(FLAT, 16)),
}


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("mode", ["serial", "unroll"])
@pytest.mark.parametrize("dtype", [F32, I32, BOOL], ids=str)
def test_stores(name: str, mode: LoopMode, dtype: DType) -> None:
    rng = np.random.default_rng(1)
    table = rng.permutation(SIZE)[: ROWS * LANES].reshape(ROWS, LANES).astype(np.int64)
    x = rng.integers(0, 2 if dtype == BOOL else 90, (ROWS, LANES)).astype(dtype.numpy)
    body = (Store("y", (STORES[name],), Load("x", (ROW, V), dtype)),)
    kernel = Kernel(
        "k",
        (Buffer("x", dtype, (ROWS, LANES)), Buffer("t", I64, (ROWS, LANES)), Buffer("y", dtype, (SIZE,))),
        (loop("i", ROWS, (loop("v", LANES, body, "vector"),), mode),),
    )
    arrays = {"x": x, "t": table, "y": np.zeros(SIZE, dtype.numpy)}
    assert same(run_native(kernel, arrays)["y"], run_interpreted(kernel, arrays)["y"])


def index_expressions() -> st.SearchStrategy[Expr]:
    """Non-negative index expressions in a, b (loops) and v (lanes), kept small by `mod`."""
    leaves = st.one_of(st.sampled_from([idx("a"), idx("b"), V]), st.integers(0, 9).map(const))

    def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        divisor = st.integers(1, 17)
        return st.one_of(
            st.builds(add, inner, inner),
            st.builds(mul, inner, st.integers(0, 5)),
            st.builds(floordiv, inner, divisor),
            st.builds(mod, inner, divisor),
            st.builds(lambda x, y: binary("max", x, y), inner, inner),
            st.builds(lambda x, y: binary("min", x, y), inner, inner),
            st.builds(lambda x, y: mod(sub(x, y), 64), inner, inner),
        )

    return st.recursive(leaves, extend, max_leaves=6)


MODES: list[LoopMode] = ["serial", "unroll", "parallel"]


@settings(max_examples=60, deadline=None)
@given(
    index_expressions(),
    index_expressions(),
    st.sampled_from(MODES),
    st.sampled_from(MODES[:2]),
    st.sampled_from([1, 4, 7, 16]),
    st.sampled_from(["lt", "ge", "eq"]),
)
def test_random_indices(
    at: Expr, other: Expr, outer: LoopMode, inner: LoopMode, lanes: int, comparison: str
) -> None:
    value = select(
        binary(comparison, at, other), Load("x", (mod(at, SIZE),), F32), Load("x", (mod(other, SIZE),), F32)
    )
    body = loop("v", lanes, (Store("y", (idx("a"), idx("b"), V), value),), "vector")
    kernel = Kernel(
        "k",
        (Buffer("x", F32, (SIZE,)), Buffer("y", F32, (5, 3, lanes))),
        (loop("a", 5, (loop("b", 3, (body,), inner),), outer),),
    )
    arrays = {"x": np.arange(SIZE, dtype=np.float32), "y": np.zeros((5, 3, lanes), np.float32)}
    assert same(run_native(kernel, arrays, 2)["y"], run_interpreted(kernel, arrays, 2)["y"])
