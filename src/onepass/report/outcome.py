"""What one `optimize` run found out: the record behind the terminal's verdict, the JSON and the page.

In: figures that the pipeline measured. Out: `Outcome`, its JSON, and its verdict in words and as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from rich.console import Group
from rich.text import Text

from onepass.core.dtypes import DTYPES, F32, finfo
from onepass.core.tensor import Shape
from onepass.cost.machine import Level
from onepass.fuse.plan import Plan
from onepass.loops.ir import Home
from onepass.report.diagnosis import SubnormalCost
from onepass.report.flows import totals
from onepass.report.terminal import table
from onepass.report.units import bytes_text, plural, seconds_text, share_text

MOVED_LEVELS: tuple[Level, ...] = ("l2", "l3", "memory")
HOMES: tuple[Home, ...] = ("register", "cache", "memory")
Json = dict[str, object]

# Runs on a shared machine differ by about this much from one another; less is no difference.
NOISE = 0.03


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One way to run the model: times over interleaved runs (None where it was not run) and as predicted,
    launches, and bytes as the plan counts them."""

    min_s: float | None
    median_s: float | None
    predicted_s: float
    kernels: int
    intermediate_bytes: int
    bytes: Mapping[Level, int]

    @property
    def seconds(self) -> float:
        """The minimum measured, or what is predicted."""
        return self.predicted_s if self.min_s is None else self.min_s

    @classmethod
    def of_plan(cls, plan: Plan, min_s: float | None, median_s: float | None) -> RunFigures:
        """The figures of `plan`, with its measured times in seconds."""
        total = totals(plan)
        moved = {
            level: sum(region.estimate.traffic.bytes_at.get(level, 0) for region in plan.regions)
            for level in MOVED_LEVELS
        }
        predicted_s = sum(region.estimate.seconds for region in plan.regions)
        return cls(min_s, median_s, predicted_s, total.kernels, total.intermediate_bytes, moved)


@dataclass(frozen=True, slots=True)
class ErrorFigures:
    """Differences: fused against unfused (`max_abs`), and each against a float64 evaluation."""

    max_abs: float
    relative_l2: float
    unfused_relative_l2: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """One model, unfused and fused side by side. `date` as ISO text, `rewrites` those in use; `cache`
    counts the fused kernels found in the code cache (`hits`) and compiled (`misses`). `subnormals`: what
    they cost, None where they do not matter. `target`: the GPU, '' for a CPU; `dtype`: what the model was
    lowered to, '' where it was not. `not_run`: why nothing was run, and so `error` is None."""

    model: str
    machine: str
    threads: int
    date: str
    shapes: Mapping[str, Shape]
    unfused: RunFigures
    fused: RunFigures
    error: ErrorFigures | None
    compile_s: float
    decisions: Mapping[Home, int]
    rewrites: tuple[str, ...] = ()
    cache: Mapping[str, int] = field(default_factory=dict)
    subnormals: SubnormalCost | None = None
    target: str = ""
    dtype: str = ""
    not_run: str = ""

    @property
    def speedup(self) -> float:
        """Unfused over fused, minimum seconds of each, or predicted ones."""
        return self.unfused.seconds / self.fused.seconds if self.fused.seconds else 1.0

    @property
    def intermediate_bytes_cut(self) -> float:
        """The share of the intermediate bytes that fusion removes, from 0 to 1."""
        before = self.unfused.intermediate_bytes
        return 1.0 - self.fused.intermediate_bytes / before if before else 0.0


def outcome_json(outcome: Outcome) -> Json:
    """The keys that `onepass optimize --json` promises."""
    data = asdict(outcome)
    for key in ("date", "shapes", "rewrites"):
        del data[key]
    return data | {
        "speedup": outcome.speedup, "intermediate_bytes_cut": outcome.intermediate_bytes_cut,
    }  # fmt: skip


def headline(outcome: Outcome) -> str:
    """The verdict in one short sentence."""
    speedup = outcome.speedup
    makes, slow = ("is predicted to make", "predicted") if outcome.not_run else ("makes", "unfused")
    if speedup >= 1 + NOISE:
        return f"Fusion {makes} this model {speedup:.2f} times as fast."
    if speedup > 1 - NOISE:
        return f"Fusion {makes} no difference to this model's time."
    return f"Fusion {makes} this model slower: {1 / speedup:.2f} times the {slow} time."


def verdict(outcome: Outcome) -> tuple[str, ...]:
    """The sentences below the headline: time, traffic, how equal the results are, and subnormal numbers."""
    unfused, fused = outcome.unfused, outcome.fused
    if outcome.not_run:
        how = f"predicted from the datasheet of {outcome.machine}"
    elif outcome.target:
        how = "minimum on the same input, by the GPU's clock, without copies to it and back"
    else:
        how = f"minimum of interleaved runs on the same input, {plural(outcome.threads, 'thread')}"
    return (
        f"{seconds_text(unfused.seconds)} unfused, {seconds_text(fused.seconds)} fused ({how}).",
        f"Intermediate values written and read back: {bytes_text(unfused.intermediate_bytes)} before, "
        f"{bytes_text(fused.intermediate_bytes)} after ({share_text(outcome.intermediate_bytes_cut)} less), "
        f"in {fused.kernels:,} kernels instead of {unfused.kernels:,}.",
        f"Nothing was run: {outcome.not_run}." if outcome.error is None
        else _equality(outcome.error, outcome.dtype),
        *((outcome.subnormals.sentence(),) if outcome.subnormals else ()),
    )  # fmt: skip


def agree(fused: float, unfused: float, dtype: str) -> bool:
    """Whether relative errors are within the project's bounds: in float32 1e-5, and three times the unfused
    run's; a model lowered to `dtype` rounds as much more as that is coarser ('': it was not lowered)."""
    coarser = float(finfo(DTYPES[dtype]).eps / finfo(F32).eps) if dtype else 1.0
    return fused <= 1e-5 * coarser and fused <= 3 * max(unfused, 1e-7 * coarser)


def _equality(error: ErrorFigures, dtype: str) -> str:
    """Whether the results agree, and the errors."""
    told = "The results agree." if agree(error.relative_l2, error.unfused_relative_l2, dtype) else (
        "The results differ more than rounding explains: do not use this plan before looking into it."
    )  # fmt: skip
    return (
        f"{told} Relative error against a float64 evaluation: {error.relative_l2:.1e} fused, "
        f"{error.unfused_relative_l2:.1e} unfused; largest difference between the two {error.max_abs:.1e}."
    )


def summary(outcome: Outcome) -> Group:
    """The end of `optimize` on a terminal: unfused against fused as a table, headline and verdict."""
    unfused, fused, error = outcome.unfused, outcome.fused, outcome.error
    rows = []
    if unfused.min_s is None or fused.min_s is None:
        rows += [_compared("time, predicted", unfused.seconds, fused.seconds, seconds_text)]
    elif unfused.median_s is not None and fused.median_s is not None:
        rows += [
            _compared("time, minimum", unfused.min_s, fused.min_s, seconds_text),
            _compared("time, median", unfused.median_s, fused.median_s, seconds_text),
        ]
    rows += [
        _compared("kernels", unfused.kernels, fused.kernels, "{:,.0f}".format),
        _compared("intermediate bytes", unfused.intermediate_bytes, fused.intermediate_bytes, bytes_text),
        *(
            _compared(f"traffic at {level}", unfused.bytes[level], fused.bytes[level], bytes_text)
            for level in MOVED_LEVELS
            if level != "l3" or not outcome.target
        ),
    ]
    if error:
        errors = (f"{error.unfused_relative_l2:.1e}", f"{error.relative_l2:.1e}")
        rows.append(("relative error", *errors, ""))
    where = ", ".join(filter(None, (outcome.target, outcome.dtype)))
    title = f"{outcome.model} on {outcome.machine}" + (f" ({where})" if where else "")
    style = "bold green" if outcome.speedup >= 1 - NOISE else "bold red"
    homes = ", ".join(f"{count} {home}" for home, count in outcome.decisions.items())
    code = ", ".join(f"{count} {what}" for what, count in outcome.cache.items())
    seconds = seconds_text(outcome.compile_s)
    notes = f"Homes of the values: {homes}. Compiled in {seconds}; code cache: {code}."
    sentences = map(Text, (*verdict(outcome), notes))
    return Group(
        table([""], ["unfused", "fused", "ratio"], rows, title=title),
        Text(headline(outcome), style=style), *sentences,
    )  # fmt: skip


def _compared(
    what: str, before: float, after: float, show: Callable[[float], str]
) -> tuple[str, str, str, str]:
    return what, show(before), show(after), f"{before / after:.2f}x" if after else "–"
