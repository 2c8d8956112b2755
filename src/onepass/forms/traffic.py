"""What a region does: exact operations and bytes, and the level of the memory that serves them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onepass.cost.machine import Level, Machine
from onepass.cost.roofline import Traffic
from onepass.forms.body import Body
from onepass.graph.ir import Graph
from onepass.graph.layout import PLAIN, Layout
from onepass.loops.ir import Binary, Cast, Const, Expr, Fma, Index, Load, Select, Unary
from onepass.loops.walk import arithmetic, children, index_names, loads
from onepass.ops.opdef import Compute

# Instructions of one operation on a vector, where it is not one. First what is written out, counted in the
# assembly of onepass's own polynomials for AVX-512 (AVX2's erf takes twice as many); then what calls the C
# library lane by lane, measured on 16 lanes (Zen 4, glibc: time of 32,768 elements in that of FMAs).
INSTRUCTIONS = {
    "exp": 13, "log": 22, "tanh": 26, "erf": 18, "sigmoid": 20, "sqrt": 8, "div": 6,
    "sin": 120, "cos": 120, "tan": 420, "asin": 200, "acos": 200, "atan": 270, "sinh": 620, "cosh": 620,
    "asinh": 950, "acosh": 950, "atanh": 950, "pow": 250, "mod": 250, "fmod": 250,
}  # fmt: skip
POWERS = {2.0: 1, 3.0: 2, 1.0: 0, 0.5: INSTRUCTIONS["sqrt"], -1.0: INSTRUCTIONS["div"]}  # written out
COSTLY_INSTRUCTIONS = 8  # better kept in a row than computed again: more than a store and a load


def stage_flops(stage: Compute) -> int:
    """Operations of a stage: those of its body at every point, and one for each combination."""
    points = math.prod(axis.extent for axis in (*stage.axes, *stage.reduce_axes))
    return points * (arithmetic(stage.body) + (1 if stage.reduce_axes else 0))


def operation_instructions(expr: Expr) -> int:
    """Instructions of an operation on a vector, its operands not counted."""
    match expr:
        case Binary(op="pow", b=Const(value=power)) if power in POWERS:
            return POWERS[float(power)]
        case Unary() | Binary():
            return INSTRUCTIONS.get(expr.op, 1)
        case Load() | Const() | Index() | Cast() | Select():
            return 0
    return 1


def _vector_instructions(expr: Expr) -> int:
    operands = () if isinstance(expr, Load) else children(expr)
    return operation_instructions(expr) + sum(map(_vector_instructions, operands))


def stage_instructions(stage: Compute) -> int:
    """Instructions of the body at every point; divided by the lanes, what vectors of them take."""
    points = math.prod(axis.extent for axis in (*stage.axes, *stage.reduce_axes))
    body = stage.body
    per_point = _vector_instructions(body)
    if stage.reduce_axes and not isinstance(body, Fma):
        per_point = max(1, per_point)
    return points * per_point


def value_bytes(graph: Graph, layouts: Mapping[str, Layout], name: str) -> int:
    """Bytes of a value as it lies in memory, its border and unused lanes included."""
    kind = graph.types[name]
    return layouts.get(name, PLAIN).physical_size(kind.shape) * kind.dtype.size_bytes


def serving_level(size_bytes: int, machine: Machine, workers: int) -> Level:
    """The nearest level that still holds a value of this size when it is read back.

    Between a write and the next read a kernel touches about as much again, so half of a level counts.
    """
    if size_bytes <= machine.l2_bytes * workers // 2:
        return "l2"
    return "l3" if size_bytes <= machine.l3_bytes // 2 else "memory"


def passes_caches(size_bytes: int, machine: Machine, workers: int) -> bool:
    """Whether a value of this size is better written past the caches.

    A line that is written whole need not be fetched first. But then it is read back from memory, which pays
    where the third level holds it no longer (16.8 MB beside 4 MiB of second level and 51 MB of third were
    better cached, 25.7 MB no worse, 51 MB not).
    """
    held = serving_level(size_bytes, machine, workers) != "memory"
    return not held and size_bytes >= 8 * machine.l2_bytes * workers


@dataclass(frozen=True, slots=True)
class Demand:
    """How often each stage's element is computed, and how many elements of each input are read."""

    evaluations: dict[str, float]
    reads: dict[str, float]


def demand(body: Body, kept: frozenset[str] = frozenset()) -> Demand:
    """Follows the loads from the outputs back: an inlined stage is computed for each place it is read at.

    A reduction, or a stage that is `kept`, is computed once an element, whoever reads it. Loads of one place
    are one load, as are those that do not vary with a loop. Of an input, different places count as
    different elements: exact for the parts of a split and where one load reaches all, else an upper bound.
    """
    evaluations = {stage.name: 0.0 for stage in body.stages}
    reads: dict[str, dict[tuple[Expr, ...], float]] = {}
    for stage in reversed(body.stages):
        size = max(1, stage.type.size)
        if stage.name in body.outputs or stage.reduce_axes:
            evaluations[stage.name] = float(size)
        if stage.name in kept:
            evaluations[stage.name] = min(float(size), evaluations[stage.name])
        share = evaluations[stage.name] / size
        extents = {axis.name: axis.extent for axis in (*stage.axes, *stage.reduce_axes)}
        for load in dict.fromkeys(loads(stage.body)):
            reached = share * math.prod(extents[name] for name in _names(load) if name in extents)
            if load.buffer in evaluations:
                evaluations[load.buffer] += reached
            else:
                places = reads.setdefault(load.buffer, {})
                places[load.indices] = max(places.get(load.indices, 0.0), reached)
    return Demand(evaluations, {name: sum(places.values()) for name, places in reads.items()})


def _names(load: Load) -> frozenset[str]:
    return frozenset().union(*(index_names(index) for index in load.indices))


def region_traffic(
    body: Body,
    graph: Graph,
    layouts: Mapping[str, Layout],
    machine: Machine,
    workers: int,
    flop_efficiency: float,
    kept: frozenset[str] = frozenset(),
    near: frozenset[str] = frozenset(),
) -> Traffic:
    """Traffic of one launch of `body`, which keeps the stages `kept`; the values `near` lie in scratch."""
    # All weights stream past once a run, so that each finds what all of them leave of a cache. What the
    # caller handed in before the run, or got from the last one, finds what these and all its kind leave.
    weights = graph.constant_bytes
    outer = {*graph.inputs, *graph.outputs}
    passing = weights + sum(value_bytes(graph, layouts, name) for name in outer)
    bytes_at: dict[Level, int] = {"l2": 0, "l3": 0, "memory": 0}
    wanted = demand(body, kept)
    moved: list[tuple[int, int]] = []  # of each value: bytes moved, and bytes that a cache has to hold for it
    for name in (*body.inputs, *body.outputs):
        made = body.constants.get(name)
        size = value_bytes(graph, layouts, name) if made is None else made.nbytes
        footprint = weights if made is not None or name in graph.constants else size
        if name in outer:
            footprint = passing
        if name in near:
            bytes_at["l2"] += size
            continue
        if name not in body.outputs:
            width = graph.types[name].dtype.size_bytes if made is None else made.itemsize
            size = min(size, math.ceil(wanted.reads[name]) * width)
        moved.append((size, footprint))
    compulsory = sum(size for size, _ in moved)
    for size, footprint in moved:
        # What a kernel touches besides, such as weights, pushes its values out as well.
        bytes_at[serving_level(max(footprint, compulsory // 2), machine, workers)] += size
    flops = recomputed = 0
    for stage in body.stages:
        times = wanted.evaluations[stage.name] / max(1, stage.type.size)
        flops += math.ceil(times * stage_flops(stage))
        recomputed += math.ceil(max(0.0, times - 1) * stage_flops(stage))
    return Traffic(
        flops=flops,
        compulsory_bytes=compulsory,
        bytes_at=bytes_at,
        recomputed_flops=recomputed,
        flop_efficiency=flop_efficiency,
        streamed=any(
            passes_caches(value_bytes(graph, layouts, name), machine, workers)
            for name in body.outputs if name not in near
        ),
        dtype="float64" if any(stage.dtype.name == "float64" for stage in body.stages) else "float32",
    )


def instruction_efficiency(stages: Iterable[Compute]) -> float:
    """Share of the FMA peak that the instructions of `stages` allow: two operations each at best."""
    stages = tuple(stages)
    flops = sum(stage_flops(stage) for stage in stages)
    instructions = sum(stage_instructions(stage) for stage in stages)
    return min(1.0, flops / (2 * instructions)) if flops and instructions else 1.0
