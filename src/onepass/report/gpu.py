"""What a model takes of a GPU, kernel by kernel, as compiled: a table, plain data, and sentences.

In: a `GpuCompiled`. Out: one `GpuRow` a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from rich.table import Table

from onepass.cost.gpu import Fit
from onepass.gpu_guard import GpuKernel
from onepass.gpu_pipeline import GpuCompiled
from onepass.report.diagnosis import node_row
from onepass.report.ledger import decision_json
from onepass.report.terminal import table
from onepass.report.units import bytes_text, plural, seconds_text, share_text

SHOWN_STEPS = 10


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One kernel. `name`: the user's nodes, `file` that of its source; `registers` and `spill_bytes` of a
    thread, `shared_bytes` of a block; `occupancy`: the share of an SM's warps, which `limiter` keeps from
    being more; `matrix_instruction`: what `tensor_cores` run, '' where they run nothing. `bytes`: all that
    are predicted to move, from every level. `steps`: every tile that was compiled or ruled out, the last as
    it runs."""

    name: str
    file: str
    region: int
    nodes: tuple[str, ...]
    form: str
    tile: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    occupancy: float
    limiter: str
    blocks_per_sm: int
    tensor_cores: bool
    matrix_instruction: str
    bytes: int
    minimum_bytes: int
    operations: int
    bound: str
    predicted_s: float
    share_of_total: float
    steps: tuple[Fit, ...]


def kernel_rows(compiled: GpuCompiled) -> tuple[GpuRow, ...]:
    """One row for each kernel, in the order they run."""
    total = sum(kernel.estimate.seconds for kernel in compiled.kernels)
    pairs = zip(compiled.kernels, compiled.names, strict=True)
    return tuple(_row(compiled, kernel, name, total) for kernel, name in pairs)


def _row(compiled: GpuCompiled, kernel: GpuKernel, file: str, total: float) -> GpuRow:
    region, resources = compiled.plan.regions[kernel.region], kernel.compiled.resources
    assert resources is not None, "a kernel that cannot be compiled is none to run"
    estimate = kernel.estimate
    return GpuRow(
        name=region.name,
        file=f"{file}.py",
        region=region.id,
        nodes=tuple(node.name for node in region.nodes),
        form=region.form,
        tile=str(kernel.tile),
        registers=resources.registers,
        spill_bytes=resources.spill_bytes,
        shared_bytes=resources.shared_bytes,
        occupancy=kernel.occupancy.share,
        limiter=kernel.occupancy.limiter,
        blocks_per_sm=kernel.occupancy.blocks_per_sm,
        tensor_cores=resources.tensor_cores,
        matrix_instruction=kernel.compiled.matrix_instruction,
        bytes=sum(estimate.traffic.bytes_at.values()),
        minimum_bytes=estimate.traffic.compulsory_bytes,
        operations=estimate.traffic.flops,
        bound=estimate.bound,
        predicted_s=estimate.seconds,
        share_of_total=estimate.seconds / total if total else 0.0,
        steps=kernel.steps,
    )


def kernels_table(rows: Sequence[GpuRow], limit: int = 40) -> Table:
    """The `limit` kernels that are predicted to take longest, the dearest first; fits 100 columns.

    Those that are alike, as in repeated layers, share a line with the figures of one, but their share of the
    total. `per SM`: blocks that an SM holds at a time.
    """
    groups: dict[object, list[GpuRow]] = {}
    for row in rows:
        figures = replace(row, name="", file="", region=0, nodes=(), steps=())
        groups.setdefault((figures, len(row.nodes)), []).append(row)
    shown = sorted(groups.values(), key=lambda alike: -sum(row.predicted_s for row in alike))[:limit]
    left = len(rows) - sum(map(len, shown))
    headings = [
        "regi\nsters", "spill\nbytes", "shared\nbytes", "occu\npancy", "per\nSM", "tensor\ncores",
        "bytes", "pre\ndicted", "bound", "of\ntotal",
    ]  # fmt: skip
    cells = (
        (f"{row.name} ({row.form}){f', {len(alike)} times' if alike[1:] else ''}", str(row.registers),
         f"{row.spill_bytes:,}", bytes_text(row.shared_bytes), share_text(row.occupancy),
         str(row.blocks_per_sm), "yes" if row.tensor_cores else "no", bytes_text(row.bytes),
         seconds_text(row.predicted_s), row.bound, share_text(row.share_of_total * len(alike)))
        for alike in shown
        for row in alike[:1]
    )  # fmt: skip
    return table(["kernel (form)"], headings, cells, caption=f"and {left} cheaper ones" if left else "")


def totals_sentence(compiled: GpuCompiled, rows: Sequence[GpuRow]) -> str:
    """What all kernels together are predicted to take, and how they fit."""
    seconds, moved = sum(row.predicted_s for row in rows), sum(row.bytes for row in rows)
    spilling = sum(row.spill_bytes > 0 for row in rows)
    return (
        f"{plural(len(rows), 'kernel')} for {compiled.gpu.product} ({compiled.gpu.name}): "
        f"{seconds_text(seconds)} predicted, {bytes_text(moved)} moved; "
        f"{sum(row.tensor_cores for row in rows):,} on tensor cores, "
        f"{f'{spilling:,} spill' if spilling else 'none spills'}. Nothing was run: seconds and bytes are "
        f"predicted from the datasheet ('onepass machine --target {compiled.gpu.name}' tells each figure's "
        "source), the rest is read from compiled code."
    )


def guard_sentences(compiled: GpuCompiled, rows: Sequence[GpuRow]) -> list[str]:
    """What was changed because compiled kernels did not fit: other tiles, and regions that were split.

    At most `SHOWN_STEPS` in full; the ledger has all.
    """
    retiled = [row for row in rows if len(row.steps) > 1]
    split = [d for d in compiled.plan.decisions if d.reason == "does_not_fit"]
    if not retiled and not split:
        return ["Every kernel fits the GPU in the tiles that were predicted to be fastest."]
    told = [f"Retiled: {'; then '.join(map(str, row.steps))}." for row in retiled]
    told += [
        f"Split between {d.producer} and {d.consumer}: {'; then '.join(map(str, d.fits))}." for d in split
    ]
    left = len(told) - SHOWN_STEPS
    rest = [f"and {left} more, which 'onepass why' tells of each node."] if left > 0 else []
    return told[:SHOWN_STEPS] + rest


def gpu_node_json(compiled: GpuCompiled, rows: Sequence[GpuRow], name: str) -> dict[str, object]:
    """The kernel that runs node `name`, and the decisions on the node's edges; raises as `node_row`."""
    edges = [decision_json(d) for d in compiled.plan.decisions if name in d.names]
    return {"node": name, "kernel": asdict(node_row(compiled.plan, rows, name)), "decisions": edges}


def gpu_node_table(compiled: GpuCompiled, rows: Sequence[GpuRow], name: str) -> Table:
    """`gpu_node_json` as a table with one fact a line."""
    row = node_row(compiled.plan, rows, name)
    instruction = f"yes, by {row.matrix_instruction}" if row.tensor_cores else "no"
    facts = [
        ("kernel", row.name), ("form", row.form), ("tile", row.tile), ("source", row.file),
        ("registers of a thread", str(row.registers)), ("spilled, a thread", bytes_text(row.spill_bytes)),
        ("shared memory of a block", bytes_text(row.shared_bytes)),
        ("occupancy", f"{share_text(row.occupancy)}, limited by {row.limiter}"),
        ("blocks per SM", str(row.blocks_per_sm)), ("tensor cores", instruction),
        ("bytes", bytes_text(row.bytes)), ("bytes at least", bytes_text(row.minimum_bytes)),
        ("predicted", f"{seconds_text(row.predicted_s)}, bound by {row.bound}"),
        *((f"step {at}", str(step)) for at, step in enumerate(row.steps, 1)),
        *((f"{d.producer or 'model input'} → {d.consumer or 'model output'}", f"{d.home}: {d.detail}")
          for d in compiled.plan.decisions if name in d.names),
    ]  # fmt: skip
    return table(["", ""], [], facts, title=f"{name} on {compiled.gpu.product}")
