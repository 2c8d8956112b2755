"""Iterations in turns: the order of lines, what may not be mixed, and the same numbers."""

from __future__ import annotations

import numpy as np
from native import run_native, same

from onepass.core.dtypes import F32
from onepass.loops.build import binary, const, idx, loop, unary
from onepass.loops.ir import Buffer, For, If, Kernel, Load, Stmt, Store
from onepass.targets.llvm.interleave import DEEP_LINES, in_turns, mixed_iterations

U, V = idx("u"), idx("v")


def x(at=U):
    return Load("x", (at, V), F32)


def unrolled(*body: Stmt, count: int = 4) -> For:
    return loop("u", count, body, "unroll")


def vector(*body: Stmt) -> For:
    return loop("v", 16, body, "vector")


def chain(name: str, length: int = DEEP_LINES) -> list[str]:
    first = [f"  %v{name}0 = load float, ptr %p"]
    return first + [f"  %v{name}{i} = fneg float %v{name}{i - 1}" for i in range(1, length)]


def test_lines_take_turns_and_wait_for_what_they_use():
    a, b = chain("10"), chain("20")
    assert in_turns([a, b]) == [line for pair in zip(a, b, strict=True) for line in pair]
    # The second part uses the last value of the first: all of it must wait.
    late = [f"  %v300 = fneg float %v10{DEEP_LINES - 1}"]
    assert in_turns([a, late]) == a + late
    short = [chain("10", 3), chain("20", 3)]
    assert in_turns(short) == short[0] + short[1]


def test_stores_keep_their_order():
    parts = [[*chain("10"), "  store float %v1015, ptr %q"], ["  store float 0.0, ptr %q"]]
    assert [line for line in in_turns(parts) if "store" in line] == [part[-1] for part in parts]


def test_what_may_be_mixed():
    plain = vector(Store("y", (U, V), unary("exp", x())))
    assert mixed_iterations(unrolled(plain), 32, ("x", "y")) == 4
    assert mixed_iterations(unrolled(plain), 16, ("x", "y")) == 2
    reads_back = vector(Store("y", (U, V), Load("y", (const(0), V), F32)))
    assert mixed_iterations(unrolled(reads_back), 32, ("x", "y")) == 1
    assert mixed_iterations(unrolled(plain, plain), 32, ("x", "y")) == 1
    branch = If(binary("lt", U, const(2)), (plain,))
    assert mixed_iterations(unrolled(branch), 32, ("x", "y")) == 1


def test_a_deep_kernel_gives_the_numbers_of_its_iterations_alone():
    shape = (7, 16)
    stores = [Store("y", (const(0), V), unary("exp", x())), Store("z", (U, V), unary("erf", x()))]
    params = tuple(Buffer(name, F32, shape) for name in "xyz")
    mixed, alone = (
        Kernel("k", params, (loop("u", 7, tuple(map(vector, stores)), mode),))
        for mode in ("unroll", "serial")
    )
    arrays = {name: np.zeros(shape, np.float32) for name in "xyz"}
    arrays["x"] = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    actual, expected = run_native(mixed, arrays), run_native(alone, arrays)
    assert all(same(actual[name], expected[name]) for name in "yz")
    # The last iteration has written the first row.
    assert actual["y"][0].tolist() == expected["y"][0].tolist() != [0.0] * 16
