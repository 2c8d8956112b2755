"""The chart of the memory wall as SVG text.

In: devices, and the user's machine or None. Out: one self-contained SVG: ridge (operations per byte) by
year on a logarithmic scale, one colour, marker and trend line for each family, never joined.
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass

from onepass.cost.machine import Machine
from onepass.wall.table import FAMILIES, Device, Family, Growth, growth_per_two_years, place_machine

WIDTH, HEIGHT = 1000, 600
LEFT, RIGHT, TOP, BOTTOM = 64, 762, 108, 540
YEARS = (2007, 2028)
RIDGES = (1.0, 1000.0)
INK, SOFT, GRID = "#1f2933", "#52606d", "#e4e7eb"
# Okabe & Ito (2008): told apart under every common form of colour blindness; markers differ too.
COLOURS: dict[Family, str] = {"cpu": "#0072b2", "gpu vector": "#d55e00", "gpu matrix": "#007a5a"}
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
_STYLE = "font-family:system-ui,-apple-system,'Segoe UI','Liberation Sans',Arial,sans-serif"


def wall_svg(devices: tuple[Device, ...], machine: Machine | None) -> str:
    """The whole chart; `machine` is drawn as a diamond in the year in which it was measured."""
    growths = {family: growth_per_two_years(devices, family) for family in FAMILIES}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-labelledby="wall-title" style="{_STYLE}">',
        '<title id="wall-title">The memory wall</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(24, 36, "The memory wall: work that one byte from memory must pay for", 21, weight=600),
        _text(24, 60, "Peak speed over memory bandwidth of one device, by year of release. "
              "A computation with fewer operations per byte waits for memory.", 13.5, SOFT),
        _text(24, 84, "operations per byte (log scale)", 12.5, SOFT),
        *_axes(),
    ]
    for family in FAMILIES:
        parts += _trend(growths[family])
        parts += _points(devices, family)
    parts += _labels(growths)
    if machine is not None:
        parts += _machine(place_machine(machine))
    parts.append(_text(24, HEIGHT - 16, "Lines: least-squares trend of each year's best peak over its best "
                       "bandwidth, shipped devices only. Hollow: announced. Point at a mark for its figures.",
                       12, SOFT))
    return "\n".join([*parts, "</svg>\n"])


def _x(year: float) -> float:
    return LEFT + (year - YEARS[0]) / (YEARS[1] - YEARS[0]) * (RIGHT - LEFT)


def _y(ridge: float) -> float:
    low, high = math.log(RIDGES[0]), math.log(RIDGES[1])
    share = (min(max(math.log(ridge), low), high) - low) / (high - low)
    return BOTTOM - share * (BOTTOM - TOP)


def _axes() -> list[str]:
    parts = []
    for ridge in (1, 3, 10, 30, 100, 300, 1000):
        y = _y(ridge)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}" stroke="{GRID}"/>')
        parts.append(_text(LEFT - 10, y + 4.5, f"{ridge:,}", 13, SOFT, anchor="end"))
    for year in range(2008, YEARS[1], 2):
        parts.append(_text(_x(year), BOTTOM + 22, str(year), 13, SOFT, anchor="middle"))
    parts.append(f'<line x1="{LEFT}" y1="{BOTTOM}" x2="{RIGHT}" y2="{BOTTOM}" stroke="{SOFT}"/>')
    return parts


def _trend(growth: Growth) -> list[str]:
    first, last = growth.first_year, growth.last_year
    ends = " ".join(
        f'{axis}="{value:.1f}"'
        for axis, value in (
            ("x1", _x(first)), ("y1", _y(growth.ridge_flops_per_byte(first))),
            ("x2", _x(last)), ("y2", _y(growth.ridge_flops_per_byte(last))),
        )
    )
    return [f'<line {ends} stroke="{COLOURS[growth.family]}" stroke-width="3" stroke-linecap="round"/>']


def _points(devices: tuple[Device, ...], family: Family) -> list[str]:
    parts = []
    for device in devices:
        ridge = device.ridge_flops_per_byte(family)
        if ridge is None:
            continue
        x, y = _x(device.year), _y(ridge)
        fill = COLOURS[family] if device.shipped else "#ffffff"
        parts.append(
            f'<path d="{_marker(family, x, y)}" fill="{fill}" fill-opacity="0.75" stroke="{COLOURS[family]}" '
            f'stroke-width="1.3"><title>{html.escape(_describe(device, family, ridge))}</title></path>'
        )
        if (family, device.name) in LANDMARKS:
            right, down, anchor = LANDMARKS[family, device.name]
            parts.append(_text(x + right, y + down, device.name, 11.5, COLOURS[family], anchor=anchor))
    return parts


def _marker(family: Family, x: float, y: float) -> str:
    """A circle, a square or a triangle around (x, y), of equal visual weight."""
    if family == "cpu":
        return f"M{x - 4.2:.1f} {y:.1f}a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0 -8.4 0z"
    if family == "gpu vector":
        return f"M{x - 3.8:.1f} {y - 3.8:.1f}h7.6v7.6h-7.6z"
    return f"M{x:.1f} {y - 5:.1f}l5 8.8h-10z"


def _describe(device: Device, family: Family, ridge: float) -> str:
    peak = device.peak(family)
    if peak is None or device.bandwidth is None:
        return device.name
    return (
        f"{device.vendor} {device.name}, {device.year}: {peak.value / 1e12:.3g} Tflop/s / "
        f"{device.bandwidth.value / 1e9:,.4g} GB/s = {ridge:.3g} flop/byte\n"
        f"peak: {peak.source}\nbandwidth: {device.bandwidth.source}"
    )


@dataclass(frozen=True, slots=True)
class _Label:
    y: float
    growth: Growth


def _labels(growths: dict[Family, Growth]) -> list[str]:
    """Name and growth of each family at the end of its line, pushed apart where they would collide."""
    labels = [_Label(_y(g.ridge_flops_per_byte(g.last_year)), g) for g in growths.values()]
    labels.sort(key=lambda label: label.y)
    parts, free = [], float(TOP)
    for label in labels:
        y = max(label.y - 8, free)
        free = y + 88
        growth, colour = label.growth, COLOURS[label.growth.family]
        parts.append(
            f'<path d="M{_x(growth.last_year) + 6:.1f} {label.y:.1f}L{RIGHT + 8} {y - 4:.1f}" fill="none" '
            f'stroke="{colour}" stroke-dasharray="2 3"/>'
        )
        rows = (
            f"every two years, {growth.first_year}-{growth.last_year}:",
            f"peak ×{growth.peak_factor:.2f}, bandwidth ×{growth.bandwidth_factor:.2f}",
            f"operations per byte ×{growth.ridge_factor:.2f}",
        )
        parts.append(_text(RIGHT + 14, y, TITLES[growth.family], 14.5, colour, weight=600))
        parts += [_text(RIGHT + 14, y + 18 * (i + 1), row, 12.5, INK) for i, row in enumerate(rows)]
    return parts


def _machine(device: Device) -> list[str]:
    ridge = device.ridge_flops_per_byte("cpu") or RIDGES[0]
    x, y = _x(min(max(device.year, YEARS[0]), YEARS[1])), _y(ridge)
    diamond = f"M{x:.1f} {y - 9:.1f}l9 9l-9 9l-9 -9z"
    floor = BOTTOM - 16
    # The foot of the chart holds no device, so the label is free there wherever the machine lies.
    return [
        f'<path d="M{x:.1f} {y:.1f}V{floor - 5}h-10" fill="none" stroke="{INK}" stroke-width="1.2"/>',
        f'<path d="{diamond}" fill="#ffd23f" stroke="{INK}" stroke-width="2">'
        f"<title>{html.escape(_describe(device, 'cpu', ridge))}</title></path>",
        _text(x - 15, floor, f"this machine, measured: {ridge:.3g} (CPU, float32)", 13.5, anchor="end",
              weight=600),
    ]


def _text(x: float, y: float, text: str, size: float, colour: str = INK, *, anchor: str = "start",
          weight: int = 400) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{html.escape(text)}</text>'
    )
