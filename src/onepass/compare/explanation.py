"""Why a model takes the time it takes: the diagnosis of each operator, and the ledger of the plan.

In: a loaded model, its shapes and a setup. Out: an `Explanation` or, of a model for a GPU, a
`GpuExplanation`: records with a readable text.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from onepass.compare.setup import GpuSetup, Setup, inputs_of
from onepass.compare.subnormals import subnormal_cost
from onepass.core.tensor import Shape
from onepass.frontends.onnx_import import import_onnx
from onepass.frontends.onnx_model import OnnxModel
from onepass.fuse.plan import Decision, Plan
from onepass.gpu_pipeline import GpuCompiled
from onepass.report.diagnosis import OpRow, SubnormalCost, diagnose, diagnosis_table
from onepass.report.gpu import GpuRow, guard_sentences, kernel_rows, kernels_table, totals_sentence
from onepass.report.terminal import Terminal

TRACED_RUNS = 20


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """`rows`: one for each operator, run on its own. `plan`: the operators of the unfused plan with the
    decisions of the fused one. `subnormals`: what they cost, None where they do not matter."""

    rows: tuple[OpRow, ...]
    plan: Plan
    subnormals: SubnormalCost | None

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The ledger of the fused plan: one entry for each edge."""
        return self.plan.decisions

    def __repr__(self) -> str:
        written = io.StringIO()
        text = Terminal(file=written, width=200, color_system=None)
        text.print(diagnosis_table(self.rows))
        if self.subnormals:
            text.say(self.subnormals.sentence())
        _say_ledger(text, self.decisions)
        return written.getvalue()


@dataclass(frozen=True, slots=True, repr=False)
class GpuExplanation:
    """`rows`: one for each kernel, as compiled; nothing was run. `compiled`: with the plan."""

    rows: tuple[GpuRow, ...]
    compiled: GpuCompiled

    @property
    def plan(self) -> Plan:
        return self.compiled.plan

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The ledger: one entry for each edge."""
        return self.plan.decisions

    def sentences(self) -> list[str]:
        """The totals, and what was changed for a kernel to fit."""
        return [totals_sentence(self.compiled, self.rows), *guard_sentences(self.compiled, self.rows)]

    def __repr__(self) -> str:
        written = io.StringIO()
        text = Terminal(file=written, width=200, color_system=None)
        text.print(kernels_table(self.rows))
        text.say(*self.sentences())
        _say_ledger(text, self.decisions)
        return written.getvalue()


def _say_ledger(text: Terminal, decisions: Iterable[Decision]) -> None:
    for d in decisions:
        edge = f"{d.producer or 'model input'} -> {d.consumer or 'model output'}"
        text.say(f"{d.home:8} {edge} ('{d.value}'): {d.detail}")


def explain_for_gpu(loaded: OnnxModel, setup: GpuSetup, shapes: Mapping[str, Shape]) -> GpuExplanation:
    """Compiles the model as `setup` asks; no GPU need be there."""
    compiled = setup.compile(import_onnx(loaded, shapes))
    return GpuExplanation(kernel_rows(compiled), compiled)


def explain(loaded: OnnxModel, setup: Setup, shapes: Mapping[str, Shape]) -> Explanation:
    """Plans the model unfused and as `setup` asks, and times each unfused kernel on random inputs."""
    graph = import_onnx(loaded, shapes)
    unfused, fused = setup.with_fuse("none").compile(graph), setup.compile(graph)
    inputs = inputs_of(loaded, graph)
    trace = unfused.program.trace([inputs[name] for name in graph.inputs], TRACED_RUNS)
    rows = diagnose(unfused.plan, trace, setup.machine, setup.workers)
    plan = replace(unfused.plan, decisions=fused.plan.decisions)
    return Explanation(rows, plan, subnormal_cost(graph, setup, inputs))
