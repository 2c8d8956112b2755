"""Vector functions of float32 over the whole range, against float64; special values exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from native import Array, run_native

from onepass.core.dtypes import F32
from onepass.loops.build import idx, loop, unary
from onepass.loops.ir import Buffer, Kernel, Load, Store
from onepass.targets.llvm.description import TargetDescription, describe, describe_host
from onepass.targets.llvm.math import BOUNDS_ULP

NAN, INF = math.nan, math.inf


def erf64(x: Array) -> Array:
    return np.array([math.erf(v) for v in x.ravel()]).reshape(x.shape)


def sigmoid64(x: Array) -> Array:
    z = np.exp(-np.abs(x))
    return np.where(x < 0, z, 1.0) / (1.0 + z)


EXACT = {"exp": np.exp, "log": np.log, "tanh": np.tanh, "erf": erf64, "sigmoid": sigmoid64}


def apply(op: str, x: Array, lanes: int, target: TargetDescription | None = None) -> Array:
    rows = x.reshape(-1, lanes)
    at = (idx("i"), idx("v"))
    store = Store("y", at, unary(op, Load("x", at, F32)))  # type: ignore[arg-type]
    kernel = Kernel(
        "k", (Buffer("x", F32, rows.shape), Buffer("y", F32, rows.shape)),
        (loop("i", len(rows), (loop("v", lanes, (store,), "vector"),)),),
    )  # fmt: skip
    return run_native(kernel, {"x": rows, "y": np.zeros(rows.shape, np.float32)}, target=target)["y"].ravel()


def error_ulps(actual: Array, exact: Array) -> Array:
    """Error in units in the last place of the exact result as a float32 (subnormals: of the least)."""
    with np.errstate(all="ignore"):
        unit = np.spacing(np.maximum(np.abs(exact), 2.0**-126).astype(np.float32)).astype(np.float64)
        unit = np.where(np.isfinite(unit), unit, 2.0**104)
        same = (actual == exact.astype(np.float32)) | (np.isnan(actual) & np.isnan(exact))
        return np.where(same, 0.0, np.abs(actual.astype(np.float64) - exact) / unit)


def whole_range(count: int) -> Array:
    """Bit patterns spread evenly over all float32, and numbers where the functions do something."""
    bits = np.linspace(0, 2**32 - 1, count, dtype=np.uint64).astype(np.uint32)
    rng = np.random.default_rng(0)
    usual = rng.uniform(-110, 110, count).astype(np.float32), rng.uniform(-4, 4, count).astype(np.float32)
    return np.concatenate([bits.view(np.float32), *usual])


@pytest.mark.parametrize("op", BOUNDS_ULP)
def test_error_over_the_whole_range(op: str) -> None:
    x = whole_range(1 << 17 if op == "erf" else 1 << 20)
    with np.errstate(all="ignore"):
        exact = EXACT[op](x.astype(np.float64))
    error = error_ulps(apply(op, x, 16), exact)
    worst = int(np.nanargmax(np.where(np.isnan(error), np.inf, error)))
    assert error[worst] <= BOUNDS_ULP[op], (x[worst], error[worst])


@pytest.mark.parametrize("op", BOUNDS_ULP)
@pytest.mark.parametrize("lanes", [1, 5, 8])
def test_other_lengths_and_registers(op: str, lanes: int) -> None:
    x = whole_range(1 << 12)[: (3 << 12) // lanes * lanes]
    with np.errstate(all="ignore"):
        exact = EXACT[op](x.astype(np.float64))
    for target in (describe_host(), describe("x86-64-v3")) if describe_host().isa == "avx512" else (None,):
        assert error_ulps(apply(op, x, lanes, target), exact).max() <= BOUNDS_ULP[op]


SPECIAL: dict[str, list[tuple[float, float]]] = {
    "exp": [(0, 1), (-0.0, 1), (INF, INF), (-INF, 0), (NAN, NAN), (89, INF), (-104, 0), (1e30, INF)],
    "log": [(1, 0), (0, -INF), (-0.0, -INF), (INF, INF), (-INF, NAN), (NAN, NAN), (-1, NAN), (-1e-45, NAN)],
    "tanh": [(0, 0), (-0.0, -0.0), (INF, 1), (-INF, -1), (NAN, NAN), (1e-45, 1e-45), (20, 1), (-20, -1)],
    "erf": [(0, 0), (-0.0, -0.0), (INF, 1), (-INF, -1), (NAN, NAN), (5, 1), (-5, -1)],
    "sigmoid": [(0, 0.5), (INF, 1), (-INF, 0), (NAN, NAN), (-200, 0), (200, 1)],
}


@pytest.mark.parametrize("op", SPECIAL)
@pytest.mark.parametrize("lanes", [1, 16])
def test_special_values(op: str, lanes: int) -> None:
    pairs = (SPECIAL[op] * 16)[: 16 * len(SPECIAL[op]) // 16 * 16]
    x, expected = (np.array(column, np.float32) for column in zip(*pairs, strict=True))
    actual = apply(op, x, lanes)
    assert np.array_equal(actual, expected, equal_nan=True)
    finite = ~np.isnan(expected)
    assert np.array_equal(np.signbit(actual[finite]), np.signbit(expected[finite]))
