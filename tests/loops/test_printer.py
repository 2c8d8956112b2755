"""Golden text of kernels and expressions."""

from __future__ import annotations

import math

import pytest

from onepass.core.dtypes import BOOL, F16, F32, F64, I32, I64, U8
from onepass.loops.build import add, binary, cast, const, fma, idx, loop, mul, select, unary
from onepass.loops.ir import Alloc, Buffer, Const, Expr, For, If, Kernel, Load, Prefetch, Store
from onepass.loops.printer import print_expr, print_kernel

X, Y = Load("x", (idx("i"),), F32), Load("y", (idx("i"), Const(3)), F32)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (const(3), "3"),
        (const(-1, U8), "-1u8"),
        (const(7, I32), "7i32"),
        (const(0.5, F32), "0.5f32"),
        (const(2, F16), "2.0f16"),
        (const(-math.inf, F64), "-inf_f64"),
        (const(True, BOOL), "true"),
        (X, "x[i]"),
        (Load("x", (add(idx("i"), -1),), F32, fill=0.0), "x[i + -1; fill 0.0]"),
        (Load("s", (), F32), "s[]"),
        (add(mul(idx("i"), 16), idx("v")), "i * 16 + v"),
        (binary("mul", X, binary("add", X, Y)), "x[i] * (x[i] + y[i, 3])"),
        (binary("add", X, binary("add", X, Y)), "x[i] + (x[i] + y[i, 3])"),
        (binary("sub", binary("sub", X, Y), X), "x[i] - y[i, 3] - x[i]"),
        (binary("eq", binary("lt", X, Y), const(False, BOOL)), "(x[i] < y[i, 3]) == false"),
        (binary("max", X, const(0.0, F32)), "max(x[i], 0.0f32)"),
        (binary("mod", binary("floordiv", idx("i"), const(4)), const(3)), "i // 4 % 3"),
        (unary("neg", unary("exp", X)), "neg(exp(x[i]))"),
        (fma(X, Y, X), "fma(x[i], y[i, 3], x[i])"),
        (select(binary("le", X, Y), X, Y), "select(x[i] <= y[i, 3], x[i], y[i, 3])"),
        (cast(X, I64), "int64(x[i])"),
    ],
)
def test_expression(expr: Expr, text: str) -> None:
    assert print_expr(expr) == text


def test_kernel() -> None:
    acc = Buffer("acc", F32, (2, 8), "register")
    at = (idx("u"), idx("v"))
    zero = Store("acc", at, const(0.0, F32))
    update = Store(
        "acc", at, fma(Load("w", (idx("k"), idx("v")), F32), const(2.0, F32), Load("acc", at, F32))
    )
    kernel = Kernel(
        "scale",
        (Buffer("w", F32, (4, 8)), Buffer("out", F32, (6, 2, 8))),
        (
            loop(
                "i",
                6,
                (
                    Alloc(
                        acc,
                        (
                            loop("u", 2, (loop("v", 8, (zero,), "vector"),), "unroll"),
                            For(
                                "k",
                                idx("i"),
                                const(4),
                                (
                                    Prefetch("w", (add(idx("k"), 1), const(0))),
                                    loop("u", 2, (loop("v", 8, (update,), "vector"),), "unroll"),
                                ),
                                step=2,
                            ),
                            If(binary("lt", idx("i"), const(5)), ()),
                        ),
                    ),
                ),
                "parallel",
            ),
        ),
    )
    assert print_kernel(kernel) == (
        "kernel scale(w: float32[4, 8] memory, out: float32[6, 2, 8] memory):\n"
        "  parallel for i in range(6):\n"
        "    alloc acc: float32[2, 8] register:\n"
        "      unroll for u in range(2):\n"
        "        vector for v in range(8):\n"
        "          acc[u, v] = 0.0f32\n"
        "      for k in range(i, 4, 2):\n"
        "        prefetch w[k + 1, 0]\n"
        "        unroll for u in range(2):\n"
        "          vector for v in range(8):\n"
        "            acc[u, v] = fma(w[k, v], 2.0f32, acc[u, v])\n"
        "      if i < 5:\n"
        "        pass\n"
    )
