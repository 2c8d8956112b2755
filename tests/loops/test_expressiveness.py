"""The loop IR can say what the planner will need: kernels written by hand, checked against numpy.

Each is a small version of a fused region of note 0002 in docs/design; the printed kernels stand there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from loop_interpreter import interpret
from numpy.typing import NDArray

from onepass.core.dtypes import BOOL, F32
from onepass.core.tolerance import compare
from onepass.loops.affine import simplify
from onepass.loops.build import (
    IntoIndex,
    add,
    binary,
    const,
    floordiv,
    fma,
    idx,
    index,
    loop,
    mod,
    mul,
    select,
    unary,
)
from onepass.loops.build import sub as difference
from onepass.loops.ir import Alloc, Binary, Buffer, Expr, If, Kernel, Load, Stmt, Store
from onepass.loops.printer import print_kernel
from onepass.loops.verify import verify

Floats = NDArray[np.float64]
NOTES = Path(__file__).parents[2] / "docs" / "design"
LANES = 4


def at(buffer: str, *indices: IntoIndex) -> Load:
    return Load(buffer, tuple(map(index, indices)), F32)


def put(target: Load, value: Expr) -> Store:
    return Store(target.buffer, target.indices, value)


def vector(*stores: Store) -> Stmt:
    return loop("v", LANES, stores, "vector")


def unroll(name: str, count: int, *body: Stmt) -> Stmt:
    return loop(name, count, body, "unroll")


def within(name: str, shape: tuple[int, ...], home: str, *body: Stmt) -> Alloc:
    return Alloc(Buffer(name, F32, shape, home), body)  # type: ignore[arg-type]


def relu(x: Expr) -> Expr:
    return binary("max", x, const(0.0, F32))


def run(kernel: Kernel, workers: int = 2, **arrays: Floats) -> NDArray[np.float32]:
    """What `kernel` writes to its last parameter when its inputs are `arrays` in float32."""
    verify(kernel)
    memory = {name: np.ascontiguousarray(x, np.float32) for name, x in arrays.items()}
    output = kernel.params[-1]
    memory[output.name] = np.full(output.shape, np.nan, np.float32)
    interpret(kernel, memory, workers)
    return memory[output.name]


def float32_values(seed: int, *shape: int) -> Floats:
    """Values that float32 holds, so that the oracle sees the same inputs."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(np.float64)


def with_border(x: Floats, after: int = 1) -> Floats:
    """The layout of a padded tensor: rows and columns of zeros around [H, W, C]."""
    return np.pad(x, ((1, after), (1, 1), (0, 0)))


def convolve(x: Floats, weights: Floats, bias: Floats) -> Floats:
    """3x3, padding 1, then bias and ReLU; x is [H, W, C], weights [3, 3, C, K]."""
    height, width, _ = x.shape
    padded = with_border(x)
    total = np.zeros((height, width, weights.shape[3])) + bias
    for i in range(3):
        for j in range(3):
            total += padded[i : i + height, j : j + width] @ weights[i, j]
    return np.maximum(total, 0)


# conv3x3 -> ReLU -> conv3x3 -> ReLU, row tile by row tile, the tensor between them in `cache`.

PIXELS = 3


def conv_row(source: str, row: Callable[[Expr], Expr], layer: int, target: Callable[[Expr], Load]) -> Stmt:
    """One row of six pixels, three at a time; `row` maps a row of the window to one of the source."""
    acc = at("acc", idx("p"), idx("v"))
    column = add(mul(idx("q"), PIXELS), idx("p"))
    tap = at(source, row(idx("i")), add(column, idx("j")), idx("c"))
    weight = at(f"w{layer}", idx("i"), idx("j"), idx("c"), idx("v"))
    taps: tuple[Stmt, ...] = (unroll("p", PIXELS, vector(put(acc, fma(tap, weight, acc)))),)
    for name, extent in (("c", LANES), ("j", 3), ("i", 3)):
        taps = (loop(name, extent, taps),)
    tile = within(
        "acc", (PIXELS, LANES), "register",
        unroll("p", PIXELS, vector(put(acc, at(f"b{layer}", idx("v"))))),
        *taps,
        unroll("p", PIXELS, vector(put(target(column), relu(acc)))),
    )  # fmt: skip
    return loop("q", 2, (tile,))


def chain(height: int, rows: int, *, line_buffer: bool) -> Kernel:
    """Each tile of `rows` output rows recomputes the two halo rows that it shares with its neighbours.

    With `line_buffer` a tile keeps only the three rows of the first convolution in use.
    """
    width = 2 * PIXELS
    kept = 3 if line_buffer else rows + 2

    def place(row: Expr) -> Expr:
        return mod(row, kept) if line_buffer else row

    first = mul(idx("t"), rows)
    count = binary("min", const(rows), difference(height, first))
    image_row = add(difference(first, 1), idx("r"))
    inside = Binary("and", binary("ge", image_row, const(0)), binary("lt", image_row, const(height)), BOOL)
    zero = const(0.0, F32)

    def between(column: IntoIndex) -> Load:
        return at("mid", place(idx("r")), column, idx("v"))

    produce: tuple[Stmt, ...] = (
        vector(put(between(0), zero)),
        vector(put(between(width + 1), zero)),
        If(inside, (conv_row("x", lambda i: add(image_row, i), 0, lambda q: between(add(q, 1))),)),
        If(unary("not", inside), (loop("q", width, (vector(put(between(add(idx("q"), 1)), zero)),)),)),
    )
    row = difference(idx("r"), 2) if line_buffer else idx("r")
    consume = conv_row(
        "mid", lambda i: place(add(row, i)), 1, lambda q: at("y", add(first, row), q, idx("v"))
    )
    if line_buffer:
        body: tuple[Stmt, ...] = (
            loop("r", add(count, 2), (*produce, If(binary("ge", idx("r"), const(2)), (consume,)))),
        )
    else:
        body = (loop("r", add(count, 2), produce), loop("r", count, (consume,)))
    params = (
        Buffer("x", F32, (height + 2, width + 2, LANES)),
        *(Buffer(f"w{k}", F32, (3, 3, LANES, LANES)) for k in range(2)),
        *(Buffer(f"b{k}", F32, (LANES,)) for k in range(2)),
        Buffer("y", F32, (height, width, LANES)),
    )
    tile = within("mid", (kept, width + 2, LANES), "cache", *body)
    return Kernel("chain", params, (loop("t", -(-height // rows), (tile,), "parallel"),))


@pytest.mark.parametrize("line_buffer", [False, True])
@pytest.mark.parametrize("workers", [1, 3])
def test_tile_chain_with_halo(line_buffer: bool, workers: int) -> None:
    height, width = 7, 2 * PIXELS
    x = float32_values(0, height, width, LANES)
    weights = [float32_values(1 + k, 3, 3, LANES, LANES) for k in range(2)]
    bias = [np.abs(float32_values(3 + k, LANES)) for k in range(2)]
    kernel = chain(height, 3, line_buffer=line_buffer)
    got = run(kernel, workers, x=with_border(x), w0=weights[0], w1=weights[1], b0=bias[0], b1=bias[1])
    want = convolve(convolve(x, weights[0], bias[0]), weights[1], bias[1])
    # The largest sum of absolute terms: the same network on absolute values.
    bound = convolve(convolve(np.abs(x), np.abs(weights[0]), bias[0]), np.abs(weights[1]), bias[1])
    result = compare(got, want, 2 * 9 * LANES, magnitude=float(bound.max()))
    assert result.within, result


# Winograd F(4x4, 3x3), Lavin and Gray 2015: both tensors between its three steps in `cache`.

Matrix = Sequence[Sequence[float]]
INPUT: Matrix = (
    (4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1),
)  # fmt: skip
FILTER: Matrix = (
    (1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6), (1 / 24, -1 / 12, 1 / 6), (0, 0, 1),
)  # fmt: skip
OUTPUT: Matrix = (
    (1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1),
)  # fmt: skip
TILES = 2


def combination(row: Sequence[float], term: Callable[[int], Expr]) -> Expr:
    """`sum(row[k] * term(k))`, zeros left out."""
    total: Expr | None = None
    for k, coefficient in enumerate(row):
        if not coefficient:
            continue
        if total is None:
            total = term(k) if coefficient == 1 else binary("mul", term(k), const(float(coefficient), F32))
        elif abs(coefficient) == 1:
            total = binary("add" if coefficient > 0 else "sub", total, term(k))
        else:
            total = fma(term(k), const(float(coefficient), F32), total)
    assert total is not None
    return total


def winograd(height: int, width: int, channels: int) -> Kernel:
    """`TILES` output tiles of 4x4 at a time; `width` is a multiple of 4, the last tile row may be cut."""
    across, down = width // 4, -(-height // 4)
    tile = add(mul(idx("b"), TILES), idx("s"))
    ranges = {"b": (0, down * across // TILES - 1), "s": (0, TILES - 1)}
    top, left = (simplify(mul(e, 4), ranges) for e in (floordiv(tile, across), mod(tile, across)))
    j, s, v = idx("j"), idx("s"), idx("v")
    channel = add(mul(idx("c"), LANES), v)

    def columns(matrix: Matrix, target: str, term: Callable[[int], Expr]) -> Stmt:
        stores = [put(at(target, i, j, v), combination(row, term)) for i, row in enumerate(matrix)]
        return unroll("j", 6, vector(*stores))

    def rows(matrix: Matrix, target: Callable[[int], Load], source: str, end: Callable[[Expr], Expr]) -> Stmt:
        return vector(
            *(
                put(target(i), end(combination(row, lambda k: at(source, j, k, v))))
                for i, row in enumerate(matrix)
            )
        )

    transform = within(
        "d", (6, 6, LANES), "register",
        columns(INPUT, "d", lambda k: at("x", add(top, k), add(left, j), channel)),
        unroll("j", 6, rows(INPUT, lambda i: at("tx", add(mul(j, 6), i), s, channel), "d", lambda e: e)),
    )  # fmt: skip
    acc = at("acc", s, v)
    product = fma(at("tx", idx("k"), s, idx("c")), at("u", idx("k"), idx("c"), v), acc)
    matmul = within(
        "acc", (TILES, LANES), "register",
        unroll("s", TILES, vector(put(acc, const(0.0, F32)))),
        loop("c", channels, (unroll("s", TILES, vector(put(acc, product))),)),
        unroll("s", TILES, vector(put(at("ty", idx("k"), s, v), acc))),
    )  # fmt: skip
    finish = rows(
        OUTPUT, lambda i: at("y", add(top, j), add(left, i), v), "e",
        lambda e: relu(binary("add", e, at("bias", v))),
    )  # fmt: skip
    inverse = within(
        "e", (4, 6, LANES), "register",
        columns(OUTPUT, "e", lambda k: at("ty", add(j, 6 * k), s, v)),
        unroll("j", 4, If(binary("lt", add(top, j), const(height)), (finish,))),
    )  # fmt: skip
    block = within(
        "tx", (36, TILES, channels), "cache",
        within(
            "ty", (36, TILES, LANES), "cache",
            loop("s", TILES, (loop("c", channels // LANES, (transform,)),)),
            loop("k", 36, (matmul,)),
            loop("s", TILES, (inverse,)),
        ),
    )  # fmt: skip
    params = (
        Buffer("x", F32, (4 * down + 2, width + 2, channels)),
        Buffer("u", F32, (36, channels, LANES)),
        Buffer("bias", F32, (LANES,)),
        Buffer("y", F32, (height, width, LANES)),
    )
    return Kernel("winograd", params, (loop("b", down * across // TILES, (block,), "parallel"),))


def absolute_winograd(x: Floats, u: Floats, height: int, width: int) -> float:
    """The largest sum that the three steps can build up: the same steps on absolute values."""
    b, a = np.abs(np.array(INPUT)), np.abs(np.array(OUTPUT))
    largest = 0.0
    for top in range(0, height, 4):
        for left in range(0, width, 4):
            tile = np.einsum("ik,klc,jl->ijc", b, np.abs(x[top : top + 6, left : left + 6]), b)
            product = np.einsum("ijc,ijcn->ijn", tile, np.abs(u).reshape(6, 6, *u.shape[1:]))
            largest = max(largest, float(np.einsum("ik,kln,jl->ijn", a, product, a).max()))
    return largest


def test_winograd() -> None:
    height, width, channels = 7, 8, 8
    x, weights = float32_values(5, height, width, channels), float32_values(6, 3, 3, channels, LANES)
    bias = float32_values(7, LANES)
    g = np.array(FILTER)
    u = np.einsum("ik,klcn,jl->ijcn", g, weights, g).reshape(36, channels, LANES)
    padded = with_border(x, after=2)
    got = run(winograd(height, width, channels), x=padded, u=u, bias=bias)
    magnitude = absolute_winograd(padded, u, height, width)
    result = compare(got, convolve(x, weights, bias), channels, magnitude=magnitude)
    assert result.within, result


# Attention with an online softmax (Milakov and Gimelshein 2018): no row of scores is ever complete.

QUERIES = 2


def attention(queries: int, keys: int, depth: int) -> Kernel:
    """`softmax(q kT / sqrt(depth) + mask) v`, four keys at a time.

    `top`, `sum` and `out` are what is known of a row so far; a larger maximum scales them down.
    """
    r, v, n = idx("r"), idx("v"), idx("n")
    row, key = add(mul(idx("b"), QUERIES), r), add(mul(n, LANES), v)
    acc, score, weight = at("acc", v), at("scores", r, v), at("weight", v)
    top, total, larger, shrink = at("top", r), at("sum", r), at("larger", 0), at("shrink", 0)
    out, depth_at = at("out", r, idx("d"), v), add(mul(idx("d"), LANES), v)
    zero, vectors = const(0.0, F32), depth // LANES

    def guarded(x: Expr) -> Expr:
        """exp(x - larger), and 0 while every score so far is -inf, where that would be exp(NaN)."""
        nothing = binary("eq", larger, const(-math.inf, F32))
        return select(nothing, zero, unary("exp", binary("sub", x, larger)))

    def across(op: str, buffer: Callable[[int], Expr]) -> Expr:
        pairs = [binary(op, buffer(k), buffer(k + 2)) for k in range(2)]  # type: ignore[arg-type]
        return binary(op, *pairs)  # type: ignore[arg-type]

    scaled = binary("mul", acc, const(1 / math.sqrt(depth), F32))
    scores = within(
        "acc", (LANES,), "register",
        vector(put(acc, zero)),
        loop("d", depth, (vector(put(acc, fma(at("q", row, idx("d")), at("kt", idx("d"), key), acc))),)),
        vector(put(score, binary("add", scaled, at("mask", row, key)))),
    )  # fmt: skip
    values = at("values", add(mul(n, LANES), idx("k")), depth_at)
    update = (
        put(larger, binary("max", top, across("max", lambda k: at("scores", r, k)))),
        put(shrink, guarded(top)),
        vector(put(weight, guarded(score))),
        put(total, fma(total, shrink, across("add", lambda k: at("weight", k)))),
        unroll("d", vectors, vector(put(out, binary("mul", out, shrink)))),
        unroll("k", LANES, unroll("d", vectors, vector(put(out, fma(at("weight", idx("k")), values, out))))),
        put(top, larger),
    )
    body: tuple[Stmt, ...] = update
    for name, extent in (("weight", LANES), ("shrink", 1), ("larger", 1)):
        body = (within(name, (extent,), "register", *body),)
    start = (
        put(top, const(-math.inf, F32)),
        put(total, zero),
        unroll("d", vectors, vector(put(out, zero))),
    )
    end = vector(put(at("y", row, depth_at), binary("div", out, total)))
    body = (
        unroll("r", QUERIES, *start),
        loop("n", keys // LANES, (unroll("r", QUERIES, scores), unroll("r", QUERIES, *body))),
        unroll("r", QUERIES, unroll("d", vectors, end)),
    )
    body = (within("scores", (QUERIES, LANES), "cache", *body),)
    for name, shape in (("out", (QUERIES, vectors, LANES)), ("sum", (QUERIES,)), ("top", (QUERIES,))):
        body = (within(name, shape, "register", *body),)
    params = (
        Buffer("q", F32, (queries, depth)),
        Buffer("kt", F32, (depth, keys)),
        Buffer("values", F32, (keys, depth)),
        Buffer("mask", F32, (queries, keys)),
        Buffer("y", F32, (queries, depth)),
    )
    return Kernel("attention", params, (loop("b", queries // QUERIES, body, "parallel"),))


def test_online_softmax_attention() -> None:
    queries, keys, depth = 6, 12, 8
    q, kt, values = (
        2 * float32_values(8 + k, *shape)
        for k, shape in enumerate([(queries, depth), (depth, keys), (keys, depth)])
    )
    mask = np.where(np.tri(queries, keys, 4, bool), 0, -np.inf)
    mask[1, :LANES] = -np.inf  # the first block of a row all masked, later ones not
    mask[2] = -np.inf  # a row of nothing but -inf: NaN by the formula of softmax
    mask[3, 7] = np.nan
    got = run(attention(queries, keys, depth), q=q, kt=kt, values=values, mask=mask)
    scores = q @ kt * float(np.float32(1 / math.sqrt(depth))) + mask
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        want = weights / weights.sum(axis=1, keepdims=True) @ values
    assert np.isnan(want[2:4]).all()
    assert np.isfinite(want[[0, 1, 4, 5]]).all()
    # An error of a score is a relative error of its weight: it scales with the scores' terms.
    terms = float((np.abs(q) @ np.abs(kt)).max()) / math.sqrt(depth)
    result = compare(got, want, keys + depth, magnitude=float(np.abs(values).max()) * (1 + terms))
    assert result.within, result


SHOWN = {
    "chain": chain(7, 3, line_buffer=False),
    "winograd": winograd(7, 8, 8),
    "attention": attention(6, 12, 8),
}


NOTE, LISTING = "0002-what-the-ir-must-still-express.md", "0002-kernels.txt"


@pytest.mark.parametrize(("name", "file"), [*((name, LISTING) for name in SHOWN), ("chain", NOTE)])
def test_note_shows_the_kernel_as_tested(name: str, file: str) -> None:
    assert print_kernel(SHOWN[name]) in (NOTES / file).read_text("utf-8")
