"""What the flow picture shows, before it has places: rows of operators in regions in folds.

In: the unfused and the fused plan. Out: a tree of `Block` (a region, or the same region of every
repetition) and `Fold`; each row holds the transfers of its node on both sides, summed over the repetitions.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby

from onepass.fuse.plan import Plan, Region
from onepass.loops.ir import Home
from onepass.report import folding
from onepass.report.flows import InnerEdge, Kind, NodeFlow, Transfer, homes_of, region_flow
from onepass.report.units import bytes_text, plural

# More rows than this nobody reads: the parts that move least are then drawn as one.
_MOST_ROWS = 96
# A value that more regions read (an attention mask) is the same for every block, wherever the block stands.
_SHARED_READERS = 6


@dataclass(frozen=True, slots=True)
class Lane:
    """One arrow between memory and an operator."""

    kind: Kind
    is_write: bool
    size_bytes: int
    title: str
    copies: int = 1

    @property
    def label(self) -> str:
        """What is written on the arrow."""
        names = {"weights": "weights ", "model": "output " if self.is_write else "input ", "intermediate": ""}
        return names[self.kind] + bytes_text(self.size_bytes)


@dataclass(frozen=True, slots=True)
class Inner:
    """An arrow inside a region, from row `source`; `is_next` when it comes from the row above."""

    value: str
    source: int
    is_next: bool
    home: Home
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """One operator; `copies` repetitions. `is_in_before` is false where it runs a second time only after."""

    spelling: str
    name: str
    full_name: str
    copies: int
    is_in_before: bool
    before: tuple[Lane, ...]
    after: tuple[Lane, ...]
    inner: tuple[Inner, ...]

    @property
    def is_view(self) -> bool:
        """Moves nothing, not even inside its region: it only renames elements."""
        return not (self.before or self.after or self.inner)


@dataclass(frozen=True, slots=True)
class Block:
    """One region: its rows, and the bytes that it saves over all its copies."""

    form: str
    copies: int
    saved_bytes: int
    rows: tuple[Row, ...]

    @property
    def is_fused(self) -> bool:
        """Several operators in one kernel."""
        return len(self.rows) > 1


@dataclass(frozen=True, slots=True)
class Fold:
    """A repeated sequence; `counts` as in `folding.Fold`."""

    body: tuple[Block | Fold, ...]
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """How often the body occurs in the whole model."""
        return sum(self.counts)


def flow_rows(before: Plan, after: Plan) -> tuple[Block | Fold, ...]:
    """The tree, in the order in which the regions run."""
    homes = homes_of(after)
    flows = [region_flow(region, after, homes) for region in after.regions]
    was_homes = homes_of(before)
    alone = {
        flow.node.name: flow
        for region in before.regions
        for flow in region_flow(region, before, was_homes)
    }
    seen: set[str] = set()
    unfused = []
    for region in after.regions:
        unfused.append([alone.get(node.name) if node.name not in seen else None for node in region.nodes])
        seen.update(node.name for node in region.nodes)
    parts = folding.fold(_signatures(after, flows))
    return _shorten([_build(part, after.regions, flows, unfused) for part in parts])


def rows_of(parts: Sequence[Block | Fold]) -> list[Row]:
    """All rows, in drawing order."""
    return [row for p in parts for row in (p.rows if isinstance(p, Block) else rows_of(p.body))]


def _shorten(parts: Sequence[Block | Fold]) -> tuple[Block | Fold, ...]:
    """Keeps the parts that move most, up to `_MOST_ROWS` rows; each run of others becomes one row."""
    room, kept = _MOST_ROWS, set()
    if len(rows_of(parts)) <= room:
        return tuple(parts)
    sizes = [sum(lane.size_bytes for row in rows_of([part]) for lane in row.before) for part in parts]
    for i in sorted(range(len(parts)), key=lambda i: -sizes[i]):
        rows = len(rows_of([parts[i]]))
        if rows <= room:
            kept.add(i)
            room -= rows
    shown: list[Block | Fold] = []
    for is_kept, run in groupby(range(len(parts)), key=lambda i: i in kept):
        indices = list(run)
        shown += [parts[i] for i in indices] if is_kept else [_omission([parts[i] for i in indices])]
    return tuple(shown)


def _omission(parts: Sequence[Block | Fold]) -> Block:
    rows = rows_of(parts)
    before, after = (
        tuple(
            Lane(kind, is_write, sum(lane.size_bytes for lane in lanes), f"{len(lanes)} transfers")
            for is_write in (False, True)
            for kind in ("model", "intermediate", "weights")
            if (lanes := [a for row in side for a in row if a.kind == kind and a.is_write == is_write])
        )
        for side in ([row.before for row in rows], [row.after for row in rows])
    )
    count = sum(row.copies for row in rows)
    name = f"{rows[0].name} … {rows[-1].name}"
    row = Row(f"{count} operators", name, name, 1, True, before, after, ())
    saved = sum(lane.size_bytes for lane in before) - sum(lane.size_bytes for lane in after)
    return Block("omission", 1, saved, (row,))


def _build(
    part: folding.Leaf | folding.Fold,
    regions: Sequence[Region],
    flows: Sequence[tuple[NodeFlow, ...]],
    unfused: Sequence[Sequence[NodeFlow | None]],
) -> Block | Fold:
    if isinstance(part, folding.Fold):
        return Fold(tuple(_build(inner, regions, flows, unfused) for inner in part.body), part.counts)
    rows = tuple(
        _row([flows[i][j] for i in part.items], [unfused[i][j] for i in part.items])
        for j in range(len(regions[part.items[0]].nodes))
    )
    before_bytes = sum(lane.size_bytes for row in rows for lane in row.before)
    after_bytes = sum(lane.size_bytes for row in rows for lane in row.after)
    return Block(regions[part.items[0]].form, len(part.items), before_bytes - after_bytes, rows)


def _row(after: Sequence[NodeFlow], before: Sequence[NodeFlow | None]) -> Row:
    node = after[0].node
    names = [flow.node.name for flow in after]
    shown = [flow for flow in before if flow is not None]
    inner = tuple(
        Inner(first[0].value, first[0].source, first[0].source == first[0].target - 1, first[0].home,
              sum(edge.size_bytes for edge in first))
        for first in _columns([flow.inner for flow in after])
    )  # fmt: skip
    full = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    spelling = node.spelling or node.op
    short = _pattern(names).removesuffix(f"/{spelling}").removeprefix("/")
    return Row(spelling, short or names[0], full, len(names), bool(shown), _lanes(shown),
               _lanes(after), inner)  # fmt: skip


def _columns(rows: Sequence[tuple[InnerEdge, ...]]) -> list[tuple[InnerEdge, ...]]:
    return list(zip(*rows, strict=False))


def _lanes(flows: Sequence[NodeFlow]) -> tuple[Lane, ...]:
    lanes = []
    for is_write, transfers in ((False, [f.reads for f in flows]), (True, [f.writes for f in flows])):
        for column in zip(*transfers, strict=False):
            # The last repetition may write an output of the model where the others write intermediates.
            kinds = dict.fromkeys(transfer.kind for transfer in column)
            lanes += [_lane([t for t in column if t.kind == kind], is_write) for kind in kinds]
    return tuple(lanes)


def _lane(column: Sequence[Transfer], is_write: bool) -> Lane:
    size = sum(transfer.size_bytes for transfer in column)
    what = ", ".join(column[0].values[:3]) + (" …" if len(column[0].values) > 3 else "")
    times = "" if len(column) == 1 else f" and {plural(len(column) - 1, 'more value')}"
    title = f"{'write' if is_write else 'read'} {what}{times}: {bytes_text(size)}"
    return Lane(column[0].kind, is_write, size, title, len(column))


def _pattern(names: Sequence[str]) -> str:
    """One name for several: digits that differ become `*` (`layer*.*/conv1`), else the first and `…`."""
    if len(names) == 1:
        return names[0]
    split = [re.split(r"(\d+)", name) for name in names]
    if len({tuple(words[::2]) for words in split}) > 1:
        return f"{names[0]} …"
    return "".join(words[0] if len(set(words)) == 1 else "*" for words in zip(*split, strict=True))


def _signatures(plan: Plan, flows: Sequence[tuple[NodeFlow, ...]]) -> list[Hashable]:
    """What makes two regions look alike: form, ops, how values run inside, and how far sources lie back."""
    maker = {value: i for i, region in enumerate(plan.regions) for value in region.outputs}
    readers: dict[str, int] = {}
    for flow in (flow for region in flows for flow in region):
        for transfer in flow.reads:
            for value in transfer.values:
                readers[value] = readers.get(value, 0) + 1

    def distance(transfer: Transfer, at: int) -> Hashable:
        value = transfer.values[0]
        if transfer.kind != "intermediate" or readers[value] > _SHARED_READERS or value not in maker:
            return transfer.kind
        return at - maker[value]

    return [
        (region.form, tuple(
            (flow.node.op, flow.node.spelling, tuple(distance(t, i) for t in flow.reads),
             len(flow.writes), tuple((e.source, e.home) for e in flow.inner))
            for flow in flows[i]))
        for i, region in enumerate(plan.regions)
    ]  # fmt: skip
