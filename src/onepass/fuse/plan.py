"""The plan: regions, and the ledger with one decision for every edge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onepass.cost.gpu import Fit
from onepass.cost.machine import Level
from onepass.cost.roofline import Estimate
from onepass.forms.regions import Option
from onepass.graph.ir import Graph, Node
from onepass.graph.layout import Layout
from onepass.loops.ir import Home

COPY = "#again"  # in the names of copied nodes and values, after the name of what they repeat


@dataclass(frozen=True, slots=True)
class Timed:
    """One way to run a region, in words, with its seconds as predicted and as measured."""

    what: str
    predicted_s: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """A region that was timed in several ways, that of the cost model first; `chosen` is the way it runs."""

    name: str
    nodes: frozenset[str]
    timed: tuple[Timed, ...]
    chosen: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The ledger's entry for one edge: `value` from `producer` to `consumer` (node names).

    Entries with the reason `winograd` are of values that only this form makes, within one node: they save
    nothing, as no other plan has them.
    `producer` is '' for a graph input, `consumer` '' for a graph output. `reason` is a code from
    `rules.REASONS`, `detail` one sentence with the numbers of the merge that decided. `saved_bytes[level]`:
    traffic that this home avoids against `memory`; summed over a value's edges it is the value's.
    `seconds`: predicted time of the region(s) at both ends as planned; `alternative`: the best other home,
    and `alternative_s` those seconds with it, all else equal (None where a rule, `reason`, forbids it).
    `timed`: the ways to run the consumer's region that were measured, first as planned, then by time.
    `fits`: on a GPU, what was compiled to decide the edge, in order: before it was cut, and as it runs.
    """

    value: str
    producer: str
    consumer: str
    home: Home
    reason: str
    detail: str
    value_bytes: int
    saved_bytes: Mapping[Level, int]
    seconds: float
    alternative: Home | None = None
    alternative_s: float | None = None
    timed: tuple[Timed, ...] = ()
    fits: tuple[Fit, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The value and the nodes at both ends, copies also under the names of what they repeat."""
        own = (self.value, self.producer, self.consumer)
        return frozenset({*own, *(name.partition(COPY)[0] for name in own)} - {""})


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes that run as one kernel; `nodes` in topological order. `form` names the loop shape.

    `options` are the ways to run it that are worth timing, its own first; empty unless they were asked for.
    `in_cache` tells for each value that passes through scratch how it lies there.
    """

    id: int
    form: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    estimate: Estimate
    options: tuple[Option, ...] = ()
    in_cache: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The user's node names, shortened: first and last."""
        names = [node.name for node in self.nodes]
        return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


@dataclass(frozen=True, slots=True)
class Plan:
    """All that was decided. `layouts` holds the physical layout of every value, `tuned` what was measured."""

    graph: Graph
    regions: tuple[Region, ...]
    decisions: tuple[Decision, ...]
    layouts: Mapping[str, Layout]
    arena_bytes: int
    tuned: tuple[Tuned, ...] = ()
