"""Workers: barriers hold, calls take turns, a fork starts afresh, the count has its sources."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onepass.core.dtypes import F32
from onepass.core.errors import OptionError
from onepass.core.tensor import TensorType
from onepass.runtime.entry import entry_text
from onepass.runtime.program import Launch, Linked, Program
from onepass.runtime.workers import cpu_quota, pool_of, worker_count
from onepass.targets.llvm.compile import assembly
from onepass.targets.llvm.description import describe

MakeChain = Callable[[int], Program]
TWO = np.float32(2)


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_every_launch_sees_the_whole_result_of_the_one_before(linked: Linked, workers: int) -> None:
    rounds = 40
    launches = [Launch(i, "gather", ("even", "odd")[:: 1 - i % 2 * 2]) for i in range(rounds)]
    program = Program(
        linked, launches, {"even": ("arena", 0), "odd": ("arena", 64)}, {}, [], [], 128, workers
    )
    for _ in range(50):
        program._arena.fill(0)
        program.run([])
        value = 0
        for _ in range(rounds):
            value = (value * workers + 1) & 0xFFFFFFFFFFFFFFFF
        result = program._arena.view(np.uint64)[:workers]
        assert result.tolist() == [value] * workers


def test_several_threads_may_call_one_program(chain: MakeChain) -> None:
    program = chain(2)
    wrong: list[int] = []

    def call(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(100):
            x, y = (rng.standard_normal(1000).astype(np.float32) for _ in range(2))
            if not np.array_equal(program.run([x, y])[0], (x + y) * TWO):
                wrong.append(seed)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_starts_workers_of_its_own(chain: MakeChain) -> None:
    program = chain(2)
    x = np.ones(1000, np.float32)
    program.run([x, x])
    with pool_of(2).lock:  # as another thread may hold it at the moment of the fork
        child = os.fork()
        if child == 0:
            right = False
            try:
                right = all(np.array_equal(program.run([x, x])[0], (x + x) * TWO) for _ in range(20))
            finally:
                os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(program.run([x, x])[0], (x + x) * TWO)


MODE_AT, EXACT, FLUSHING = 28, 0x1F80, 0x9FC0  # MXCSR in the C library's fenv_t of x86-64


def callers_mode(wanted: int | None = None) -> int:
    """This thread's MXCSR, set to `wanted` if that is given, without the flags of past exceptions."""
    libm, state = ctypes.CDLL("libm.so.6"), ctypes.create_string_buffer(64)
    assert libm.fegetenv(state) == 0
    if wanted is not None:
        state[MODE_AT : MODE_AT + 4] = wanted.to_bytes(4, "little")
        assert libm.fesetenv(state) == libm.fegetenv(state) == 0
    return int.from_bytes(state[MODE_AT : MODE_AT + 4], "little") & ~0x3F


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="reads the C library's fenv_t"
)
@pytest.mark.parametrize("flush", [False, True])
def test_a_call_depends_on_no_callers_mode_and_leaves_it(linked: Linked, flush: bool) -> None:
    kind = TensorType(F32, (1000,))
    program = Program(
        linked, [Launch(0, "fmul", ("x", "x", "o"))], {"x": ("input", 0), "o": ("output", 0)}, {},
        [("x", kind)], [("o", kind)], 0, 2, flush,
    )  # fmt: skip
    x = np.full(1000, 1e-20, np.float32)
    outcomes: list[tuple[int, int, list[bool]]] = []

    def call(mode: int) -> None:
        callers_mode(mode)
        results = [bool(program.run([x])[0].view(np.uint32).any()) for _ in range(50)]
        outcomes.append((mode, callers_mode(), results))

    threads = [threading.Thread(target=call, args=(mode,)) for mode in (EXACT, FLUSHING) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(mode for mode, _, _ in outcomes) == [EXACT, EXACT, FLUSHING, FLUSHING]
    for before, after, results in outcomes:
        assert after == before and results == [not flush] * 50


def test_arm_has_its_mode_set_too() -> None:
    target = describe("cortex-a72")
    modes, text = entry_text(target)
    assert modes == (0, 1 << 24) and len(re.findall(r"msr\s+fpcr", assembly(text, target).lower())) >= 2


def test_programs_share_the_threads(chain: MakeChain) -> None:
    for program in [chain(3) for _ in range(5)]:
        program.run([np.ones(1000, np.float32)] * 2)
    assert sum(thread.name == "onepass-2" for thread in threading.enumerate()) <= 2


def test_count_as_asked_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_NUM_THREADS", "7")
    assert worker_count(3) == 3
    assert worker_count() == 7
    monkeypatch.delenv("ONEPASS_NUM_THREADS")
    assert worker_count() >= 1


@pytest.mark.parametrize("count", [0, -2, 5000])
def test_a_count_that_makes_no_sense(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError) as caught:
        worker_count(count)
    assert caught.value.remedy
    monkeypatch.setenv("ONEPASS_NUM_THREADS", str(count))
    with pytest.raises(OptionError, match="ONEPASS_NUM_THREADS"):
        worker_count()


def test_a_count_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_NUM_THREADS", "many")
    with pytest.raises(OptionError, match="not a whole number"):
        worker_count()


def test_quota_of_version_2_is_the_least_on_the_way_up(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("0::/a/b\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(tmp_path, groups) is None
    (tmp_path / "a" / "cpu.max").write_text("250000 100000\n")
    assert cpu_quota(tmp_path, groups) == 2.5


def test_quota_of_version_1(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("4:cpu,cpuacct:/box\n3:memory:/box\n")
    box = tmp_path / "cpu,cpuacct" / "box"
    box.mkdir(parents=True)
    (box / "cpu.cfs_quota_us").write_text("-1\n")
    (box / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(tmp_path, groups) is None
    (box / "cpu.cfs_quota_us").write_text("150000\n")
    assert cpu_quota(tmp_path, groups) == 1.5
    assert cpu_quota(tmp_path, tmp_path / "missing") is None
