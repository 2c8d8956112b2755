"""One model run unfused and fused side by side: times, traffic, and the error of both.

In: a loaded model, its shapes and a setup. Out: a `FusionRun`: the outcome with both plans and their
traces, all that the report needs. Both use the same code generator, the same inputs, and the same layouts but
for the wider borders of Winograd tiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from onepass.compare.setup import Setup, inputs_of
from onepass.compare.subnormals import subnormal_cost
from onepass.compare.timing import BUDGET_S, interleave
from onepass.core.tensor import Shape
from onepass.core.tolerance import compare
from onepass.frontends.onnx_import import import_onnx
from onepass.frontends.onnx_model import OnnxModel
from onepass.graph.interpret import evaluate
from onepass.ops.opdef import Array
from onepass.pipeline import Compiled
from onepass.report.html import report_html
from onepass.report.outcome import HOMES, ErrorFigures, Outcome, RunFigures
from onepass.runtime.trace import Trace

LEAST_TRACED, MOST_TRACED = 5, 20
Progress = Callable[[str], None]
"""Is told, in a few words, what is done next."""


@dataclass(frozen=True, slots=True)
class FusionRun:
    """Everything found out in one run of `run_fusion`; traces are those of `unfused` and `fused`."""

    outcome: Outcome
    unfused: Compiled
    fused: Compiled
    traces: tuple[Trace, Trace]
    setup: Setup
    inputs: Mapping[str, Array]

    def html(self) -> str:
        """The report as one page."""
        return report_html(self.outcome, self.unfused.plan, self.fused.plan, self.traces, self.setup.machine)


def run_fusion(
    name: str,
    loaded: OnnxModel,
    setup: Setup,
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
    inputs = inputs_of(loaded, graph)
    arrays = [inputs[name] for name in graph.inputs]
    progress("evaluating in float64")
    exact = evaluate(graph, inputs, np.float64)
    error = _errors(unfused.program.run(arrays), fused.program.run(arrays), [exact[n] for n in graph.outputs])
    progress("running both in turns")
    times = interleave(
        {"unfused": lambda: unfused.program.run(arrays), "fused": lambda: fused.program.run(arrays)}, budget_s
    )
    progress("counting subnormal numbers")
    subnormals = subnormal_cost(graph, setup, inputs)
    progress("measuring each kernel")
    runs = max(LEAST_TRACED, min(MOST_TRACED, int(budget_s / 4 / times["unfused"].min_s)))
    traces = (unfused.program.trace(arrays, runs), fused.program.trace(arrays, runs))
    figures = [
        RunFigures.of_plan(each.plan, times[way].min_s, times[way].median_s)
        for way, each in (("unfused", unfused), ("fused", fused))
    ]
    outcome = Outcome(
        model=name,
        machine=setup.machine.name,
        threads=setup.workers,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        shapes={name: graph.types[name].shape for name in graph.inputs},
        unfused=figures[0],
        fused=figures[1],
        error=error,
        compile_s=compile_s,
        decisions={home: sum(d.home == home for d in fused.plan.decisions) for home in HOMES},
        rewrites=tuple(sorted(setup.settings.rewrites)),
        cache={"hits": fused.hits, "misses": fused.misses},
        subnormals=subnormals,
    )
    return FusionRun(outcome, unfused, fused, traces, setup, inputs)


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
