"""What subnormal numbers cost a model: counted, then measured by flushing them.

In: a graph, a setup, inputs. Out: a `SubnormalCost`, or None where there are too few to matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from onepass.compare.kernels import kept_value
from onepass.compare.setup import Setup
from onepass.compare.timing import interleave
from onepass.core.errors import ShapeError
from onepass.core.settings import FLUSH
from onepass.graph.ir import Graph
from onepass.ops.opdef import Array
from onepass.report.diagnosis import SubnormalCost

WORTH_TELLING = 1e-3
"""Share of a weight, or of a node's output, that is subnormal."""
BUDGET_S = 1.0


def subnormal_cost(graph: Graph, setup: Setup, inputs: Mapping[str, Array]) -> SubnormalCost | None:
    """Counts subnormal numbers in weights and in the output of each node; where there are many, times the
    model as set up with and without them.

    Takes the memory of all intermediate values at a time; where the machine has less, counts weights only.
    """
    if FLUSH in setup.settings.rewrites:
        return None
    weights = _many((name, [array]) for name, array in graph.constants.items())
    outputs = _many(_outputs(graph, setup, inputs))
    if not weights and not outputs:
        return None
    arrays = [inputs[name] for name in graph.inputs]
    settings = replace(setup.settings, rewrites=setup.settings.rewrites | {FLUSH})
    kept = setup.compile(graph)
    flushed = replace(setup, settings=settings).compile(graph, kept.objects)
    times = interleave(
        {"kept": lambda: kept.program.run(arrays), "flushed": lambda: flushed.program.run(arrays)},
        BUDGET_S, least_rounds=2,
    )  # fmt: skip
    return SubnormalCost(weights, outputs, times["kept"].min_s, times["flushed"].min_s)


def _outputs(graph: Graph, setup: Setup, inputs: Mapping[str, Array]) -> Iterator[tuple[str, list[Array]]]:
    """Each node of `graph` with its outputs, run op by op."""
    try:
        compiled = setup.with_fuse("none").compile(graph, keep=True)
    except ShapeError:
        return
    results = compiled.program.run([inputs[name] for name in graph.inputs])
    values = {**inputs, **dict(zip(graph.outputs, results, strict=True))}
    for region in compiled.plan.regions:
        made = [name for name in region.outputs if name in graph.types and region.form != "view"]
        yield (
            region.name,
            [values[name] if name in values else kept_value(compiled, name, values) for name in made],
        )


def _many(groups: Iterable[tuple[str, list[Array]]]) -> dict[str, tuple[int, int]]:
    """How many numbers of each group are subnormal, of how many; only where that is worth telling."""
    found = {}
    for name, arrays in groups:
        floats = [array for array in arrays if array.dtype.kind == "f"]
        count, size = sum(map(_subnormal, floats)), sum(array.size for array in floats)
        if count > WORTH_TELLING * size:
            found[name] = (count, size)
    return found


def _subnormal(array: Array) -> int:
    return int(np.count_nonzero((array != 0) & (np.abs(array) < float(np.finfo(array.dtype.name).tiny))))
