"""Times of several ways to do the same thing, taken in turns so that disturbances hit all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

LEAST_ROUNDS, MOST_ROUNDS, TIMED = 5, 100, 2
BUDGET_S = 6.0
"""Rounds go on, within their limits, for about this long: enough for the minimum to settle."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one way over all timed runs."""

    min_s: float
    median_s: float
    runs: int


def interleave(
    runs: Mapping[str, Callable[[], object]],
    budget_s: float = BUDGET_S,
    pause_s: float = 0.0,
    least_rounds: int = LEAST_ROUNDS,
) -> dict[str, Times]:
    """Lets the ways take turns, A B A B …, for about `budget_s` and at least `least_rounds` rounds.

    A turn is a pause, in which threads of the way before come to rest, a run that is not timed and
    refills the caches, and `TIMED` timed runs.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    started, rounds = time.perf_counter(), 0
    while rounds < least_rounds or (rounds < MOST_ROUNDS and time.perf_counter() - started < budget_s):
        for name, run in runs.items():
            time.sleep(pause_s)
            run()
            for _ in range(TIMED):
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
        rounds += 1
    return {name: Times(min(each), statistics.median(each), len(each)) for name, each in seconds.items()}
