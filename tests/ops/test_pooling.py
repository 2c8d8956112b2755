"""Pools: stages against reference, reference against torch."""

import numpy as np
import pytest
from op_checks import check, close, lowered, normal, same_as_reference

from onepass.core.errors import ShapeError
from onepass.loops.ir import Const

SIZES = (9, 7, 6)
WINDOWS = ((2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 1, 2), (2, 3, 1, 1))  # kernel, stride, pad, dilation


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("shape", WINDOWS)
def test_max_pool_agrees_with_torch(rank, ceil_mode, shape):
    torch = pytest.importorskip("torch")
    functional = (torch.max_pool1d, torch.max_pool2d, torch.max_pool3d)[rank - 1]
    kernel, stride, pad, dilation = shape
    x = normal(2, 3, *SIZES[:rank])
    attrs = {"kernel_shape": (kernel,) * rank, "strides": (stride,) * rank, "pads": (pad,) * 2 * rank}
    attrs |= {"dilations": (dilation,) * rank, "ceil_mode": ceil_mode}
    out = same_as_reference("max_pool", (x,), attrs)
    theirs = functional(torch.from_numpy(x), kernel, stride, pad, dilation, bool(ceil_mode)).numpy()
    np.testing.assert_array_equal(out, theirs)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("include_pad", [0, 1])
@pytest.mark.parametrize("shape", [w for w in WINDOWS if w[3] == 1])
def test_average_pool_agrees_with_torch(rank, ceil_mode, include_pad, shape):
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    functional = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[rank - 1]
    kernel, stride, pad, _ = shape
    x = normal(2, 3, *SIZES[:rank])
    attrs = {"kernel_shape": (kernel,) * rank, "strides": (stride,) * rank, "pads": (pad,) * 2 * rank}
    attrs |= {"ceil_mode": ceil_mode, "count_include_pad": include_pad}
    out = check("average_pool", (x,), attrs, kernel**rank)
    exact = torch.from_numpy(x).double()
    close(
        out, functional(exact, kernel, stride, pad, bool(ceil_mode), bool(include_pad)).numpy(), kernel**rank
    )


@pytest.mark.parametrize("include_pad", [0, 1])
def test_average_pool_with_dilation_and_asymmetric_padding(include_pad):
    attrs = {"kernel_shape": (3, 2), "dilations": (2, 3), "pads": (0, 3, 2, 1), "strides": (1, 2)}
    check("average_pool", (normal(2, 3, 9, 8),), {**attrs, "count_include_pad": include_pad}, 6)


def test_mean_divides_by_a_literal_where_the_count_does_not_vary():
    attrs = {"kernel_shape": (2, 2), "strides": (2, 2)}
    for op, x in (("average_pool", normal(1, 2, 8, 8)), ("global_average_pool", normal(1, 2, 3, 5))):
        assert isinstance(lowered(op, (x,), attrs).stages[-1].body.b, Const)
    padded = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": 1}
    assert (
        lowered("average_pool", (normal(1, 2, 8, 8),), padded).stages[-1].body.b
        == lowered("average_pool", (normal(1, 2, 8, 8),), {"kernel_shape": (3, 3)}).stages[-1].body.b
    )


def test_max_pool_of_nan_infinity_and_integers():
    x = normal(1, 1, 6, 6)
    x[0, 0, 2, 2], x[0, 0, 5, 5] = np.nan, -np.inf
    attrs = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (2, 2)}
    assert np.isnan(same_as_reference("max_pool", (x,), attrs)).sum() == 1
    for dtype in (np.int8, np.uint8, np.int64):
        same_as_reference("max_pool", (np.arange(36).reshape(1, 1, 6, 6).astype(dtype) - dtype(9),), attrs)


def test_empty_batch_and_global_pools():
    attrs = {"kernel_shape": (2, 2)}
    assert same_as_reference("max_pool", (normal(0, 3, 5, 5),), attrs).shape == (0, 3, 4, 4)
    assert check("average_pool", (normal(0, 3, 5, 5),), attrs).shape == (0, 3, 4, 4)
    for sizes in ((7,), (7, 5), (3, 4, 5)):
        same_as_reference("global_max_pool", (normal(2, 3, *sizes),))
        check("global_average_pool", (normal(2, 3, *sizes),), {}, 60)
        check("global_average_pool", (normal(2, 3, *sizes).astype(np.float16),), {}, 60)


def test_rejects_what_makes_no_mean():
    with pytest.raises(ShapeError):
        lowered("average_pool", (np.zeros((1, 1, 4, 4), np.int32),), {"kernel_shape": (2, 2)})
    with pytest.raises(ShapeError):
        lowered("max_pool", (normal(1, 1, 4, 4),), {"kernel_shape": (2,)})
    with pytest.raises(ShapeError):
        lowered("max_pool", (normal(1, 4),), {"kernel_shape": (2,)})
    with pytest.raises(ShapeError, match="fit"):
        lowered("max_pool", (normal(1, 1, 2, 2),), {"kernel_shape": (3, 3)})
