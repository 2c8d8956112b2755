"""A machine as the cost model sees it: capacities from its description, roofs as measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["l1", "l2", "l3", "memory"]
LEVELS: tuple[Level, ...] = ("l1", "l2", "l3", "memory")
STREAMED = "memory streamed"  # the roof of kernels whose outputs pass the caches
FMA_LATENCY_CYCLES = 4  # Zen 2-4 and Skylake-X; Agner Fog, instruction tables


@dataclass(frozen=True, slots=True)
class Roof:
    """One measured limit. `unit` is `flop/s`, `byte/s` or `s`; `workers` ran at the same time.

    `what` names it: a dtype and instruction set for a peak (`float32 avx512 fma`), a level for a
    bandwidth (`l2`), `launch` for the cost of a launch. `value` is the total over all workers.
    """

    what: str
    value: float
    unit: str
    workers: int
    method: str
    date: str


@dataclass(frozen=True, slots=True)
class Machine:
    """Capacities in bytes and measured roofs.

    `l1_bytes` and `l2_bytes` of one core, `l3_bytes` shared: what of it was measured to serve this machine.
    """

    name: str
    isa: str
    vector_bits: int
    vector_registers: int
    cores: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    roofs: tuple[Roof, ...]

    def lanes(self, size_bytes: int = 4) -> int:
        """Elements of `size_bytes` in one vector register."""
        return self.vector_bits // (8 * size_bytes)

    def roof(self, what: str, workers: int) -> float:
        """The measured limit `what` for `workers`, or for the nearest worker count measured.

        Raises KeyError for a limit that was never measured.
        """
        found = [roof for roof in self.roofs if roof.what == what]
        if not found:
            raise KeyError(what)
        return min(found, key=lambda roof: abs(roof.workers - workers)).value

    def peak_flops_per_s(self, dtype: str, workers: int) -> float:
        """Most floating-point operations a second (an FMA counts two)."""
        return self.roof(f"{dtype} fma", workers)

    def fma_ports(self) -> int:
        """Vector FMAs that start in one cycle: the peak over the rate of a chain, one a latency."""
        ratio = self.roof("float32 fma", 1) / self.roof("float32 fma chain", 1)
        return max(1, round(ratio / FMA_LATENCY_CYCLES))

    def bandwidth_bytes_per_s(self, level: Level, workers: int, streamed: bool = False) -> float:
        """Bytes a second that all workers together move from and to `level`.

        `streamed`: what is written to memory passes the caches, on a machine where that was measured.
        """
        past = streamed and level == "memory" and any(roof.what == STREAMED for roof in self.roofs)
        return self.roof(STREAMED if past else level, workers)

    def launch_s(self, workers: int) -> float:
        """Seconds of one empty launch: a call and a barrier."""
        return self.roof("launch", workers)
