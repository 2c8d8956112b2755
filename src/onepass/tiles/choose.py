"""Which tiles a region may be cut into on a GPU, and how long each should take.

In: a region's body and the GPU. Out: `Candidate`s, fastest first. The price is the roofline's, with the
traffic of the tiles in place of that of caches: every program reads its operands through L2, programs
run in waves over the SMs, and a sum is a chain of steps that each wait for their loads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from onepass.cost.gpu import Gpu, machine
from onepass.cost.machine import Level
from onepass.cost.roofline import Estimate, Traffic, estimate
from onepass.forms.body import Body
from onepass.forms.nest import FormMismatch
from onepass.forms.traffic import region_traffic, stage_flops, stage_instructions
from onepass.graph.ir import Graph
from onepass.graph.layout import Layout
from onepass.loops.tile import Tile
from onepass.tiles.builder import power_of_two
from onepass.tiles.chain import Link
from onepass.tiles.product import Product, Sums, is_moved
from onepass.tiles.rows import row_lengths, row_space

HELD = 16384  # elements of the longest row that one tile may hold: of a longer one not even two fit
CHUNK = 4096  # elements of a longer row that are read at a time
TOTALS = {2: 144, 4: 80}  # registers of a thread for the totals of two products, by bytes of an operand
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


def product_tiles(found: Product) -> Iterator[Tile]:
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
    traffic = _traffic(body, graph, layouts, gpu, (found,))
    tiles = product_tiles(found)
    candidates = [Candidate(tile, product_estimate(traffic, found, tile, gpu)) for tile in tiles]
    # Of equally fast ones the larger: it asks less of L2.
    return sorted(candidates, key=lambda c: (c.estimate.seconds, -c.tile.rows * c.tile.columns))


def product_estimate(traffic: Traffic, found: Product, tile: Tile, gpu: Gpu) -> Estimate:
    """Each program reads its operands through L2, a step at a time."""
    batch, m, n, k = found.sizes
    programs = batch * math.ceil(m / tile.rows) * math.ceil(n / tile.columns)
    steps = math.ceil(k / tile.depth)
    done = programs * tile.rows * tile.columns * steps * tile.depth * 2
    read = programs * (tile.rows + tile.columns) * steps * tile.depth * found.left.dtype.size_bytes
    more = done / max(1, stage_flops(found.root))
    return cut_estimate(traffic, programs, more, read, steps / tile.stages, gpu)


def cut_estimate(
    traffic: Traffic, programs: int, more: float, read: int, waits: float, gpu: Gpu
) -> Estimate:
    """Waves of programs over the SMs, each of which has its share of the peak and of L2, however few work.

    They do `more` times the work that is needed, read so many bytes through L2, and `waits` times a load
    waits for one before it.
    """
    waves = math.ceil(programs / gpu.sms) * gpu.sms / max(1, programs)
    bytes_at: dict[Level, int] = {**traffic.bytes_at, "l2": max(traffic.bytes_at.get("l2", 0), read)}
    efficiency = traffic.flop_efficiency / (more * waves) if more else 1.0
    guess = estimate(replace(traffic, flop_efficiency=efficiency, bytes_at=bytes_at), machine(gpu), 1)
    slowest = {"latency": max(1.0, waits) * gpu.roof("memory latency"), "l2": waves * read / gpu.roof("l2")}
    for bound, seconds in slowest.items():
        if seconds > guess.seconds - guess.launch_s:
            guess = replace(guess, seconds=seconds + guess.launch_s, bound=bound)
    return guess


def _traffic(
    body: Body, graph: Graph, layouts: Mapping[str, Layout], gpu: Gpu, products: Sequence[Product] = ()
) -> Traffic:
    """Bytes and operations; every stage is a tile, so it is computed once where it is read in place."""
    peaks = machine(gpu)
    kept = frozenset(stage.name for stage in body.stages)
    traffic = region_traffic(body, graph, layouts, peaks, 1, 1.0, kept)
    dtype = products[0].left.dtype.name if products else traffic.dtype
    vector_s, product_s = work_seconds(body, products, gpu)
    least = traffic.flops / peaks.peak_flops_per_s(dtype, 1)
    efficiency = min(1.0, least / (vector_s + product_s)) if vector_s + product_s else 1.0
    return replace(traffic, dtype=dtype, flop_efficiency=efficiency or 1.0)


def work_seconds(body: Body, products: Sequence[Product], gpu: Gpu) -> tuple[float, float]:
    """What all SMs together take for the vector instructions of a region, and for its products."""
    peaks, roots = machine(gpu), [product.root for product in products]
    others = [stage for stage in body.stages if stage not in roots]
    vector_s = 2 * sum(map(stage_instructions, others)) / peaks.peak_flops_per_s("float32", 1)
    flops = sum(map(stage_flops, roots))
    return vector_s, flops / peaks.peak_flops_per_s(products[0].left.dtype.name, 1) if products else 0.0


def chain_tiles(link: Link, gpu: Gpu, online: bool) -> Iterator[Tile]:
    """Tiles for two products that leave room for both totals in registers and for what is read in shared
    memory; `online`: whether a softmax may be cut."""
    _, m, _, _ = link.first.sizes
    n, size = power_of_two(link.second.sizes[2]), link.first.left.dtype.size_bytes
    most, k = TOTALS[size] * gpu.warp_size, Sums(link.first, "j", 0, 1).k
    whole = max(16, power_of_two(link.length))
    middles = [whole] if link.passes and not (online and link.softmax) else [32, 64, 128, whole]
    depths = (min(64 if size == 2 else 32, max(16, power_of_two(k))), max(16, power_of_two(k)))
    for rows, columns, middle, depth, warps, stages in product(
        (16, 32, 64, 128), (64, 128, 256, 512), middles, sorted(set(depths)), (4, 8), (3, 2, 1)
    ):
        too_wide = rows > max(16, power_of_two(m)) or columns > max(64, n) or middle > whole or depth > 256
        totals = rows * (columns + middle)
        held = size * (rows * depth + stages * middle * (depth + columns))
        if too_wide or totals > most * warps or held > gpu.shared_bytes_per_block:
            continue
        if warps == 8 and totals * 2 < most * 4:
            continue
        yield Tile(rows, min(columns, max(16, n)), depth, warps, stages, middle=middle)


def chain_candidates(
    body: Body, graph: Graph, layouts: Mapping[str, Layout], gpu: Gpu, link: Link, online: bool
) -> list[Candidate]:
    """Two products as one kernel; raises `FormMismatch` where no tile has room for what passes between."""
    products = (link.first, link.second)
    traffic = _traffic(body, graph, layouts, gpu, products)
    vector_s, product_s = work_seconds(body, products, gpu)
    moved, found = is_moved(body, link.first.left.buffer), []
    for tile in chain_tiles(link, gpu, online):
        batches, m, n, _ = link.second.sizes
        sums = Sums(link.first, "j", tile.middle, tile.depth)
        columns, blocks = math.ceil(n / tile.columns), math.ceil(link.length / tile.middle)
        programs, steps = batches * math.ceil(m / tile.rows) * columns, sums.taps * sums.steps
        wide, deep = blocks * tile.middle, steps * tile.depth
        done = 2 * programs * tile.rows * wide * (deep + tile.columns)
        done_s = done / (stage_flops(link.first.root) + stage_flops(link.second.root)) * product_s
        again = 1 if steps == 1 else blocks  # times that the first left operand is read, or computed
        # What has been summed is scaled down at each block.
        scaled = programs * tile.rows * tile.columns * blocks * 2 if link.passes and blocks > 1 else 0
        others_s = columns * vector_s * (1 if moved else again) + scaled / gpu.roof("float32 fma")
        read = programs * (tile.rows * deep * again + wide * (deep + tile.columns))
        waits = 1 + (blocks - 1) / tile.stages if steps == 1 else blocks * (1 + steps / tile.stages)
        more = (done_s + others_s) / (product_s + vector_s)
        size = link.first.left.dtype.size_bytes
        found.append(Candidate(tile, cut_estimate(traffic, programs, more, read * size, waits, gpu)))
    if not found:
        raise FormMismatch(
            f"a tile of {link.length:,} columns of what passes between takes more than a block of "
            f"{gpu.product} has: {gpu.shared_bytes_per_block:,} bytes of shared memory, {gpu.max_registers} "
            "registers a thread"
        )
    return sorted(found, key=lambda c: (c.estimate.seconds, -c.tile.middle, -c.tile.stages))
