"""What the flow picture shows, before it has places: rows of operators in regions in folds.

In: the unfused and the fused plan. Out: a tree of `Block` (a region, or the same region of every
repetition) and `Fold`; each row holds the transfers of its node on both sides, summed over the repetitions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from onepass.fuse.plan import Plan
from onepass.report import folding
from onepass.report.flows import InnerEdge, NodeFlow, Transfer, plan_flows
from onepass.report.folding import Fold

# A value that more regions read (an attention mask) is the same for every block, wherever the block stands.
_SHARED_READERS = 6


@dataclass(frozen=True, slots=True)
class Row:
    """One operator; `copies` repetitions. `is_in_before` is false where it runs a second time only after."""

    spelling: str
    name: str
    full_name: str
    copies: int
    is_in_before: bool
    before: tuple[Transfer, ...]
    after: tuple[Transfer, ...]
    inner: tuple[InnerEdge, ...]

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


Part = Block | Fold[Block]


def flow_rows(before: Plan, after: Plan) -> tuple[Part, ...]:
    """The tree, in the order in which the regions run."""
    flows = plan_flows(after)
    alone = {flow.node.name: flow for region in plan_flows(before) for flow in region}
    # What runs a second time after, runs once before: at its first place.
    unfused = [[alone.pop(node.name, None) for node in region.nodes] for region in after.regions]

    def build(part: folding.Leaf | Fold[folding.Leaf]) -> Part:
        if isinstance(part, Fold):
            return Fold(tuple(map(build, part.body)), part.counts)
        rows = tuple(
            _row([flows[i][j] for i in part.items], [unfused[i][j] for i in part.items])
            for j in range(len(flows[part.items[0]]))
        )
        saved = sum(t.size_bytes for row in rows for t in row.before)
        saved -= sum(t.size_bytes for row in rows for t in row.after)
        return Block(after.regions[part.items[0]].form, len(part.items), saved, rows)

    return tuple(map(build, folding.fold(_signatures(after, flows))))


def rows_of(parts: Sequence[Part]) -> list[Row]:
    """All rows, in drawing order."""
    return [row for p in parts for row in (p.rows if isinstance(p, Block) else rows_of(p.body))]


def _row(after: Sequence[NodeFlow], before: Sequence[NodeFlow | None]) -> Row:
    node = after[0].node
    names = [flow.node.name for flow in after]
    shown = [flow for flow in before if flow is not None]
    inner = tuple(
        replace(edges[0], size_bytes=sum(edge.size_bytes for edge in edges))
        for edges in zip(*(flow.inner for flow in after), strict=False)
    )
    full = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    spelling = node.spelling or node.op
    short = _pattern(names).removesuffix(f"/{spelling}").removeprefix("/")
    return Row(spelling, short or names[0], full, len(names), bool(shown), _added_up(shown),
               _added_up(after), inner)  # fmt: skip


def _added_up(flows: Sequence[NodeFlow]) -> tuple[Transfer, ...]:
    """One transfer for each that the repetitions have in common."""
    found = []
    for column in zip(*(flow.transfers for flow in flows), strict=False):
        # The last repetition may write an output of the model where the others write intermediates.
        for kind in dict.fromkeys(transfer.kind for transfer in column):
            same = [transfer for transfer in column if transfer.kind == kind]
            values = tuple(value for transfer in same for value in transfer.values)
            size = sum(transfer.size_bytes for transfer in same)
            found.append(Transfer(kind, values, size, same[0].is_write, len(same)))
    return tuple(found)


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
    everything = (t for region in flows for flow in region for t in flow.transfers if not t.is_write)
    readers = Counter(value for transfer in everything for value in transfer.values)

    def distance(transfer: Transfer, at: int) -> Hashable:
        value = transfer.values[0]
        if transfer.is_write:
            return "write"
        if transfer.kind != "intermediate" or readers[value] > _SHARED_READERS or value not in maker:
            return transfer.kind
        return at - maker[value]

    return [
        (region.form, tuple(
            (flow.node.op, flow.node.spelling, tuple(distance(t, i) for t in flow.transfers),
             tuple((e.source, e.home) for e in flow.inner))
            for flow in flows[i]))
        for i, region in enumerate(plan.regions)
    ]  # fmt: skip
