"""The diagnosis: for each operator what holds it up, from the unfused plan and, once run, its trace.

In: Plan, Trace or None, Machine, workers. Out: one `OpRow` an operator, as JSON and as a table; and
how far the cost model was off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Protocol, TypeVar

from rich.table import Table

from onepass.core.errors import UserError
from onepass.core.settings import FLUSH
from onepass.cost.machine import LEVELS, Machine
from onepass.cost.roofline import Estimate
from onepass.fuse.plan import Plan, Region
from onepass.report.ledger import check_name, decision_json
from onepass.report.terminal import table
from onepass.report.units import bytes_text, count_text, plural, seconds_text, share_text
from onepass.runtime.trace import Trace

COMPUTING, WAITING, LAUNCHING, OTHER = SPENT = (
    "computing", "waiting for data", "launching", "not explained by the model",
)  # fmt: skip


def split_time(estimate: Estimate, seconds: float) -> dict[str, float]:
    """Splits `seconds` as the model does: computing, waiting for data beyond that, launching, and the rest.

    Computing and transfers overlap, so only what a transfer takes longer than computing is waiting.
    """
    waiting = max(0.0, estimate.seconds - estimate.launch_s - estimate.compute_s)
    scale = min(1.0, seconds / estimate.seconds) if estimate.seconds else 0.0
    parts = (estimate.compute_s * scale, waiting * scale, estimate.launch_s * scale)
    return dict(zip(SPENT, (*parts, max(0.0, seconds - estimate.seconds)), strict=True))


@dataclass(frozen=True, slots=True)
class OpRow:
    """One kernel of the plan. Bytes and operations are counts, times seconds, shares of one.

    `moved_bytes` is the sum of `moved_bytes_at`, by the level that serves them; `share_of_peak`
    refers to arithmetic, `share_of_bandwidth` to the roof of the level that bounds the kernel (None
    where none does). Shares refer to the measured seconds, or to the predicted ones before a run.
    """

    region: int
    node: str
    op: str
    operations: int
    minimum_bytes: int
    moved_bytes: int
    moved_bytes_at: dict[str, int]
    operations_per_byte: float
    bound: str
    predicted_s: float
    measured_s: float | None
    share_of_peak: float
    share_of_bandwidth: float | None
    waiting_share: float
    launch_share: float
    share_of_total: float

    @property
    def seconds(self) -> float:
        """Measured, or predicted where not measured."""
        return self.predicted_s if self.measured_s is None else self.measured_s


@dataclass(frozen=True, slots=True)
class ModelError:
    """|predicted - measured| / measured over all kernels: median, worst, and where the worst is."""

    median: float
    worst: float
    worst_kernel: str
    kernels: int


@dataclass(frozen=True, slots=True)
class SubnormalCost:
    """`weights`, `outputs`: by weight and by the node that makes them, where there are many, their number
    and the size of the whole; and the least seconds of the model with them, and with them flushed to zero."""

    weights: Mapping[str, tuple[int, int]]
    outputs: Mapping[str, tuple[int, int]]
    kept_s: float
    flushed_s: float

    def sentence(self) -> str:
        """Where they are, and what the model gains without them."""
        found = ((self.weights, "weight"), (self.outputs, "output"))
        where = " and ".join(_most_subnormal(counts, what) for counts, what in found if counts)
        return (
            f"Subnormal numbers, with which processors are slow: {where}. With --allow {FLUSH}, which takes "
            f"them for zero, the model needs {seconds_text(self.flushed_s)} instead of "
            f"{seconds_text(self.kept_s)}: {self.kept_s / self.flushed_s:.2f} times as fast."
        )


def _most_subnormal(counts: Mapping[str, tuple[int, int]], what: str) -> str:
    """How many in all, and in which three most; `what` names one of them."""
    most = sorted(counts.items(), key=lambda item: -item[1][0])[:3]
    named = ", ".join(f"{share_text(count / size)} of '{name}'" for name, (count, size) in most)
    return f"{sum(count for count, _ in counts.values()):,} in {plural(len(counts), what)} ({named})"


def diagnose(plan: Plan, trace: Trace | None, machine: Machine, workers: int) -> tuple[OpRow, ...]:
    """One row for each region of `plan` that launches something, in the order they run."""
    measured = trace.seconds_of_region() if trace else {}
    regions = [region for region in plan.regions if region.estimate.traffic.launches]
    total = sum(measured.get(region.id, region.estimate.seconds) for region in regions)
    return tuple(_row(region, measured.get(region.id), total, machine, workers) for region in regions)


def _row(region: Region, measured: float | None, total: float, machine: Machine, workers: int) -> OpRow:
    estimate, traffic = region.estimate, region.estimate.traffic
    seconds = estimate.seconds if measured is None else measured
    split = split_time(estimate, seconds)
    per_s = 1 / seconds if seconds else 0.0
    at: dict[str, int] = {level: traffic.bytes_at.get(level, 0) for level in LEVELS if level != "l1"}
    moving = (alone_s * per_s for level, alone_s in estimate.transfer_s.items() if level == estimate.bound)
    return OpRow(
        region=region.id,
        node=region.name,
        op=" + ".join(dict.fromkeys(node.spelling or node.op for node in region.nodes)),
        operations=traffic.flops,
        minimum_bytes=traffic.compulsory_bytes,
        moved_bytes=sum(at.values()),
        moved_bytes_at=at,
        operations_per_byte=traffic.flops_per_byte,
        bound=estimate.bound,
        predicted_s=estimate.seconds,
        measured_s=measured,
        share_of_peak=traffic.flops * per_s / machine.peak_flops_per_s(traffic.dtype, workers),
        share_of_bandwidth=next(moving, None),
        waiting_share=split[WAITING] * per_s,
        launch_share=split[LAUNCHING] * per_s,
        share_of_total=seconds / total if total else 0.0,
    )


def model_error(rows: Sequence[OpRow]) -> ModelError | None:
    """How far predictions are from measurements; None where nothing was measured."""
    errors = [
        (abs(row.predicted_s - row.measured_s) / row.measured_s, row.node) for row in rows if row.measured_s
    ]
    if not errors:
        return None
    worst, kernel = max(errors)
    return ModelError(median(error for error, _ in errors), worst, kernel, len(errors))


def error_sentence(rows: Sequence[OpRow], bound: float = 0.25) -> str:
    """`model_error` in words, held against the `bound` that the project sets for the median."""
    error = model_error(rows)
    if error is None:
        return "Predicted seconds only: nothing was measured."
    judged = "within" if error.median <= bound else "beyond"
    return (
        f"The cost model's median error over {plural(error.kernels, 'kernel')} is "
        f"{share_text(error.median)}, {judged} its bound of {share_text(bound)}; the worst is "
        f"{share_text(error.worst)} at {error.worst_kernel}."
    )


def diagnosis_json(rows: Sequence[OpRow]) -> dict[str, object]:
    """Rows, their totals, and the model's error, as plain data."""
    error = model_error(rows)
    return {
        "ops": [asdict(row) for row in rows],
        "predicted_s": sum(row.predicted_s for row in rows),
        "measured_s": sum(row.measured_s or 0.0 for row in rows) if error else None,
        "model_error": asdict(error) if error else None,
    }


FACTS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("operations", "operations", lambda count: count_text(count, "")),
    ("min\nbytes", "minimum_bytes", bytes_text),
    ("moved\nbytes", "moved_bytes", bytes_text),
    ("ops per\nbyte", "operations_per_byte", "{:.3g}".format),
    ("bound", "bound", str),
    ("predicted", "predicted_s", seconds_text),
    ("measured", "measured_s", seconds_text),
    ("of\npeak", "share_of_peak", share_text),
    ("of\nbandwidth", "share_of_bandwidth", share_text),
    ("waiting", "waiting_share", share_text),
    ("launch", "launch_share", share_text),
    ("of\ntotal", "share_of_total", share_text),
)
"""What every table of kernels shows: heading, attribute of `OpRow`, and how it is written."""


def diagnosis_table(rows: Sequence[OpRow], limit: int = 40) -> Table:
    """The `limit` most expensive rows, the dearest first; fits 140 columns."""
    shown = sorted(rows, key=lambda row: -row.seconds)[:limit]
    left = len(rows) - len(shown)
    cells = ((_label(row), *(show(getattr(row, name)) for _, name, show in FACTS)) for row in shown)
    headings = [heading for heading, _, _ in FACTS]
    return table(["node"], headings, cells, caption=f"and {left} cheaper ones" if left else "")


def _label(row: OpRow) -> str:
    """The name, and what it does where the name does not tell."""
    return row.node if row.op.lower() in row.node.lower() else f"{row.node} ({row.op})"


class _Row(Protocol):
    @property
    def region(self) -> int: ...


R = TypeVar("R", bound=_Row)


def node_row(plan: Plan, rows: Sequence[R], name: str) -> R:
    """The row of the kernel that runs node `name`. Raises UserError for an unknown name and for a view."""
    check_name(name, [node.name for node in plan.graph.nodes])
    region = next(region for region in plan.regions if any(node.name == name for node in region.nodes))
    for row in rows:
        if row.region == region.id:
            return row
    raise UserError("this node only renames elements: no kernel runs for it", where=name)


def node_json(plan: Plan, rows: Sequence[OpRow], name: str) -> dict[str, object]:
    """Everything about node `name`: its row, and the decisions on its edges in `plan`."""
    edges = [decision_json(d) for d in plan.decisions if name in d.names]
    return {**asdict(node_row(plan, rows, name)), "decisions": edges}


def node_table(plan: Plan, rows: Sequence[OpRow], name: str) -> Table:
    """`node_json` as a table with one fact a line."""
    row = node_row(plan, rows, name)
    facts = [(heading.replace("\n", " "), show(getattr(row, name))) for heading, name, show in FACTS]
    facts += [(f"moved at {level}", bytes_text(size)) for level, size in row.moved_bytes_at.items()]
    facts += [
        (f"{d.producer or 'model input'} → {d.consumer or 'model output'}", f"{d.home}: {d.detail}")
        for d in plan.decisions
        if name in d.names
    ]
    return table(["", ""], [], facts, title=f"{name} ({row.op})")
