"""Whether the Winograd form pays for a region, how it is cut, and how far its result may lie off.

In: a region with one convolution, the machine. Out: the schedule with the least predicted time. Transforms
wait for the second-level cache; products run at the FMA peak or as fast as the transformed weights stream,
which are 16/9 or 36/9 of the plain ones. That makes it a decision by layer and batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from onepass.core.dtypes import F32
from onepass.core.tolerance import gamma, unit_roundoff
from onepass.cost.machine import FMA_LATENCY_CYCLES, Level, Machine
from onepass.cost.roofline import Estimate, Traffic, estimate
from onepass.forms.body import Body
from onepass.forms.choose import MAX_PIXELS, TILE_OVERHEAD_CYCLES, operand_loads
from onepass.forms.schedule import segments
from onepass.forms.traffic import region_traffic, serving_level
from onepass.forms.winograd import POINTS, Shape3x3, WinogradSchedule, matrices, reaches, shape_of
from onepass.graph.ir import Graph
from onepass.graph.layout import PLAIN, Layout
from onepass.loops.walk import index_names, loads
from onepass.ops.opdef import Array

MAX_TILES = 64  # in a block: more gain nothing, as the weights of a place then come from the first level
TRANSFORM_OPERATIONS = 6  # a vector of a place in either transform, loads and stores included: counted
# Both fitted to the measured times of 27 layers in 150 cuts (Zen 4, 1 MiB of second level).
UNHIDDEN = 0.1  # of the shorter of products and the stream that feeds them
KEPT = 0.7  # of the second level, by what a worker comes back to; the rest holds what streams past
# The roof counts a line read and one written, but the written one is read first: three move for two counted.
# Beyond the second level it is the lines waited for that bind, and those are the two.
L2_READS = 1.5
SAFE_INPUT = 2.0**64  # inputs up to this size must stay finite


@dataclass(frozen=True, slots=True)
class _Costs:
    """Of all blocks: seconds with the workers side by side, operations, and bytes moved."""

    total_s: float
    compute_s: float
    flops: int
    bytes_at: Mapping[Level, int]


def rank_winograd(
    body: Body, graph: Graph, layouts: Mapping[str, Layout], machine: Machine, workers: int,
    wanted: WinogradSchedule | None = None,
) -> list[tuple[WinogradSchedule, Estimate]]:  # fmt: skip
    """Ways to run the region in this form, or `wanted` alone, with their predicted times, shortest first.

    The best cut of each edge, and others of the best edge. None that may overflow; empty where the form does
    not fit.
    """
    root = body.reductions()[0]
    shape, operands = shape_of(root), operand_loads(root)
    if shape is None or operands is None or operands[1].buffer not in graph.constants:
        return []
    data, weights = operands[0].buffer, graph.constants[operands[1].buffer]
    lanes, layout = machine.lanes(4), layouts.get(data, PLAIN)
    blocks = {layouts.get(name, PLAIN).block for name in (data, *body.outputs)}
    if data not in body.inputs or blocks != {lanes} or lanes == 1:
        return []
    if not _stays_inside(body, layouts, shape.outputs, lanes):
        return []
    plain = region_traffic(body, graph, layouts, machine, workers, 1.0)
    level = serving_level(max(graph.constant_bytes, plain.compulsory_bytes // 2), machine, workers)
    found: list[list[tuple[WinogradSchedule, Estimate]]] = []
    for edge in POINTS if wanted is None else (wanted.edge,):
        if reaches(shape, edge, layout, graph.types[data].shape[2:]):
            cold = serving_level(
                max(_streamed_bytes(graph, edge), plain.compulsory_bytes // 2), machine, workers
            )
            cuts = _best_cuts(shape, edge, lanes, machine, workers, cold) if wanted is None else (wanted,)
            costs = [_costs(shape, cut, machine, workers, cold) for cut in cuts]
            guesses = [_estimate(plain, weights.nbytes, cost, level, machine, workers) for cost in costs]
            found.append(list(zip(cuts, guesses, strict=True)))
    found.sort(key=lambda ways: ways[0][1].seconds)
    ways = [*found[0], *(others[0] for others in found[1:])] if found else []
    ways.sort(key=lambda way: way[1].seconds)
    safe = {edge: _stays_finite(weights, edge) for edge in {schedule.edge for schedule, _ in ways}}
    return [way for way in ways if safe[way[0].edge]]


def _streamed_bytes(graph: Graph, edge: int) -> int:
    """Bytes of all constants, which stream past in a run, with this form's weights for the 3x3 ones."""
    threes = sum(array.nbytes for array in graph.constants.values() if array.shape[2:] == (3, 3))
    return graph.constant_bytes + threes * (edge + 2) ** 2 // 9 - threes


def direct_seconds(body: Body, graph: Graph, rough: Estimate, machine: Machine, workers: int) -> float:
    """Of the direct sum, with what its roofline `rough` hides: the weights' stream.

    All tiles of pixels pass over the weights, and the first of them waits.
    """
    shape, operands = shape_of(body.reductions()[0]), operand_loads(body.reductions()[0])
    assert shape is not None and operands is not None
    level = serving_level(_streamed_bytes(graph, min(POINTS)), machine, workers)
    weights_s = graph.constants[operands[1].buffer].nbytes / machine.bandwidth_bytes_per_s(level, workers)
    first_s = rough.compute_s / max(1.0, shape.count(1) / MAX_PIXELS)
    return max(rough.seconds, rough.compute_s - first_s + _exposed(first_s, weights_s) + rough.launch_s)


def _stays_inside(body: Body, layouts: Mapping[str, Layout], channels: int, lanes: int) -> bool:
    """Whether lanes past the last of the output's channels may be computed too.

    What follows the convolution must read blocked values there, or vectors over channels, which are packed.
    """
    if channels % lanes == 0:
        return True
    root = body.reductions()[0]
    return all(
        body.stage(load.buffer) is not None
        or layouts.get(load.buffer, PLAIN).block == lanes
        or frozenset().union(*map(index_names, load.indices)) <= {axis.name for axis in stage.axes[1:2]}
        for stage in body.stages
        for load in loads(stage.body)
        if stage is not root
    )


def _stays_finite(weights: Array, edge: int) -> bool:
    """Whether inputs up to `SAFE_INPUT` give finite sums, whatever their signs."""
    largest = max(float(weights.max(initial=0)), -float(weights.min(initial=0)))
    factors = (float(np.abs(matrix).sum(axis=1).max()) ** 2 for matrix in matrices(edge))
    size = largest * weights.shape[1] * math.prod(factors) * SAFE_INPUT
    return bool(size < float(np.finfo(np.float32).max))


def error_bound(weights: Array, edge: int) -> float:
    """The largest error of an output whose inputs are at most one in size.

    |A^T| (|G| sum of |w| over channels |G^T| * |B^T| 1 |B|) |A|, the most that the steps can build up, times
    u for each rounding on the way to an output: one a channel, one of the weight, at most m + 2 in each of
    the two directions of either transform, whose constants are exact (Higham 2002, lemma 3.1).
    """
    inputs, g, outputs = map(np.abs, matrices(edge))
    made = np.abs(weights).sum(axis=1, dtype=np.float64).reshape(-1, 9) @ np.kron(g, g).T
    rows = inputs.sum(axis=1)
    sums = (made * np.kron(rows, rows)) @ np.kron(outputs, outputs).T
    roundings = weights.shape[1] + 4 * (edge + 2) + 1
    return gamma(roundings, unit_roundoff(F32)) * float(sums.max(initial=0.0))


@lru_cache(maxsize=1024)
def _best_cuts(
    shape: Shape3x3, edge: int, lanes: int, machine: Machine, workers: int, weights: Level
) -> tuple[WinogradSchedule, ...]:
    """The cut with the least predicted time, then the best of those with other vectors, and of those with
    blocks half as large or twice as large."""
    ranked = sorted(
        _cuts(shape, edge, lanes, machine, workers),
        key=lambda cut: _costs(shape, cut, machine, workers, weights).total_s,
    )
    best = ranked[0]
    other = next((cut for cut in ranked if cut.vectors != best.vectors), best)
    far = next((cut for cut in ranked if not best.tiles < 2 * cut.tiles < 4 * best.tiles), best)
    return tuple(dict.fromkeys((best, other, far)))


def _cuts(
    shape: Shape3x3, edge: int, lanes: int, machine: Machine, workers: int
) -> Iterator[WinogradSchedule]:
    """Schedules whose tile fits the registers."""
    total, outputs = shape.count(edge), -(-shape.outputs // lanes)
    registers = machine.vector_registers
    # Blocks of equal size: each number of tiles that some number of blocks comes to.
    for tiles in sorted({-(-total // -(-total // size)) for size in range(1, min(MAX_TILES, total) + 1)}):
        for vectors in (n for n in range(1, min(outputs, 8) + 1) if outputs % n == 0):
            most = (registers - vectors - 1) // vectors
            if most < 1:
                continue
            for rows in {
                min(tiles, most),
                *(-(-tiles // n) for n in range(1, tiles) if -(-tiles // n) <= most),
            }:
                for parts in {1, math.gcd(workers, outputs // vectors)}:
                    yield WinogradSchedule(edge, tiles, rows, vectors, parts, lanes)


def _costs(
    shape: Shape3x3, schedule: WinogradSchedule, machine: Machine, workers: int, level: Level
) -> _Costs:
    size, lanes, tiles, vectors = schedule.edge + 2, schedule.lanes, schedule.tiles, schedule.vectors
    planes, line = size * size, 4 * lanes
    inputs, groups = -(-shape.channels // lanes), -(-shape.outputs // lanes) // vectors
    blocks, share = -(-shape.count(schedule.edge) // tiles) * schedule.parts, groups // schedule.parts
    fma_s, cold_s = 2 * lanes / machine.peak_flops_per_s("float32", 1), _byte_s(level, machine, workers)
    group_bytes = shape.channels * vectors * line  # the weights of a group for one place of a tile
    weights = planes * share * group_bytes
    held = planes * tiles * line * (inputs + vectors)
    scratch = _Reuse.of(held + planes * group_bytes, machine, workers)  # until the next group
    again = _Reuse.of(held + weights, machine, workers)  # until the next block
    passes = _passes(shape, schedule, machine)
    lines = planes * tiles * (inputs + share * vectors)  # that the two transforms make and take
    # A line that does not stay in the cache is fetched before it is written, and evicted.
    transform_s = lines * (TRANSFORM_OPERATIONS * fma_s + line * (scratch.near_s + 2 * scratch.far_s))

    def block_s(weight_byte_s: float) -> float:
        """The first pass over a group's weights waits for their stream, the others find them nearer.

        Tiles that left the cache are waited for: no stream, since those of a place lie apart.
        """
        near_s = 0.0 if passes[0].bytes + group_bytes <= machine.l1_bytes else _byte_s("l2", machine, workers)
        total = 0.0
        for number, part in enumerate(passes):
            arrival_s = group_bytes * (near_s if number else weight_byte_s) + part.bytes * scratch.near_s
            total += _exposed(part.fma_slots * fma_s, arrival_s) + part.bytes * scratch.far_s
        return planes * share * total + transform_s

    turns = -(-blocks // workers)  # of the worker that has most to do
    compute_s = planes * share * sum(part.fma_slots for part in passes) + lines * TRANSFORM_OPERATIONS
    products = planes * shape.channels * share * vectors * tiles + lines * TRANSFORM_OPERATIONS // 2
    first = min(blocks, workers)
    bytes_at: dict[Level, int] = {"l2": blocks * line * (lines + planes * tiles * share * (inputs + vectors))}
    for at, moved in ((level, first * weights), (again.level, (blocks - first) * weights)):
        bytes_at[at] = bytes_at.get(at, 0) + moved
    return _Costs(
        block_s(cold_s) + (turns - 1) * block_s(again.near_s + again.far_s), turns * compute_s * fma_s,
        2 * lanes * blocks * products, bytes_at,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Pass:
    """One run of tiles over a group's weights at one place: slots for an FMA, and bytes of tiles."""

    fma_slots: float
    bytes: int


def _passes(shape: Shape3x3, schedule: WinogradSchedule, machine: Machine) -> tuple[_Pass, ...]:
    """A step loads the weights' vectors, one in each slot, and a broadcast for each tile, two in a cycle."""
    ports, vectors, found = machine.fma_ports(), schedule.vectors, list[_Pass]()
    for part in segments(schedule.tiles, schedule.rows):
        fmas = part.width * vectors
        step = max(fmas, vectors + part.width * ports / 2, FMA_LATENCY_CYCLES * ports)
        slots = shape.channels * step + TILE_OVERHEAD_CYCLES + 2 * fmas
        found += [_Pass(slots, part.width * shape.channels * 4)] * part.count
    return tuple(found)


def _byte_s(level: Level, machine: Machine, workers: int) -> float:
    """Seconds in which one of the workers reads a byte from `level`."""
    reads = L2_READS if level == "l2" else 1.0
    return workers / (reads * machine.bandwidth_bytes_per_s(level, workers))


@dataclass(frozen=True, slots=True)
class _Reuse:
    """What a worker comes back to: seconds a byte, in the second level and beyond, and where most is."""

    near_s: float
    far_s: float
    level: Level

    @classmethod
    def of(cls, size_bytes: int, machine: Machine, workers: int) -> _Reuse:
        """After `size_bytes`, of which the second level keeps a part."""
        near = min(1.0, KEPT * machine.l2_bytes / size_bytes)
        far = serving_level(max(size_bytes, machine.l2_bytes) * workers, machine, workers)
        near_s, far_s = near * _byte_s("l2", machine, workers), (1 - near) * _byte_s(far, machine, workers)
        return cls(near_s, far_s, "l2" if near >= 0.5 else far)


def _exposed(a_s: float, b_s: float) -> float:
    """Seconds of products and of the stream that feeds them: the longer, and what cannot be hidden."""
    return max(a_s, b_s) + UNHIDDEN * min(a_s, b_s)


def _estimate(
    plain: Traffic, plain_weights: int, costs: _Costs, level: Level, machine: Machine, workers: int
) -> Estimate:
    """The region's own inputs and outputs stream before and after the products, not beside them.

    `level` serves the plain weights, which the form does not read.
    """
    bytes_at = dict(plain.bytes_at)
    bytes_at[level] -= plain_weights
    around_s = sum(n / machine.bandwidth_bytes_per_s(at, workers) for at, n in bytes_at.items() if n)
    for at, moved in costs.bytes_at.items():
        bytes_at[at] += moved
    traffic = replace(
        plain, flops=costs.flops, bytes_at=bytes_at,
        flop_efficiency=costs.flops / (costs.compute_s * machine.peak_flops_per_s("float32", workers)),
    )  # fmt: skip
    rough = estimate(traffic, machine, workers)
    return replace(rough, seconds=costs.total_s + around_s + rough.launch_s)
