"""The chart of the memory wall as SVG text.

In: devices, and the user's machine or None. Out: one self-contained SVG: ridge (operations per byte) by
year on a logarithmic scale, one colour, marker and trend line for each family, never joined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from onepass.cost.machine import Machine
from onepass.report.svg import BLUE, INK, MUTED, PAPER, VERMILION, Canvas, number
from onepass.wall.table import FAMILIES, Device, Family, Growth, growth_per_two_years, place_machine

WIDTH, HEIGHT = 1000, 600
LEFT, RIGHT, TOP, BOTTOM = 64, 762, 108, 540
YEARS = (2007, 2028)
RIDGES = (1.0, 1000.0)
GRID = "#e4e7eb"
# Markers differ too, so that families can be told apart without colours.
COLOURS: dict[Family, str] = {"cpu": BLUE, "gpu vector": VERMILION, "gpu matrix": "#007a5a"}
TITLES: dict[Family, str] = {
    "cpu": "CPU, float32",
    "gpu vector": "GPU vector units, float32",
    "gpu matrix": "GPU matrix units, 16-bit",
}
# Where the name of a well-known device goes beside its mark: shift right, shift down, alignment.
LANDMARKS: dict[tuple[Family, str], tuple[int, int, str]] = {
    ("cpu", "Xeon X5492"): (9, 4, "start"),
    ("cpu", "Xeon Platinum 8180"): (0, -10, "middle"),
    ("cpu", "EPYC 9755"): (8, -8, "start"),
    ("gpu vector", "Radeon HD 5870"): (0, -10, "middle"),
    ("gpu vector", "A100 SXM 80GB"): (0, 18, "middle"),
    ("gpu vector", "B200 SXM 180GB"): (0, 18, "middle"),
    ("gpu vector", "GeForce RTX 4090"): (-10, 4, "end"),
    ("gpu matrix", "A100 SXM 80GB"): (-9, 4, "end"),
    ("gpu matrix", "H100 SXM 80GB"): (-9, 4, "end"),
    ("gpu matrix", "L40S"): (0, -10, "middle"),
}


def wall_svg(devices: tuple[Device, ...], machine: Machine | None) -> str:
    """The whole chart; `machine` is drawn as a diamond in the year in which it was measured."""
    canvas, title = Canvas(), "The memory wall: work that one byte from memory must pay for"
    note = ("Peak speed over memory bandwidth of one device, by year of release. "
            "A computation with fewer operations per byte waits for memory.")  # fmt: skip
    canvas.text(24, 36, title, size=21, weight=600)
    canvas.text(24, 60, note, size=13.5, fill=MUTED)
    canvas.text(24, 84, "operations per byte (log scale)", fill=MUTED)
    _draw_axes(canvas)
    growths = [growth_per_two_years(devices, family) for family in FAMILIES]
    for growth in growths:
        first, last = growth.first_year, growth.last_year
        start, end = (_y(growth.ridge_flops_per_byte(year)) for year in (first, last))
        canvas.line(_x(first), start, _x(last), end, stroke=COLOURS[growth.family], width=3)
        _draw_devices(canvas, devices, growth.family)
    _draw_labels(canvas, growths)
    if machine is not None:
        _draw_machine(canvas, place_machine(machine))
    foot = ("Lines: least-squares trend of each year's best peak over its best bandwidth, shipped devices "
            "only. Hollow: announced. Point at a mark for its figures.")  # fmt: skip
    canvas.text(24, HEIGHT - 16, foot, fill=MUTED)
    return canvas.render(WIDTH, HEIGHT, "The memory wall", note)


def _x(year: float) -> float:
    return LEFT + (min(max(year, YEARS[0]), YEARS[1]) - YEARS[0]) / (YEARS[1] - YEARS[0]) * (RIGHT - LEFT)


def _y(ridge: float) -> float:
    low, high = map(math.log, RIDGES)
    share = (min(max(math.log(ridge), low), high) - low) / (high - low)
    return BOTTOM - share * (BOTTOM - TOP)


def _draw_axes(canvas: Canvas) -> None:
    for ridge in (1, 3, 10, 30, 100, 300, 1000):
        canvas.line(LEFT, _y(ridge), RIGHT, _y(ridge), stroke=GRID)
        canvas.text(LEFT - 10, _y(ridge) + 4.5, f"{ridge:,}", size=13, fill=MUTED, anchor="end")
    for year in range(2008, YEARS[1], 2):
        canvas.text(_x(year), BOTTOM + 22, str(year), size=13, fill=MUTED, anchor="middle")
    canvas.line(LEFT, BOTTOM, RIGHT, BOTTOM, stroke=MUTED)


def _draw_devices(canvas: Canvas, devices: tuple[Device, ...], family: Family) -> None:
    colour = COLOURS[family]
    for device in devices:
        ridge = device.ridge_flops_per_byte(family)
        if ridge is None:
            continue
        x, y = _x(device.year), _y(ridge)
        canvas.path(_marker(family, x, y), fill=colour if device.shipped else PAPER, opacity=0.75,
                    stroke=colour, width=1.3, title=_describe(device, family))  # fmt: skip
        if (family, device.name) in LANDMARKS:
            right, down, anchor = LANDMARKS[family, device.name]
            canvas.text(x + right, y + down, device.name, size=11.5, fill=colour, anchor=anchor)


def _marker(family: Family, x: float, y: float) -> str:
    """A circle, a square or a triangle around (x, y), of equal visual weight."""
    if family == "cpu":
        return f"M{number(x - 4.2)} {number(y)}a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0 -8.4 0z"
    if family == "gpu vector":
        return f"M{number(x - 3.8)} {number(y - 3.8)}h7.6v7.6h-7.6z"
    return f"M{number(x)} {number(y - 5)}l5 8.8h-10z"


def _describe(device: Device, family: Family) -> str:
    peak, bandwidth = device.peak(family), device.bandwidth
    if peak is None or bandwidth is None:
        return device.name
    return (
        f"{device.vendor} {device.name}, {device.year}: {peak.value / 1e12:.3g} Tflop/s / "
        f"{bandwidth.value / 1e9:,.4g} GB/s = {peak.value / bandwidth.value:.3g} flop/byte\n"
        f"peak: {peak.source}\nbandwidth: {bandwidth.source}"
    )


def _draw_labels(canvas: Canvas, growths: Sequence[Growth]) -> None:
    """Name and growth of each family at the end of its line, pushed apart where they would collide."""
    free = float(TOP)
    for growth in sorted(growths, key=lambda growth: -growth.ridge_flops_per_byte(growth.last_year)):
        family, end = growth.family, _y(growth.ridge_flops_per_byte(growth.last_year))
        y = max(end - 8, free)
        free = y + 88
        link = f"M{number(_x(growth.last_year) + 6)} {number(end)}L{RIGHT + 8} {number(y - 4)}"
        canvas.path(link, stroke=COLOURS[family], dash="2 3")
        canvas.text(RIGHT + 14, y, TITLES[family], size=14.5, fill=COLOURS[family], weight=600)
        rows = (
            f"every two years, {growth.first_year}-{growth.last_year}:",
            f"peak ×{growth.peak_factor:.2f}, bandwidth ×{growth.bandwidth_factor:.2f}",
            f"operations per byte ×{growth.ridge_factor:.2f}",
        )
        for i, row in enumerate(rows, 1):
            canvas.text(RIGHT + 14, y + 18 * i, row, size=12.5)


def _draw_machine(canvas: Canvas, device: Device) -> None:
    ridge = device.ridge_flops_per_byte("cpu") or RIDGES[0]
    x, y, floor = _x(device.year), _y(ridge), BOTTOM - 16
    # The foot of the chart holds no device, so the label is free there wherever the machine lies.
    canvas.path(f"M{number(x)} {number(y)}V{floor - 5}h-10", stroke=INK, width=1.2)
    canvas.path(f"M{number(x)} {number(y - 9)}l9 9l-9 9l-9 -9z", fill="#ffd23f", stroke=INK, width=2,
                title=_describe(device, "cpu"))  # fmt: skip
    label = f"this machine, measured: {ridge:.3g} (CPU, float32)"
    canvas.text(x - 15, floor, label, size=13.5, anchor="end", weight=600)
