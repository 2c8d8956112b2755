"""The direct convolution that the code generator is measured with, written by hand in the loop IR.

Activations [C/V][H+k-1][W+k-1][V], weights [OC/V][C/V][k][k][V ic][V oc], result [OC/V][H][W][V].
"""

from __future__ import annotations

from dataclasses import dataclass

from onepass.core.dtypes import F32
from onepass.loops.build import IntoIndex, add, const, fma, idx, index, loop, mul
from onepass.loops.ir import Alloc, Binary, Buffer, Expr, For, Kernel, Load, Stmt, Store


@dataclass(frozen=True)
class Conv:
    """Channels, image, kernel size; tile of `r` pixels x `q` vectors of `v` channels."""

    c: int
    oc: int
    size: int
    k: int
    r: int
    q: int
    v: int = 16


def _at(*indices: IntoIndex | str) -> tuple[Expr, ...]:
    return tuple(idx(i) if isinstance(i, str) else index(i) for i in indices)


def _unroll(name: str, stop: int, *body: Stmt) -> For:
    return loop(name, stop, body, "unroll")


def direct_conv(conv: Conv) -> Kernel:
    """conv + ReLU as one kernel, rows in parallel."""
    c, oc, size, k, r, q, v = conv.c, conv.oc, conv.size, conv.k, conv.r, conv.q, conv.v
    x = Buffer("x", F32, (c // v, size + k - 1, size + k - 1, v))
    w = Buffer("w", F32, (oc // v, c // v, k, k, v, v))
    y = Buffer("y", F32, (oc // v, size, size, v))
    acc, wr = Buffer("acc", F32, (r, q, v), "register"), Buffer("wr", F32, (q, v), "register")
    column, block = add(mul(idx("t"), r), idx("r")), add(mul(idx("ob"), q), idx("q"))
    element = _at("r", "q", "v")

    def vector(*body: Stmt) -> For:
        return loop("v", v, body, "vector")

    pixel = Load("x", _at("icb", add(idx("oh"), idx("kh")), add(column, idx("kw")), "ic"), F32)
    weights = Load("w", _at(block, "icb", "kh", "kw", "ic", "v"), F32)
    multiply = fma(pixel, Load("wr", _at("q", "v"), F32), Load("acc", element, F32))
    inner = _unroll(
        "ic", v,
        _unroll("q", q, vector(Store("wr", _at("q", "v"), weights))),
        _unroll("r", r, _unroll("q", q, vector(Store("acc", element, multiply)))),
    )  # fmt: skip
    reduce = loop("icb", c // v, (loop("kh", k, (loop("kw", k, (Alloc(wr, (inner,)),)),)),))
    zero = _unroll("r", r, _unroll("q", q, vector(Store("acc", element, const(0.0, F32)))))
    relu = Binary("max", Load("acc", element, F32), const(0.0, F32), F32)
    finish = _unroll("r", r, _unroll("q", q, vector(Store("y", _at(block, "oh", column, "v"), relu))))
    tile = loop("t", size // r, (Alloc(acc, (zero, reduce, finish)),))
    rows = loop("oh", size, (loop("ob", oc // v // q, (tile,)),), "parallel")
    return Kernel("direct_conv", (x, w, y), (rows,))
