"""The picture of the suite: the time of each way to run a workload as a multiple of its limit.

In: the results of `suite.py`. Out: one self-contained SVG. The limit is one line down the whole picture, so
the part of a bar right of it is time that the machine's roofs do not explain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onepass.report.svg import BLUE, GREEN, GREY, INK, MUTED, ORANGE, PAPER, PURPLE, VERMILION, Canvas
from onepass.report.units import seconds_text

PEERS = ("onnxruntime", "openvino", "torch")
COLOURS = {"onepass": BLUE, "unfused": GREY, **dict(zip(PEERS, (ORANGE, GREEN, PURPLE), strict=True))}
LABELS = {"unfused": "onepass, unfused", "torch": "torch.compile"}
MOST = 4.0
"""Multiples of the limit that the axis shows; a longer bar is cut."""
_WIDTH, _LEFT, _RIGHT, _TOP = 1000.0, 236.0, 900.0, 104.0
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
    note = ("Time of one run over the time that the measured roofs (FMA peak, bandwidths) allow the fused "
            "kernels of onepass at best.")  # fmt: skip
    canvas.text(24, 34, title, size=19, weight=600)
    canvas.text(24, 56, note, size=12.5, fill=MUTED)
    canvas.swatches(24, 80, tuple((colour, LABELS.get(name, name)) for name, colour in COLOURS.items()))
    height = len(COLOURS) * _STEP + _GAP
    bottom = _TOP + len(rows) * height
    for multiple in range(int(MOST) + 1):
        canvas.line(_x(multiple), _TOP, _x(multiple), bottom, stroke="#e6eaef")
        canvas.text(_x(multiple), bottom + 18, f"{multiple}×", fill=MUTED, anchor="middle")
    for index, row in enumerate(rows):
        _draw_row(canvas, row, _TOP + _GAP / 2 + index * height)
    canvas.line(_x(1), _TOP, _x(1), bottom + 4, stroke=VERMILION, width=2)
    canvas.text(_x(1), bottom + 34, "limit", size=12.5, weight=600, fill=VERMILION, anchor="middle")
    machine = f"{results['machine']['name']}, {results['date']}. Milliseconds: minima of runs in turns."
    canvas.text(24, bottom + 56, machine, fill=MUTED)
    return canvas.render(_WIDTH, bottom + 72, title, "; ".join(map(_told, rows)))


def _x(multiple: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * multiple / MOST


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
    for name, ms in ways(row):
        end = _LEFT
        if ms is not None:
            multiple = ms / row["limit_ms"]
            end = _x(min(multiple, MOST))
            told = f"{LABELS.get(name, name)} {_time(ms)}, {multiple:.2f} times the limit"
            canvas.rect(_LEFT, y, end - _LEFT, _BAR, fill=COLOURS[name], title=told)
            if multiple > MOST:  # two strokes across the bar
                for shift in (-18, -12):
                    canvas.line(end + shift, y + _BAR, end + shift + 5, y, stroke=PAPER, width=2)
        ink, weight = (INK, 600) if name == "onepass" else (MUTED, 400)
        canvas.text(end + 6, y + 9.5, _time(ms), size=11, fill=ink, weight=weight, halo=True)
        y += _STEP
