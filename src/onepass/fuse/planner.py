"""Decides which nodes run as one kernel: merges along edges while the predicted time falls.

In: a graph with layouts, and the machine. Out: the plan, with one decision for every edge, and the shaped
regions to build. Leaving an edge alone is always the alternative.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from onepass.core.errors import OptionError
from onepass.cost.gpu import Fit
from onepass.cost.machine import Level
from onepass.cost.roofline import Estimate, Traffic
from onepass.forms.nest import FormMismatch
from onepass.forms.regions import Context, Option, Shaped, rows_key, shape_chain, shape_region
from onepass.forms.traffic import serving_level, value_bytes
from onepass.fuse import rules
from onepass.fuse.groups import Group, Groups
from onepass.fuse.plan import Decision, Plan, Region
from onepass.fuse.recompute import Repeat, copy_cheap_producers
from onepass.fuse.split import cut_through
from onepass.fuse.winograd_entries import convolution, direct_note, winograd_entries
from onepass.graph.ir import Node
from onepass.loops.ir import Home

MOST_SLOWER = 1.5  # a chain that is predicted to be slower by more is not worth timing


@dataclass(frozen=True, slots=True)
class FuseMode:
    """The option `fuse`.

    `kind` is `none` (every node a kernel), `auto` (a merge must be legal and predicted to be no slower) or
    `all` (legal is enough). `names`: only merges whose region then holds one of these nodes. `limit`: only
    the first merges that would be made without it, so that halving it finds a bad one.
    """

    kind: str
    names: frozenset[str] = frozenset()
    limit: int | None = None

    @staticmethod
    def parse(text: str) -> FuseMode:
        """`none`, `auto`, `all`, `only=NAME,...` or `limit=N`; raises `OptionError`."""
        kind, _, value = text.partition("=")
        names = frozenset(name.strip() for name in value.split(",") if name.strip())
        if kind in ("none", "auto", "all") and not value:
            return FuseMode(kind)
        if kind == "only" and names:
            return FuseMode("auto", names=names)
        if kind == "limit" and value.isdecimal():
            return FuseMode("auto", limit=int(value))
        raise OptionError(
            f"'{text}' is not a way to fuse", remedy="use none, auto, all, only=NODE[,NODE] or limit=N"
        )

    def allowed(self, rewrites: frozenset[str]) -> frozenset[str]:
        """Those of `rewrites` that keep to this mode: `winograd` keeps values in cache, `none` keeps none."""
        return rewrites - {"winograd"} if self.kind == "none" else rewrites

    def objection(self, nodes: Iterable[Node], merges: int = 0) -> str:
        """Why `nodes` may not become one region after so many `merges`, '' where they may."""
        if self.kind == "none":
            return "by fuse=none"
        if self.limit is not None and merges >= self.limit:
            return f"by limit={self.limit}, which other merges used up"
        if self.names and not any(node.user_name in self.names for node in nodes):
            return "neither side holds a node named in only="
        return ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of trying to fuse along an edge.

    `gain_s` is what fusing saves, None where it cannot be; the value would then live in `home`. `fits`: what
    compiled code showed.
    """

    reason: str
    numbers: str
    gain_s: float | None = None
    home: Home = "register"
    fits: tuple[Fit, ...] = ()


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan, and for each of its regions the shape to build (None: a view, no kernel)."""

    plan: Plan
    shaped: tuple[Shaped | None, ...]


def make_plan(context: Context, mode: FuseMode) -> Planned:
    """Plans the whole graph."""
    unlimited = replace(mode, limit=None)
    planner = _Planner(context, unlimited)

    def may_fuse(nodes: Sequence[Node]) -> bool:
        return not unlimited.objection(nodes) and cut_through(context, nodes) is None

    copies = copy_cheap_producers(planner.groups, may_fuse)
    repeated: Mapping[str, Repeat] = {}
    if copies is not None:
        context = replace(context, graph=copies.graph, layouts=copies.layouts)
        repeated = copies.repeated
    if copies is not None or mode != unlimited:
        planner = _Planner(context, mode)
    groups = planner.groups.in_order()
    regions = tuple(_region(planner.groups, number, group) for number, group in enumerate(groups))
    plan = Plan(context.graph, regions, planner.ledger(regions, repeated), dict(context.layouts), 0)
    return Planned(plan, tuple(group.shaped for group in groups))


NOTHING = Estimate(Traffic(0, 0, {}, launches=0), 0.0, 0.0, {}, 0.0, "view")


def _region(groups: Groups, number: int, group: Group) -> Region:
    nodes = tuple(groups.nodes(group.members))
    outputs = groups.leaving(group.members)
    if group.shaped is None:
        read = nodes[0].inputs if nodes[0].op == "concat" else nodes[0].inputs[:1]
        return Region(number, "view", nodes, read, outputs, NOTHING)
    inputs = tuple(name for name in group.shaped.body.inputs if name in groups.graph.types)
    shaped = group.shaped
    return Region(
        number, shaped.form, nodes, inputs, outputs, shaped.estimate, shaped.options, shaped.in_cache
    )


class _Planner:
    """Merges groups under `mode`; `attempts` holds, by value and consumer, what decided the edge."""

    def __init__(self, context: Context, mode: FuseMode) -> None:
        self.groups, self.mode, self.merges = Groups(context), mode, 0
        self.attempts: dict[tuple[str, int], Attempt] = {}
        graph, producer_of = self.groups.graph, self.groups.producer_of
        for at, node in enumerate(graph.nodes):
            values = [name for name in dict.fromkeys(node.inputs) if name in producer_of]
            for value in sorted(values, key=lambda n: (-graph.types[n].size, -producer_of[n])):
                self._fuse_along(value, at)
        if mode.kind == "none":
            return
        for group in reversed(self.groups.in_order()):
            self._gather(group)
        made = -1  # on a GPU what a chain reads may have had several readers, which are one now
        while made < self.merges and (made < 0 or context.shaper is not None):
            made = self.merges
            for at, node in enumerate(graph.nodes):
                for value in dict.fromkeys(node.inputs):
                    if value in producer_of:
                        self._chain_along(value, at)

    def _gather(self, last: Group) -> None:
        """Makes `last` one with all that leads to it, where pairs alone would be slower but all are faster.

        So it is where values pass through a cache that all inputs together would push them out of.
        """
        groups, parts, edges = self.groups, [last], list[tuple[str, int]]()
        if groups.group_of[max(last.members)] is not last:
            return  # it is part of another by now
        for group in parts:
            for value, at in self._read_by(group):
                producer = groups.group_of[groups.producer_of[value]]
                known = any(producer is part for part in parts)
                if not known and self.attempts[value, at].reason == "slower":
                    parts.append(producer)
        members = frozenset().union(*(part.members for part in parts))
        if len(parts) < 3 or groups.leaving(members) != groups.leaving(last.members):
            return
        nodes = groups.nodes(members)
        if self.mode.objection(nodes, self.merges) or self._cut(nodes):
            return
        try:
            shaped = shape_region(groups.context, nodes, groups.leaving(members))
        except FormMismatch:
            return
        apart, together = sum(part.seconds for part in parts), shaped.estimate.seconds
        if together < apart:
            attempt = Attempt("fused", f"{_us(together)} instead of {_us(apart)}", apart - together)
            for part in parts:
                edges += [edge for edge in self._read_by(part) if groups.producer_of[edge[0]] in members]
            self.attempts |= dict.fromkeys(edges, attempt)
            groups.merge(parts, shaped)
            self.merges += len(parts) - 1

    def _read_by(self, group: Group) -> list[tuple[str, int]]:
        """The values of other groups that `group` reads, each with the position of its reader."""
        groups, made = self.groups, self.groups.producer_of
        return [
            (name, at)
            for at in sorted(group.members)
            for name in dict.fromkeys(groups.graph.nodes[at].inputs)
            if name in made and made[name] not in group.members
        ]

    def _chain_along(self, value: str, at: int) -> None:
        """Puts the producer of `value` and its one reader into a chain, where that is faster.

        A producer of rows that alone reads what a product makes comes with that.
        """
        groups = self.groups
        producer, consumer = groups.group_of[groups.producer_of[value]], groups.group_of[at]
        if producer is consumer or not self._hands_over(producer, consumer, value):
            return
        parts = [producer, consumer]
        if producer.shaped is not None and producer.shaped.form == "row":
            parts[:0] = self._product_before(producer)
        edges = [edge for pair in pairwise(parts) for edge in groups.edges_between(*pair)]
        attempt, shaped = self._chain_attempt(parts, value, self.attempts[value, at])
        self.attempts |= dict.fromkeys(edges, attempt)
        if shaped is not None:
            groups.merge(parts, shaped)
            self.merges += len(parts) - 1

    def _hands_over(self, producer: Group, consumer: Group, value: str) -> bool:
        """Whether all that `producer` makes for others is `value`, and for `consumer` alone."""
        groups = self.groups
        if producer.shaped is None or consumer.shaped is None or value in groups.graph.outputs:
            return False
        readers = {id(groups.group_of[reader]) for reader in groups.consumers_of[value]}
        return readers == {id(consumer)} and groups.leaving(producer.members) == (value,)

    def _product_before(self, reader: Group) -> list[Group]:
        """A product whose only reader is `reader`, if there is one."""
        groups = self.groups
        read = [name for node in groups.nodes(reader.members) for name in node.inputs]
        for name in (name for name in dict.fromkeys(read) if name in groups.producer_of):
            group = groups.group_of[groups.producer_of[name]]
            if group.shaped and group.shaped.form == "contraction" and self._hands_over(group, reader, name):
                return [group]
        return []

    def _chain_attempt(self, parts: list[Group], value: str, old: Attempt) -> tuple[Attempt, Shaped | None]:
        context, shapes = self.groups.context, [part.shaped for part in parts if part.shaped]
        nodes = self.groups.nodes(frozenset().union(*(part.members for part in parts)))
        if cut := self._cut(nodes):
            return cut, None
        try:
            shaped = shape_chain(context, shapes)
        except FormMismatch as mismatch:
            return replace(old, numbers=old.numbers or str(mismatch)), None
        apart, together = sum(part.seconds for part in parts), shaped.estimate.seconds
        settled = (context.choices or {}).get(rows_key(value))
        worth = together < apart or self.mode.kind == "all" if settled is None else settled
        if objection := self.mode.objection(nodes, self.merges):
            return Attempt("switched_off", objection), None
        if not worth:
            numbers = f"through rows in cache {_us(together)} against {_us(apart)}"
            if context.shaper is not None:  # name what the capacities of an SM leave
                place = next(iter(shaped.in_cache.values()), "in its tile")
                numbers += f", held up by {shaped.estimate.bound} {place}"
            # Neighbours are timed one at a time: what one does changes what the other meets.
            if together < MOST_SLOWER * apart and not any(part.options for part in shapes):
                parts[-1].shaped = self._with_ways(shapes[-1], (value,), apart, together, False)
            return Attempt(old.reason, numbers, apart - together, "cache"), None
        attempt = Attempt("rows_in_cache", f"{_us(together)} instead of {_us(apart)}", apart - together)
        apart = sum(part.options[1].seconds if part.chain and part.options else part.estimate.seconds
                    for part in shapes)  # fmt: skip
        return attempt, self._with_ways(shaped, tuple(shaped.in_cache), apart, together, True)

    def _with_ways(
        self, shaped: Shaped, values: tuple[str, ...], apart: float, together: float, chained: bool
    ) -> Shaped:
        """`shaped` with both ways to hand over `values`, its own first, where they are worth timing."""
        choices = self.groups.context.choices
        keys = [rows_key(value) for value in values]
        if choices is None or not keys or all(key in choices for key in keys):
            return shaped
        rows = Option("rows in cache", together, dict.fromkeys(keys, True))
        memory = Option("apart", apart, dict.fromkeys(keys, False))
        return replace(shaped, options=(rows, memory) if chained else (memory, rows))

    def _cut(self, nodes: Sequence[Node]) -> Attempt | None:
        """What becomes of an attempt to make one kernel of `nodes` that compiled code showed not to fit."""
        cut = cut_through(self.groups.context, nodes)
        if cut is None:
            return None
        return Attempt("does_not_fit", str(cut.fits[-1]) if cut.fits else "no tile has room", fits=cut.fits)

    def _fuse_along(self, value: str, at: int) -> None:
        groups = self.groups
        producer, consumer = groups.group_of[groups.producer_of[value]], groups.group_of[at]
        if producer is consumer:
            return
        attempt, shaped = self._attempt(producer, consumer, value)
        self.attempts[value, at] = attempt
        if shaped is not None:
            self.attempts |= dict.fromkeys(groups.edges_between(producer, consumer), attempt)
            groups.merge((producer, consumer), shaped)
            self.merges += 1

    def _attempt(self, producer: Group, consumer: Group, value: str) -> tuple[Attempt, Shaped | None]:
        groups = self.groups
        if producer.shaped is None or consumer.shaped is None:
            return Attempt(groups.view_reason(producer, consumer), ""), None
        objection = self.mode.objection(groups.nodes(producer.members | consumer.members), self.merges)
        if objection:
            return Attempt("switched_off", objection), None
        refusal = groups.refusal(producer, consumer, value)
        if refusal:
            return Attempt(refusal, ""), None
        if cut := self._cut(groups.nodes(producer.members | consumer.members)):
            return cut, None
        try:
            shaped = groups.merged(producer, consumer)
        except FormMismatch as mismatch:
            return Attempt("form_mismatch", str(mismatch)), None
        apart, together = producer.seconds + consumer.seconds, shaped.estimate.seconds
        if self.mode.kind != "all" and together > apart:
            return Attempt("slower", f"{_us(together)} against {_us(apart)}", apart - together), None
        return Attempt("fused", f"{_us(together)} instead of {_us(apart)}", apart - together), shaped

    def ledger(self, regions: tuple[Region, ...], repeated: Mapping[str, Repeat]) -> tuple[Decision, ...]:
        """One decision for every edge: each reader of each value that a node makes or the user gives."""
        groups, graph = self.groups, self.groups.graph
        region_of = {node.name: region for region in regions for node in region.nodes}
        found: list[Decision] = []
        for value in graph.types:
            if value not in groups.producer_of and value not in graph.inputs:
                continue
            source = groups.producer_of.get(value)
            maker = graph.nodes[source].name if source is not None else ""
            size = value_bytes(graph, groups.context.layouts, value)
            outside = (None,) if value in graph.outputs else ()
            for at in (*groups.consumers_of[value], *outside):
                reader = graph.nodes[at].name if at is not None else ""
                ends = {region_of[name].id: region_of[name] for name in (maker, reader) if name}
                seconds = sum(region.estimate.seconds for region in ends.values())
                boundary = rules.REASONS["graph_boundary"]
                edge = Decision(value, maker, reader, "memory", "graph_boundary", boundary, size, {}, seconds)
                if at is not None and source is not None:
                    within = region_of[reader] if len(ends) == 1 else None
                    edge = self._decided(edge, at, within, repeated.get(value))
                found.append(self._told_of_winograd(edge, at))
        for group in groups.in_order():
            found += winograd_entries(graph, group.shaped) if group.shaped else ()
        return tuple(found)

    def _told_of_winograd(self, edge: Decision, reader: int | None) -> Decision:
        """`edge` with the price of Winograd's form where a convolution that reads it declined that."""
        shaped = self.groups.group_of[reader].shaped if reader is not None else None
        conv = convolution(shaped) if shaped is not None else None
        if shaped is None or conv is None or (edge.consumer, edge.value) != (conv.name, conv.inputs[0]):
            return edge
        return replace(edge, detail=edge.detail + direct_note(shaped))

    def _decided(self, edge: Decision, reader: int, region: Region | None, repeat: Repeat | None) -> Decision:
        """`edge` between two nodes, within `region` unless that is None."""
        attempt = self.attempts[edge.value, reader]
        if region is not None:
            return self._inside(edge, reader, region, attempt, repeat)
        detail = _detail(attempt.reason, attempt.numbers)
        decided = replace(edge, reason=attempt.reason, detail=detail, fits=attempt.fits)
        node = self.groups.graph.nodes[reader]
        if self.groups.group_of[reader].shaped is None and not node.opdef.view:  # it would read and write it
            made = value_bytes(self.groups.graph, self.groups.context.layouts, node.outputs[0])
            return replace(decided, saved_bytes=self._saved(edge, 2 * min(edge.value_bytes, made)))
        if attempt.gain_s is None:
            return decided
        return replace(decided, alternative=attempt.home, alternative_s=edge.seconds - attempt.gain_s)

    def _inside(
        self, edge: Decision, reader: int, region: Region, attempt: Attempt, repeat: Repeat | None
    ) -> Decision:
        """An edge within a region saves its read, and a value that is never written its write, once."""
        groups = self.groups
        written = edge.value in region.outputs
        consumer = groups.graph.nodes[reader]
        reduces = any(stage.reduce_axes for stage, _ in rules.reads(groups.graph, consumer, edge.value))
        home: Home = "cache" if region.form == "row" and reduces else "register"
        reason = "also_output" if written else "row_in_cache" if home == "cache" else "fused"
        gain_s, numbers = attempt.gain_s or 0.0, attempt.numbers
        if edge.value in region.in_cache:
            home, reason, numbers = "cache", "rows_in_cache", f"{numbers}; {region.in_cache[edge.value]}"
        if repeat is not None and not written:
            reason, gain_s, numbers = "computed_again", repeat.gain_s, repeat.numbers
        is_first = reader == groups.consumers_of[edge.value][0] and (repeat is None or repeat.is_first)
        saved = edge.value_bytes * (2 if is_first and not written else 1)
        return replace(
            edge, home=home, reason=reason, detail=_detail(reason, numbers),
            saved_bytes=self._saved(edge, saved), alternative="memory", alternative_s=edge.seconds + gain_s,
        )  # fmt: skip

    def _saved(self, edge: Decision, size_bytes: int) -> Mapping[Level, int]:
        context = self.groups.context
        return {serving_level(edge.value_bytes, context.machine, context.workers): size_bytes}


def _detail(reason: str, numbers: str) -> str:
    return f"{rules.REASONS[reason]}: {numbers}" if numbers else rules.REASONS[reason]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"
