"""Why a model takes the time it takes: the diagnosis of each operator, and the ledger of the plan.

In: a loaded model, its shapes and a setup. Out: an `Explanation`, records with a readable text.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace

from onepass.compare.setup import Setup, inputs_of
from onepass.compare.subnormals import subnormal_cost
from onepass.core.tensor import Shape
from onepass.frontends.onnx_import import import_onnx
from onepass.frontends.onnx_model import OnnxModel
from onepass.fuse.plan import Decision, Plan
from onepass.report.diagnosis import OpRow, SubnormalCost, diagnose, diagnosis_table
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
        for d in self.decisions:
            edge = f"{d.producer or 'model input'} -> {d.consumer or 'model output'}"
            text.say(f"{d.home:8} {edge} ('{d.value}'): {d.detail}")
        return written.getvalue()


def explain(loaded: OnnxModel, setup: Setup, shapes: Mapping[str, Shape]) -> Explanation:
    """Plans the model unfused and as `setup` asks, and times each unfused kernel on random inputs."""
    graph = import_onnx(loaded, shapes)
    unfused, fused = setup.with_fuse("none").compile(graph), setup.compile(graph)
    inputs = inputs_of(loaded, graph)
    trace = unfused.program.trace([inputs[name] for name in graph.inputs], TRACED_RUNS)
    rows = diagnose(unfused.plan, trace, setup.machine, setup.workers)
    plan = replace(unfused.plan, decisions=fused.plan.decisions)
    return Explanation(rows, plan, subnormal_cost(graph, setup, inputs))
