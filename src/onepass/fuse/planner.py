"""Decides which nodes run as one kernel: merges along edges while the predicted time falls.

In: a graph with layouts, and the machine. Out: the plan, with one decision for every edge, and the shaped
regions to build. Leaving an edge alone is always the alternative.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onepass.core.errors import OptionError
from onepass.cost.machine import Level
from onepass.cost.roofline import Estimate, Traffic
from onepass.forms.nest import FormMismatch
from onepass.forms.regions import Context, Shaped
from onepass.forms.traffic import serving_level, value_bytes
from onepass.fuse import rules
from onepass.fuse.groups import Group, Groups
from onepass.fuse.plan import Decision, Plan, Region
from onepass.fuse.recompute import copy_cheap_producers
from onepass.loops.ir import Home

MIN_GAIN = 1.0  # fused seconds over separate seconds must stay below this


@dataclass(frozen=True, slots=True)
class FuseMode:
    """The option `fuse`: off, by predicted time, regardless of it, some nodes only, or N merges."""

    kind: str
    names: frozenset[str] = frozenset()
    limit: int | None = None

    @staticmethod
    def parse(text: str) -> FuseMode:
        """`none`, `auto`, `all`, `only=NAME,...` or `limit=N`; raises `OptionError`."""
        kind, _, value = text.partition("=")
        if kind in ("none", "auto", "all") and not value:
            return FuseMode(kind)
        if kind == "only" and value:
            return FuseMode("auto", names=frozenset(value.split(",")))
        if kind == "limit" and value.isdigit():
            return FuseMode("auto", limit=int(value))
        raise OptionError(
            f"'{text}' is not a way to fuse", remedy="use none, auto, all, only=NODE[,NODE] or limit=N"
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of trying to fuse along one edge."""

    reason: str
    detail: str
    together_s: float | None
    apart_s: float


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan, and for each of its regions the shape to build (None: a view, no kernel)."""

    plan: Plan
    shaped: tuple[Shaped | None, ...]


def make_plan(context: Context, mode: FuseMode) -> Planned:
    """Plans the whole graph."""
    groups, attempts = _grouped(context, mode)
    copies = copy_cheap_producers(groups) if mode.kind != "none" and mode.limit is None else None
    if copies is not None:
        context = replace(context, graph=copies.graph, layouts=copies.layouts)
        groups, attempts = _grouped(context, mode)
    ordered = groups.in_order()
    regions = tuple(_region(groups, number, group) for number, group in enumerate(ordered))
    number_of = {at: number for number, group in enumerate(ordered) for at in group.members}
    decisions = _decide(groups, attempts, regions, number_of, mode)
    plan = Plan(context.graph, regions, decisions, dict(context.layouts), 0)
    return Planned(plan, tuple(group.shaped for group in ordered))


Attempts = dict[tuple[int, int, str], Attempt]


def _grouped(context: Context, mode: FuseMode) -> tuple[Groups, Attempts]:
    groups = Groups(context)
    attempts: Attempts = {}
    if mode.kind != "none":
        _merge_all(groups, mode, attempts)
    return groups, attempts


def _merge_all(groups: Groups, mode: FuseMode, attempts: Attempts) -> None:
    merges = 0
    for at, node in enumerate(groups.graph.nodes):
        found = {n: groups.producer_of[n] for n in node.inputs if n in groups.producer_of}
        for value in sorted(found, key=lambda n: (-groups.graph.types[n].size, -found[n])):
            producer, consumer = groups.group_of[found[value]], groups.group_of[at]
            if producer is consumer:
                continue
            if mode.limit is not None and merges >= mode.limit:
                break
            attempt, shaped = _attempt(groups, producer, consumer, value, mode)
            attempts[found[value], at, value] = attempt
            if shaped is not None:
                groups.merge(producer, consumer, shaped)
                merges += 1


def _attempt(
    groups: Groups, producer: Group, consumer: Group, value: str, mode: FuseMode
) -> tuple[Attempt, Shaped | None]:
    apart = producer.seconds + consumer.seconds
    names = {node.name for node in groups.nodes(producer.members | consumer.members)}
    if mode.names and not names & mode.names:
        return Attempt("switched_off", rules.REASONS["switched_off"], None, apart), None
    refusal = groups.refusal(producer, consumer, value)
    if refusal:
        return Attempt(refusal, rules.REASONS[refusal], None, apart), None
    try:
        shaped = groups.merged(producer, consumer)
    except FormMismatch as mismatch:
        detail = f"{rules.REASONS['form_mismatch']}: {mismatch}"
        return Attempt("form_mismatch", detail, None, apart), None
    together = shaped.estimate.seconds
    if mode.kind != "all" and together > apart * MIN_GAIN:
        detail = f"together {together * 1e6:.1f} us, apart {apart * 1e6:.1f} us"
        return Attempt("slower", detail, together, apart), None
    detail = f"{rules.REASONS['fused']}: {together * 1e6:.1f} us instead of {apart * 1e6:.1f} us"
    return Attempt("fused", detail, together, apart), shaped


NOTHING = Estimate(Traffic(0, 0, {}, launches=0), 0.0, 0.0, {}, 0.0, "view")


def _region(groups: Groups, number: int, group: Group) -> Region:
    nodes = tuple(groups.nodes(group.members))
    outputs = groups.leaving(group.members)
    if group.shaped is None:
        return Region(number, "view", nodes, nodes[0].inputs[:1], outputs, NOTHING)
    graph, body = groups.graph, group.shaped.body
    inputs = tuple(name for name in body.inputs if name in graph.types)
    return Region(number, group.shaped.form, nodes, inputs, outputs, group.shaped.estimate)


def _decide(
    groups: Groups,
    attempts: Attempts,
    regions: tuple[Region, ...],
    number_of: dict[int, int],
    mode: FuseMode,
) -> tuple[Decision, ...]:
    graph = groups.graph
    found: list[Decision] = []
    for value in graph.types:
        producer = groups.producer_of.get(value)
        if producer is None and value not in graph.inputs:
            continue
        for consumer in groups.consumers_of[value]:
            attempt = attempts.get((producer, consumer, value)) if producer is not None else None
            found.append(_edge(groups, value, producer, consumer, attempt, regions, number_of, mode))
        if value in graph.outputs:
            found.append(_edge(groups, value, producer, None, None, regions, number_of, mode))
    return tuple(found)


def _edge(
    groups: Groups,
    value: str,
    producer: int | None,
    consumer: int | None,
    attempt: Attempt | None,
    regions: tuple[Region, ...],
    number_of: dict[int, int],
    mode: FuseMode,
) -> Decision:
    graph, context = groups.graph, groups.context
    size = value_bytes(graph, context.layouts, value)
    numbers = {number_of[at] for at in (producer, consumer) if at is not None}
    seconds = sum(regions[number].estimate.seconds for number in numbers)
    source, reader = (graph.nodes[at].name if at is not None else "" for at in (producer, consumer))
    if producer is None or consumer is None:
        detail = rules.REASONS["graph_boundary"]
        return Decision(value, source, reader, "memory", "graph_boundary", detail, size, {}, seconds)
    if len(numbers) == 1:
        return _inside(groups, value, (source, reader), attempt, size, regions[numbers.pop()])
    reason = attempt.reason if attempt is not None else "switched_off"
    if any(groups.group_of[at].shaped is None for at in (producer, consumer)):
        reason = "view"
    detail = attempt.detail if attempt is not None and reason != "view" else rules.REASONS[reason]
    other: Home | None = "register" if attempt is not None and attempt.together_s is not None else None
    price = attempt.together_s if attempt is not None else None
    return Decision(value, source, reader, "memory", reason, detail, size, {}, seconds, other, price)


def _inside(
    groups: Groups, value: str, names: tuple[str, str], attempt: Attempt | None, size: int, region: Region
) -> Decision:
    """An edge within a region: its read is saved, and its write too unless something else reads the value."""
    context = groups.context
    level: Level = serving_level(size, context.machine, context.workers)
    written = value in region.outputs
    consumer = next(node for node in region.nodes if node.name == names[1])
    reduces = any(stage.reduce_axes for stage, _ in rules.reads(groups.graph, consumer, value))
    home: Home = "cache" if region.form == "row" and reduces else "register"
    reason = "also_output" if written else "row_in_cache" if home == "cache" else "fused"
    detail = attempt.detail if attempt is not None and attempt.reason == "fused" else rules.REASONS[reason]
    saved: dict[Level, int] = {level: size if written else 2 * size}
    apart = attempt.apart_s if attempt is not None else None
    return Decision(
        value, names[0], names[1], home, reason, detail, size, saved, region.estimate.seconds,
        "memory" if apart is not None else None, apart,
    )  # fmt: skip
