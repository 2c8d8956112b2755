"""How a nest is cut: vector axis, register tile, order of the outer loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

CHUNK = 16  # steps of a long reduction that are written out: one block of channels


@dataclass(frozen=True, slots=True)
class Schedule:
    """Axes are positions in the output's logical axes.

    One register tile holds `tile_size` positions of axis `tile` times `vectors` vectors of `lanes` elements
    of axis `vector`. `order` lists the axes split among the workers, outermost first; it holds `vector`
    (in steps of vectors*lanes) and never `tile`, whose tiles run inside. An axis that stands there twice is
    cut into blocks of `block`, a divisor of its extent: first the blocks, then the places in one. `unroll`
    bounds the operations written out in the innermost loop. `flat`: the tile runs over `tile` and the axis
    before it as one, in whole rows. `ahead`: an axis of `order`; what its next step reads is fetched early.
    `whole`: each worker takes whole rows along the last axis of `order`, one vector after another.
    `phases`: axes and divisors of their extents; places that far apart are computed side by side.
    `depth`: chunks of the reduction that all tiles pass before the next ones, their sums set aside; 0: all.
    """

    vector: int
    lanes: int
    vectors: int
    tile: int | None
    tile_size: int
    order: tuple[int, ...]
    block: int = 1
    unroll: int = 512
    flat: bool = False
    ahead: int | None = None
    phases: tuple[tuple[int, int], ...] = ()
    whole: bool = False
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of equal steps along one axis: `count` steps of `width` from `start`."""

    start: int
    count: int
    width: int


def segments(extent: int, width: int) -> tuple[Segment, ...]:
    """`extent` as full steps of `width` and one rest."""
    full, rest = divmod(extent, width)
    parts = (Segment(0, full, width), Segment(full * width, 1, rest))
    return tuple(part for part in parts if part.count and part.width)


def steps(extent: int, vectors: int, lanes: int) -> Iterator[tuple[Segment, int, int]]:
    """`extent` in steps of `vectors` times `lanes`, then of the whole vectors left, then of the lanes left.

    Each with its vectors and lanes.
    """
    for part in segments(extent, vectors * lanes):
        whole, rest = divmod(part.width, lanes)
        if whole:
            yield Segment(part.start, part.count, whole * lanes), whole, lanes
        if rest:
            yield Segment(part.start + whole * lanes, 1, rest), 1, rest
