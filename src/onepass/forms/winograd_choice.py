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
from onepass.cost.machine import Level, Machine
from onepass.cost.roofline import Estimate, Traffic, estimate
from onepass.forms.body import Body
from onepass.forms.choose import FMA_LATENCY_CYCLES, STAYS, TILE_OVERHEAD_CYCLES, operand_loads
from onepass.forms.schedule import segments
from onepass.forms.traffic import region_traffic, serving_level
from onepass.forms.winograd import POINTS, Shape3x3, WinogradSchedule, matrices, reaches, shape_of
from onepass.graph.ir import Graph
from onepass.graph.layout import PLAIN, Layout
from onepass.loops.walk import index_names, loads
from onepass.ops.opdef import Array

MAX_TILES = 64  # in a block: more gain nothing, as the weights of a place then come from the first level
ROOM = 0.5  # share of the second-level cache that a block's scratch may take; weights stream through the rest
TRANSFORM_OPERATIONS = 6  # a vector of a place in either transform, loads and stores included: counted
UNHIDDEN = 0.25  # of the shorter of product and stream of weights: measured on five layers of ResNet-50
SAFE_INPUT = 2.0**64  # inputs up to this size must stay finite


@dataclass(frozen=True, slots=True)
class _Costs:
    """Of all blocks: seconds with the workers side by side, operations, and bytes of scratch and weights."""

    total_s: float
    compute_s: float
    flops: int
    scratch_bytes: int
    weight_bytes: int


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
            cuts = _best_cuts(shape, edge, lanes, machine, workers, level) if wanted is None else (wanted,)
            costs = [_costs(shape, cut, machine, workers, level) for cut in cuts]
            guesses = [_estimate(plain, weights.nbytes, cost, level, machine, workers) for cost in costs]
            found.append(list(zip(cuts, guesses, strict=True)))
    found.sort(key=lambda ways: ways[0][1].seconds)
    ways = [*found[0], *(others[0] for others in found[1:])] if found else []
    ways.sort(key=lambda way: way[1].seconds)
    safe = {edge: _stays_finite(weights, edge) for edge in {schedule.edge for schedule, _ in ways}}
    return [way for way in ways if safe[way[0].edge]]


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
    """Schedules whose tile fits the registers; those whose scratch fits the cache, else the smallest."""
    total, outputs = shape.count(edge), -(-shape.outputs // lanes)
    room, registers = ROOM * machine.l2_bytes, machine.vector_registers
    # Blocks of equal size: each number of tiles that some number of blocks comes to.
    for tiles in sorted({-(-total // -(-total // size)) for size in range(1, min(MAX_TILES, total) + 1)}):
        for vectors in (n for n in range(1, min(outputs, 8) + 1) if outputs % n == 0):
            lines = -(-shape.channels // lanes) + vectors
            scratch = 4 * lanes * (edge + 2) ** 2 * tiles * lines
            most = (registers - vectors - 1) // vectors
            if most < 1 or (scratch > room and tiles > 4):
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
    size, lanes, tiles = schedule.edge + 2, schedule.lanes, schedule.tiles
    planes, line = size * size, 4 * lanes
    inputs, groups = -(-shape.channels // lanes), -(-shape.outputs // lanes) // schedule.vectors
    blocks, share = -(-shape.count(schedule.edge) // tiles) * schedule.parts, groups // schedule.parts
    fma_s = 2 * lanes / machine.peak_flops_per_s("float32", 1)
    l2 = machine.bandwidth_bytes_per_s("l2", 1)
    products = 0.0
    for part in segments(tiles, schedule.rows):
        fmas = part.width * schedule.vectors
        step = max(fmas, schedule.vectors + part.width / 2, FMA_LATENCY_CYCLES)
        products += part.count * (shape.channels * step + TILE_OVERHEAD_CYCLES + 2 * fmas)
    product_s = planes * share * products * fma_s
    lines = planes * tiles * (inputs + share * schedule.vectors)  # that the two transforms make and take
    weight_bytes = planes * shape.channels * share * schedule.vectors * line
    held = planes * tiles * line * (inputs + schedule.vectors)
    stays = weight_bytes + held <= STAYS * machine.l2_bytes
    weight_s = weight_bytes / (l2 if stays else machine.bandwidth_bytes_per_s(level, workers) / workers)
    transform_s = lines * (TRANSFORM_OPERATIONS * fma_s + line / l2)
    block_s = max(product_s, weight_s) + UNHIDDEN * min(product_s, weight_s) + transform_s
    turns = -(-blocks // workers)  # of the worker that has most to do
    compute_s = turns * (product_s + lines * TRANSFORM_OPERATIONS * fma_s)
    vectors = planes * shape.channels * share * schedule.vectors * tiles + lines * TRANSFORM_OPERATIONS // 2
    scratch = lines + planes * tiles * share * (inputs + schedule.vectors)
    return _Costs(
        turns * block_s, compute_s, 2 * lanes * blocks * vectors, blocks * scratch * line,
        weight_bytes * (schedule.parts if stays else blocks),
    )  # fmt: skip


def _estimate(
    plain: Traffic, plain_weights: int, costs: _Costs, level: Level, machine: Machine, workers: int
) -> Estimate:
    """The region's own inputs and outputs stream before and after the products, not beside them."""
    bytes_at = dict(plain.bytes_at)
    bytes_at[level] -= plain_weights
    around_s = sum(n / machine.bandwidth_bytes_per_s(at, workers) for at, n in bytes_at.items() if n)
    bytes_at[level] += costs.weight_bytes
    bytes_at["l2"] += costs.scratch_bytes
    traffic = replace(
        plain, flops=costs.flops, bytes_at=bytes_at,
        flop_efficiency=costs.flops / (costs.compute_s * machine.peak_flops_per_s("float32", workers)),
    )  # fmt: skip
    rough = estimate(traffic, machine, workers)
    return replace(rough, seconds=costs.total_s + around_s + rough.launch_s)
