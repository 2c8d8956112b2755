"""Activation functions: every float dtype, extreme arguments, attributes."""

import numpy as np
import pytest
from op_checks import check

from onepass.core.dtypes import F32
from onepass.core.errors import ShapeError
from onepass.core.tensor import TensorType
from onepass.ops.registry import OPS

CASES = [
    ("relu", {}), ("leaky_relu", {}), ("leaky_relu", {"alpha": 0.3}), ("elu", {"alpha": 2.0}), ("selu", {}),
    ("sigmoid", {}), ("hard_sigmoid", {}),
    ("hard_sigmoid", {"alpha": 0.5, "beta": 0.6}),
    ("hard_swish", {}), ("tanh", {}), ("softplus", {}), ("softsign", {}), ("gelu", {}),
    ("gelu", {"approximate": "tanh"}), ("mish", {}),
]  # fmt: skip


@pytest.mark.parametrize("op, attrs", CASES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_values(op, attrs, dtype):
    x = np.concatenate([np.linspace(-8, 8, 65), np.random.default_rng(0).standard_normal(15)])
    check(op, [x.reshape(4, 4, 5).astype(dtype)], attrs)
    check(op, [np.empty((2, 0), dtype)], attrs)


@pytest.mark.parametrize("op, attrs", CASES, ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e4, -1e4, 88.8, -104.0, 1e-30])
def test_extreme_arguments(op, attrs, value):
    check(op, [np.full((1,), value, np.float32)], attrs)


def test_integers():
    check("relu", [np.array([-3, -2, -1, 0, 1, 2, 3], np.int32)])


@pytest.mark.parametrize("low, high", [(None, None), (-1, None), (None, 1), (-1, 1), (2, -2)])
def test_clip_keeps_nan_and_lets_the_upper_limit_win(low, high):
    limits = [None if v is None else np.asarray(v, np.float32) for v in (low, high)]
    y = check("clip", [np.float32([np.nan, -np.inf, -1.5, 0, 1.5, np.inf]), *limits])
    assert np.isnan(y[0])
    check(
        "clip", [np.array([-5, 0, 5], np.int8), *(None if v is None else v.astype(np.int8) for v in limits)]
    )
    check("clip", [np.array(3, np.float32), *(None if v is None else v.reshape(1) for v in limits)])


def test_clip_and_prelu_refuse_shapes_that_do_not_fit():
    x = TensorType(F32, (2, 3))
    with pytest.raises(ShapeError, match="one number"):
        OPS["clip"].lower([x, TensorType(F32, (2,))], {})
    with pytest.raises(ShapeError, match="broadcast"):
        OPS["prelu"].lower([x, TensorType(F32, (4, 2, 3))], {})


def test_prelu_broadcasts_the_slope():
    x = np.random.default_rng(2).standard_normal((2, 3, 4, 4)).astype(np.float32)
    for shape in ((3, 1, 1), (1,), (), (2, 3, 4, 4)):
        check("prelu", [x, np.full(shape, 0.2, np.float32)])
