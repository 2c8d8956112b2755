"""The picture of the suite: the time of each way to run a workload as a multiple of its limit.

In: the results of `suite.py`. Out: one self-contained SVG. A line across the bars of a workload marks its
limit: the part of a bar right of it is time that the machine's roofs do not explain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onepass.report.svg import BLUE, GREEN, GREY, INK, MUTED, ORANGE, PURPLE, VERMILION, Canvas
from onepass.report.units import seconds_text

PEERS = ("onnxruntime", "openvino", "torch")
COLOURS = {"onepass": BLUE, "unfused": GREY, **dict(zip(PEERS, (ORANGE, GREEN, PURPLE), strict=True))}
LABELS = {"unfused": "onepass, unfused", "torch": "torch.compile"}
MOST = 4.0
"""Multiples of the limit in the picture's width; a workload with a longer bar is drawn smaller to fit."""
_WIDTH, LEFT, RIGHT, _TOP = 1000.0, 236.0, 880.0, 96.0
_BAR, _STEP, _GAP = 11.0, 13.0, 18.0


def ways(row: dict[str, Any]) -> Iterator[tuple[str, float | None]]:
    """The ways that a row was run in, each with its time in ms; None where it did not run."""
    yield "onepass", row["onepass_ms"]
    yield "unfused", row["unfused_ms"]
    yield from row["peers"].items()


def suite_svg(results: dict[str, Any]) -> str:
    """The whole picture."""
    canvas, rows = Canvas(), results["rows"]
    title = "How far from the limit of the machine"
    note = ("Red: the time that the measured roofs (FMA peak, bandwidths) allow the fused kernels of onepass "
            "at best; ×: multiples of it.")  # fmt: skip
    canvas.text(24, 34, title, size=19, weight=600)
    canvas.text(24, 56, note, size=12.5, fill=MUTED)
    canvas.swatches(24, 80, tuple((colour, LABELS.get(name, name)) for name, colour in COLOURS.items()))
    height = len(COLOURS) * _STEP + _GAP
    bottom = _TOP + len(rows) * height
    for index, row in enumerate(rows):
        _draw_row(canvas, row, _TOP + _GAP / 2 + index * height)
    scale = f"Where a red mark stands further left, a time exceeds {MOST:g}× and its bars are drawn smaller."
    machine = f"{results['machine']['name']}, {results['date']}; minima of runs in turns."
    canvas.text(24, bottom + 18, scale, fill=MUTED)
    canvas.text(24, bottom + 36, machine, fill=MUTED)
    return canvas.render(_WIDTH, bottom + 52, title, "; ".join(map(_told, rows)))


def _told(row: dict[str, Any]) -> str:
    times = ", ".join(f"{name} {_time(ms)}" for name, ms in ways(row))
    return f"{row['workload']}: {times}, limit {_time(row['limit_ms'])}"


def _time(ms: float | None) -> str:
    return "did not run" if ms is None else seconds_text(ms / 1e3)


def _draw_row(canvas: Canvas, row: dict[str, Any], y: float) -> None:
    model, _, shape = row["workload"].partition(" ")
    canvas.text(24, y + 25, model, size=14, weight=600)
    canvas.text(24, y + 42, shape, fill=MUTED)
    canvas.text(24, y + 57, f"limit {_time(row['limit_ms'])}", fill=VERMILION)
    limit, top = row["limit_ms"], y
    unit = (RIGHT - LEFT) / max(MOST, *(ms / limit for _, ms in ways(row) if ms is not None))
    for name, ms in ways(row):
        end, told = LEFT, _time(ms)
        if ms is not None:
            end += unit * ms / limit
            told += f", {ms / limit:.2f}×"
            title = f"{LABELS.get(name, name)} {told}"
            canvas.rect(LEFT, y, end - LEFT, _BAR, fill=COLOURS[name], title=title)
        ink, weight = (INK, 600) if name == "onepass" else (MUTED, 400)
        canvas.text(end + 6, y + 9.5, told, size=11, fill=ink, weight=weight, halo=True)
        y += _STEP
    canvas.line(LEFT + unit, top - 4, LEFT + unit, y + 2, stroke=VERMILION, width=2)
