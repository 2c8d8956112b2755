"""Evaluation of op stages on hand-written computes: index maps, fills, reductions, blocks, refusals."""

import numpy as np
import pytest
from loop_interpreter import interpret
from stage_evaluation import evaluate, identity

from onepass.core.dtypes import BOOL, F16, F32, F64, I8, I32, I64, U8
from onepass.core.errors import InternalError
from onepass.loops.build import add, binary, cast, const, fma, idx, loop, mul, select, unary
from onepass.loops.ir import BINARY_OPS, UNARY_OPS, Buffer, Kernel, Load, Store
from onepass.ops.opdef import Axis, Compute, Lowering

i, j = idx("i"), idx("j")


@pytest.mark.parametrize("combine", ["add", "mul", "max", "min"])
@pytest.mark.parametrize(("rows", "columns"), [(2, 400_000), (400_000, 2), (3, 0)])
@pytest.mark.parametrize("dtype", [F64, I32], ids=str)
def test_reductions_in_blocks(combine, rows, columns, dtype):
    x = np.random.default_rng(3).integers(-3, 4, (rows, columns)).astype(dtype.numpy)
    along = (Axis("j", columns),)
    stage = Compute("out", dtype, (Axis("i", rows),), Load("in0", (i, j), dtype), along, combine)
    ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[combine]
    initial = np.array(identity(combine, dtype), dtype.numpy)[()]
    (out,) = evaluate(Lowering((stage,), ("out",)), [x])
    assert out.dtype == dtype.numpy
    np.testing.assert_array_equal(out, ufunc.reduce(x, axis=1, dtype=dtype.numpy, initial=initial))


def over(extent, body):
    return Lowering((Compute("out", body.dtype, (Axis("i", extent),), body),), ("out",))


def test_scalars_and_absent_inputs():
    assert evaluate(over(3, const(2.5, F32)), [])[0].tolist() == [2.5, 2.5, 2.5]
    assert evaluate(over(2, Load("in1", (i,), I64)), [None, np.array([4, 5])])[0].tolist() == [4, 5]
    load = Load("in0", (i,), F32)
    body = fma(load, load, cast(binary("floordiv", mul(i, 3), const(2)), F32))
    assert evaluate(over(3, body), [np.float32([-1.5, 0.0, 2.25])])[0].tolist() == [2.25, 1.0, 8.0625]


def test_gather_concat_pad():
    rows, data = np.array([2, 0]), np.arange(6.0).reshape(3, 2)
    gathered = Load("in1", (Load("in0", (i,), I64), const(1)), F64)
    assert evaluate(over(2, gathered), [rows, data])[0].tolist() == [5.0, 1.0]
    joined = select(binary("lt", i, const(2)), Load("in0", (i,), I64), Load("in1", (add(i, -2),), I64))
    assert evaluate(over(5, joined), [rows, np.array([7, 8, 9])])[0].tolist() == [2, 0, 7, 8, 9]
    padded = Load("in0", (add(i, -1),), I64, fill=-1)
    assert evaluate(over(4, padded), [rows])[0].tolist() == [-1, 2, 0, -1]
    assert evaluate(over(2, padded), [rows[:0]])[0].tolist() == [-1, -1]
    with pytest.raises(IndexError, match="'in0'"):
        evaluate(over(2, Load("in0", (add(i, 1),), I64)), [rows])


@pytest.mark.parametrize("dtype", [F16, F32, F64, I8, I64, U8, BOOL], ids=str)
def test_agrees_with_the_interpreter(dtype):
    rng = np.random.default_rng(4)
    data = [(rng.standard_normal(50) * 9 + 8).astype(dtype.numpy) for _ in range(2)]
    a, b = Load("in0", (i,), dtype), Load("in1", (i,), dtype)
    params = (Buffer("in0", dtype, (50,)), Buffer("in1", dtype, (50,)))
    agreed = 0
    for body in [unary(op, a) for op in UNARY_OPS] + [binary(op, a, b) for op in BINARY_OPS]:
        out = np.zeros(50, body.dtype.numpy)
        stores = (loop("i", 50, (Store("y", (i,), body),)),)
        try:
            kernel = Kernel("k", (*params, Buffer("y", body.dtype, (50,))), stores)
            interpret(kernel, {"in0": data[0], "in1": data[1], "y": out})
        except InternalError:
            continue  # no such operation on this dtype
        got = evaluate(over(50, body), data)[0]
        assert got.dtype == out.dtype
        assert np.array_equal(got, out, equal_nan=body.dtype.is_float), body
        agreed += 1
    assert agreed >= 9
