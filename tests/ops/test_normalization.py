"""Softmax and normalisations: dtypes, ranks, special values, cancellation."""

import numpy as np
import pytest
from op_checks import check, run

from onepass.core.dtypes import F32
from onepass.core.errors import ShapeError
from onepass.core.tensor import TensorType
from onepass.ops.registry import OPS

FLOATS = ["float16", "float32", "float64"]


def data(shape, dtype="float32", seed=0):
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(op, dtype, axis):
    check(op, [5 * data((3, 4, 7), dtype)], {"axis": axis}, terms=7)
    check(op, [data((3,), dtype)], {"axis": 0}, terms=3)
    for shape in ((0, 4, 2), (3, 0, 2), (3, 4, 0)):
        check(op, [data(shape, dtype)], {"axis": axis})


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize(
    "row", [[np.nan, 1], [np.inf, 1], [-np.inf, 1], [-np.inf, -np.inf], [1e4, 1e4], [-1e38, 3e38]]
)
def test_softmax_specials(op, row):
    check(op, [np.float32([row])], terms=2)


def test_softmax_stages():
    stages = OPS["softmax"].lower([TensorType(F32, (2, 3, 4))], {"axis": 1}).stages
    assert [(s.name, s.combine) for s in stages] == [
        ("max", "max"),
        ("exp", None),
        ("sum", "add"),
        ("inverse", None),
        ("out", None),
    ]
    assert [axis.name for axis in stages[0].axes] == ["i0", "i2"]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5), (0, 3, 2, 2), (4,)])
def test_batch_normalization(dtype, shape):
    channels = shape[1] if len(shape) > 1 else 1
    vectors = [data((channels,), dtype, seed) for seed in range(3)]
    variance = np.abs(data((channels,), dtype, 9))
    assert (
        len(
            OPS["batch_normalization"]
            .lower([TensorType(F32, (2, 3))] + [TensorType(F32, (3,))] * 4, {})
            .stages
        )
        == 1
    )
    check("batch_normalization", [data(shape, dtype), *vectors, variance], {"epsilon": 1e-3})


def test_batch_normalization_of_half_with_float_statistics():
    x, vectors = data((2, 3, 4), "float16"), [data((3,), "float32", seed) for seed in range(3)]
    assert check("batch_normalization", [x, *vectors, np.float32([1, 2, 3])]).dtype == np.float16


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("spatial", [(), (5,), (4, 5)])
def test_instance_and_group_normalization(dtype, spatial):
    inputs = [data((2, 6, *spatial), dtype), data((6,), dtype, 1), data((6,), dtype, 2)]
    if spatial:
        check("instance_normalization", inputs, terms=20)
    for groups in (1, 2, 3, 6):
        if spatial or groups < 6:
            check("group_normalization", inputs, {"num_groups": groups}, terms=120)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_layer_and_rms_normalization(dtype, axis):
    x = data((3, 4, 6), dtype)
    shape = x.shape[axis % 3 :]
    for op in ("layer_normalization", "rms_normalization"):
        check(op, [x, data(shape, dtype, 1)], {"axis": axis}, terms=72)
    check(
        "layer_normalization",
        [x, data(shape, dtype, 1), data((6,), dtype, 2)],
        {"axis": axis},
        terms=72,
    )
    check("layer_normalization", [x[:0], data((6,), dtype, 1)])


def test_variance_does_not_cancel():
    x = np.float32(1e4) + data((2, 64))
    ones = np.ones(64, np.float32)
    exact = x.astype(np.float64) - x.astype(np.float64).mean(-1, keepdims=True)
    exact /= np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5)
    # The mean is off by up to u * 1e4, which the deviations, near 1, keep.
    assert np.abs(run("layer_normalization", [x, ones])[0] - exact).max() < 64 * 2.0**-24 * 1e4


def test_specials_stay_in_their_row():
    x = data((4, 8))
    x[0, 0], x[1, 3], x[2] = np.nan, np.inf, 0
    for op in ("layer_normalization", "rms_normalization"):
        assert np.isfinite(check(op, [x, np.ones(8, np.float32)], terms=8)[2:]).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_lrn(dtype):
    x = data((2, 5, 4, 3), dtype)
    for size in (1, 2, 3, 5, 8):
        for beta in (0.75, 0.5):
            attrs = {"size": size, "alpha": 0.1, "beta": beta, "bias": 2.0}
            check("lrn", [x], attrs, terms=size)


def test_shapes_that_do_not_fit_are_the_users_error():
    x, vector = TensorType(F32, (2, 3, 4)), TensorType(F32, (5,))
    with pytest.raises(ShapeError, match="channels"):
        OPS["batch_normalization"].lower([x, vector, vector, vector, vector], {})
    with pytest.raises(ShapeError, match="groups"):
        OPS["group_normalization"].lower([x, vector, vector], {"num_groups": 2})
    with pytest.raises(ShapeError, match="broadcast"):
        OPS["layer_normalization"].lower([x, vector], {})
