"""The project's tolerance: its bound, and what counts as equal."""

import numpy as np
import pytest

from onepass.core.dtypes import BF16, F16, F32, F64, I32
from onepass.core.tolerance import OPERATIONS, compare, gamma, tolerance, unit_roundoff


def test_bound_grows_with_the_sum_and_shrinks_with_precision():
    assert unit_roundoff(F32) == 2.0**-24
    assert gamma(1, 2.0**-24) > 2.0**-24
    assert gamma(2**25, 2.0**-24) == float("inf")
    assert tolerance(F32, 1000)[0] == pytest.approx((1000 + OPERATIONS) * 2.0**-24, rel=1e-3)
    assert tolerance(F64, 10) < tolerance(F32, 10) < tolerance(F16, 10) < tolerance(BF16, 10)
    assert unit_roundoff(BF16) == 2.0**-8
    assert tolerance(F32, magnitude=8.0)[1] == 8 * tolerance(F32)[0]
    assert tolerance(I32, 1000) == (0.0, 0.0)


def test_sums_in_any_order_stay_within_it():
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    exact = np.asarray(x.astype(np.float64).sum())
    for actual in (np.cumsum(x)[-1], x[::-1].sum()):
        comparison = compare(np.asarray(actual), exact, x.size, magnitude=float(np.abs(x).sum()))
        assert comparison.within and comparison.max_abs > 0


def test_special_values():
    same = np.float32([np.nan, np.inf, -np.inf, -0.0, 1])
    assert compare(same, np.array([np.nan, np.inf, -np.inf, 0.0, 1])).within
    for wrong in (np.nan, -np.inf, 1e30):
        assert compare(np.float32([wrong]), np.array([np.inf])).mismatches == 1
    assert compare(np.float32([np.inf]), np.array([1e300])).within
    assert compare(np.empty((0, 2), np.float32), np.empty((0, 2))).within
    bfloat16 = np.array([np.nan, np.inf, 3e38, 1], BF16.numpy)
    assert compare(bfloat16, np.array([np.nan, 1e300, 3e38, 1 + 2.0**-9])).within
    assert compare(bfloat16[3:], np.array([1.5])).mismatches == 1


def test_errors_are_measured_and_told():
    comparison = compare(np.float32([[1, 2], [3, 5]]), np.array([[1, 2], [3, 4.0]]))
    assert (comparison.max_abs, comparison.worst, comparison.mismatches) == (1.0, (1, 1), 1)
    assert comparison.relative_l2 == pytest.approx(1 / np.sqrt(30))
    assert "1 elements outside the bound" in str(comparison) and not comparison.within
    assert "within the bound" in str(compare(np.float32([1]), np.array([1.0])))


def test_integers_and_bools_must_be_equal():
    assert compare(np.array([1, 2]), np.array([1, 2])).within
    assert compare(np.array([True, False]), np.array([True, True])).mismatches == 1
    large = np.array([2**62], np.int64)
    assert not compare(large + 1, large).within
    with pytest.raises(ValueError, match="shapes differ"):
        compare(np.zeros(2), np.zeros(3))
