"""What was measured: seconds of each launch, over several runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaunchTime:
    """One launch: `region` is the region's id, times in seconds over the traced runs."""

    region: int
    kernel: str
    min_s: float
    median_s: float


@dataclass(frozen=True, slots=True)
class Trace:
    """Per launch and whole-model times of one program on one input."""

    launches: tuple[LaunchTime, ...]
    min_s: float
    median_s: float
    runs: int
    workers: int

    def seconds_of_region(self) -> Mapping[int, float]:
        """Median seconds of each region, the sum of its launches."""
        total: dict[int, float] = {}
        for launch in self.launches:
            total[launch.region] = total.get(launch.region, 0.0) + launch.median_s
        return total
