"""Which form a region takes, how long that should take, and its kernel.

The planner asks `shape_region` for every group of nodes it considers; `build_region` makes the kernel of
those it keeps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from onepass.cost.gpu import Fit
from onepass.cost.machine import Machine
from onepass.cost.roofline import Estimate, estimate
from onepass.forms.body import Body, join
from onepass.forms.chain import build_chain
from onepass.forms.chain_choice import Chain, choose_chain
from onepass.forms.choose import choose_schedule, is_product, operand_loads, tile_cycles
from onepass.forms.narrow import build_narrow, instructions, narrow_lanes
from onepass.forms.nest import Built, FormMismatch, build_nest
from onepass.forms.row import build_row
from onepass.forms.schedule import Schedule
from onepass.forms.traffic import instruction_efficiency, region_traffic, stage_flops, stage_instructions
from onepass.forms.winograd import WinogradSchedule, build_winograd
from onepass.forms.winograd_choice import direct_seconds, rank_winograd
from onepass.graph.ir import Graph, Node
from onepass.graph.layout import PLAIN, Layout
from onepass.loops.ir import Index, Load
from onepass.loops.tile import Tile
from onepass.loops.walk import index_names, loads
from onepass.ops.opdef import Compute

Form = Literal["pointwise", "contraction", "winograd", "window", "row", "chain"]
Choice = WinogradSchedule | bool | None
Choices = Mapping[str, Choice]
"""By the value that a convolution makes: its Winograd schedule, or None for the direct sum. By `rows_key` of
a value between two regions: whether they run as a chain."""
WINDOW_LIMIT = 128  # a longer reduction without a product is a row: it needs more accumulators than a window


def rows_key(value: str) -> str:
    """What `Choices` hold of the chain in which `value` would pass through rows in cache."""
    return f"rows of {value}"


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a region: in words, its predicted seconds, and the `Context.choices` that ask for it."""

    what: str
    seconds: float
    choices: Choices


@dataclass(frozen=True, slots=True)
class Shaped:
    """A group of nodes with its form and its predicted time.

    `alternative_s`: of a convolution that can be computed in Winograd's form and directly, the predicted
    seconds of the way not taken.
    `options`: where the context has choices, the ways to run it that are worth timing, its own first.
    `tile`: how a GPU's kernel is cut. `in_cache` tells for each value between members of a chain how it lies.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    body: Body
    form: Form
    estimate: Estimate
    winograd: WinogradSchedule | None = None
    alternative_s: float | None = None
    chain: Chain | None = None
    built: Built | None = None
    options: tuple[Option, ...] = ()
    tile: Tile | None = None
    in_cache: Mapping[str, str] = field(default_factory=dict)


class Shaper(Protocol):
    """The forms of one kind of target: how a region would run there. Both raise `FormMismatch`."""

    def shape(self, context: Context, nodes: Sequence[Node], outputs: Sequence[str]) -> Shaped:
        """The form and estimate of a group."""

    def chain(self, context: Context, parts: Sequence[Shaped]) -> Shaped:
        """Regions, each of which reads what the one before makes, as one in which that stays in cache."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Names of nodes, none of which may run in one kernel with one of the others: `fits` tells why."""

    first: frozenset[str]
    second: frozenset[str]
    fits: tuple[Fit, ...]

    def parts(self, names: frozenset[str]) -> bool:
        """Whether it goes through `names`."""
        return not (names.isdisjoint(self.first) or names.isdisjoint(self.second))


@dataclass(frozen=True, slots=True)
class Context:
    """What stays the same for all regions of a graph.

    `choices` gives forms that are settled. For all others, and where it is None, the cost model decides.
    `shaper` holds the forms of another target than the CPU. `cuts` keep apart what compiled code showed not
    to fit one kernel.
    """

    graph: Graph
    layouts: Mapping[str, Layout]
    machine: Machine
    workers: int
    rewrites: frozenset[str]
    choices: Choices | None = None
    shaper: Shaper | None = None
    cuts: tuple[Cut, ...] = ()


def form_of(body: Body) -> Form:
    """The form for `body`; raises `FormMismatch` where none fits."""
    reductions = body.reductions()
    if not reductions:
        return "pointwise"
    if len(reductions) > 1:
        if any(is_contraction(stage) for stage in reductions):
            raise FormMismatch("a product and another reduction")
        return "row"
    root = reductions[0]
    if is_contraction(root):
        return "contraction"
    length = math.prod(axis.extent for axis in root.reduce_axes)
    return "window" if len(root.axes) >= 3 and length <= WINDOW_LIMIT and _slides(root) else "row"


def is_contraction(stage: Compute) -> bool:
    """A sum of products of two loads, each of which is used for several outputs: not a sum of squares."""
    operands = operand_loads(stage) if is_product(stage) else None
    if operands is None:
        return False
    left, right = (frozenset().union(*map(index_names, load.indices)) for load in operands)
    return left != right


def _slides(stage: Compute) -> bool:
    """Whether neighbouring outputs read overlapping places: an index adds an axis and a reduce axis."""
    reduced = {axis.name for axis in stage.reduce_axes}
    kept = {axis.name for axis in stage.axes if axis.extent > 1}
    return any(
        (names := index_names(index)) & reduced and names & kept
        for load in loads(stage.body)
        for index in load.indices
    )


def shape_region(context: Context, nodes: Sequence[Node], outputs: Sequence[str]) -> Shaped:
    """The form and estimate of a group; raises `FormMismatch`."""
    if context.shaper is not None:
        return context.shaper.shape(context, nodes, outputs)
    graph = context.graph
    body = join(graph, nodes, outputs, context.rewrites)
    form = form_of(body)
    check_space(body, form)
    built = build_row(body, graph, context.layouts, context.machine.lanes(4)) if form == "row" else None
    efficiency = _efficiency(context, body, form)
    kept = built.kept if built is not None else frozenset()
    traffic = region_traffic(body, graph, context.layouts, context.machine, context.workers, efficiency, kept)
    guess = estimate(traffic, context.machine, context.workers)
    shaped = Shaped(tuple(nodes), tuple(outputs), body, form, guess, built=built)
    return _or_winograd(context, shaped) if form == "contraction" else shaped


def _or_winograd(context: Context, direct: Shaped) -> Shaped:
    """The region as given, or in the Winograd form where that is chosen or else predicted to be faster."""
    if "winograd" not in context.rewrites:
        return direct
    body, choices = direct.body, context.choices
    name = body.reductions()[0].name
    chosen = choices.get(name) if choices else None
    assert not isinstance(chosen, bool), "that is for chains"
    ways = rank_winograd(body, context.graph, context.layouts, context.machine, context.workers, chosen)
    if not ways:
        return direct
    direct_s = direct_seconds(body, context.graph, direct.estimate, context.machine, context.workers)
    (schedule, guess), settled = ways[0], name in (choices or ())
    found = replace(direct, alternative_s=guess.seconds)
    if chosen is not None or (guess.seconds < direct_s and not settled):
        found = replace(direct, form="winograd", winograd=schedule, estimate=guess, alternative_s=direct_s)
    if choices is None or settled:
        return found
    options = [Option(str(way), guess.seconds, {name: way}) for way, guess in ways]
    place = 0 if found.winograd is None else len(options)
    options.insert(place, Option("direct", direct_s, {name: None}))
    return replace(found, options=tuple(options))


def shape_chain(context: Context, parts: Sequence[Shaped]) -> Shaped:
    """All regions as one that runs row by row, what passes between them in rings; raises `FormMismatch`.

    Of each but the last only its one output is read, and only by the next.
    """
    if context.shaper is not None:
        return context.shaper.chain(context, parts)
    graph, layouts = context.graph, context.layouts
    bodies = [body for part in parts for body in (part.chain.bodies if part.chain else (part.body,))]
    for body in bodies:
        _check_member(context, body)
    between = [body.outputs[0] for body in bodies[:-1]]
    if any(name in body.inputs for k, name in enumerate(between) for body in bodies[k + 2 :]):
        raise FormMismatch("a later member reads the value too")
    schedules = [choose_schedule(body, graph, layouts, context.machine, one_row=True) for body in bodies]
    if any((schedule.vector, schedule.tile, schedule.phases) != (1, 3, ()) for schedule in schedules):
        raise FormMismatch("vectors do not run along channels, or tiles not along rows")
    efficiencies = [
        _efficiency(context, body, form_of(body), schedule)
        for body, schedule in zip(bodies, schedules, strict=True)
    ]
    chain, guess = choose_chain(
        bodies, schedules, efficiencies, graph, layouts, context.machine, context.workers
    )
    whole = Body(
        tuple(stage for body in bodies for stage in body.stages),
        tuple(dict.fromkeys(name for body in bodies for name in body.inputs if name not in between)),
        bodies[-1].outputs,
        {name: array for body in bodies for name, array in body.constants.items()},
    )
    nodes = tuple(node for part in parts for node in part.nodes)
    in_cache = {name: str(ring) for name, ring in chain.rings.items()}
    return Shaped(nodes, parts[-1].outputs, whole, "chain", guess, chain=chain, in_cache=in_cache)


def _check_member(context: Context, body: Body) -> None:
    """A member of a chain is a nest over images of float32, channels in blocks."""
    graph, lanes = context.graph, context.machine.lanes(4)
    if form_of(body) not in ("contraction", "window") or {s.dtype.name for s in body.stages} != {"float32"}:
        raise FormMismatch("only convolutions and pools of float32 run row by row")
    for name in body.outputs:
        if context.layouts.get(name, PLAIN).block != lanes or graph.types[name].rank != 4:
            raise FormMismatch("not an image with its channels in blocks")
        if not graph.types[name].size:
            raise FormMismatch("an image without elements")


def check_space(body: Body, form: Form) -> None:
    """All outputs have one shape, and what follows a nest's reduction reads it where it is computed."""
    shapes = {stage.type.shape for stage in body.stages if stage.name in body.outputs}
    if len(shapes) > 1:
        raise FormMismatch("outputs of different shapes")
    if form not in ("contraction", "window"):
        return
    root = body.reductions()[0]
    after = {root.name}
    for stage in body.stages:
        read = [load for load in loads(stage.body) if load.buffer in after]
        if not all(is_in_place(stage, load) for load in read):
            raise FormMismatch("a stage reads the reduction at other places than it computes")
        if read:
            if stage.reduce_axes or stage.type.shape != root.type.shape:
                raise FormMismatch("a stage after the reduction has another shape")
            after.add(stage.name)


def is_in_place(stage: Compute, load: Load) -> bool:
    """Whether `stage` reads, of a tensor of its own shape, exactly the element that it computes."""
    return (
        load.fill is None
        and len(load.indices) == len(stage.axes)
        and all(
            axis.extent == 1 or (isinstance(index, Index) and index.name == axis.name)
            for index, axis in zip(load.indices, stage.axes, strict=True)
        )
    )


def _efficiency(context: Context, body: Body, form: Form, schedule: Schedule | None = None) -> float:
    """Share of the FMA peak at best, under `schedule` or else the one that would be chosen."""
    if form != "contraction":
        return instruction_efficiency(body.stages)
    root = body.reductions()[0]
    if lanes := narrow_lanes(body, context.layouts):
        whole = math.prod(axis.extent for axis in root.reduce_axes) / lanes
        return whole / instructions(root, lanes)
    schedule = schedule or choose_schedule(body, context.graph, context.layouts, context.machine)
    phases = dict(schedule.phases)
    shape = tuple(e // phases.get(axis, 1) for axis, e in enumerate(body.output.type.shape)) or (1,)
    steps = math.prod(axis.extent for axis in root.reduce_axes)
    blocks = -(-shape[schedule.vector] // schedule.lanes)
    extent = (
        math.prod(shape[schedule.tile - schedule.flat : schedule.tile + 1])
        if schedule.tile is not None
        else 1
    )
    streamed = root.reduce_axes[0].extent > 1
    cycles = tile_cycles(blocks, extent, steps, schedule.vectors, schedule.tile_size, streamed)
    if not cycles or not stage_flops(root):
        return 1.0
    # What surrounds the product runs at its own rate, however little of the lanes the product uses.
    others = [stage for stage in body.stages if stage is not root]
    used = shape[schedule.vector] / (blocks * schedule.lanes)
    product = stage_flops(root) / 2 * cycles / (blocks * extent * steps * used)
    operations = stage_flops(root) + sum(stage_flops(stage) for stage in others)
    return min(1.0, operations / 2 / (product + sum(stage_instructions(stage) for stage in others)))


def build_region(context: Context, shaped: Shaped) -> Built:
    """The kernel of a shaped region; raises `FormMismatch` where the form does not fit after all."""
    if shaped.built is not None:
        return shaped.built
    if shaped.chain is not None:
        chain = shaped.chain
        return build_chain(chain.bodies, context.graph, context.layouts, chain.schedule)
    if shaped.winograd is not None:
        return build_winograd(shaped.body, context.graph, context.layouts, shaped.winograd)
    if lanes := narrow_lanes(shaped.body, context.layouts):
        return build_narrow(shaped.body, context.graph, context.layouts, lanes)
    schedule = choose_schedule(shaped.body, context.graph, context.layouts, context.machine)
    return build_nest(shaped.body, context.graph, context.layouts, schedule)
