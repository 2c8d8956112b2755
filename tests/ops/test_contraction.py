"""conv, conv_transpose, matmul, gemm: stages against reference, reference against torch."""

import itertools

import numpy as np
import pytest
from op_checks import check, close, lowered, normal

from onepass.core.errors import ShapeError
from onepass.loops.build import idx
from onepass.loops.ir import Binary, Load
from onepass.ops.opdef import OPS

SIZES = (9, 7, 6)
CHANNELS = ((1, 3, 5), (2, 4, 6), (4, 4, 4), (4, 4, 8))  # groups, input, output


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("channels", CHANNELS)
def test_conv_agrees_with_torch(rank, channels):
    torch = pytest.importorskip("torch")
    functional = (torch.conv1d, torch.conv2d, torch.conv3d)[rank - 1]
    group, inputs, outputs = channels
    for stride, dilation, pad, kernel in (
        (1, 1, 0, 1),
        (1, 1, 1, 3),
        (2, 1, 1, 3),
        (1, 2, 2, 3),
        (3, 2, 1, 2),
    ):
        x, w, bias = (
            normal(2, inputs, *SIZES[:rank]),
            normal(outputs, inputs // group, *(kernel,) * rank),
            normal(outputs),
        )
        attrs = {"strides": (stride,) * rank, "pads": (pad,) * 2 * rank, "dilations": (dilation,) * rank}
        out = check("conv", (x, w, bias), {"group": group, **attrs}, w[0].size)
        operands = (torch.from_numpy(a).double() for a in (x, w, bias))
        theirs = functional(*operands, stride, pad, dilation, group).numpy()
        close(out, theirs, w[0].size)


def test_conv_with_asymmetric_padding_empty_batch_and_integers():
    check("conv", (normal(2, 3, 7, 5), normal(4, 3, 3, 2)), {"pads": (0, 1, 2, 0), "strides": (2, 1)}, 18)
    empty = check("conv", (normal(0, 3, 7, 5), normal(4, 3, 3, 2)))
    assert empty.shape == (0, 4, 5, 4)
    x, w = np.arange(24, dtype=np.int32).reshape(1, 2, 3, 4), np.arange(8, dtype=np.int32).reshape(1, 2, 2, 2)
    check("conv", (x, w), {"pads": (1, 1, 1, 1)})


def test_conv_body_is_a_product_of_plain_loads():
    def operands(group, pads):
        x, w = normal(1, 4, 8, 8), normal(4, 4 // group, 3, 3)
        body = lowered("conv", (x, w), {"group": group, "pads": pads}).stages[0].body
        assert isinstance(body, Binary) and body.op == "mul"
        assert isinstance(body.a, Load) and isinstance(body.b, Load)
        assert body.b.indices == (idx("c"), idx("k"), idx("r0"), idx("r1"))
        return body.a

    assert operands(1, (0, 0, 0, 0)).fill is None
    assert operands(1, (0, 0, 0, 1)).fill == 0
    assert operands(1, (0, 0, 0, 0)).indices[:2] == (idx("n"), idx("k"))
    assert operands(4, (0, 0, 0, 0)).indices[:2] == (idx("n"), idx("c"))


def test_conv_padding_is_not_loaded_where_no_window_reaches_it():
    x, w = normal(1, 1, 8, 8), normal(1, 1, 1, 1)
    body = lowered("conv", (x, w), {"strides": (2, 2), "pads": (0, 0, 1, 1)}).stages[0].body
    assert body.a.fill is not None  # position 8 is output row 4
    body = lowered("conv", (normal(1, 1, 7, 7), w), {"strides": (2, 2), "pads": (0, 0, 1, 1)}).stages[0].body
    assert body.a.fill is None


def test_conv_rejects_operands_that_do_not_fit():
    for x, w, attrs in (
        (normal(1, 3, 8, 8), normal(4, 2, 3, 3), {}),
        (normal(1, 4, 8, 8), normal(5, 2, 3, 3), {"group": 2}),
        (normal(1, 3, 2, 8), normal(4, 3, 3, 3), {}),
        (normal(1, 3, 8, 8), normal(4, 3, 3, 3), {"strides": (1,)}),
    ):
        with pytest.raises(ShapeError):
            lowered("conv", (x, w), attrs)
    with pytest.raises(ShapeError, match="bias"):
        lowered("conv", (normal(1, 3, 8, 8), normal(4, 3, 3, 3), normal(3)), {})


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("channels", CHANNELS)
def test_conv_transpose_agrees_with_torch(rank, channels):
    torch = pytest.importorskip("torch")
    functional = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)[rank - 1]
    group, inputs, outputs = channels
    for stride, dilation, pad, kernel, extra in (
        (1, 1, 1, 3, 0),
        (2, 1, 0, 2, 0),
        (2, 1, 1, 3, 1),
        (2, 1, 1, 4, 0),
        (3, 1, 0, 2, 2),
        (2, 2, 1, 3, 1),
        (1, 2, 0, 2, 0),
    ):
        x, bias = normal(2, inputs, *(5, 4, 3)[:rank]), normal(outputs)
        w = normal(inputs, outputs // group, *(kernel,) * rank)
        attrs = {"strides": (stride,) * rank, "pads": (pad,) * 2 * rank, "dilations": (dilation,) * rank}
        attrs["output_padding"] = (extra,) * rank
        out = check("conv_transpose", (x, w, bias), {"group": group, **attrs}, w.size)
        operands = (torch.from_numpy(a).double() for a in (x, w, bias))
        theirs = functional(*operands, stride, pad, extra, group, dilation).numpy()
        close(out, theirs, w.size)


def test_conv_transpose_visits_only_taps_that_count():
    """Kernel 2, stride 2: one tap for each output, and no guard."""
    stage = lowered("conv_transpose", (normal(1, 3, 4, 4), normal(3, 5, 2, 2)), {"strides": (2, 2)}).stages[0]
    assert [axis.extent for axis in stage.reduce_axes] == [3, 1, 1]
    assert stage.body.a.fill is None and stage.body.b.fill is None


def test_conv_transpose_keeps_a_nan_where_it_belongs():
    x = normal(1, 1, 5)
    x[0, 0, 2] = np.nan
    exact = check("conv_transpose", (x, normal(1, 1, 3)), {"strides": (2,)}, 3)
    assert np.isnan(exact[0, 0]).sum() == 3


def test_conv_transpose_asymmetric_padding_and_empty_batch():
    check(
        "conv_transpose",
        (normal(2, 3, 5, 4), normal(3, 2, 3, 4)),
        {"strides": (2, 3), "pads": (0, 1, 2, 0)},
        36,
    )
    check("conv_transpose", (normal(0, 3, 5, 4), normal(3, 2, 3, 4)), {"strides": (2, 3)})


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((2, 1, 3, 4), (5, 4, 6)),
        ((4,), (2, 3, 4, 5)),
        ((2, 3, 4), (4,)),
        ((1, 3, 4), (1, 4, 2)),
        ((2, 0, 4), (4, 5)),
        ((0, 3, 4), (1, 4, 5)),
        ((3, 0), (0, 5)),
    ],
)
def test_matmul_is_numpys(a, b):
    x, y = normal(*a), normal(*b)
    out = check("matmul", (x, y), {}, a[-1])
    close(out, np.asarray(np.matmul(x.astype(float), y.astype(float))), a[-1])


def test_matmul_rejects_operands_that_do_not_fit():
    for a, b in (((3, 4), (5, 4)), ((2, 3, 4), (3, 4, 5)), ((), (4,))):
        with pytest.raises(ShapeError):
            lowered("matmul", (normal(*a), normal(*b)), {})


def test_gemm_with_every_combination():
    for ta, tb, alpha, beta, c in itertools.product(
        (0, 1), (0, 1), (1.0, 0.5), (1.0, 0.0, -2.0), (None, (5,), (3, 1), ())
    ):
        a, b = normal(*((4, 3) if ta else (3, 4))), normal(*((5, 4) if tb else (4, 5)))
        inputs = (a, b) if c is None else (a, b, normal(*c))
        check("gemm", inputs, {"transA": ta, "transB": tb, "alpha": alpha, "beta": beta}, 5)


def test_gemm_without_scaling_is_one_product():
    lowering = lowered("gemm", (normal(3, 4), normal(4, 5)), {"alpha": 1.0, "beta": 1.0})
    assert [stage.name for stage in lowering.stages] == ["acc"]
    with pytest.raises(ShapeError):
        lowered("gemm", (normal(3, 4), normal(4, 5), normal(4, 5)), {})


def test_gemm_ignores_c_where_beta_is_zero():
    out = check("gemm", (normal(2, 3), normal(3, 2), np.full((2,), np.nan, np.float32)), {"beta": 0.0}, 3)
    assert np.isfinite(out).all()


def test_float16_sums_in_float32():
    a, b = np.full((1, 4096), 1, np.float16), np.full((4096, 1), 1, np.float16)
    out = check("matmul", (a, b), {}, 4096)
    assert out.dtype == np.float16 and out.item() == 4096
    x, w, bias = (normal(*shape).astype(np.float16) for shape in ((1, 3, 5, 5), (4, 3, 3, 3), (4,)))
    check("conv", (x, w, bias), {"pads": (1, 1, 1, 1)}, 27)
    check("gemm", (a, b, bias[:1]), {"alpha": 0.5}, 4096)


def test_reference_keeps_float64():
    x, w = normal(1, 2, 5, 5).astype(float), normal(3, 2, 3, 3).astype(float)
    assert OPS["conv"].reference((x, w), {})[0].dtype == np.float64
