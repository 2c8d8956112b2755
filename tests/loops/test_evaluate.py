"""Evaluation of op stages on hand-written computes: index maps, fills, reductions, blocks, refusals."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from onepass.core.dtypes import BOOL, F16, F32, F64, I8, I32, I64, U8, DType
from onepass.core.errors import InternalError
from onepass.loops.build import add, binary, cast, const, fma, idx, loop, mul, select, unary
from onepass.loops.interpret import interpret
from onepass.loops.ir import BINARY_OPS, UNARY_OPS, Buffer, Expr, Kernel, Load, Store
from onepass.loops.printer import print_expr
from onepass.ops.evaluate import evaluate, identity
from onepass.ops.opdef import Axis, Combine, Compute, Lowering

i, j = idx("i"), idx("j")


def single(stage: Compute) -> Lowering:
    return Lowering((stage,), (stage.name,))


def relu(*shape: int) -> Lowering:
    axes = tuple(Axis(f"a{d}", extent) for d, extent in enumerate(shape))
    x = Load("in0", tuple(idx(axis.name) for axis in axes), F32)
    return single(Compute("out", F32, axes, binary("max", x, const(0.0, F32))))


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (2, 0, 4)])
def test_relu(shape: tuple[int, ...]) -> None:
    x = np.asarray(np.random.default_rng(0).standard_normal(shape), np.float32)
    (out,) = evaluate(relu(*shape), [x])
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, np.maximum(x, 0))


def conv(channels: int, size: int, filters: int, dtype: DType) -> Lowering:
    """3x3, stride 1, padding 1."""
    axes = (Axis("n", 1), Axis("o", filters), Axis("h", size), Axis("w", size))
    reduce_axes = (Axis("c", channels), Axis("r", 3), Axis("s", 3))
    at = (idx("n"), idx("c"), add(add(idx("h"), idx("r")), -1), add(add(idx("w"), idx("s")), -1))
    weight = Load("in1", (idx("o"), idx("c"), idx("r"), idx("s")), dtype)
    body = binary("mul", Load("in0", at, dtype, fill=0.0), weight)
    return single(Compute("out", dtype, axes, body, reduce_axes, "add"))


def test_conv_with_fill() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((1, 16, 14, 14)), rng.standard_normal((32, 16, 3, 3))
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3)
    )
    want = np.einsum("nchwrs,ocrs->nohw", windows, w)
    tracemalloc.start()
    (out,) = evaluate(conv(16, 14, 32, F64), [x, w])
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(out, want, atol=1e-12)
    assert peak_bytes < 200e6


def softmax(rows: int, columns: int) -> Lowering:
    row, column = Axis("i", rows), Axis("j", columns)
    x = Load("in0", (i, j), F32)
    weight = unary("exp", binary("sub", x, Load("top", (i,), F32)))
    return Lowering(
        (
            Compute("top", F32, (row,), x, (column,), "max"),
            Compute("total", F32, (row,), weight, (column,), "add"),
            Compute("out", F32, (row, column), binary("div", weight, Load("total", (i,), F32))),
        ),
        ("out", "total"),
    )


def test_softmax_in_three_stages() -> None:
    x = np.random.default_rng(2).standard_normal((6, 50)).astype(np.float32)
    x[0, 0], x[1, 0] = np.nan, -np.inf
    weights = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    out, total = evaluate(softmax(6, 50), [x])
    np.testing.assert_allclose(out, weights / weights.sum(axis=1, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(total, weights.sum(axis=1), rtol=1e-6)
    assert np.isnan(out[0]).all() and out[1, 0] == 0


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_softmax_of_nothing(shape: tuple[int, int]) -> None:
    out, total = evaluate(softmax(*shape), [np.zeros(shape, np.float32)])
    assert out.shape == shape and total.shape == shape[:1]


@pytest.mark.parametrize("combine", ["add", "mul", "max", "min"])
@pytest.mark.parametrize(("rows", "columns"), [(2, 400_000), (400_000, 2), (3, 0)])
@pytest.mark.parametrize("dtype", [F64, I32], ids=str)
def test_reductions_in_blocks(combine: Combine, rows: int, columns: int, dtype: DType) -> None:
    x = np.random.default_rng(3).integers(-3, 4, (rows, columns)).astype(dtype.numpy)
    stage = Compute(
        "out", dtype, (Axis("i", rows),), Load("in0", (i, j), dtype), (Axis("j", columns),), combine
    )
    ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[combine]
    initial = np.array(identity(combine, dtype), dtype.numpy)[()]
    (out,) = evaluate(single(stage), [x])
    assert out.dtype == dtype.numpy
    np.testing.assert_array_equal(out, ufunc.reduce(x, axis=1, dtype=dtype.numpy, initial=initial))


def test_identities_of_bool() -> None:
    assert (identity("max", BOOL), identity("min", BOOL)) == (False, True)


def over(extent: int, body: Expr) -> Lowering:
    return single(Compute("out", body.dtype, (Axis("i", extent),), body))


def test_body_without_the_axis_is_broadcast() -> None:
    assert evaluate(over(3, const(2.5, F32)), [])[0].tolist() == [2.5, 2.5, 2.5]


def test_absent_input_shifts_nothing() -> None:
    assert evaluate(over(2, Load("in1", (i,), I64)), [None, np.array([4, 5])])[0].tolist() == [4, 5]


def test_gather_concat_pad() -> None:
    rows, data = np.array([2, 0]), np.arange(6.0).reshape(3, 2)
    gathered = Load("in1", (Load("in0", (i,), I64), const(1)), F64)
    assert evaluate(over(2, gathered), [rows, data])[0].tolist() == [5.0, 1.0]
    joined = select(binary("lt", i, const(2)), Load("in0", (i,), I64), Load("in1", (add(i, -2),), I64))
    assert evaluate(over(5, joined), [rows, np.array([7, 8, 9])])[0].tolist() == [2, 0, 7, 8, 9]
    padded = Load("in0", (add(i, -1),), I64, fill=-1)
    assert evaluate(over(4, padded), [rows])[0].tolist() == [-1, 2, 0, -1]
    assert evaluate(over(2, padded), [rows[:0]])[0].tolist() == [-1, -1]


def test_scalar_operations() -> None:
    x = np.array([-1.5, 0.0, 2.25], np.float32)
    load = Load("in0", (i,), F32)
    body = fma(load, load, cast(binary("floordiv", mul(i, 3), const(2)), F32))
    assert evaluate(over(3, body), [x])[0].tolist() == [2.25, 1.0, 8.0625]


@pytest.mark.parametrize("dtype", [F16, F32, F64, I8, I64, U8, BOOL], ids=str)
def test_agrees_with_the_interpreter(dtype: DType) -> None:
    rng = np.random.default_rng(4)
    data = [(rng.standard_normal(50) * 9 + 8).astype(dtype.numpy) for _ in range(2)]
    a, b = Load("in0", (i,), dtype), Load("in1", (i,), dtype)
    params = (Buffer("in0", dtype, (50,)), Buffer("in1", dtype, (50,)))
    agreed = 0
    for body in [unary(op, a) for op in UNARY_OPS] + [binary(op, a, b) for op in BINARY_OPS]:
        out = np.zeros(50, body.dtype.numpy)
        kernel = Kernel(
            "k", (*params, Buffer("y", body.dtype, (50,))), (loop("i", 50, (Store("y", (i,), body),)),)
        )
        try:
            interpret(kernel, {"in0": data[0], "in1": data[1], "y": out})
        except InternalError:
            continue  # no such operation on this dtype
        got = evaluate(over(50, body), data)[0]
        assert got.dtype == out.dtype
        assert np.array_equal(got, out, equal_nan=body.dtype.is_float), print_expr(body)
        agreed += 1
    assert agreed >= 9


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (Load("in0", (add(i, 1),), I64), "stage 'out' loads outside of 'in0'"),
        (Load("in0", (i, i), I64), "'in0' is int64 of rank 1, loaded as int64 with 2 indices"),
        (Load("in0", (i,), F32), "'in0' is int64 of rank 1, loaded as float32 with 1 indices"),
        (Expr(), "no expression of the loop IR"),
    ],
)
def test_refusals(body: Expr, message: str) -> None:
    stage = Compute("out", I64, (Axis("i", 2),), body)
    with pytest.raises(InternalError, match=message):
        evaluate(single(stage), [np.array([1, 2])])


def test_reduction_without_combine_is_refused() -> None:
    stage = Compute("out", I64, (), Load("in0", (i,), I64), (Axis("i", 2),))
    with pytest.raises(InternalError, match="no combine"):
        evaluate(single(stage), [np.array([1, 2])])
