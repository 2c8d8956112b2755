"""Reductions: every choice of axes, dtypes, emptiness, NaN and infinities."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_checks import check, run

from onepass.core.dtypes import F32
from onepass.core.errors import ShapeError
from onepass.core.tensor import TensorType
from onepass.ops.registry import OPS

REDUCE = [
    "reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_sum_square",
    "reduce_l1", "reduce_l2",
]  # fmt: skip


@pytest.mark.parametrize("op", REDUCE)
@given(st.sets(st.integers(-3, 2)), st.booleans(), st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_axes(op, axes, keepdims, noop):
    x = np.random.default_rng(len(axes)).uniform(0.5, 2, (2, 3, 4)).astype(np.float32)
    attrs = {"axes": tuple(axes) or None, "keepdims": int(keepdims), "noop_with_empty_axes": int(noop)}
    check(op, [x], attrs, terms=24)


@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "int64"])
def test_dtypes(op, dtype):
    x = np.random.default_rng(3).integers(1, 5, (3, 5)).astype(dtype)
    check(op, [x], {"axes": (1,)}, terms=5)
    check(op, [x], {"keepdims": 0}, terms=15)
    check(op, [x[0, 0]], {}, terms=1)


@pytest.mark.parametrize("op, value", [("reduce_sum", 0), ("reduce_prod", 1), ("reduce_max", -np.inf),
                                       ("reduce_min", np.inf), ("reduce_l2", 0),
                                       ("reduce_mean", np.nan)])  # fmt: skip
def test_nothing_reduced(op, value):
    y = check(op, [np.empty((2, 0, 3), np.float32)], {"axes": (1,), "keepdims": 0})
    assert np.array_equal(y, np.full((2, 3), value, np.float32), equal_nan=True)
    assert check(op, [np.empty((0, 2), np.float32)], {"axes": (1,)}).shape == (0, 1)


def test_nothing_reduced_in_integers_and_bools():
    assert check("reduce_max", [np.empty((0,), np.int8)], {}).tolist() == [-128]
    assert check("reduce_min", [np.empty((0,), np.uint8)], {}).tolist() == [255]
    assert check("reduce_mean", [np.empty((0,), np.int32)], {}).tolist() == [0]
    assert check("reduce_max", [np.empty((0,), bool)], {}).tolist() == [False]
    assert check("reduce_min", [np.array([[True, False], [True, True]])], {"axes": (1,)}).tolist() == [
        [False],
        [True],
    ]


def test_integer_mean_truncates_and_sums_wrap():
    assert check("reduce_mean", [np.array([-3, -4], np.int32)], {"keepdims": 0}) == -3
    assert check("reduce_sum", [np.full(3, 100, np.int8)], {"keepdims": 0}) == 44


@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("row", [[1, np.nan, 2], [np.inf, 1, 2], [-np.inf, 1, 2],
                                 [np.inf, -np.inf, 0], [-np.inf] * 3, [-0.0] * 3])  # fmt: skip
def test_specials(op, row):
    check(op, [np.float32([row])], {"axes": (1,)}, terms=3)


@pytest.mark.parametrize("op", ["arg_max", "arg_min"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_arg_takes_first_or_last_and_nan_wins(op, last, axis):
    attrs = {"axis": axis, "select_last_index": last, "keepdims": 0}
    check(op, [np.random.default_rng(4).integers(0, 3, (4, 5, 6)).astype(np.float32)], attrs)
    check(op, [np.random.default_rng(4).integers(0, 3, (4, 5, 6)).astype(np.int32)], attrs)
    assert check(op, [np.float32([[1, np.nan, 0, np.nan]])], {**attrs, "axis": 1}).tolist() == [
        3 if last else 1
    ]


def test_stage_axes_keep_their_dimension():
    lowering = OPS["reduce_mean"].lower([TensorType(F32, (2, 3, 4, 5))], {"axes": (1,), "keepdims": 0})
    assert [axis.name for axis in lowering.stages[0].axes] == ["i0", "i2", "i3"]
    assert lowering.output_types[0].shape == (2, 4, 5)
    assert len(OPS["reduce_sum"].lower([TensorType(F32, (2, 3))], {}).stages) == 1


def test_an_axis_outside_is_the_users_error():
    with pytest.raises(ShapeError, match="axis 3"):
        OPS["reduce_sum"].lower([TensorType(F32, (2, 3))], {"axes": (3,)})


def test_float16_sums_in_float32():
    assert run("reduce_sum", [np.full(4096, 1, np.float16)], {"keepdims": 0})[0] == 4096
