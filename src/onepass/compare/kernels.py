"""The error of each kernel alone: what it wrote against a float64 evaluation of what it read.

In: a graph, a setup, inputs. Out: one `KernelCheck` a kernel. A wrong kernel is named itself, not those
after it, since each is judged by the values that it was given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from onepass.compare.setup import GpuSetup, Setup
from onepass.core.tolerance import Comparison, compare
from onepass.fuse.plan import Plan, Region
from onepass.gpu_pipeline import GpuCompiled
from onepass.graph.interpret import evaluate
from onepass.graph.ir import Graph
from onepass.graph.layout import PLAIN
from onepass.ops.opdef import Array
from onepass.pipeline import Compiled


@dataclass(frozen=True, slots=True)
class KernelCheck:
    """One output of one kernel; `comparison` holds its error and the bound."""

    region: int
    name: str
    value: str
    comparison: Comparison


def checks_json(checks: Sequence[KernelCheck]) -> list[dict[str, object]]:
    """One row a kernel output, as plain data."""
    return [
        {
            "region": check.region, "name": check.name, "value": check.value,
            **asdict(check.comparison), "within": check.comparison.within,
        }
        for check in checks
    ]  # fmt: skip


def checks_verdict(checks: Sequence[KernelCheck]) -> tuple[str, ...]:
    """That all kernels are right and how close the worst one is, or each one that is wrong."""
    wrong = [check for check in checks if not check.comparison.within]
    if wrong:
        return tuple(f"Kernel {check.region} ({check.name}): {check.comparison}." for check in wrong)
    told = f"All {len(checks)} kernel outputs are right."
    if checks:
        worst = max(checks, key=lambda check: check.comparison.relative_l2)
        told += f" The least exact, {worst.name}: {worst.comparison}."
    return (told,)


def check_kernels(
    graph: Graph, setup: Setup | GpuSetup, inputs: Mapping[str, Array]
) -> tuple[KernelCheck, ...]:
    """Runs the model once, with every value kept, and checks each kernel in the order they run.

    Takes the memory of all intermediate values at a time. Raises UserError as compilation does.
    """
    compiled = setup.compile(graph, keep=True)
    plan = compiled.plan
    graph = plan.graph
    results = compiled.program.run([inputs[name] for name in graph.inputs])
    values = {**inputs, **dict(zip(graph.outputs, results, strict=True))}
    found = []
    for region in plan.regions:
        part = _part(plan, region)
        given = {name: values[name] for name in part.inputs}
        if region.form == "view":
            values |= {name: array for name, array in evaluate(part, given).items() if name not in values}
            continue
        expected = evaluate(part, given, np.float64)
        # Terms that are summed on the way through the region: the bound grows with them.
        stages = [stage for node in region.nodes for stage in graph.lowering(node).stages]
        length = sum(math.prod(axis.extent for axis in stage.reduce_axes) for stage in stages)
        for name in region.outputs:
            if name not in values:
                values[name] = kept_value(compiled, name, values)
            comparison = compare(values[name], expected[name], length)
            found.append(KernelCheck(region.id, region.name, name, comparison))
    return tuple(found)


def _part(plan: Plan, region: Region) -> Graph:
    """The region's nodes as a graph."""
    made = {name for node in region.nodes for name in node.outputs}
    read = dict.fromkeys(name for node in region.nodes for name in node.inputs if name)
    inputs = tuple(name for name in read if name not in made and name not in plan.graph.constants)
    return replace(plan.graph, nodes=region.nodes, inputs=inputs, outputs=region.outputs)


def kept_value(compiled: Compiled | GpuCompiled, name: str, values: Mapping[str, Array]) -> Array:
    """The value `name` as its kernel left it in a run that kept every value, in plain order; a part is cut
    out of its whole, maybe of `values`."""
    plan = compiled.plan
    kind, layout = plan.graph.types[name], plan.layouts.get(name, PLAIN)
    if kind.size == 0:
        return np.empty(kind.shape, kind.dtype.numpy)
    if layout.place is not None:
        place = layout.place
        whole = values[place.whole] if place.whole in values else kept_value(compiled, place.whole, values)
        return whole.take(range(place.start, place.start + kind.shape[place.axis]), place.axis)
    physical = layout.physical_shape(kind.shape)
    array = compiled.program.peek(compiled.kept[name], physical, kind.dtype.numpy)
    # Inverse of `Layout.physical`: joins the channel blocks and cuts the border off.
    if layout.block > 1:
        array = np.moveaxis(array, -1, 2)
        array = array.reshape((array.shape[0], -1, *array.shape[3:]))
    start = (0, 0, *(before for before, _ in layout.pads or ((0, 0),) * (kind.rank - 2)))
    return array[tuple(slice(at, at + size) for at, size in zip(start, kind.shape, strict=False))]
