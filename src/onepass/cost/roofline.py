"""Traffic x Machine -> Estimate: how long a kernel must take, and what holds it up."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.cost.machine import LEVELS, Level, Machine


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one or more launches do. Exact integers for given shapes, layout and tile sizes.

    `compulsory_bytes`: every input read once and every output written once. `bytes_at[level]`: bytes
    that have to come from, or go to, that level, `l2`, `l3` and `memory`. `recomputed_flops` are part of
    `flops`.
    `streamed`: outputs pass the caches on their way to memory. `flop_efficiency` is the share of the FMA
    peak that this instruction mix can reach at best.
    """

    flops: int
    compulsory_bytes: int
    bytes_at: dict[Level, int]
    launches: int = 1
    recomputed_flops: int = 0
    dtype: str = "float32"
    flop_efficiency: float = 1.0
    streamed: bool = False

    @property
    def flops_per_byte(self) -> float:
        """Operations per compulsory byte."""
        return self.flops / self.compulsory_bytes if self.compulsory_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted seconds; `bound` is `compute`, `launch`, or the level that holds the kernel up."""

    traffic: Traffic
    seconds: float
    compute_s: float
    transfer_s: dict[Level, float]
    launch_s: float
    bound: str

    @property
    def limit_s(self) -> float:
        """What the roofs allow at best: all operations at the FMA peak, or all bytes of one level at its
        bandwidth, whichever takes longer; launches and other instructions cost nothing."""
        return max(self.compute_s * self.traffic.flop_efficiency, *self.transfer_s.values(), 0.0)


def estimate(traffic: Traffic, machine: Machine, workers: int) -> Estimate:
    """max(compute, transfer at each level) + launches: the roofline model (Williams et al. 2009)."""
    peak = machine.peak_flops_per_s(traffic.dtype, workers) * traffic.flop_efficiency
    compute_s = traffic.flops / peak
    transfer_s = {
        level: traffic.bytes_at[level] / machine.bandwidth_bytes_per_s(level, workers, traffic.streamed)
        for level in LEVELS
        if traffic.bytes_at.get(level)
    }
    launch_s = traffic.launches * machine.launch_s(workers)
    slowest, work_s = "compute", compute_s
    for level, seconds in transfer_s.items():
        if seconds > work_s:
            slowest, work_s = level, seconds
    bound = "launch" if launch_s > work_s else slowest
    return Estimate(traffic, work_s + launch_s, compute_s, transfer_s, launch_s, bound)
