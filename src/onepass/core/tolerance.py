"""How far a computed tensor may lie from the exact one: the project's one numeric tolerance.

In: the actual array and the expected one (usually float64). Out: a `Comparison` with the bound and
the error measured. Source of the bound: N. J. Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., SIAM 2002, sections 3.1 and 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onepass.core.dtypes import F32, DType, dtype_of_numpy, finfo

# A dozen rounded operations after the sum, and elementary functions good to 4 ulp each.
OPERATIONS = 32


def unit_roundoff(dtype: DType) -> float:
    """Largest relative error of one rounding to nearest: half the spacing at 1; 0 for integers."""
    return float(finfo(dtype).eps) / 2 if dtype.is_float else 0.0


def gamma(n: int, u: float) -> float:
    """`n u / (1 - n u)`: bounds the relative error of `n` roundings in a row (Higham 2002, lemma 3.1)."""
    return n * u / (1 - n * u) if n * u < 1 else float("inf")


def tolerance(
    dtype: DType, reduction_length: int = 1, *, operations: int = OPERATIONS, magnitude: float = 1.0
) -> tuple[float, float]:
    """(rtol, atol) such that `|actual - exact| <= rtol |exact| + atol`; (0, 0) for integers and bools.

    A sum of n terms, in any order, with or without FMA, errs by at most gamma_n times the sum of the
    terms' absolute values. Cancellation makes that larger than gamma_n |exact|; `magnitude`, the size
    of the terms' sum before it cancels, enters atol. Sums of float16 and bfloat16 run in float32.
    """
    u = unit_roundoff(dtype)
    accumulator = min(u, unit_roundoff(F32))
    rtol = gamma(operations, u) + gamma(reduction_length, accumulator)
    return rtol, rtol * magnitude


@dataclass(frozen=True, slots=True)
class Comparison:
    """The error of one array. Errors are taken over the elements finite in both arrays.

    `mismatches` counts the elements outside the bound, among them each NaN or infinity that stands
    in only one of the arrays; `worst` is the index of the largest error.
    """

    max_abs: float
    relative_l2: float
    rtol: float
    atol: float
    mismatches: int
    worst: tuple[int, ...]

    @property
    def within(self) -> bool:
        """Whether every element lies within the bound."""
        return self.mismatches == 0

    def __str__(self) -> str:
        verdict = "within the bound" if self.within else f"{self.mismatches} elements outside the bound"
        return (
            f"{verdict}: max |error| {self.max_abs:.3g} at {list(self.worst)}, relative L2 error "
            f"{self.relative_l2:.3g}, allowed {self.rtol:.3g} |expected| + {self.atol:.3g}"
        )


def compare(
    actual: NDArray[Any],
    expected: NDArray[Any],
    reduction_length: int = 1,
    *,
    operations: int = OPERATIONS,
    magnitude: float | None = None,
) -> Comparison:
    """Compares within the `tolerance` of the dtype of `actual`; raises `ValueError` where shapes differ.

    `magnitude` is, unless given, the largest finite |expected|: the error is then bounded relative to the
    tensor's largest element. NaN equals NaN, an infinity the same infinity, and -0 equals 0.
    `expected` is rounded to the dtype of `actual` where only that decides whether it is finite.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"shapes differ: {actual.shape} and {expected.shape}")
    dtype = dtype_of_numpy(actual.dtype)
    if not dtype.is_float:
        return _compare_exactly(actual, expected)
    with np.errstate(all="ignore"):
        rounded = expected.astype(actual.dtype)
        finite = np.isfinite(actual) & np.isfinite(rounded)
        same = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
    exact = np.where(finite, expected, 0).astype(np.float64)
    error = np.abs(np.where(finite, actual, 0).astype(np.float64) - exact)
    size = np.abs(exact)
    if magnitude is None:
        magnitude = float(size.max(initial=0.0))
    rtol, atol = tolerance(dtype, reduction_length, operations=operations, magnitude=magnitude)
    atol = max(atol, float(finfo(dtype).tiny))
    bad = ~np.where(finite, error <= rtol * size + atol, same)
    return _summary(error, exact, bad, rtol, atol)


def _compare_exactly(actual: NDArray[Any], expected: NDArray[Any]) -> Comparison:
    exact = expected.astype(np.float64)
    return _summary(np.abs(actual.astype(np.float64) - exact), exact, actual != expected, 0.0, 0.0)


def _summary(
    error: NDArray[Any], exact: NDArray[Any], bad: NDArray[Any], rtol: float, atol: float
) -> Comparison:
    if not error.size:
        return Comparison(0.0, 0.0, rtol, atol, 0, ())
    worst = tuple(int(k) for k in np.unravel_index(int(error.argmax()), error.shape))
    norm = float(np.linalg.norm(exact.ravel()))
    miss = float(np.linalg.norm(error.ravel()))
    relative = miss / norm if norm else (0.0 if not miss else float("inf"))
    return Comparison(float(error.max()), relative, rtol, atol, int(bad.sum()), worst)
