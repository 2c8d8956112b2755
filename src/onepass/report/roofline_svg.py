"""The roofline plot: what each kernel reaches, under the roofs that were measured on this machine.

In: diagnosis rows before and after fusion, Machine, workers. Out: one SVG, both axes logarithmic
(Williams, Waterman, Patterson 2009). A dot's area is its share of the run time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onepass.cost.machine import LEVELS, Machine
from onepass.report.diagnosis import OpRow
from onepass.report.svg import BLUE, GREY, INK, MUTED, ORANGE, Canvas
from onepass.report.units import count_text, elide, seconds_text, share_text, text_width

_WIDTH, _HEIGHT = 1000.0, 560.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 92.0, 976.0, 70.0, 500.0
_LABELS = 4
Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class _Axes:
    """Maps operations per byte and operations a second to pixels."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: float) -> float:
        low, high = map(math.log10, self.x_range)
        return _LEFT + (_RIGHT - _LEFT) * (math.log10(value) - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = map(math.log10, self.y_range)
        return _BOTTOM - (_BOTTOM - _TOP) * (math.log10(value) - low) / (high - low)


@dataclass(frozen=True, slots=True)
class _Dot:
    row: OpRow
    x: float
    y: float
    radius: float


def roofline_svg(before: Sequence[OpRow], after: Sequence[OpRow], machine: Machine, workers: int) -> str:
    """The plot. Kernels without operations (pure copies) have no place on it and are counted in a note."""
    shown = [row for row in (*before, *after) if row.operations and row.minimum_bytes and row.seconds]
    peak = machine.peak_flops_per_s("float32", workers)
    known = {roof.what for roof in machine.roofs} - {"l1"}
    levels = [level for level in LEVELS if level in known]
    roofs = [(level, machine.bandwidth_bytes_per_s(level, workers, streamed=True)) for level in levels]
    intensities = [row.operations_per_byte for row in shown] or [1.0]
    rates = [row.operations / row.seconds for row in shown] or [peak]
    ridge = peak / min(bandwidth for _, bandwidth in roofs)
    axes = _Axes(
        (min(*intensities, 0.1) * 0.6, max(*intensities, ridge * 3) * 1.6),
        (min(*rates, peak / 100) * 0.6, max(*rates, peak) * 2.5),
    )
    canvas = Canvas()
    _draw_axes(canvas, axes)
    taken = _draw_roofs(canvas, axes, peak, roofs)
    sides = [(_dots(rows, axes), colour, ink) for rows, colour, ink in (
        (before, ORANGE, "#7a4a00"), (after, BLUE, "#004a75"))]  # fmt: skip
    for dots, colour, _ in sides:
        for dot in dots:
            title = (
                f"{dot.row.node} ({dot.row.op}): {seconds_text(dot.row.seconds)}, "
                f"{share_text(dot.row.share_of_total)} of the time, {share_text(dot.row.share_of_peak)} of "
                f"peak, bound: {dot.row.bound}"
            )
            canvas.circle(dot.x, dot.y, dot.radius, fill=colour, stroke=colour, opacity=0.28, title=title)
            half = 0.8 * dot.radius
            taken.append((dot.x - half, dot.y - half, dot.x + half, dot.y + half))
    for dots, _, ink in reversed(sides):
        _draw_labels(canvas, dots, ink, taken)
    end = canvas.swatches(_LEFT, 36, ((ORANGE, "before, one operator each"), (BLUE, "after fusion")))
    note = "area of a dot: its share of the time"
    left_out = len(before) + len(after) - len(shown)
    if left_out:
        note += f"; {left_out} kernels without arithmetic are left out"
    canvas.text(end + 4, 36, note, size=12, fill=MUTED)
    return canvas.render(
        _WIDTH, _HEIGHT, "Roofline plot of every kernel before and after fusion",
        f"Peak {count_text(peak, 'flop')}/s; roofs of {', '.join(level for level, _ in roofs)}.",
    )  # fmt: skip


def _ticks(low: float, high: float) -> list[float]:
    return [10.0**k for k in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def _draw_axes(canvas: Canvas, axes: _Axes) -> None:
    for value in _ticks(*axes.x_range):
        x = axes.x(value)
        canvas.line(x, _TOP, x, _BOTTOM, stroke="#e6eaef")
        canvas.text(x, _BOTTOM + 20, f"{value:g}", size=12, fill=MUTED, anchor="middle")
    for value in _ticks(*axes.y_range):
        y = axes.y(value)
        canvas.line(_LEFT, y, _RIGHT, y, stroke="#e6eaef")
        canvas.text(_LEFT - 8, y + 4, count_text(value, "flop/s"), size=12, fill=MUTED, anchor="end")
    canvas.line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM, stroke=MUTED)
    label = "operations per byte (every input read once, every output written once)"
    canvas.text((_LEFT + _RIGHT) / 2, _BOTTOM + 44, label, size=13, anchor="middle")


def _draw_roofs(canvas: Canvas, axes: _Axes, peak: float, roofs: Sequence[tuple[str, float]]) -> list[Box]:
    """Draws the roofs; returns the boxes of their labels."""
    taken = []
    y, fastest = axes.y(peak), max(bandwidth for _, bandwidth in roofs)
    for level, bandwidth in roofs:
        ridge = peak / bandwidth
        start = max(axes.x_range[0], axes.y_range[0] / bandwidth)
        x0, y0, x1 = axes.x(start), axes.y(start * bandwidth), axes.x(ridge)
        canvas.line(x0, y0, x1, y, stroke=INK, width=1.4, dash="" if level == "memory" else "6 4")
        turn = math.degrees(math.atan2(y - y0, x1 - x0))
        label = f"{level} {count_text(bandwidth, 'B/s')}"
        at = x0 + 16
        base = y0 + (y - y0) * (at - x0) / (x1 - x0)
        # Slopes lie close together: only the highest has room above it.
        base += -5 if bandwidth == fastest else 14
        canvas.text(at - 4, base, label, size=12, fill=INK, turn=turn, halo=True)
        # The label leans: boxes along it cover it well enough.
        long = text_width(label, 12)
        for part in (0.0, 0.33, 0.66, 1.0):
            px = at + part * long * math.cos(math.radians(turn))
            py = base + part * long * math.sin(math.radians(turn))
            taken.append((px - 14, py - 15, px + 14, py + 11))
    first = axes.x(peak / fastest)
    canvas.line(first, y, _RIGHT, y, stroke=INK, width=1.4)
    label = f"peak {count_text(peak, 'flop/s')}"
    canvas.text(first, y - 7, label, size=12, fill=INK, halo=True)
    taken.append((first, y - 20, first + text_width(label, 12), y - 3))
    return taken


def _dots(rows: Sequence[OpRow], axes: _Axes) -> list[_Dot]:
    dots = [
        _Dot(row, axes.x(row.operations_per_byte), axes.y(row.operations / row.seconds),
             3.0 + 42.0 * math.sqrt(row.share_of_total) * 0.6)
        for row in rows
        if row.operations and row.minimum_bytes and row.seconds
    ]  # fmt: skip
    return sorted(dots, key=lambda dot: -dot.radius)


def _draw_labels(canvas: Canvas, dots: Sequence[_Dot], ink: str, taken: list[Box]) -> None:
    """Names the dearest kernels where a place is free above or below the dot."""
    for dot in dots[:_LABELS]:
        first, _, rest = dot.row.node.partition(" … ")
        text = elide(first.strip("/"), 11.5, 170) + (" +" if rest else "")
        text += f" {share_text(dot.row.share_of_total)}"
        wide = text_width(text, 11.5)
        x = dot.x + 6 if dot.x + 6 + wide < _RIGHT else dot.x - 6 - wide
        for step in range(12):
            for y in (dot.y - dot.radius - 5 - 14 * step, dot.y + dot.radius + 12 + 14 * step):
                box = (x - 2, y - 12, x + wide, y + 4)
                is_free = all(box[2] < b[0] or b[2] < box[0] or box[3] < b[1] or b[3] < box[1] for b in taken)
                if is_free and box[1] > _TOP - 16 and box[3] < _BOTTOM:
                    taken.append(box)
                    canvas.line(dot.x, dot.y, min(max(dot.x, x), x + wide), y - 4, stroke=GREY)
                    canvas.text(x, y, text, size=11.5, fill=ink, weight=600, halo=True)
                    break
            else:
                continue
            break
