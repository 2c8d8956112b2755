"""What a region computes: the stages of its nodes, joined into one list.

A stage that is a node's output carries the value's name; loads name either another stage or a
value that the region reads. Constants of one element become literals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from onepass.graph.ir import Graph, Node
from onepass.loops.build import fma
from onepass.loops.ir import Const, Expr, Load
from onepass.loops.walk import loads, transform
from onepass.ops.opdef import Array, Compute


@dataclass(frozen=True, slots=True)
class Body:
    """`stages` in order; `inputs` and `outputs` are value names; `constants` may add derived arrays."""

    stages: tuple[Compute, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: dict[str, Array]

    def stage(self, name: str) -> Compute | None:
        """The stage called `name`, None for a value that is read."""
        return next((stage for stage in self.stages if stage.name == name), None)

    @property
    def output(self) -> Compute:
        """The stage of the first output; all outputs have its shape."""
        return next(stage for stage in self.stages if stage.name == self.outputs[0])

    def reductions(self) -> tuple[Compute, ...]:
        """The stages that reduce."""
        return tuple(stage for stage in self.stages if stage.reduce_axes)


def join(graph: Graph, nodes: Sequence[Node], outputs: Sequence[str], rewrites: frozenset[str]) -> Body:
    """The body of a region of `nodes` (topological order) whose `outputs` leave it."""
    stages: list[Compute] = []
    constants: dict[str, Array] = {}
    for node in nodes:
        scaled = _scale_and_shift(graph, node, constants) if "fold_batch_norm" in rewrites else None
        stages += [scaled] if scaled else _named_stages(graph, node)
    stages = [replace(stage, body=_inline_scalars(stage.body, graph)) for stage in stages]
    stages = _drop_unused(stages, outputs)
    made = {stage.name for stage in stages}
    read = dict.fromkeys(load.buffer for stage in stages for load in loads(stage.body))
    used = {name: array for name, array in constants.items() if name in read}
    return Body(tuple(stages), tuple(name for name in read if name not in made), tuple(outputs), used)


def _named_stages(graph: Graph, node: Node) -> list[Compute]:
    """The stages of one node, its inputs and stages under their names in the graph."""
    lowering = graph.lowering(node)
    names = {f"in{i}": name for i, name in enumerate(node.inputs)}
    names |= {stage.name: f"{node.outputs[0]}#{stage.name}" for stage in lowering.stages}
    names |= {stage: value for stage, value in zip(lowering.outputs, node.outputs, strict=False) if value}

    def rename(expr: Expr) -> Expr:
        if isinstance(expr, Load):
            return Load(names[expr.buffer], expr.indices, expr.dtype, expr.fill)
        return expr

    return [
        replace(stage, name=names[stage.name], body=transform(stage.body, rename))
        for stage in lowering.stages
    ]


def _inline_scalars(body: Expr, graph: Graph) -> Expr:
    def literal(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.fill is None and expr.buffer in graph.constants:
            array = graph.constants[expr.buffer]
            if array.size == 1:
                return Const(array.reshape(-1)[0].item(), expr.dtype)
        return expr

    return transform(body, literal)


def _drop_unused(stages: list[Compute], outputs: Sequence[str]) -> list[Compute]:
    needed, kept = set(outputs), []
    for stage in reversed(stages):
        if stage.name in needed:
            kept.append(stage)
            needed.update(load.buffer for load in loads(stage.body))
    return kept[::-1]


def _scale_and_shift(graph: Graph, node: Node, constants: dict[str, Array]) -> Compute | None:
    """Batch norm with known statistics as `x * a + b`, a and b rounded once from float64.

    The rewrite `fold_batch_norm`: the result lies within 4u max(|x*a|, |b|) of the exact value, u the unit
    roundoff; the formula in the element type has no such bound, as x - mean may cancel (docs/design/0004).
    """
    if node.op != "batch_normalization" or any(name not in graph.constants for name in node.inputs[1:]):
        return None
    lowering = graph.lowering(node)
    dtype = lowering.output_types[0].dtype
    scale, bias, mean, variance = (graph.constants[n].astype(np.float64) for n in node.inputs[1:5])
    epsilon = node.attrs.get("epsilon", 1e-5)
    assert isinstance(epsilon, float | int)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + epsilon)
    if not np.isfinite(factor).all():  # x * inf + b is NaN where (x - mean) * inf is not
        return None
    axes = lowering.stages[-1].axes
    names = (f"{node.outputs[0]}#scale", f"{node.outputs[0]}#shift")
    constants[names[0]] = factor.astype(dtype.numpy)
    constants[names[1]] = (bias - mean * factor).astype(dtype.numpy)
    indices = next(load.indices for load in loads(lowering.stages[-1].body) if load.buffer == "in0")
    a, b = (Load(name, (indices[1],), dtype) for name in names)
    return Compute(node.outputs[0], dtype, axes, fma(Load(node.inputs[0], indices, dtype), a, b))
