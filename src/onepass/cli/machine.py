"""`onepass machine` and `onepass wall`: the limits of this machine, and how hardware got there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from onepass.cli.common import ROOFS, JsonOption, ThreadsOption, progress, reported, screen, show_json
from onepass.core.files import write_text
from onepass.cost.gpu import GPUS, Gpu, find_gpu
from onepass.cost.machine import Roof
from onepass.report.terminal import table
from onepass.report.units import bytes_text, count_text, roof_text
from onepass.runtime.machine_cache import load_machine, machine_path, measure_machine
from onepass.wall.chart import wall_svg
from onepass.wall.table import FAMILIES, Device, Growth, growth_per_two_years, load_devices, place_machine


@reported
def machine(
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again, even if that was done.")] = False,
    target: Annotated[
        str | None, typer.Option(metavar="GPU", show_default="this CPU",
                                 help=f"Tell a GPU's figures by datasheet instead: {', '.join(GPUS)}.")
    ] = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Measure what this machine can reach: its roofs, for one worker and for all.

    Peak operations a second by type, bytes a second from each cache level and from memory, and the cost
    of launching a kernel. Every prediction of onepass rests on these. They are measured once and kept.

    Example: `onepass machine --fresh`
    """
    if target is not None:
        _show_gpu(find_gpu(target), as_json)
        return
    with progress() as step:
        step("measuring this machine" if fresh else ROOFS)
        found = measure_machine(fresh, threads)
    path = machine_path(threads)
    kept = load_machine(path) == found
    if as_json:
        show_json({**asdict(found), "kept_in": str(path) if kept else None})
        return
    sizes = (("L1", found.l1_bytes), ("L2", found.l2_bytes), ("L3", found.l3_bytes))
    caches = ", ".join(f"{name} {bytes_text(size)}" for name, size in sizes)
    registers = f"{found.vector_registers} registers of {found.vector_bits} bits"
    show = screen()
    show.say(f"{found.name}: {found.cores} cores, {found.isa} ({registers}), {caches}", "")
    show.show(_roof_table(found.roofs))
    show.say(f"Kept in {path}." if kept else f"Not kept, so measured every time: {path} cannot be written.")


def _roof_table(roofs: Iterable[Roof]) -> Table:
    rows = ((r.what, str(r.workers), roof_text(r.value, r.unit), r.method, r.date) for r in roofs)
    return table(["roof", "workers", "value", "method", "date"], [], rows)


def _show_gpu(gpu: Gpu, as_json: bool) -> None:
    """The description that predictions for `gpu` rest on."""
    if as_json:
        show_json(asdict(gpu))
        return
    show = screen()
    show.say(
        f"{gpu.product} ({gpu.name}): {gpu.sms} SMs, each with {gpu.registers_per_sm:,} registers of 32 bits "
        f"(at most {gpu.max_registers} a thread), {bytes_text(gpu.shared_bytes_per_sm)} of shared memory "
        f"(at most {bytes_text(gpu.shared_bytes_per_block)} a block), {gpu.warps_per_sm} warps of "
        f"{gpu.warp_size}, {gpu.blocks_per_sm} blocks; L2 {bytes_text(gpu.l2_bytes)}.",
        f"Source: {gpu.limits}.", "",
    )  # fmt: skip
    show.show(_roof_table(gpu.roofs))


@reported
def wall(
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="Write the chart to this file.")
    ] = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the memory wall: how much faster computing grew than memory, and where this machine stands.

    CPUs, GPU vector units and GPU matrix units are three families that grew at different rates; each
    figure of the table has its source, which `--json` shows.

    Example: `onepass wall --svg wall.svg`
    """
    with progress() as step:
        step(ROOFS)
        here = measure_machine(workers=threads)
    devices = load_devices()
    growths = [growth_per_two_years(devices, family) for family in FAMILIES]
    if svg is not None:
        write_text(svg, wall_svg(devices, here))
    placed = place_machine(here)
    if as_json:
        show_json({
            "devices": [asdict(device) for device in (*devices, placed)],
            "growth_per_two_years": {
                growth.family: {**asdict(growth), "ridge_factor": growth.ridge_factor} for growth in growths
            },
            "machine": asdict(placed),
            "svg": str(svg) if svg else None,
        })
        return
    show = screen()
    show.show(_device_table((*devices, replace(placed, name=f"{placed.name} (this machine)"))))
    show.say(*map(_sentence, growths))
    show.say(f"This machine: {placed.ridge_flops_per_byte('cpu'):.3g} operations for one byte from memory; a "
             "computation with fewer waits for memory.")
    if svg is not None:
        show.say(f"Written: {svg}")


def _sentence(growth: Growth) -> str:
    years = f"{growth.first_year} to {growth.last_year}"
    return (
        f"{growth.family}, {years}, in two years: peak x{growth.peak_factor:.2f}, "
        f"bandwidth x{growth.bandwidth_factor:.2f}, operations per byte x{growth.ridge_factor:.2f}."
    )


def _device_table(devices: tuple[Device, ...]) -> Table:
    rows = []
    for device in sorted(devices, key=lambda device: device.year):
        family = FAMILIES[0] if device.kind == "cpu" else FAMILIES[1]
        ridges = (device.ridge_flops_per_byte(family), device.ridge_flops_per_byte(FAMILIES[2]))
        figures = ((device.vector, "flop/s"), (device.matrix, "flop/s"), (device.bandwidth, "B/s"))
        rows.append((
            str(device.year), f"{device.vendor} {device.name}".strip(),
            device.kind if device.shipped else f"{device.kind} (announced)",
            *("" if figure is None else count_text(figure.value, unit) for figure, unit in figures),
            *("" if ridge is None else f"{ridge:.3g}" for ridge in ridges),
        ))  # fmt: skip
    numbers = ["float32 peak", "matrix peak", "bandwidth", "ops/byte", "matrix ops/byte"]
    return table(["year", "device", "kind"], numbers, rows)
