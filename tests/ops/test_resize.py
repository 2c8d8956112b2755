"""Resize: stages against reference, reference against torch."""

import itertools

import numpy as np
import pytest
from op_checks import check, close, lowered, normal, same_as_reference

from onepass.core.errors import OnepassError
from onepass.loops.build import floordiv, idx

COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric")
ROUNDINGS = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


def sized(shape, sizes, **attrs):
    return {"sizes": sizes, "scales": tuple(o / n for o, n in zip(sizes, shape, strict=True)), **attrs}


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_nearest(coordinates):
    for rounding, output in itertools.product(ROUNDINGS, (1, 3, 5, 10, 12)):
        attrs = sized((2, 5), (2, output), coordinate_transformation_mode=coordinates, nearest_mode=rounding)
        same_as_reference("resize", (normal(2, 5),), attrs)


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_linear(coordinates):
    shape = (1, 2, 5, 4)
    for sizes in ((1, 2, 10, 8), (1, 2, 3, 7), (1, 2, 1, 4), (1, 2, 5, 9)):
        attrs = sized(shape, sizes, coordinate_transformation_mode=coordinates, mode="linear")
        check("resize", (normal(*shape),), attrs, 64)


def test_agrees_with_torch():
    torch = pytest.importorskip("torch")
    interpolate = torch.nn.functional.interpolate
    x = normal(2, 3, 6, 5)
    exact = torch.from_numpy(x).double()
    for sizes in ((12, 10), (4, 7), (9, 3), (1, 1)):
        full = (2, 3, *sizes)
        for corners, theirs in ((False, "pytorch_half_pixel"), (True, "align_corners")):
            if sizes == (1, 1) and not corners:
                continue  # torch places the one sample in the middle
            attrs = sized(x.shape, full, mode="linear", coordinate_transformation_mode=theirs)
            out = check("resize", (x,), attrs, 64)
            close(out, interpolate(exact, sizes, mode="bilinear", align_corners=corners).numpy(), 64)
        attrs = sized(x.shape, full, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
        np.testing.assert_array_equal(
            same_as_reference("resize", (x,), attrs), interpolate(torch.from_numpy(x), sizes)
        )


def test_doubling_reads_half_the_place():
    for coordinates, rounding in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")):
        attrs = sized((4,), (8,), coordinate_transformation_mode=coordinates, nearest_mode=rounding)
        load = lowered("resize", (normal(4),), attrs).stages[0].body
        assert load.indices == (floordiv(idx("i0"), 2),)


def test_unchanged_dimensions_empty_batch_and_integers():
    same_as_reference("resize", (normal(3, 4),), sized((3, 4), (3, 4), mode="linear"))
    check("resize", (normal(0, 4),), {"sizes": (0, 8), "scales": (1.0, 2.0), "mode": "linear"})
    same_as_reference("resize", (np.arange(6, dtype=np.uint8),), sized((6,), (9,)))


def test_rejects_what_it_cannot_do():
    for shape, attrs in (
        ((4,), sized((4,), (8,), coordinate_transformation_mode="tf_crop_and_resize")),
        ((4,), sized((4,), (8,), mode="cubic")),
        ((0,), {"sizes": (4,), "scales": (1.0,)}),
        ((4, 4), {"sizes": (4,)}),
    ):
        with pytest.raises(OnepassError):
            lowered("resize", (normal(*shape),), attrs)
