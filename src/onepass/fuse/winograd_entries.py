"""The ledger's entries for what only Winograd's form makes: its transformed tiles and their products.

In: a shaped region. Out: decisions whose values no graph holds, named after the convolution. They save
nothing against the unfused model, which does not have them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from onepass.core.dtypes import F32
from onepass.forms.regions import Shaped
from onepass.forms.winograd import shape_of
from onepass.forms.winograd_choice import error_bound
from onepass.fuse.plan import Decision
from onepass.fuse.rules import REASONS
from onepass.graph.ir import Graph, Node


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Bytes of all transformed tiles, of all products, and of the transformed weights."""

    tiles: int
    products: int
    weights: int


def winograd_entries(graph: Graph, shaped: Shaped) -> tuple[Decision, ...]:
    """The two entries of a region in Winograd's form, none for any other."""
    conv = convolution(shaped)
    if conv is None or shaped.winograd is None:
        return ()
    schedule, sizes = shaped.winograd, _sizes(shaped)
    weights, edge = graph.constants[conv.inputs[1]], schedule.edge
    direct_us, saved = (shaped.alternative_s or 0.0) * 1e6, 9 * edge**2 / (edge + 2) ** 2
    numbers = (
        f"F({edge}x{edge}) in blocks of {schedule.tiles} tiles, {saved:g} times fewer multiplications, "
        f"predicted {shaped.estimate.seconds * 1e6:.1f} µs against {direct_us:.1f} µs direct; weights "
        f"{sizes.weights:,} bytes instead of {weights.nbytes:,}; off by at most "
        f"{error_bound(weights, edge):.1e} times the largest input"
    )
    return tuple(
        Decision(
            f"{conv.name}#{what}", conv.name, conv.name, "cache", "winograd",
            f"{REASONS['winograd']}: {numbers}", size, {}, shaped.estimate.seconds,
        )
        for what, size in (("tiles", sizes.tiles), ("products", sizes.products))
    )  # fmt: skip


def convolution(shaped: Shaped) -> Node | None:
    """The convolution of the region, None where it has none."""
    return next((node for node in shaped.nodes if node.op == "conv"), None)


def direct_note(shaped: Shaped) -> str:
    """For a convolution that Winograd's form would slow down, the price; '' for any other region."""
    if shaped.form != "contraction" or shaped.alternative_s is None:
        return ""
    winograd, direct = shaped.alternative_s * 1e6, shaped.estimate.seconds * 1e6
    return f"; computed directly: Winograd is predicted to take {winograd:.1f} µs against {direct:.1f} µs"


def _sizes(shaped: Shaped) -> _Sizes:
    schedule, shape = shaped.winograd, shape_of(shaped.body.reductions()[0])
    assert schedule is not None and shape is not None
    vector = F32.size_bytes * schedule.lanes
    inputs, outputs = -(-shape.channels // schedule.lanes), -(-shape.outputs // schedule.lanes)
    lines = (schedule.edge + 2) ** 2 * shape.count(schedule.edge) * vector
    weights = math.prod(((schedule.edge + 2) ** 2, shape.channels, outputs, vector))
    return _Sizes(lines * inputs, lines * outputs, weights)
