"""The time bar: where the time of a run goes before and after fusion, on one scale.

In: both plans with their traces (predicted times where there is no trace). Out: one SVG with two bars
for each side: by kind of operator, and by what the time is spent on.
"""

from __future__ import annotations

from collections.abc import Mapping

from onepass.fuse.plan import Plan
from onepass.report.diagnosis import SPENT, split_time
from onepass.report.svg import BLUE, INK, MUTED, PAPER, VERMILION, Canvas
from onepass.report.units import seconds_text, share_text, text_width
from onepass.runtime.trace import Trace

_WIDTH, _LEFT, _BAR = 1000.0, 24.0, 952.0
# Tints of the palette in `svg`, light enough for dark text.
_KINDS = ("#a9d8f3", "#f3cd7c", "#7fcdb6", "#e4b9d0", "#F0E442", "#d3d9df")
_SPENT = dict(zip(
    SPENT, ((BLUE, PAPER), (VERMILION, PAPER), ("#4b5563", PAPER), ("#e2e6eb", INK)), strict=True,
))  # fmt: skip
"""Fill and ink of each part."""


def timebar_svg(before: Plan, after: Plan, before_trace: Trace | None, after_trace: Trace | None) -> str:
    """The bars; each segment says its name and seconds where it is wide enough, and in its tooltip."""
    sides = [
        ("Before", _by_kind(before, before_trace), _spent(before, before_trace)),
        ("After", _by_kind(after, after_trace), _spent(after, after_trace)),
    ]
    longest = max(sum(kinds.values()) for _, kinds, _ in sides) or 1.0
    order = list(dict.fromkeys(kind for _, kinds, _ in sides for kind in kinds))
    order.sort(key=lambda kind: (kind == "other", -sum(kinds.get(kind, 0.0) for _, kinds, _ in sides)))
    tints = (_KINDS[min(i, len(_KINDS) - 1)] for i in range(len(order)))
    colours = dict(zip(order, tints, strict=True))
    canvas, y = Canvas(), 28.0
    for name, kinds, spent in sides:
        total = sum(kinds.values())
        canvas.text(_LEFT, y, f"{name}: {seconds_text(total)}", size=15, weight=650)
        scale = _BAR / longest
        ordered = {kind: kinds[kind] for kind in order if kind in kinds}
        _draw_bar(canvas, y + 10, 34, ordered, scale, {kind: (colours[kind], INK) for kind in ordered})
        _draw_bar(canvas, y + 48, 24, spent, scale, _SPENT)
        y += 112
    canvas.swatches(_LEFT, y - 8, tuple((colours[kind], kind) for kind in order[: len(_KINDS)]))
    y += 24
    x = canvas.swatches(_LEFT, y - 8, tuple((fill, label) for label, (fill, _) in _SPENT.items()))
    source = "measured" if before_trace and after_trace else "predicted"
    canvas.text(x, y - 8, f"Times are {source}.", size=12, fill=MUTED)
    return canvas.render(_WIDTH, y + 12, "Time before and after fusion", "; ".join(
        f"{name}: {seconds_text(sum(kinds.values()))}" for name, kinds, _ in sides))  # fmt: skip


def _draw_bar(
    canvas: Canvas, y: float, height: float, parts: Mapping[str, float], scale: float,
    colours: Mapping[str, tuple[str, str]],
) -> None:  # fmt: skip
    x = _LEFT
    total = sum(parts.values()) or 1.0
    for label, seconds in parts.items():
        width = seconds * scale
        fill, ink = colours[label]
        told = f"{label} {seconds_text(seconds)} ({share_text(seconds / total)})"
        canvas.rect(x, y, max(0.0, width - (1 if width > 3 else 0)), height, fill=fill, title=told)
        for text in (told, f"{label} {share_text(seconds / total)}", label):
            if text_width(text, 12) < width - 12:
                canvas.text(x + 6, y + height / 2 + 4.5, text, size=12, fill=ink)
                break
        x += width


def _seconds(plan: Plan, trace: Trace | None) -> dict[int, float]:
    measured = trace.seconds_of_region() if trace else {}
    return {region.id: measured.get(region.id, region.estimate.seconds) for region in plan.regions}


def _by_kind(plan: Plan, trace: Trace | None) -> dict[str, float]:
    """Seconds by the main operator of each kernel (its first); the rarest are summed as `other`."""
    seconds = _seconds(plan, trace)
    kinds: dict[str, float] = {}
    for region in plan.regions:
        node = region.nodes[0]
        kind = node.spelling or node.op
        kinds[kind] = kinds.get(kind, 0.0) + seconds[region.id]
    dearest = sorted(kinds, key=lambda kind: -kinds[kind])
    top = {kind: kinds[kind] for kind in dearest[: len(_KINDS) - 1]}
    rest = sum(kinds[kind] for kind in dearest[len(_KINDS) - 1 :])
    return {**top, "other": rest} if rest else top


def _spent(plan: Plan, trace: Trace | None) -> dict[str, float]:
    seconds = _seconds(plan, trace)
    splits = [split_time(region.estimate, seconds[region.id]) for region in plan.regions]
    return {part: sum(split[part] for split in splits) for part in SPENT}
