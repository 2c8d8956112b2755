"""Gathers: stages give the reference's elements; no place is read outside the data."""

import numpy as np
import pytest
from op_checks import lowered, normal, same_as_reference

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


def test_gather_elements():
    places = np.array([[0, -1, 1], [2, 0, -3]])
    same_as_reference("gather_elements", (normal(3, 3), places), {"axis": 0})
    same_as_reference("gather_elements", (normal(2, 4), places), {"axis": 1})
    same_as_reference("gather_elements", (normal(2, 4), np.zeros((0, 3), np.int64)), {"axis": 1})


def test_rejects_what_does_not_fit():
    places = np.zeros((2, 3), np.int64)
    with pytest.raises(ShapeError):
        lowered("gather", (normal(0, 3), places))
    with pytest.raises(ShapeError):
        lowered("gather", (normal(2, 3), places), {"axis": 2})
    with pytest.raises(ShapeError):
        lowered("gather_elements", (normal(3), places))
