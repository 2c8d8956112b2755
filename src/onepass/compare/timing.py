"""Times of several ways to do the same thing, taken in turns so that disturbances hit all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

LEAST_ROUNDS, MOST_ROUNDS = 10, 200
BUDGET_S = 6.0
"""Rounds go on, within their limits, for about this long: enough for the minimum to settle."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one way over all rounds."""

    min_s: float
    median_s: float
    rounds: int


def interleave(
    runs: Mapping[str, Callable[[], object]],
    budget_s: float = BUDGET_S,
    before_each: Callable[[], object] = lambda: None,
) -> dict[str, Times]:
    """Runs each once to warm up, then in rounds A B A B …; at least `LEAST_ROUNDS` of them.

    `before_each` is not timed.
    """
    for run in runs.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    started, rounds = time.perf_counter(), 0
    while rounds < LEAST_ROUNDS or (rounds < MOST_ROUNDS and time.perf_counter() - started < budget_s):
        for name, run in runs.items():
            before_each()
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
        rounds += 1
    return {name: Times(min(each), statistics.median(each), rounds) for name, each in seconds.items()}
