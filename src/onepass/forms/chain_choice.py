"""How a chain of nests is cut into rows, and how long it should take.

In: the bodies of the members in order, and for each the schedule and efficiency that it has alone. Out: the
schedule, what the rings hold, and the estimate of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onepass.cost.machine import LEVELS, Level, Machine
from onepass.cost.roofline import Estimate, Traffic, estimate
from onepass.forms.body import Body
from onepass.forms.chain import ChainSchedule, Rows, rings_of, rows_of
from onepass.forms.nest import FormMismatch
from onepass.forms.schedule import Schedule
from onepass.forms.traffic import region_traffic
from onepass.graph.ir import Graph
from onepass.graph.layout import Layout

ROOM = 0.5  # share of the second-level cache that the rings may take
STAYS = 0.8  # share that the rings and all weights may take, so that both are still there for the next step
MOST_ROWS = 8  # of the last member in a step
MOST_RUNS = 3  # of each worker


@dataclass(frozen=True, slots=True)
class RingUse:
    """A ring of `rows` rows, `size_bytes` for each worker; `again` of `height` rows are computed again."""

    rows: int
    size_bytes: int
    again: int
    height: int

    def __str__(self) -> str:
        size = f"a ring of {self.rows} rows, {self.size_bytes / 1e3:.1f} KB for each worker"
        return f"{size}, {self.again} of {self.height} rows computed again"


@dataclass(frozen=True, slots=True)
class Chain:
    """Members that run row by row, and the ring of each value between them."""

    bodies: tuple[Body, ...]
    schedule: ChainSchedule
    rings: Mapping[str, RingUse]


def choose_chain(
    bodies: Sequence[Body], schedules: Sequence[Schedule], efficiencies: Sequence[float], graph: Graph,
    layouts: Mapping[str, Layout], machine: Machine, workers: int,
) -> tuple[Chain, Estimate]:  # fmt: skip
    """The chain with the least predicted time; raises `FormMismatch` where none fits the cache."""
    between = [body.outputs[0] for body in bodies[:-1]]
    parts = [
        region_traffic(body, graph, layouts, machine, workers, efficiency, near=frozenset(between))
        for body, efficiency in zip(bodies, efficiencies, strict=True)
    ]
    shapes = [graph.types[body.outputs[0]].shape for body in bodies]
    images, _, height, _ = shapes[-1]
    read = {name for body in bodies for name in body.inputs if name in graph.constants}
    weights = sum(graph.constants[name].nbytes for name in read)
    members = tuple(replace(schedule, order=(2, 1), block=1, ahead=None) for schedule in schedules)
    best: tuple[Chain, Estimate] | None = None
    for each in range(1, min(MOST_ROWS, height) + 1):
        rows = rows_of(bodies, each)
        rings = rings_of(bodies, layouts, rows)
        sizes = [4 * ring.physical_size(graph.types[name].shape) for name, ring in rings.items()]
        if sum(sizes) > ROOM * machine.l2_bytes or sum(sizes) + weights > STAYS * machine.l2_bytes:
            break
        for turns in range(1, MOST_RUNS + 1):
            steps = -(-height // (-(-turns * workers // images) * each))
            runs = -(-height // (each * steps))
            computed = [_computed(r, shape[2], runs, steps) for r, shape in zip(rows, shapes, strict=True)]
            repeats = [max(1.0, n / shape[2]) for n, shape in zip(computed, shapes, strict=True)]
            busiest = -(-images * runs // workers) * workers / (images * runs)
            guess = _estimate(parts, repeats, busiest, machine, workers)
            if best is None or guess.seconds < best[1].seconds:
                facts = zip(rings.items(), sizes, computed, shapes, strict=False)
                uses = {
                    name: RingUse(ring.rows, size, max(0, n - shape[2]), shape[2])
                    for (name, ring), size, n, shape in facts
                }
                best = Chain(tuple(bodies), ChainSchedule(each, steps, members), uses), guess
    if best is None:
        raise FormMismatch("rows and weights do not fit the cache")
    return best


def _computed(rows: Rows, height: int, runs: int, steps: int) -> int:
    """Rows of an image of `height` that a member computes in all runs."""
    starts = [run * rows.each * steps + rows.base for run in range(runs)]
    return sum(
        max(0, min(height, start + rows.each * steps) - max(0, start - rows.ahead)) for start in starts
    )


def _estimate(
    parts: Sequence[Traffic], repeats: Sequence[float], busiest: float, machine: Machine, workers: int
) -> Estimate:
    """Each member at its own roof, one after another, `repeats` times its rows; one launch.

    The worker with the most runs has `busiest` times the mean.
    """
    singles = [estimate(part, machine, workers) for part in parts]
    work_s = sum((e.seconds - e.launch_s) * n for e, n in zip(singles, repeats, strict=True))
    compute_s = sum(e.compute_s * n for e, n in zip(singles, repeats, strict=True))
    flops = sum(round(part.flops * n) for part, n in zip(parts, repeats, strict=True))
    bytes_at: dict[Level, int] = {
        level: sum(part.bytes_at.get(level, 0) for part in parts) for level in LEVELS[1:]
    }
    traffic = Traffic(
        flops=flops,
        compulsory_bytes=sum(part.compulsory_bytes for part in parts),
        bytes_at=bytes_at,
        recomputed_flops=flops - sum(part.flops - part.recomputed_flops for part in parts),
        streamed=parts[-1].streamed,
        flop_efficiency=flops / max(1.0, compute_s * machine.peak_flops_per_s("float32", workers)),
    )
    rough = estimate(traffic, machine, workers)
    return replace(rough, seconds=work_s * busiest + rough.launch_s)
