"""Kernels of tiles written by hand: a pointwise chain, softmax over rows, a matrix product with bias."""

import math

from onepass.core.dtypes import BF16, F32
from onepass.loops.ir import Buffer
from onepass.loops.tile import TileKernel

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"


def tile_kernel(name, text, params, grid, **options):
    buffers = tuple(Buffer(param, dtype, shape) for param, (dtype, shape) in params.items())
    source = f"{HEAD}def {name}({', '.join(params)}):\n{text}"
    return TileKernel(name, source, buffers, (*grid, 1, 1)[:3], **options)


def load(text, dtype):
    """A load as generated source writes it: bfloat16 is widened at once."""
    return f"tl.load({text})" + (".to(tl.float32)" if dtype == BF16 else "")


def add_relu(dtype, n, block=128):
    """y = max(a + b, 0)."""
    a, b = (load(f"{x} + i, mask=i < {n}, other=0.0", dtype) for x in "ab")
    text = f"""    i = tl.program_id(0) * {block} + tl.arange(0, {block})
    tl.store(y + i, tl.maximum({a} + {b}, 0.0).to(tl.{dtype}), mask=i < {n})
"""
    kind = (dtype, (n,))
    return tile_kernel("add_relu", text, {"a": kind, "b": kind, "y": kind}, (math.ceil(n / block),), warps=2)


def softmax(dtype, rows, columns, block):
    """Each row of y sums to 1."""
    x = load(f"x + row * {columns} + c, mask=c < {columns}, other=float('-inf')", dtype)
    text = f"""    row, c = tl.program_id(0), tl.arange(0, {block})
    v = {x}.to(tl.float32)
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row * {columns} + c, (e / tl.sum(e, axis=0)).to(tl.{dtype}), mask=c < {columns})
"""
    kind = (dtype, (rows, columns))
    return tile_kernel("softmax", text, {"x": kind, "y": kind}, (rows,))


def matmul_bias(dtype, m, n, k, block=32):
    """y = a @ b + bias, summed in float32; the loop's bound is a literal."""
    a = load(f"a + i * {k} + (k0 + kk)[None, :], mask=(i < {m}) & ((k0 + kk)[None, :] < {k}), other=0.0", F32)
    b = load(f"b + (k0 + kk)[:, None] * {n} + j, mask=((k0 + kk)[:, None] < {k}) & (j < {n}), other=0.0", F32)
    text = f"""    i = tl.program_id(0) * {block} + tl.arange(0, {block})[:, None]
    j = tl.program_id(1) * {block} + tl.arange(0, {block})[None, :]
    kk = tl.arange(0, 16)
    total = tl.zeros(({block}, {block}), tl.float32)
    for k0 in range(0, {k}, 16):
        total = tl.dot({a}, {b}, total, input_precision="ieee")
    total += {load(f"bias + j, mask=j < {n}, other=0.0", dtype)}.to(tl.float32)
    tl.store(y + i * {n} + j, total.to(tl.{dtype}), mask=(i < {m}) & (j < {n}))
"""
    params = {"a": (dtype, (m, k)), "b": (dtype, (k, n)), "bias": (dtype, (n,)), "y": (dtype, (m, n))}
    return tile_kernel("matmul_bias", text, params, (math.ceil(m / block), math.ceil(n / block)), stages=2)
