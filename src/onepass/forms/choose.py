"""Chooses the schedule of a nest from its shape, the layout of its output, and the machine.

The register tile is the one with the fewest cycles by a port model: an FMA a cycle, a vector load a cycle,
two broadcasts a cycle, and at least the latency of an FMA before an accumulator is used again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from onepass.cost.machine import FMA_LATENCY_CYCLES, Machine
from onepass.forms.axes import contiguous_axis, phases, shared_tile, unbroken_lanes, vector_axis
from onepass.forms.body import Body
from onepass.forms.schedule import CHUNK, Schedule, segments
from onepass.graph.ir import Graph
from onepass.graph.layout import PLAIN, Layout
from onepass.loops.ir import Binary, Load
from onepass.loops.walk import index_names
from onepass.ops.opdef import Compute

TILE_OVERHEAD_CYCLES = 24  # entering and leaving a tile: measured, about the cost of one row of stores
# Between tiles of equal cycles: what a line costs that comes from the second level. Weights stream in order
# (3x3, 8 images: 84 % of peak with 7 pixels a weight, 98 % with 14); pixels come from many places.
WEIGHT_LINE_CYCLES, PIXEL_LINE_CYCLES = 1.0, 6.0
STAYS = 0.7  # share of the second-level cache that weights may take and still be there for the next row
MAX_PIXELS = 14
SHARES = 4  # of equal size for each worker, at least: so a late one keeps the others waiting little
L1_WAYS, L1_WAY_BYTES = 8, 4096  # 32 KiB in 8 ways: Zen 2-4, Skylake
# A window over few channels (depthwise, an RGB stem) reads many rows at once: a short tile keeps its vectors
# in registers from tap to tap, and its loads clear of its stores (3x on 3x3 depthwise, against 28 pixels).
MAX_WINDOW_PIXELS = 8


def choose_schedule(
    body: Body, graph: Graph, layouts: Mapping[str, Layout], machine: Machine, one_row: bool = False
) -> Schedule:
    """The schedule of a region in the nest form; `one_row`: no tile takes several rows."""
    shape = body.output.type.shape or (1,)
    layout = layouts.get(body.outputs[0], PLAIN)
    lanes = layout.block if layout.block > 1 else machine.lanes(4)
    root = next(iter(body.reductions()), None)
    product = root if root is not None and is_product(root) else None
    streamed = product is not None and product.reduce_axes[0].extent > 1
    apart = phases(product) if product is not None else ()
    shape = tuple(extent // dict(apart).get(axis, 1) for axis, extent in enumerate(shape))
    vector = vector_axis(body, layouts, shape, product)
    if root is None and vector == 1 and layout.block > 1:
        lanes = unbroken_lanes(body, lanes)
    others = [axis for axis in range(len(shape)) if axis != vector]
    tile = max((axis for axis in others if shape[axis] > 1), default=None)
    shared = shared_tile(product, vector) if product is not None and layout.block == 1 else None
    flat = whole = False
    if root is None:
        turned = contiguous_axis(body, graph, layouts, shape, vector)
        tile = tile if turned is None else turned
        narrow = layout.block > 1 or turned is not None
        rows = math.prod(shape) // max(1, shape[vector])
        if not narrow and shape[vector] >= 2 * lanes and rows >= SHARES * machine.cores:
            tile, whole = None, True
        vectors, pixels = _pointwise_tile(shape, vector, tile, lanes, narrow)
        vectors *= max(1, layout.block // lanes)  # a block is written as a whole
    elif shared is not None:
        tile, width = shared
        most = min(MAX_PIXELS, machine.vector_registers - 3)
        vectors, pixels = 1, max(n for n in range(1, most + 1) if width % n == 0)
    else:
        vectors, pixels, flat = _tiles(
            body, graph, layouts, root, shape, vector, tile, lanes, streamed, machine, one_row
        )
    schedule = Schedule(vector, lanes, vectors, tile, pixels, (), flat=flat, phases=apart, whole=whole)
    return _ordered(body, graph, shape, schedule, machine)


def _tiles(
    body: Body,
    graph: Graph,
    layouts: Mapping[str, Layout],
    root: Compute,
    shape: tuple[int, ...],
    vector: int,
    tile: int | None,
    lanes: int,
    streamed: bool,
    machine: Machine,
    one_row: bool,
) -> tuple[int, int, bool]:
    """(vectors, pixels) of a reduction, and whether the tile takes several short rows.

    It does so only where the vectors alone keep all cores busy.
    """
    steps, *taps = (axis.extent for axis in root.reduce_axes)
    most = _most_pixels(graph, layouts, root, tile)
    near = streamed and _Streams.of(body, graph, shape, machine).holds_weights

    def best(extent: int, unit: int) -> tuple[int, int]:
        return register_tile(
            -(-shape[vector] // lanes), extent, steps * math.prod(taps), machine.vector_registers,
            streamed, most, math.prod(taps), unit, near,
        )  # fmt: skip

    image = vector == 1 and tile == len(shape) - 1 > 2  # else a matrix whose rows have two axes
    if streamed and tile and not one_row and (image or vector == len(shape) - 1 == tile + 1):
        width = shape[tile]
        vectors, pixels = best(shape[tile - 1] * width, width) if width <= MAX_PIXELS else (1, 0)
        groups = math.prod(shape) // (shape[tile - 1] * width * lanes * vectors)
        several = pixels > width or (pixels and _depth(root, lanes * vectors, near, machine))
        if several and groups and -(-groups // machine.cores) * machine.cores <= 1.1 * groups:
            return vectors, pixels, True
    return *best(shape[tile] if tile is not None else 1, 1), False


def _depth(root: Compute, channels: int, near: bool, machine: Machine) -> int:
    """Chunks of the reduction that all tiles of an image pass before the next ones; 0: all of them.

    They pass the weights of `channels` outputs. Where those would take much of the second-level cache, before
    the next ones are even asked for, a slice of them that fills half of the first is kept there instead.
    """
    steps, *taps = (axis.extent for axis in root.reduce_axes)
    chunk_bytes = CHUNK * math.prod(taps) * channels * root.dtype.size_bytes
    chunks, rest = divmod(steps, CHUNK)
    much = chunks * chunk_bytes >= machine.l2_bytes // 16
    if not near or rest or not much or chunk_bytes > machine.l1_bytes * 3 // 4:
        return 0
    wanted = max(1, machine.l1_bytes // 2 // chunk_bytes)
    return max(n for n in range(1, wanted + 1) if chunks % n == 0)


def _most_pixels(graph: Graph, layouts: Mapping[str, Layout], root: Compute, tile: int | None) -> int:
    """Positions of a tile that the first-level cache holds side by side.

    Rows that start a multiple of its way's size apart fall into the same set, which holds `L1_WAYS` of them
    (a matrix of 3072 columns, 26 rows a tile: a quarter of the speed).
    """
    if root.reduce_axes[0].extent < CHUNK // 2:
        return MAX_WINDOW_PIXELS
    operands = operand_loads(root)
    if operands is None or tile is None or operands[0].buffer not in graph.types:
        return MAX_PIXELS
    load = operands[0]
    kind = graph.types[load.buffer]
    physical = layouts.get(load.buffer, PLAIN).physical_shape(kind.shape)
    for place, index in enumerate(load.indices):
        if root.axes[tile].name in index_names(index):
            stride = math.prod(physical[place + 1 :]) * kind.dtype.size_bytes
            return min(MAX_PIXELS, L1_WAYS * (L1_WAY_BYTES // math.gcd(stride, L1_WAY_BYTES)))
    return MAX_PIXELS


def is_product(root: Compute) -> bool:
    """Whether a reduction sums products of two operands: a convolution or matrix product."""
    return root.combine == "add" and isinstance(root.body, Binary) and root.body.op == "mul"


def _pointwise_tile(
    shape: tuple[int, ...], vector: int, tile: int | None, lanes: int, narrow: bool
) -> tuple[int, int]:
    """Vectors and pixels a step of a nest without reduction: a few, for independent work in flight."""
    if narrow or shape[vector] < 2 * lanes:
        extent = shape[tile] if tile is not None else 1
        return 1, next((n for n in (4, 7, 5, 3, 2) if extent % n == 0), min(4, max(1, extent)))
    vectors = next((n for n in (4, 3, 2) if (shape[vector] // lanes) % n == 0), 1)
    return vectors, 1


@lru_cache(maxsize=4096)
def register_tile(
    blocks: int, extent: int, steps: int, registers: int, streamed: bool, most_pixels: int, taps: int,
    unit: int = 1, near: bool = False,
) -> tuple[int, int]:  # fmt: skip
    """(vectors, pixels) with the fewest cycles for `blocks` vectors by `extent` positions.

    `steps` is the length of the reduction. `streamed`: one operand is a vector shared along the pixels and
    the other a broadcast shared along the vectors (contraction); otherwise each pixel loads its own vector,
    which the `taps` of a window share. Of the registers, `vectors` hold the shared operand; with 16 (AVX2)
    one more holds the broadcast, which AVX-512 and NEON take from memory or a lane, and one stays free.
    A tile of at most `MAX_WINDOW_PIXELS` leaves half of the registers to the pixels that taps share.
    """
    best, fewest = (1, 1), math.inf
    for vectors in range(1, min(blocks, 8 if streamed else 1) + 1):
        accumulators = registers - vectors - (0 if registers >= 32 else 2)
        if most_pixels <= MAX_WINDOW_PIXELS and taps > 1:
            accumulators = min(accumulators, registers // 2)
        most = min(extent, most_pixels, accumulators // vectors)
        if most < unit:
            break
        for pixels in range(unit, most + 1, unit):
            cycles = tile_cycles(blocks, extent, steps, vectors, pixels, streamed)
            if streamed:
                lines = WEIGHT_LINE_CYCLES * vectors + (1 if near else PIXEL_LINE_CYCLES) * pixels / (
                    CHUNK * taps
                )
                cycles += steps * lines * blocks * extent / (vectors * pixels)
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
            cycles = max(fma, loads, FMA_LATENCY_CYCLES)
            total += part.count * piece.count * (steps * cycles + TILE_OVERHEAD_CYCLES + fma)
    return total


@dataclass(frozen=True, slots=True)
class _Streams:
    """Bytes that one image brings and that the weights take; `fresh`: whether other kernels evict those."""

    image_bytes: int
    weight_bytes: int
    fresh: bool
    l2_bytes: int

    @classmethod
    def of(cls, body: Body, graph: Graph, shape: tuple[int, ...], machine: Machine) -> _Streams:
        operands = operand_loads(body.reductions()[0]) or ()
        read = {load.buffer for load in operands} & graph.types.keys() - graph.constants.keys()
        images = shape[0] if len(shape) > 2 else 1
        image = max((graph.types[name].size_bytes for name in read), default=0) // max(1, images)
        weights = sum(graph.types[name].size_bytes for name in body.inputs if name in graph.constants)
        fresh = graph.constant_bytes > machine.l2_bytes
        return cls(image, weights, fresh, machine.l2_bytes)

    @property
    def weights_stay(self) -> bool:
        """Whether all weights stay in the second-level cache while rows pass."""
        return self.weight_bytes <= STAYS * self.l2_bytes

    @property
    def holds_weights(self) -> bool:
        """Whether some weights at a time are kept, and the whole image passes them."""
        small = self.image_bytes <= self.l2_bytes // 2
        return small and self.fresh and self.weight_bytes >= self.l2_bytes // 8


def _ordered(
    body: Body, graph: Graph, shape: tuple[int, ...], schedule: Schedule, machine: Machine
) -> Schedule:
    """The schedule with its outer loops: what streams past what stays in the second-level cache.

    Rows outermost where the weights stay; else a block of rows stays while all weights stream past it.
    Where all kernels cut the rows alike, a worker finds in its own cache what it wrote before. The next
    weights, or the next row of a kernel without a window, are asked for meanwhile.
    """
    vector, tile = schedule.vector, schedule.tile
    inside = {vector, tile, tile - 1 if tile and schedule.flat else tile}
    plain = [axis for axis in range(len(shape)) if axis not in inside]
    if len(shape) > 2 and 1 in plain:
        plain.sort(key=lambda axis: axis == 1)
    root = next(iter(body.reductions()), None)
    if root is None:
        return replace(schedule, order=(*plain, vector))
    streams = _Streams.of(body, graph, shape, machine)
    groups = max(1, -(-shape[vector] // (schedule.lanes * schedule.vectors)))
    group_bytes = streams.weight_bytes // groups
    long = root.reduce_axes[0].extent >= CHUNK
    ahead = vector if streams.fresh and long and groups > 1 and group_bytes <= machine.l2_bytes // 3 else None
    if streams.weights_stay and not streams.holds_weights:
        rows = [axis for axis in plain if axis > 1 and shape[axis] > 1]
        window = math.prod(axis.extent for axis in root.reduce_axes[1:]) > 1
        if rows:
            ahead = rows[-1] if long and groups > 1 and not window else None
        return replace(schedule, order=(*plain, vector), ahead=ahead)
    images = [axis for axis in plain if axis == 0 and shape[0] > 1 and len(shape) > 2]
    rows = [axis for axis in plain if axis not in images and shape[axis] > 1]
    if schedule.flat:
        images, rows = [], images
    if schedule.flat or (not rows and tile is not None and shape[tile] > schedule.tile_size):
        depth = _depth(root, schedule.lanes * schedule.vectors, streams.fresh, machine)
        schedule = replace(schedule, depth=depth)
        ahead = vector if depth else ahead
    if len(rows) != 1:
        rest = [axis for axis in plain if axis not in images]
        return replace(schedule, order=(*images, vector, *rest), ahead=ahead)
    extent = shape[rows[0]]
    image_bytes = streams.image_bytes * (extent if schedule.flat else 1)

    def streamed_bytes(block: int) -> int:
        fits = image_bytes * block // extent <= machine.l2_bytes // 2
        return extent // block * streams.weight_bytes + image_bytes * (1 if fits else groups)

    block = min((d for d in range(1, extent + 1) if extent % d == 0), key=streamed_bytes)
    rest = [axis for axis in plain if axis not in (*images, *rows)]
    return replace(schedule, order=(*images, *rows, vector, *rest, *rows), block=block, ahead=ahead)


def operand_loads(root: Compute) -> tuple[Load, Load] | None:
    """The two operands of a product of loads, None where the body is something else."""
    body = root.body
    if isinstance(body, Binary) and isinstance(body.a, Load) and isinstance(body.b, Load):
        return body.a, body.b
    return None
