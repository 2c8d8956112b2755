"""Which tiles a region may be cut into on a GPU, and how long each should take.

In: a region's body and the GPU. Out: `Candidate`s, fastest first. The price is the roofline's, with the
traffic of the tiles in place of that of caches: every program reads its operands through L2, programs
run in waves over the SMs, and a sum is a chain of steps that each wait for their loads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from onepass.cost.gpu import Gpu, machine
from onepass.cost.machine import Level
from onepass.cost.roofline import Estimate, Traffic, estimate
from onepass.forms.body import Body
from onepass.forms.traffic import region_traffic, stage_flops, stage_instructions
from onepass.graph.ir import Graph
from onepass.graph.layout import Layout
from onepass.loops.tile import Tile
from onepass.tiles.builder import power_of_two
from onepass.tiles.product import Product
from onepass.tiles.rows import row_lengths, row_space

HELD = 16384  # elements of the longest row that one tile may hold: of a longer one not even two fit
CHUNK = 4096  # elements of a longer row that are read at a time
ELEMENTS_PER_THREAD = 8  # of a pointwise tile: two loads of 16 bytes are under way for each operand


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tile and the estimate of the region cut so."""

    tile: Tile
    estimate: Estimate


def pointwise_tiles(size: int, gpu: Gpu) -> tuple[Tile, ...]:
    """Tiles for `size` outputs: wide ones where that leaves programs for all SMs, narrower ones after."""
    warps = 4
    full = ELEMENTS_PER_THREAD * warps * gpu.warp_size
    widths = [width for width in (full, full // 2, full // 4) if width * 2 * gpu.sms <= size]
    widths = widths or [full // 4]
    return tuple(Tile(1, width, 0, warps) for width in dict.fromkeys((*widths, full // 4, full // 8)))


def row_tiles(count: int, length: int, gpu: Gpu) -> tuple[Tile, ...]:
    """Tiles for `count` rows of `length`: held whole where that fits, else walked in chunks."""
    width, found = power_of_two(length), list[Tile]()
    if length <= HELD:
        for elements in (1024, 512):
            rows = max(1, min(elements // width, power_of_two(count)))
            while rows > 1 and count < rows * gpu.sms:
                rows //= 2
            for warps in (max(4, width * rows // 1024), max(4, width * rows // 512)):
                found.append(Tile(rows, width, 0, min(warps, 1024 // gpu.warp_size)))
    for depth, warps in ((CHUNK, 8), (CHUNK // 2, 8), (CHUNK // 4, 4)):
        if depth < length:
            found.append(Tile(1, 0, depth, warps))
    return tuple(dict.fromkeys(found))


def product_tiles(found: Product, gpu: Gpu) -> Iterator[Tile]:
    """Tiles for a product: powers of two up to its sizes; more warps where the tile is large."""
    _, m, n, k = found.sizes
    narrow = found.left.dtype.size_bytes == 2
    for rows in (16, 32, 64, 128):
        for columns in (16, 32, 64, 128, 256):
            if rows > max(16, power_of_two(m)) or columns > max(16, power_of_two(n)):
                continue
            if rows * columns > (128 * 256 if narrow else 128 * 128) or rows * columns < 256:
                continue
            depth = min(64 if narrow else 32, max(16, power_of_two(k)))
            warps = 8 if rows * columns >= (128 * 128 if narrow else 64 * 128) else 4
            yield Tile(rows, columns, depth, warps, 3 if narrow else 2)


def nest_estimate(body: Body, graph: Graph, layouts: Mapping[str, Layout], gpu: Gpu) -> Estimate:
    """A region in which every output is computed alone."""
    return estimate(_traffic(body, graph, layouts, gpu), machine(gpu), 1)


def row_candidates(body: Body, graph: Graph, layouts: Mapping[str, Layout], gpu: Gpu) -> list[Candidate]:
    """A region of rows: a row in chunks is read once for each pass, from L2 after the first."""
    space = row_space(body, graph, layouts)
    count, length = row_lengths(space)
    traffic = _traffic(body, graph, layouts, gpu)
    made = {stage.name for stage in body.stages}
    outputs = sum(graph.types[name].size_bytes for name in body.outputs if name in made)
    again = len(space.passes) * max(0, traffic.compulsory_bytes - outputs)
    found = []
    for tile in row_tiles(count, length, gpu):
        bytes_at = dict(traffic.bytes_at)
        if tile.depth and length > tile.depth:
            bytes_at["l2"] = bytes_at.get("l2", 0) + again
        guess = estimate(replace(traffic, bytes_at=bytes_at), machine(gpu), 1)
        found.append(Candidate(tile, guess))
    return sorted(found, key=lambda candidate: candidate.estimate.seconds)


def product_candidates(
    body: Body, graph: Graph, layouts: Mapping[str, Layout], gpu: Gpu, found: Product
) -> list[Candidate]:
    """A product by tiles: those that are cut best first."""
    traffic = _traffic(body, graph, layouts, gpu, found)
    tiles = product_tiles(found, gpu)
    candidates = [Candidate(tile, product_estimate(traffic, found, tile, gpu)) for tile in tiles]
    # Of equally fast ones the larger: it asks less of L2.
    return sorted(candidates, key=lambda c: (c.estimate.seconds, -c.tile.rows * c.tile.columns))


def product_estimate(traffic: Traffic, found: Product, tile: Tile, gpu: Gpu) -> Estimate:
    """Waves of programs over the SMs; each reads its operands through L2, a step at a time."""
    batch, m, n, k = found.sizes
    programs = batch * math.ceil(m / tile.rows) * math.ceil(n / tile.columns)
    steps = math.ceil(k / tile.depth)
    done = programs * tile.rows * tile.columns * steps * tile.depth * 2
    waves = math.ceil(programs / gpu.sms) * gpu.sms / max(1, programs)
    useful = stage_flops(found.root)
    efficiency = traffic.flop_efficiency * useful / (done * waves) if done else 1.0
    bytes_at: dict[Level, int] = dict(traffic.bytes_at)
    read = programs * (tile.rows + tile.columns) * steps * tile.depth * found.left.dtype.size_bytes
    bytes_at["l2"] = max(bytes_at.get("l2", 0), read)
    guess = estimate(replace(traffic, flop_efficiency=efficiency, bytes_at=bytes_at), machine(gpu), 1)
    chain_s = steps * gpu.roof("memory latency") / tile.stages
    if chain_s > guess.seconds - guess.launch_s:
        guess = replace(guess, seconds=chain_s + guess.launch_s, bound="latency")
    return guess


def _traffic(
    body: Body, graph: Graph, layouts: Mapping[str, Layout], gpu: Gpu, product: Product | None = None
) -> Traffic:
    """Bytes and operations; every stage is a tile, so it is computed once where it is read in place."""
    peaks = machine(gpu)
    kept = frozenset(stage.name for stage in body.stages)
    traffic = region_traffic(body, graph, layouts, peaks, 1, 1.0, kept)
    dtype = product.left.dtype.name if product else traffic.dtype
    others = [stage for stage in body.stages if product is None or stage is not product.root]
    vector_s = 2 * sum(map(stage_instructions, others)) / peaks.peak_flops_per_s("float32", 1)
    product_s = stage_flops(product.root) / peaks.peak_flops_per_s(dtype, 1) if product else 0.0
    flops = traffic.flops
    least = flops / peaks.peak_flops_per_s(dtype, 1)
    efficiency = min(1.0, least / (vector_s + product_s)) if vector_s + product_s else 1.0
    return replace(traffic, dtype=dtype, flop_efficiency=efficiency or 1.0)
