"""Movement ops: stages give exactly the reference's elements."""

import numpy as np
import pytest
from op_checks import lowered, normal, same_as_reference

from onepass.core.errors import OnepassError
from onepass.loops.build import idx
from onepass.ops.opdef import OPS


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((2, 3, 4), (6, 4)),
        ((6, 4), (2, 3, 4)),
        ((1, 12, 8), (1, 3, 4, 8)),
        ((4, 6), (6, 4)),
        ((2, 3, 4), (4, 3, 2)),
        ((24,), (2, 1, 3, 4, 1)),
        ((1, 1), ()),
        ((), (1, 1)),
        ((0, 3), (3, 0)),
        ((2, 0), (0,)),
    ],
)
def test_reshape(old, new):
    same_as_reference("reshape", (normal(*old),), {"shape": new})


def test_reshape_maps_matching_runs_without_division():
    load = lowered("reshape", (normal(2, 12, 5),), {"shape": (2, 3, 4, 5)}).stages[0].body
    assert load.indices[0] == idx("i0") and load.indices[2] == idx("i3")
    assert OPS["reshape"].view


def test_transpose():
    same_as_reference("transpose", (normal(2, 3, 4),), {"perm": (2, 0, 1)})
    same_as_reference("transpose", (normal(2, 3, 4),))
    same_as_reference("transpose", (normal(2, 0, 4),), {"perm": (1, 2, 0)})


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [(0, 7, 1), (1, 6, 2), (6, -1, -1), (5, 0, -2), (3, 3, 1), (6, 2, -3), (0, 0, -1)],
)
def test_slice(start, end, step):
    attrs = {"starts": (start, 1), "ends": (end, 3), "axes": (1, 0), "steps": (step, 1)}
    out = same_as_reference("slice", (normal(4, 7, 2),), attrs)
    assert out.shape == (2, len(range(start, end, step)), 2)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize(
    "pads", [(0, 1, 2, 0), (2, 2, 2, 2), (-1, 0, 0, -2), (-1, 2, 2, -1), (1, -1, -1, 1), (0, 0, 0, 0)]
)
def test_pad(mode, pads):
    same_as_reference("pad", (normal(4, 5),), {"mode": mode, "pads": pads, "value": 2.5})


def test_pad_wide_reflection_and_other_dtypes():
    same_as_reference("pad", (normal(3),), {"mode": "reflect", "pads": (7, 9)})
    same_as_reference("pad", (normal(1),), {"mode": "reflect", "pads": (2, 1)})
    same_as_reference("pad", (normal(0, 2),), {"pads": (1, 1, 1, 1), "value": float("nan")})
    same_as_reference("pad", (np.arange(4, dtype=np.int8),), {"pads": (1, 1), "value": 3.0})
    same_as_reference("pad", (np.ones(3, bool),), {"pads": (1, 1)})
    assert lowered("pad", (normal(4),), {"pads": (-1, 0)}).stages[0].body.fill is None


def test_expand_and_tile():
    same_as_reference("expand", (normal(3, 1),), {"shape": (2, 3, 4)})
    same_as_reference("expand", (normal(1, 3),), {"shape": (0, 3)})
    same_as_reference("tile", (normal(2, 3),), {"repeats": (2, 2)})
    same_as_reference("tile", (normal(2, 0),), {"repeats": (0, 2)})


def test_concat_and_split():
    parts = (normal(2, 3), normal(2, 0), normal(2, 1), normal(2, 4))
    same_as_reference("concat", parts, {"axis": -1})
    same_as_reference("concat", (normal(0, 3), normal(0, 3)), {"axis": 0})
    same_as_reference("split", (normal(2, 7),), {"axis": 1, "split": (3, 0, 4)})


def test_depth_to_space():
    for mode in ("DCR", "CRD"):
        same_as_reference("depth_to_space", (normal(2, 18, 2, 3),), {"blocksize": 3, "mode": mode})


@pytest.mark.parametrize(
    ("op", "shapes", "attrs"),
    [
        ("reshape", [(2, 3)], {"shape": (4,)}),
        ("transpose", [(2, 3)], {"perm": (0, 0)}),
        ("slice", [(4,)], {"starts": (0,), "ends": (5,)}),
        ("pad", [(4,)], {"pads": (-3, -2)}),
        ("pad", [(0,)], {"pads": (1, 1), "mode": "edge"}),
        ("pad", [(2,)], {"pads": (1, 1), "mode": "mirror"}),
        ("expand", [(2,)], {"shape": (3,)}),
        ("tile", [(2,)], {"repeats": (2, 2)}),
        ("concat", [(2, 3), (3, 3)], {"axis": 1}),
        ("split", [(4,)], {"split": (1, 2)}),
        ("depth_to_space", [(1, 3, 2, 2)], {"blocksize": 2}),
        ("reshape", [(3,)], {}),
    ],
)
def test_rejects_what_does_not_fit(op, shapes, attrs):
    with pytest.raises(OnepassError):
        lowered(op, [normal(*shape) for shape in shapes], attrs)
