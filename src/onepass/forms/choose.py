"""Chooses the schedule of a nest from its shape, the layout of its output, and the machine.

The register tile is the one with the fewest cycles by a port model: an FMA a cycle, a vector load a cycle,
two broadcasts a cycle, and at least the latency of an FMA before an accumulator is used again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from onepass.cost.machine import Machine
from onepass.forms.body import Body
from onepass.forms.schedule import Schedule, segments
from onepass.graph.ir import Graph
from onepass.graph.layout import PLAIN, Layout
from onepass.loops.ir import Binary, Load
from onepass.ops.opdef import Compute

FMA_LATENCY_CYCLES = 4  # Zen 2-4 and Skylake-X; Agner Fog, instruction tables
TILE_OVERHEAD_CYCLES = 24  # entering and leaving a tile: measured, about the cost of one row of stores
LOAD_WEIGHT = 0.1  # between tiles of equal cycles, the one that asks less of the first-level cache
MAX_PIXELS = 28
# Each pixel of a window without product sharing loads its own vectors: a short tile keeps them in registers
# from one tap to the next, and its loads clear of its stores (3x on 3x3 depthwise, against 28 pixels).
MAX_WINDOW_PIXELS = 8


def choose_schedule(body: Body, graph: Graph, layouts: Mapping[str, Layout], machine: Machine) -> Schedule:
    """The schedule of a region in the nest form."""
    output = body.stage(body.outputs[0])
    assert output is not None
    shape = output.type.shape or (1,)
    layout = layouts.get(body.outputs[0], PLAIN)
    lanes = layout.block if layout.block > 1 else machine.lanes(4)
    vector = 1 if layout.block > 1 else _last_long_axis(shape)
    others = [axis for axis in range(len(shape)) if axis != vector]
    tile = max((axis for axis in others if shape[axis] > 1), default=None)
    root = next(iter(body.reductions()), None)
    if root is None:
        vectors, pixels = _pointwise_tile(shape, vector, tile, lanes, layout.block > 1)
    else:
        steps = math.prod(axis.extent for axis in root.reduce_axes)
        streamed = is_product(root) and not _is_depthwise(body, root)
        tile_extent = shape[tile] if tile is not None else 1
        vectors, pixels = register_tile(
            -(-shape[vector] // lanes), tile_extent, steps, machine.vector_registers, streamed
        )
    order = _order(body, graph, shape, vector, tile, machine)
    return Schedule(vector, lanes, vectors, tile, pixels, order)


def is_product(root: Compute) -> bool:
    """Whether a reduction sums products of two operands: a convolution or matrix product."""
    return root.combine == "add" and isinstance(root.body, Binary) and root.body.op == "mul"


def _is_depthwise(body: Body, root: Compute) -> bool:
    return bool(root.reduce_axes) and root.reduce_axes[0].extent == 1


def _last_long_axis(shape: tuple[int, ...]) -> int:
    return max((axis for axis, extent in enumerate(shape) if extent > 1), default=max(0, len(shape) - 1))


def _pointwise_tile(
    shape: tuple[int, ...], vector: int, tile: int | None, lanes: int, blocked: bool
) -> tuple[int, int]:
    """Vectors and pixels a step of a nest without reduction: a few, for independent work in flight."""
    if blocked or tile is None or shape[vector] < 2 * lanes:
        extent = shape[tile] if tile is not None else 1
        return 1, next((n for n in (4, 7, 5, 3, 2) if extent % n == 0), min(4, max(1, extent)))
    vectors = next((n for n in (4, 3, 2) if (shape[vector] // lanes) % n == 0), 1)
    return vectors, 1


@lru_cache(maxsize=4096)
def register_tile(blocks: int, extent: int, steps: int, registers: int, streamed: bool) -> tuple[int, int]:
    """(vectors, pixels) with the fewest cycles for `blocks` vectors by `extent` positions.

    `steps` is the length of the reduction. `streamed`: one operand is a vector shared along the pixels and
    the other a broadcast shared along the vectors (contraction); otherwise each pixel loads its own vector,
    which the taps of a window share. Of the registers, `vectors` hold the shared operand; with 16 (AVX2) one
    more holds the broadcast, which AVX-512 and NEON take from memory or a lane, and one stays free.
    """
    best, fewest = (1, 1), math.inf
    most_pixels = MAX_PIXELS if streamed else MAX_WINDOW_PIXELS
    for vectors in range(1, min(blocks, 8 if streamed else 1) + 1):
        accumulators = registers - vectors - (0 if registers >= 32 else 2)
        for pixels in range(1, min(extent, most_pixels, accumulators // vectors) + 1):
            cycles = tile_cycles(blocks, extent, steps, vectors, pixels, streamed)
            if cycles < fewest * 0.9999:
                best, fewest = (vectors, pixels), cycles
    return best


def tile_cycles(blocks: int, extent: int, steps: int, vectors: int, pixels: int, streamed: bool) -> float:
    """Cycles of all tiles of one row under the port model."""
    total = 0.0
    for part in segments(blocks, vectors):
        for piece in segments(extent, pixels):
            fma = part.width * piece.width
            loads = part.width + piece.width / 2 if streamed else part.width
            cycles = max(fma, loads, FMA_LATENCY_CYCLES) + LOAD_WEIGHT * loads
            total += part.count * piece.count * (steps * cycles + TILE_OVERHEAD_CYCLES + fma)
    return total


def _order(
    body: Body, graph: Graph, shape: tuple[int, ...], vector: int, tile: int | None, machine: Machine
) -> tuple[int, ...]:
    """Outer loops: weights outermost where they do not fit the cache, rows outermost otherwise.

    Where all kernels cut the rows alike, a worker finds in its own cache what it wrote before.
    """
    plain = [axis for axis in range(len(shape)) if axis not in (vector, tile)]
    if len(shape) > 2 and 1 in plain:
        plain.sort(key=lambda axis: axis == 1)
    constant_bytes = sum(graph.types[name].size_bytes for name in body.inputs if name in graph.constants)
    if body.reductions() and constant_bytes > machine.l2_bytes // 2:
        return (vector, *plain)
    return (*plain, vector)


def operand_loads(root: Compute) -> tuple[Load, Load] | None:
    """The two operands of a product of loads, None where the body is something else."""
    body = root.body
    if isinstance(body, Binary) and isinstance(body.a, Load) and isinstance(body.b, Load):
        return body.a, body.b
    return None
