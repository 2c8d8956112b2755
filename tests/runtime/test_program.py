"""Programs: right results, errors in the model's own names, memory as planned, traces with all launches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onepass.core.dtypes import F32
from onepass.core.errors import ShapeError, UserError
from onepass.core.tensor import TensorType
from onepass.runtime.program import Launch, Linked, Program, aligned_empty

MakeChain = Callable[[int], Program]
TWO = np.float32(2)
X = np.linspace(-3, 3, 1000, dtype=np.float32)
Y = np.geomspace(1e-3, 1e3, 1000, dtype=np.float32)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_chain_through_the_arena(chain: MakeChain, workers: int) -> None:
    (result,) = chain(workers).run([X, Y])
    assert np.array_equal(result, (X + Y) * TWO)
    assert result.ctypes.data % 64 == 0


def test_outputs_are_fresh(chain: MakeChain) -> None:
    program = chain(2)
    (first,) = program.run([X, Y])
    kept = first.copy()
    program.run([Y, X])
    assert np.array_equal(first, kept)


def test_memory_of_a_result_is_used_again_only_when_it_is_gone(linked: Linked) -> None:
    kind = TensorType(F32, (1 << 20,))
    program = Program(
        linked, [Launch(0, "fadd", ("x", "x", "o"))], {"x": ("input", 0), "o": ("output", 0)},
        {}, [("x", kind)], [("o", kind)], 0, 1,
    )  # fmt: skip
    x = np.ones(kind.shape, np.float32)
    results = [program.run([x])[0] for _ in range(4)]
    assert len({result.ctypes.data for result in results}) == 4
    view = results[-1][5:10]
    address = results[-2].ctypes.data
    del results
    again = [program.run([x])[0] for _ in range(3)]
    assert again[0].ctypes.data == address
    assert all(not np.shares_memory(view, result) for result in again)


def test_inputs_may_be_strided_or_unaligned(chain: MakeChain) -> None:
    program = chain(2)
    wide = np.repeat(X, 2)
    buffer = np.zeros(1001, np.float32)
    buffer[1:] = Y
    (result,) = program.run([wide[::2], buffer[1:]])
    assert np.array_equal(result, (X + Y) * TWO)
    (backwards,) = program.run([X[::-1], Y])
    assert np.array_equal(backwards, (X[::-1] + Y) * TWO)


def test_nan_inf_and_subnormals_flow(chain: MakeChain) -> None:
    x = X.copy()
    x[:4] = [np.nan, np.inf, -np.inf, 1e-42]
    y = np.zeros(1000, np.float32)
    (result,) = chain(2).run([x, y])
    assert np.array_equal(result, (x + y) * TWO, equal_nan=True)
    assert result[3] != 0


def test_subnormals_are_zero_where_asked_on_every_worker(linked: Linked, chain: MakeChain) -> None:
    """Operands too. Programs with and without it share a pool."""
    kind, slots = TensorType(F32, (1000,)), {"x": ("input", 0), "y": ("input", 1), "o": ("output", 0)}
    flushed = Program(
        linked, [Launch(0, "fmul", ("x", "y", "o"))], slots, {}, [("x", kind), ("y", kind)], [("o", kind)],
        0, 3, flush=True,
    )  # fmt: skip
    tiny, half, large = (np.full(1000, v, np.float32) for v in (2e-38, 0.5, 1e10))
    exact = chain(3)
    for _ in range(20):
        assert not flushed.run([tiny, half])[0].any()
        assert not flushed.run([tiny * half, large])[0].any()
        assert np.array_equal(flushed.run([half, half])[0], half * half)
        assert np.array_equal(exact.run([tiny * half, tiny * half])[0], (tiny * half) * 2 * TWO)


def test_what_is_allocated_is_what_was_planned(chain: MakeChain) -> None:
    program = chain(1)
    assert program._arena.nbytes == program.arena_bytes == 4096
    assert program._arena.ctypes.data % 64 == 0
    assert not program._arena.any()


@pytest.mark.parametrize(
    ("arrays", "parts"),
    [
        ([X], ["takes 2 inputs, not 1", "x, y"]),
        ([X, Y[:10]], ["input 'y'", "expected float32[1000]", "got float32[10]"]),
        ([X.astype(np.float64), Y], ["input 'x'", "float64[1000]", ".astype('float32')"]),
        ([X, Y.reshape(10, 100)], ["input 'y'", "float32[10,100]"]),
    ],
)
def test_a_wrong_input_is_named(chain: MakeChain, arrays: list[np.ndarray], parts: list[str]) -> None:
    with pytest.raises(ShapeError) as caught:
        chain(1).run(arrays)
    for part in parts:
        assert part in str(caught.value)


def test_no_launches_and_empty_outputs(linked: Linked) -> None:
    empty = TensorType(F32, (0, 3))
    program = Program(linked, [], {}, {}, [("x", empty)], [("o", empty)], 0, 2)
    (result,) = program.run([np.zeros((0, 3), np.float32)])
    assert result.shape == (0, 3)
    assert program.trace([result], 2).launches == ()


def test_trace_has_every_launch(chain: MakeChain) -> None:
    trace = chain(2).trace([X, Y], runs=5)
    assert [(launch.region, launch.kernel) for launch in trace.launches] == [(0, "fadd"), (1, "fmul")]
    assert (trace.runs, trace.workers) == (5, 2)
    assert all(0 < launch.min_s <= launch.median_s for launch in trace.launches)
    assert sum(launch.min_s for launch in trace.launches) <= trace.min_s <= trace.median_s
    assert set(trace.seconds_of_region()) == {0, 1}


def test_one_region_may_have_several_launches(linked: Linked) -> None:
    slots = {"x": ("input", 0), "t": ("arena", 0), "o": ("output", 0)}
    kind = TensorType(F32, (1000,))
    program = Program(
        linked, [Launch(4, "fadd", ("x", "x", "t")), Launch(4, "fadd", ("t", "x", "o"))],
        slots, {}, [("x", kind)], [("o", kind)], 4096, 1,
    )  # fmt: skip
    trace = program.trace([X], 3)
    assert trace.seconds_of_region() == {4: sum(launch.median_s for launch in trace.launches)}
    assert program.run_timed([X]) > 0


def test_more_memory_than_there_is() -> None:
    with pytest.raises(UserError, match="not enough memory"):
        aligned_empty((1 << 60,), np.dtype(np.float32))
