"""One model run unfused and fused side by side: times, traffic, and the error of both.

In: a loaded model, its shapes and a setup. Out: a `FusionRun`: the outcome with both plans and their
traces, all that the report needs. Both use the same code generator, the same inputs, and the same layouts but
for the wider borders of Winograd tiles. For a GPU that is not there, both are compiled and nothing is run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from onepass.compare.setup import GpuSetup, Setup, inputs_of
from onepass.compare.subnormals import subnormal_cost
from onepass.compare.timing import BUDGET_S, Times, interleave
from onepass.core.errors import UserError
from onepass.core.tensor import Shape
from onepass.core.tolerance import compare
from onepass.frontends.onnx_import import import_onnx
from onepass.frontends.onnx_model import OnnxModel
from onepass.gpu_pipeline import GpuCompiled
from onepass.graph.interpret import evaluate
from onepass.graph.ir import Graph
from onepass.ops.opdef import Array
from onepass.pipeline import Compiled
from onepass.report.diagnosis import SubnormalCost
from onepass.report.html import report_html
from onepass.report.outcome import HOMES, ErrorFigures, Outcome, RunFigures
from onepass.runtime.trace import Trace

LEAST_TRACED, MOST_TRACED = 5, 20
Progress = Callable[[str], None]
"""Is told, in a few words, what is done next."""


@dataclass(frozen=True, slots=True)
class FusionRun:
    """Everything found out in one run of `run_fusion`; traces are those of `unfused` and `fused`, None where
    nothing was run."""

    outcome: Outcome
    unfused: Compiled | GpuCompiled
    fused: Compiled | GpuCompiled
    traces: tuple[Trace, Trace] | None
    setup: Setup | GpuSetup
    inputs: Mapping[str, Array]

    def html(self) -> str:
        """The report as one page; raises UserError where nothing was run."""
        if self.traces is None:
            raise UserError(
                "there is no report, as nothing was run", why=self.outcome.not_run,
                remedy="see the plan with explain, or report it where the GPU is",
            )  # fmt: skip
        return report_html(self.outcome, self.unfused.plan, self.fused.plan, self.traces, self.setup.machine)


@dataclass(frozen=True, slots=True)
class _Measured:
    """What running both ways, unfused first, found out."""

    error: ErrorFigures
    times: tuple[Times, Times]
    subnormals: SubnormalCost | None
    traces: tuple[Trace, Trace]


def run_fusion(
    name: str,
    loaded: OnnxModel,
    setup: Setup | GpuSetup,
    shapes: Mapping[str, Shape],
    progress: Progress = lambda step: None,
    budget_s: float = BUDGET_S,
) -> FusionRun:
    """Compiles and runs the model both ways on random inputs (see `inputs_of`).

    Raises UserError as import and compilation do.
    """
    started = time.perf_counter()
    progress("importing the model")
    graph = import_onnx(loaded, shapes)
    progress("planning and compiling fused")
    fused = setup.compile(graph)
    compile_s = time.perf_counter() - started
    progress("compiling op by op")
    unfused = setup.with_fuse("none").compile(graph)
    kinds = fused.plan.graph.types
    inputs = {name: array.astype(kinds[name].dtype.numpy, copy=False)
              for name, array in inputs_of(loaded, graph).items()}  # fmt: skip
    not_run = setup.obstacle() if isinstance(setup, GpuSetup) else ""
    found = None if not_run else _measure(graph, unfused, fused, setup, inputs, progress, budget_s)
    unfused_times, fused_times = found.times if found else (None, None)
    outcome = Outcome(
        model=name,
        machine=setup.machine.name,
        threads=setup.workers,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        shapes={name: graph.types[name].shape for name in graph.inputs},
        unfused=_figures(unfused, unfused_times),
        fused=_figures(fused, fused_times),
        error=found.error if found else None,
        compile_s=compile_s,
        decisions={home: sum(d.home == home for d in fused.plan.decisions) for home in HOMES},
        rewrites=tuple(sorted(setup.settings.rewrites)),
        cache={"hits": fused.hits, "misses": fused.misses},
        subnormals=found.subnormals if found else None,
        target=setup.gpu.name if isinstance(setup, GpuSetup) else "",
        dtype=str(setup.dtype or "") if isinstance(setup, GpuSetup) else "",
        not_run=not_run,
    )
    return FusionRun(outcome, unfused, fused, found.traces if found else None, setup, inputs)


def _figures(compiled: Compiled | GpuCompiled, times: Times | None) -> RunFigures:
    min_s, median_s = (times.min_s, times.median_s) if times else (None, None)
    return RunFigures.of_plan(compiled.plan, min_s, median_s)


def _measure(
    graph: Graph, unfused: Compiled | GpuCompiled, fused: Compiled | GpuCompiled, setup: Setup | GpuSetup,
    inputs: Mapping[str, Array], progress: Progress, budget_s: float,
) -> _Measured:  # fmt: skip
    """Runs both, which times a GPU by its own clock."""
    arrays = [inputs[name] for name in graph.inputs]
    wide = {name: array.astype(graph.types[name].dtype.numpy, copy=False) for name, array in inputs.items()}
    progress("evaluating in float64")
    exact = evaluate(graph, wide, np.float64)
    error = _errors(unfused.program.run(arrays), fused.program.run(arrays), [exact[n] for n in graph.outputs])
    if isinstance(setup, GpuSetup):
        progress("running both, and measuring each kernel")
        traces = (unfused.program.trace(arrays, MOST_TRACED), fused.program.trace(arrays, MOST_TRACED))
        first, second = (Times(trace.min_s, trace.median_s, trace.runs) for trace in traces)
        return _Measured(error, (first, second), None, traces)
    progress("running both in turns")
    times = interleave(
        {"unfused": lambda: unfused.program.run(arrays), "fused": lambda: fused.program.run(arrays)}, budget_s
    )
    progress("counting subnormal numbers")
    subnormals = subnormal_cost(graph, setup, inputs)
    progress("measuring each kernel")
    runs = max(LEAST_TRACED, min(MOST_TRACED, int(budget_s / 4 / times["unfused"].min_s)))
    traces = (unfused.program.trace(arrays, runs), fused.program.trace(arrays, runs))
    return _Measured(error, (times["unfused"], times["fused"]), subnormals, traces)


def _errors(unfused: Sequence[Array], fused: Sequence[Array], exact: Sequence[Array]) -> ErrorFigures:
    """The worst output counts."""
    between = [compare(a, b).max_abs for a, b in zip(fused, unfused, strict=True)]
    far = [[_relative_l2(a, b) for a, b in zip(side, exact, strict=True)] for side in (fused, unfused)]
    return ErrorFigures(max(between), max(far[0]), max(far[1]))


def _relative_l2(actual: Array, exact: Array) -> float:
    """Infinite where a NaN or an infinity stands in one of them only."""
    with np.errstate(over="ignore"):
        finite = np.isfinite(exact.astype(actual.dtype))
    same = np.array_equal(np.isfinite(actual), finite)
    return compare(actual, exact).relative_l2 if same else float("inf")
