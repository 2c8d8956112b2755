"""Gathers and one_hot: stages give the reference's elements; no place is read outside the data."""

import numpy as np
import pytest
from op_adapted import check_adapted, lowered, normal, same_as_reference

from onepass.core.errors import ShapeError


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather(dtype):
    places = np.array([[0, -1, 2], [1, -4, 3]], dtype)
    for axis in (0, 1, -1):
        same_as_reference("gather", (normal(4, 4, 5), places), {"axis": axis})
    same_as_reference("gather", (normal(4, 3), np.array(-2, dtype)), {"axis": 1})
    same_as_reference("gather", (normal(4, 3), np.zeros((0, 2), dtype)))


def test_places_outside_are_moved_to_the_border():
    data = normal(3, 2)
    out = same_as_reference("gather", (data, np.array([7, -9, np.iinfo(np.int64).max])))
    np.testing.assert_array_equal(out, data[[2, 0, 2]])


def test_gather_elements_and_nd():
    places = np.array([[0, -1, 1], [2, 0, -3]])
    same_as_reference("gather_elements", (normal(3, 3), places), {"axis": 0})
    same_as_reference("gather_elements", (normal(2, 4), places), {"axis": 1})
    same_as_reference("gather_elements", (normal(2, 4), np.zeros((0, 3), np.int64)), {"axis": 1})
    same_as_reference("gather_nd", (normal(3, 4, 5), np.array([[[0, -1]], [[2, 3]]])))
    same_as_reference("gather_nd", (normal(2, 3, 4), np.array([[[1]], [[-1]]])), {"batch_dims": 1})
    same_as_reference("gather_nd", (normal(2, 3), np.zeros((0, 2), np.int64)))


def test_one_hot():
    values = np.array([0.5, 2], np.float32)
    for axis in (-1, 0, 1):
        places = np.array([[0, -1, 7], [2, 4, -6]])
        assert same_as_reference("one_hot", (places, values), {"axis": axis, "depth": 5}).size == 30


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_orders_ties_by_place_and_nan_above_all(largest):
    x = np.array([[1, np.nan, 3, 1, -np.inf, np.nan, np.inf, 3], [0, 0, 0, 2, -1, -1, 2, 0]], np.float32)
    for k in (0, 1, 5, 8):
        same_as_reference("top_k", (x,), {"k": k, "largest": largest})
    same_as_reference("top_k", (normal(4, 3, 5),), {"k": 2, "largest": largest, "axis": 0})
    same_as_reference("top_k", (np.array([3, 255, 0, 3], np.uint8),), {"k": 3, "largest": largest})


def test_rejects_what_does_not_fit():
    places = np.zeros((2, 3), np.int64)
    with pytest.raises(ShapeError):
        lowered("gather", (normal(0, 3), places))
    with pytest.raises(ShapeError):
        lowered("gather", (normal(2, 3), places), {"axis": 2})
    with pytest.raises(ShapeError):
        lowered("gather_elements", (normal(3), places))
    with pytest.raises(ShapeError):
        lowered("gather_nd", (normal(2, 2), places))
    with pytest.raises(ShapeError):
        lowered("top_k", (normal(2, 3),), {"k": 4})


def test_onnx_cases():
    assert check_adapted({"Gather", "GatherElements", "GatherND", "OneHot", "TopK"}) > 10
