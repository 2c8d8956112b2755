"""What one `optimize` run found out: the record behind the terminal's verdict, the JSON and the page.

In: figures that the pipeline measured. Out: `Outcome`, its JSON, and its verdict in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onepass.core.tensor import Shape
from onepass.cost.machine import Level
from onepass.fuse.plan import Plan
from onepass.loops.ir import Home
from onepass.report.flows import totals
from onepass.report.units import bytes_text, seconds_text, share_text

MOVED_LEVELS: tuple[Level, ...] = ("l2", "l3", "memory")
HOMES: tuple[Home, ...] = ("register", "cache", "memory")
Json = dict[str, object]

# Runs on a shared machine differ by about this much from one another; less is no difference.
NOISE = 0.03


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One way to run the model: times over interleaved runs, launches, and bytes as the plan counts them."""

    min_s: float
    median_s: float
    kernels: int
    intermediate_bytes: int
    bytes_at: Mapping[Level, int]

    @classmethod
    def of_plan(cls, plan: Plan, min_s: float, median_s: float) -> RunFigures:
        """The figures of `plan`, with its measured times in seconds."""
        total = totals(plan)
        moved = {
            level: sum(region.estimate.traffic.bytes_at.get(level, 0) for region in plan.regions)
            for level in MOVED_LEVELS
        }
        return cls(min_s, median_s, total.kernels, total.intermediate_bytes, moved)


@dataclass(frozen=True, slots=True)
class ErrorFigures:
    """Differences: fused against unfused (`max_abs`), and each against a float64 evaluation."""

    max_abs: float
    relative_l2: float
    unfused_relative_l2: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """One model, run unfused and fused side by side. `date` as ISO text, `rewrites` those in use."""

    model: str
    machine: str
    threads: int
    date: str
    shapes: Mapping[str, Shape]
    unfused: RunFigures
    fused: RunFigures
    error: ErrorFigures
    compile_s: float
    decisions: Mapping[Home, int]
    rewrites: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        """Unfused over fused, minimum seconds of each."""
        return self.unfused.min_s / self.fused.min_s if self.fused.min_s else 1.0

    @property
    def intermediate_bytes_cut(self) -> float:
        """The share of the intermediate bytes that fusion removes, from 0 to 1."""
        before = self.unfused.intermediate_bytes
        return 1.0 - self.fused.intermediate_bytes / before if before else 0.0


def outcome_json(outcome: Outcome) -> Json:
    """The keys that `onepass optimize --json` promises."""
    error = outcome.error
    return {
        "model": outcome.model,
        "machine": outcome.machine,
        "threads": outcome.threads,
        "unfused": _run_json(outcome.unfused),
        "fused": _run_json(outcome.fused),
        "speedup": outcome.speedup,
        "intermediate_bytes_cut": outcome.intermediate_bytes_cut,
        "error": {
            "max_abs": error.max_abs,
            "relative_l2": error.relative_l2,
            "unfused_relative_l2": error.unfused_relative_l2,
        },
        "compile_s": outcome.compile_s,
        "decisions": {home: outcome.decisions.get(home, 0) for home in HOMES},
    }


def _run_json(run: RunFigures) -> Json:
    return {
        "min_s": run.min_s,
        "median_s": run.median_s,
        "kernels": run.kernels,
        "intermediate_bytes": run.intermediate_bytes,
        "bytes": {level: run.bytes_at.get(level, 0) for level in MOVED_LEVELS},
    }


def headline(outcome: Outcome) -> str:
    """The verdict in one short sentence."""
    speedup = outcome.speedup
    if speedup >= 1 + NOISE:
        return f"Fusion makes this model {speedup:.2f} times as fast."
    if speedup > 1 - NOISE:
        return "Fusion makes no difference to this model's time."
    return f"Fusion makes this model slower: {1 / speedup:.2f} times the unfused time."


def verdict(outcome: Outcome) -> tuple[str, ...]:
    """The sentences below the headline: time, traffic, and how equal the results are."""
    unfused, fused, error = outcome.unfused, outcome.fused, outcome.error
    threads = "1 thread" if outcome.threads == 1 else f"{outcome.threads} threads"
    return (
        f"{seconds_text(unfused.min_s)} unfused, {seconds_text(fused.min_s)} fused "
        f"(minimum of interleaved runs on the same input, {threads}).",
        f"Intermediate values written and read back: {bytes_text(unfused.intermediate_bytes)} before, "
        f"{bytes_text(fused.intermediate_bytes)} after ({share_text(outcome.intermediate_bytes_cut)} less), "
        f"in {fused.kernels:,} kernels instead of {unfused.kernels:,}.",
        f"{_equality(error)} Relative error against a float64 evaluation: {error.relative_l2:.1e} fused, "
        f"{error.unfused_relative_l2:.1e} unfused; largest difference between the two {error.max_abs:.1e}.",
    )


def _equality(error: ErrorFigures) -> str:
    # The bound of the project: at most 1e-5, and within three times the unfused run's error.
    if error.relative_l2 <= 1e-5 and error.relative_l2 <= 3 * max(error.unfused_relative_l2, 1e-7):
        return "The results agree."
    return "The results differ more than rounding explains: do not use this plan before looking into it."
