"""Loops, branches, buffers and workers; register buffers as values carried around loops."""

from __future__ import annotations

import numpy as np
import pytest
from direct_conv import Conv, direct_conv
from native import Array, run_interpreted, run_native, same

from onepass.core.dtypes import BOOL, F32, I32, I64, DType
from onepass.core.errors import InternalError
from onepass.core.tolerance import compare
from onepass.loops.build import add, binary, const, fma, idx, index, loop, mul, select
from onepass.loops.ir import Alloc, Buffer, Expr, For, If, Kernel, Load, LoopMode, Prefetch, Stmt, Store
from onepass.targets.llvm.description import describe_host
from onepass.targets.llvm.emit import emit

N, L = 6, 16
ROW, J, V = idx("i"), idx("j"), idx("v")
X, Y = Buffer("x", F32, (N, L)), Buffer("y", F32, (N, L))
ARRAYS: dict[str, Array] = {
    "x": np.random.default_rng(0).standard_normal((N, L)).astype(np.float32),
    "n": np.array([3, 0, 6, 1, 9, 2], np.int64),
    "y": np.zeros((N, L), np.float32),
}
COUNTS = Buffer("n", I64, (N,))


def check(body: tuple[Stmt, ...], workers: int = 1) -> None:
    kernel = Kernel("k", (X, COUNTS, Y), body)
    actual, expected = run_native(kernel, ARRAYS, workers), run_interpreted(kernel, ARRAYS, workers)
    assert same(actual["y"], expected["y"])


def vector(*body: Stmt, lanes: int = L) -> For:
    return loop("v", lanes, body, "vector")


def x(*at: Expr) -> Load:
    return Load("x", at, F32)


def register(*shape: int, dtype: DType = F32) -> Buffer:
    return Buffer("r", dtype, shape, "register")


def r(*at: Expr | int) -> Load:
    return Load("r", tuple(index(i) if isinstance(i, int) else i for i in at), F32)


@pytest.mark.parametrize("mode", ["serial", "unroll", "parallel", "shared"])
@pytest.mark.parametrize("workers", [1, 3, 8])
def test_modes_and_workers(mode: LoopMode, workers: int) -> None:
    check((loop("i", N, (vector(Store("y", (ROW, V), x(ROW, V))),), mode),), workers)


@pytest.mark.parametrize("workers", [2, 5, 8])
def test_who_is_done_takes_over_what_others_have_not_begun(workers: int) -> None:
    """Of the workers only the first comes, who reaches the iterations of four neighbours, in each loop."""
    shared, some = Buffer("y", F32, (40, L)), {"y": np.zeros((40, L), np.float32)}
    one = loop("i", 40, (vector(Store("y", (ROW, V), const(1.0, F32))),), "shared")
    two = loop("k", 20, (vector(Store("y", (idx("k"), V), const(2.0, F32))),), "shared")
    found = run_native(Kernel("k", (shared,), (one, two)), some, workers, come=1)["y"][:, 0]
    ones, twos = (5 * count // max(5, workers) for count in (40, 20))
    np.testing.assert_array_equal(found, [2.0] * twos + [1.0] * (ones - twos) + [0.0] * (40 - ones))


def test_more_shared_loops_than_are_counted_are_split() -> None:
    copies = [(f"i{k}", Store("y", (idx(f"i{k}"), V), x(idx(f"i{k}"), V))) for k in range(20)]
    check(tuple(loop(name, N, (vector(copy),), "shared") for name, copy in copies), 3)


@pytest.mark.parametrize("start", [0, 1])
def test_streamed_vectors_pass_the_caches_where_they_fill_lines(start: int) -> None:
    """The same numbers; a vector that does not start on its own size is stored as ever."""
    body = (loop("i", N, (vector(Store("y", (ROW, add(V, start)), x(ROW, V))),), "parallel"),)
    width = Buffer("y", F32, (N, L * 2 if start == 0 else L + 1), streamed=True)
    kernel = Kernel("k", (X, width), body)
    arrays = {"x": ARRAYS["x"], "y": np.zeros(width.shape, np.float32)}
    assert same(run_native(kernel, arrays, 2)["y"], run_interpreted(kernel, arrays, 2)["y"])
    assert ("!nontemporal" in emit(kernel, describe_host())) == (start == 0)


def test_streamed_vectors_of_an_odd_number_of_lanes() -> None:
    """The rest of a row may have 12 lanes: 48 bytes are no alignment, so it is stored as ever."""
    body = (loop("i", N, (vector(Store("y", (ROW, V), x(ROW, V)), lanes=12),), "parallel"),)
    kernel = Kernel("k", (X, Buffer("y", F32, (N, 12), streamed=True)), body)
    arrays = {"x": ARRAYS["x"], "y": np.zeros((N, 12), np.float32)}
    assert same(run_native(kernel, arrays, 2)["y"], run_interpreted(kernel, arrays, 2)["y"])


def test_step_and_start() -> None:
    body = (vector(Store("y", (ROW, V), x(ROW, V))),)
    for mode in ("serial", "unroll", "parallel", "shared"):
        check((For("i", const(1), const(N), body, mode, 2),), 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [L, 1])
def test_register_carried_around_a_loop_of_unknown_length(width: int) -> None:
    """Sum of x[j] over j < n[i], with n from 0 to beyond what is summed."""
    stop = binary("min", Load("n", (ROW,), I64), const(N))
    start = vector(Store("r", (V,), const(-1.0, F32)), lanes=width)
    total = loop("j", stop, (vector(Store("r", (V,), add_f(r(V), x(J, V))), lanes=width),))
    finish = vector(Store("y", (ROW, V), r(V)), lanes=width)
    check((loop("i", N, (Alloc(register(width), (start, total, finish)),)),))


def add_f(a: Expr, b: Expr) -> Expr:
    return binary("add", a, b)


def test_register_parts() -> None:
    """Single lanes, prefixes and whole vectors of one buffer; a horizontal sum."""
    fill = loop("l", L, (Store("r", (const(1), idx("l")), x(ROW, idx("l"))),), "unroll")
    prefix = vector(Store("r", (const(1), V), add_f(r(1, V), const(1.0, F32))), lanes=5)
    first = Store("r", (const(0), const(3)), const(0.0, F32))
    total = loop("l", L, (Store("r", (const(0), const(3)), add_f(r(0, 3), r(1, idx("l")))),), "unroll")
    finish = vector(Store("y", (ROW, V), binary("mul", r(1, V), r(0, 3))))
    check((loop("i", N, (Alloc(register(2, L), (fill, prefix, first, total, finish)),)),))


def test_scalar_register_of_rank_0() -> None:
    start, total = Store("r", (), x(ROW, const(0))), Store("r", (), fma(r(), x(ROW, J), x(ROW, J)))
    body = (start, loop("j", L, (total,)), Store("y", (ROW, const(0)), r()))
    check((loop("i", N, (Alloc(register(), body),)),))


def test_branch_merges_registers() -> None:
    start = vector(Store("r", (V,), x(ROW, V)))
    change = If(binary("lt", Load("n", (ROW,), I64), const(3)), (vector(Store("r", (V,), const(5.0, F32))),))
    static = If(binary("ge", ROW, const(0)), (vector(Store("r", (V,), add_f(r(V), r(V)))),))
    never = If(binary("gt", ROW, const(N)), (vector(Store("r", (V,), const(0.0, F32))),))
    finish = vector(Store("y", (ROW, V), r(V)))
    check((loop("i", N, (Alloc(register(L), (start, change, static, never, finish)),)),))


def test_branch_around_a_parallel_loop_body() -> None:
    body = If(binary("lt", Load("n", (ROW,), I64), const(3)), (vector(Store("y", (ROW, V), x(ROW, V))),))
    check((loop("i", N, (body,), "parallel"),), 2)


def test_bool_registers() -> None:
    flags = register(L, dtype=BOOL)
    start = vector(Store("r", (V,), binary("lt", x(ROW, V), const(0.0, F32))))
    value = select(Load("r", (V,), BOOL), const(1.0, F32), x(ROW, V))
    check((loop("i", N, (Alloc(flags, (start, vector(Store("y", (ROW, V), value)))),)),))


@pytest.mark.parametrize("mode", ["serial", "unroll", "parallel"])
def test_cache_buffer_holds_a_row(mode: LoopMode) -> None:
    scratch = Buffer("s", F32, (2, L), "cache")
    fill = loop("j", 2, (vector(Store("s", (J, V), binary("mul", x(ROW, V), x(J, V)))),))
    mixed = add_f(Load("s", (const(0), V), F32), Load("s", (const(1), binary("sub", const(L - 1), V)), F32))
    check((loop("i", N, (Alloc(scratch, (fill, vector(Store("y", (ROW, V), mixed)))),), mode),), 2)


def test_scratch_around_parallel_loops() -> None:
    scratch = Buffer("s", F32, (L,), "cache")
    fill = vector(Store("s", (V,), x(const(2), V)))
    use = loop("i", N, (vector(Store("y", (ROW, V), Load("s", (V,), F32))),), "parallel")
    check((Alloc(scratch, (fill, use)),), 3)


def test_statement_outside_of_parallel_loops_runs_once() -> None:
    count = Store("y", (const(0), const(0)), add_f(Load("y", (const(0), const(0)), F32), const(1.0, F32)))
    kernel = Kernel("k", (X, COUNTS, Y), (loop("j", 5, (count,)),))
    assert run_native(kernel, ARRAYS, workers=4)["y"][0, 0] == 5


def test_nested_bounds_and_empty_loops() -> None:
    triangle = loop("j", add(ROW, 1), (Store("y", (ROW, J), x(ROW, J)),), start=mul(ROW, 0))
    nothing = loop("j", 0, (Store("y", (ROW, J), const(9.0, F32)),))
    backwards = loop("j", const(-3), (Store("y", (ROW, J), const(9.0, F32)),), start=ROW)
    check((loop("i", N, (triangle, nothing, backwards)),))


def test_read_after_write_of_a_parameter() -> None:
    write = vector(Store("y", (ROW, V), x(ROW, V)))
    again = vector(Store("y", (ROW, V), add_f(Load("y", (ROW, V), F32), Load("y", (ROW, const(0)), F32))))
    check((loop("i", N, (write, again, again)),))


def test_prefetch_may_lie_outside() -> None:
    check(
        (
            loop(
                "i",
                N,
                (Prefetch("x", (add(ROW, 1 << 40), const(0))), vector(Store("y", (ROW, V), x(ROW, V)))),
            ),
        )
    )


def test_one_name_for_several_loops_with_other_ranges() -> None:
    """The address of one load object is worked out anew where its loops have other bounds."""
    value = Load("x", (const(0), binary("mod", J, const(4))), F32)
    parts = [loop("j", n, (Store("y", (ROW, J), value),), mode) for n, mode in ((4, "serial"), (9, "unroll"))]  # type: ignore[arg-type]
    parts.append(loop("j", 16, (Store("y", (ROW, J), value),)))
    check((loop("i", N, tuple(parts)),))


def test_empty_buffers() -> None:
    empty = Buffer("x", F32, (0, L)), Buffer("y", F32, (0, L))
    kernel = Kernel("k", empty, (loop("i", 0, (vector(Store("y", (ROW, V), x(ROW, V))),), "parallel"),))
    arrays = {"x": np.zeros((0, L), np.float32), "y": np.zeros((0, L), np.float32)}
    assert run_native(kernel, arrays)["y"].shape == (0, L)


def test_integers_in_registers() -> None:
    params = Buffer("a", I32, (N, L)), Buffer("b", I32, (N, L))
    total = Buffer("r", I32, (L,), "register")
    body = (
        vector(Store("r", (V,), const(0, I32))),
        loop(
            "i", N, (vector(Store("r", (V,), binary("add", Load("r", (V,), I32), Load("a", (ROW, V), I32)))),)
        ),
        vector(Store("b", (const(0), V), Load("r", (V,), I32))),
    )
    kernel = Kernel("k", params, (Alloc(total, body),))
    arrays = {
        "a": np.random.default_rng(0).integers(-(2**31), 2**31, (N, L), np.int32),
        "b": np.zeros((N, L), np.int32),
    }
    assert same(run_native(kernel, arrays)["b"], run_interpreted(kernel, arrays)["b"])


def test_run_time_index_of_a_register_is_an_error() -> None:
    kernel = Kernel("k", (Y,), (Alloc(register(4), (loop("i", 4, (Store("r", (ROW,), const(0.0, F32)),)),)),))
    with pytest.raises(InternalError, match="register buffer 'r'"):
        run_native(kernel, {"y": ARRAYS["y"]})


def test_direct_convolution() -> None:
    conv = Conv(c=32, oc=64, size=14, k=3, r=7, q=2)
    kernel = direct_conv(conv)
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {
        b.name: rng.standard_normal(b.shape).astype(np.float32) for b in kernel.params
    }
    image, weights = arrays["x"].astype(np.float64), arrays["w"].astype(np.float64)
    exact = np.zeros(kernel.params[2].shape)
    for kh in range(3):
        for kw in range(3):
            window = image[:, kh : kh + 14, kw : kw + 14]
            exact += np.einsum("chwi,dcie->dhwe", window, weights[:, :, kh, kw], optimize=True)
    actual = run_native(kernel, arrays, workers=3)["y"]
    assert compare(actual, np.maximum(exact, 0), reduction_length=32 * 9).within


def test_a_part_of_a_vector_register() -> None:
    half = Buffer("h", F32, (L // 2,), "register")
    whole = vector(Store("r", (V,), x(ROW, V)))
    pair = binary("sub", r(V), r(add(V, L // 2)))
    halves = vector(Store("h", (V,), pair), lanes=L // 2)
    back = vector(Store("y", (ROW, add(V, 3)), Load("h", (V,), F32)), lanes=L // 2)
    check((loop("i", N, (Alloc(register(L), (Alloc(half, (whole, halves, back)),)),)),))
