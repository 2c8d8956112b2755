"""Worker threads: one pool per worker count, shared by every program of the process.

The calling thread is worker 0; the others are daemon threads inside one native call each, which wait for
about 100 µs after a job and then sleep. So back-to-back calls meet awake workers, and an idle process
uses no time. A pool runs one job at a time; a forked child starts pools of its own.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
from pathlib import Path

from onepass.core.errors import OptionError, UserError
from onepass.runtime.entry import Block, entry
from onepass.runtime.host import available_cores

MOST_WORKERS = 1024
"""More than this is a slip of the keyboard, not a machine."""


class Pool:
    """`workers` workers, of which the caller is one. Hold `lock` around everything a job reads or writes."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.lock = threading.RLock()
        self._enter, self._modes = entry().enter, entry().modes
        self._block = Block(workers)
        self._threads: list[threading.Thread] = []
        for worker in range(1, workers):
            thread = threading.Thread(
                target=self._serve, args=(worker,), name=f"onepass-{worker}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                self.stop()
                raise UserError(
                    f"cannot start {workers} worker threads", why=str(error),
                    remedy="ask for fewer with --threads or ONEPASS_NUM_THREADS",
                ) from error  # fmt: skip
            self._threads.append(thread)

    def _serve(self, worker: int) -> None:
        self._enter(self._block.address, worker, 0, 0, 0, 0)

    def run(self, launches: int, count: int, times: int = 0, flush: bool = False) -> None:
        """Runs `count` launches at address `launches` on all workers; returns when the last one is done.

        `times` is 0, or the address of `count + 1` pairs of int64 (seconds, nanoseconds) of the monotonic
        clock: the start, then the end of each launch. With `flush` subnormal numbers are zero in them.
        """
        if count:
            with self.lock:
                self._enter(self._block.address, 0, launches, count, times, self._modes[flush])

    def stop(self) -> None:
        """Ends the threads; the pool cannot run again."""
        with self.lock:
            self._block.expect(len(self._threads) + 1)  # where not all could start
            self._enter(self._block.address, 0, 0, -1, 0, self._modes[0])
        for thread in self._threads:
            thread.join(timeout=1.0)


_pools: dict[int, Pool] = {}
_pools_lock = threading.Lock()


def pool_of(workers: int) -> Pool:
    """The pool of this process for that many workers; its threads start on first use."""
    with _pools_lock:
        if workers not in _pools:
            _pools[workers] = Pool(workers)
        return _pools[workers]


def _forget_pools() -> None:
    """In a forked child: the threads did not come along, and a lock may be held by one that is gone."""
    global _pools_lock
    _pools_lock = threading.Lock()
    _pools.clear()


def _stop_pools() -> None:
    """At exit: workers must not be in compiled code when it is unmapped."""
    for pool in _pools.values():
        if pool.lock.acquire(timeout=1.0):
            try:
                pool.stop()
            finally:
                pool.lock.release()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)
atexit.register(_stop_pools)


def worker_count(requested: int | None = None) -> int:
    """How many workers to use: as asked, else ONEPASS_NUM_THREADS, else what this process may use.

    That is the smaller of the affinity mask and the control group's processor quota, rounded up.
    Raises OptionError for a number below 1 or above 1024, or a variable that is no number.
    """
    if requested is not None:
        return _checked(requested, "--threads")
    text = os.environ.get("ONEPASS_NUM_THREADS", "").strip()
    if text:
        try:
            return _checked(int(text), "ONEPASS_NUM_THREADS")
        except ValueError as error:
            raise OptionError(
                f"ONEPASS_NUM_THREADS is '{text}', which is not a whole number",
                remedy=f"set it to a number from 1 to {MOST_WORKERS}, or unset it",
            ) from error
    quota = cpu_quota()
    return available_cores() if quota is None else max(1, min(available_cores(), math.ceil(quota)))


def _checked(count: int, source: str) -> int:
    if not isinstance(count, int) or not 1 <= count <= MOST_WORKERS:
        raise OptionError(
            f"cannot run with {count} threads", where=source,
            why="a whole number is needed: one thread at least has to do the work, and no machine has more "
            f"than {MOST_WORKERS} cores",
            remedy=f"give a number from 1 to {MOST_WORKERS}, or leave it out to use every core that is free",
        )  # fmt: skip
    return count


def cpu_quota(
    cgroups: Path = Path("/sys/fs/cgroup"), groups_of: Path = Path("/proc/self/cgroup")
) -> float | None:
    """Processors that the control groups (version 1 or 2) grant, the least on the way up; None: no limit.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst (`cpu.max`) and scheduler/sched-bwc.rst.
    """
    try:
        lines = groups_of.read_text().splitlines()
    except OSError:
        return None
    found: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            tops = [cgroups, cgroups / "unified"]
        elif "cpu" in controllers.split(","):
            tops = [cgroups / "cpu", cgroups / controllers]
        else:
            continue
        parts = [part for part in path.split("/") if part]
        for top in tops:
            folders = [top.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
            found += [quota for quota in map(_quota_in, folders) if quota is not None]
    return min(found, default=None)


def _quota_in(folder: Path) -> float | None:
    """The limit that one control group's files state, in processors."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
