"""The picture of data flow before and after fusion: operators, memory, arrows as wide as their bytes.

In: the plan with one region a node and the fused plan, over the same graph. Out: one SVG. The two
sides share their rows, so an operator stands at the same height on both; repeated blocks are drawn
once, with sums of their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onepass.fuse.plan import Plan
from onepass.report.flow_rows import Block, Fold, Inner, Lane, Row, flow_rows, rows_of
from onepass.report.flows import Totals, totals
from onepass.report.svg import (
    BLUE,
    GREEN,
    GREY,
    HOME_COLOURS,
    INK,
    LINE,
    MUTED,
    ORANGE,
    PALE,
    PAPER,
    SKY,
    Canvas,
)
from onepass.report.units import bytes_text, elide, plural, share_text, text_width

_MARGIN, _BAR, _REACH, _PAD, _BOX, _GUTTER, _BETWEEN = 26, 32, 150, 14, 222, 34, 40
_PANEL = _BAR + _REACH + _PAD + _BOX + _GUTTER
_TOP, _BRACKET = 246, 84
_ROW_MIN, _INNER_GAP, _HEADER, _BLOCK_GAP, _FOLD_PAD = 42.0, 26.0, 24.0, 12.0, 12.0
_SCALAR_BYTES = 64
_KIND_COLOURS = {"intermediate": ORANGE, "weights": GREY, "model": SKY}
_FUSED_FILL, _FUSED_INK, _FOLD_FILL = "#e6f5ef", "#00593f", "#f7f8fa"


@dataclass(slots=True)
class _Placed:
    """A row with its top and height."""

    row: Row
    y: float
    height: float

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass(slots=True)
class _Frame:
    """A block of rows (one region) or a fold, from `y0` to `y1`; `depth` counts folds around it."""

    part: Block | Fold
    y0: float
    y1: float
    depth: int
    rows: tuple[_Placed, ...] = ()


class _Layout:
    """Gives every row, region and fold its place, from top to bottom."""

    def __init__(self, parts: Sequence[Block | Fold], scale: float) -> None:
        self.scale, self.y, self.deepest = scale, float(_TOP), 0
        self.blocks: list[_Frame] = []
        self.folds: list[_Frame] = []
        self._place(parts, 0)

    def width(self, size_bytes: int) -> float:
        """Pixels of an arrow that carries so many bytes."""
        return max(1.5, size_bytes * self.scale)

    def lane_height(self, lane: Lane) -> float:
        """Room for the arrow, its head and its label."""
        return max(17.0, self.width(lane.size_bytes) + 9.0)

    def _place(self, parts: Sequence[Block | Fold], depth: int) -> None:
        for part in parts:
            if isinstance(part, Block):
                self._place_block(part, depth)
                continue
            frame = _Frame(part, self.y, 0.0, depth)
            self.folds.append(frame)
            self.deepest = max(self.deepest, depth + 1)
            self.y += _FOLD_PAD
            self._place(part.body, depth + 1)
            frame.y1 = self.y - _BLOCK_GAP + _FOLD_PAD
            self.y = frame.y1 + _BLOCK_GAP

    def _place_block(self, block: Block, depth: int) -> None:
        start = self.y
        if block.is_fused:
            self.y += _HEADER
        rows = []
        for row in block.rows:
            lanes = max(sum(map(self.lane_height, _visible(side))) for side in (row.before, row.after))
            height = max(_ROW_MIN, lanes + 8)
            rows.append(_Placed(row, self.y, height))
            self.y += height + _INNER_GAP
        self.y += -_INNER_GAP + (10.0 if block.is_fused else 0.0)
        self.blocks.append(_Frame(block, start, self.y, depth, tuple(rows)))
        self.y += _BLOCK_GAP


def before_after_svg(before: Plan, after: Plan) -> str:
    """The picture of both plans side by side, as an SVG document."""
    parts = flow_rows(before, after)
    rows = rows_of(parts)
    most = max((lane.size_bytes for row in rows for lane in (*row.before, *row.after)), default=1)
    layout = _Layout(parts, (32.0 if len(rows) <= 10 else 22.0) / max(most, 1))
    canvas = Canvas()
    left, right = _MARGIN, _MARGIN + _PANEL + _BETWEEN
    width = right + _PANEL + _MARGIN + _BRACKET * layout.deepest
    was, now = totals(before), totals(after)
    _draw_title(canvas, after.graph.name, was, now, bool(layout.folds))
    for frame in layout.folds:
        _draw_fold(canvas, frame, right + _PANEL, layout.deepest)
    for x, total in ((left, was), (right, now)):
        _draw_heading(canvas, x, total, was)
        _draw_memory(canvas, x, layout.y)
    for frame in layout.blocks:
        _draw_before(canvas, layout, frame, left)
        _draw_after(canvas, layout, frame, right)
    _draw_legend(canvas, layout, most)
    saved = f"{bytes_text(was.all_bytes)} before, {bytes_text(now.all_bytes)} after"
    return canvas.render(
        width, layout.y + 16, f"Data flow of {after.graph.name} before and after fusion",
        f"{was.kernels} kernels move {saved} in {now.kernels} kernels.",
    )  # fmt: skip


def _visible(lanes: Sequence[Lane]) -> list[Lane]:
    """All but scalar constants: an arrow for the bounds of a Clip would say nothing."""
    return [a for a in lanes if a.kind != "weights" or a.size_bytes >= _SCALAR_BYTES * a.copies]


def _draw_title(canvas: Canvas, model: str, was: Totals, now: Totals, is_folded: bool) -> None:
    name = elide(model, 21, 330)
    text = f"{name}: nothing is fused"
    if was.intermediate_bytes > now.intermediate_bytes == 0:
        text = f"{name}: fusion keeps every intermediate value out of memory"
    elif was.intermediate_bytes > now.intermediate_bytes:
        cut = 1 - now.intermediate_bytes / was.intermediate_bytes
        text = f"{name}: fusion removes {share_text(cut)} of the intermediate traffic"
    canvas.text(_MARGIN, 40, text, size=21, weight=650)
    note = "Arrows are data that moves between memory and operators; their width is the number of bytes."
    if is_folded:
        note += " Repeated blocks are drawn once, their bytes added up."
    canvas.text(_MARGIN, 64, note, size=13, fill=MUTED)


def _draw_heading(canvas: Canvas, x: float, total: Totals, was: Totals) -> None:
    is_before = total is was
    title, note = ("Before", "one kernel per operator") if is_before else ("After", "fused kernels")
    canvas.text(x, 148, title, size=17, weight=650)
    canvas.text(x + (72 if is_before else 58), 148, note, size=13, fill=MUTED)
    counts = (plural(total.kernels, "kernel"), plural(total.reads, "read"), plural(total.writes, "write"))
    canvas.text(x, 169, " · ".join(counts), size=13)
    full = max(was.all_bytes, total.all_bytes, 1)
    at = x
    for size, colour in (
        (total.intermediate_bytes, ORANGE), (total.weight_bytes, GREY), (total.model_bytes, SKY),
    ):  # fmt: skip
        canvas.rect(at, 180, _PANEL * size / full, 18, fill=colour)
        at += _PANEL * size / full
    text = f"{bytes_text(total.all_bytes)} moved, {bytes_text(total.intermediate_bytes)} of it intermediates"
    canvas.text(x, 216, text, size=13)
    saved = was.all_bytes - total.all_bytes
    if saved > 0:
        canvas.rect(at + 1, 180.5, x + _PANEL - at - 1.5, 17, fill=PAPER, stroke=GREEN, dash="4 3")
        label = f"{bytes_text(saved)} saved"
        if text_width(label, 12) < x + _PANEL - at - 8:
            middle = (at + x + _PANEL) / 2
            canvas.text(middle, 193.5, label, size=12, weight=600, fill=_FUSED_INK, anchor="middle")
        else:
            canvas.text(x + _PANEL, 169, label, size=13, weight=600, fill=_FUSED_INK, anchor="end")


def _draw_memory(canvas: Canvas, x: float, bottom: float) -> None:
    top = _TOP - 14
    canvas.rect(x, top, _BAR, bottom - top, fill="#e4e9ef", stroke="#9aa6b4", radius=4)
    copies = max(1, int((bottom - top) // 560))
    for i in range(copies):
        y = top + (bottom - top) * (i + 0.5) / copies
        canvas.text(x + _BAR / 2 + 5, y, "memory", size=14, weight=600, fill=MUTED, anchor="middle", turn=-90)


def _draw_before(canvas: Canvas, layout: _Layout, frame: _Frame, x: float) -> None:
    box = x + _BAR + _REACH + _PAD
    for placed in frame.rows:
        if placed.row.is_in_before:
            _draw_lanes(canvas, layout, placed, placed.row.before, x + _BAR, box)
            _draw_box(canvas, placed, box)


def _draw_after(canvas: Canvas, layout: _Layout, frame: _Frame, x: float) -> None:
    block = frame.part
    assert isinstance(block, Block)
    box = x + _BAR + _REACH + _PAD
    if block.is_fused:
        canvas.rect(
            box - _PAD, frame.y0, _PAD + _BOX + _GUTTER, frame.y1 - frame.y0, fill=_FUSED_FILL, stroke=GREEN,
            radius=8, stroke_width=1.5, title=block.form,
        )  # fmt: skip
        label = "one kernel" if block.copies == 1 else f"one kernel, × {block.copies}"
        canvas.text(box, frame.y0 + 16, label, size=12, weight=650, fill=_FUSED_INK)
        saved = f"saves {bytes_text(block.saved_bytes)}" if block.saved_bytes > 0 else ""
        canvas.text(box + _BOX, frame.y0 + 16, saved, size=12, weight=650, fill=_FUSED_INK, anchor="end")
    for placed in frame.rows:
        _draw_lanes(canvas, layout, placed, placed.row.after, x + _BAR, box)
        _draw_box(canvas, placed, box)
        for edge in placed.row.inner:
            _draw_inner(canvas, layout, frame.rows[edge.source], placed, edge, box)


def _draw_lanes(
    canvas: Canvas, layout: _Layout, placed: _Placed, lanes: Sequence[Lane], left: float, right: float
) -> None:
    if placed.row.is_view:
        note = "a view: nothing moves"
        canvas.text(left + _REACH / 2, placed.middle + 4, note, size=11, fill=MUTED, anchor="middle")
    shown = _visible(lanes)
    y = placed.middle - sum(map(layout.lane_height, shown)) / 2
    for lane in shown:
        height, width = layout.lane_height(lane), layout.width(lane.size_bytes)
        middle = y + height / 2
        start, end = (right, left) if lane.is_write else (left, right)
        colour, centre = _KIND_COLOURS[lane.kind], left + _REACH / 2
        if width < 14:
            # A thin arrow leaves a gap for its label.
            reach = (1 if end > start else -1) * (text_width(lane.label, 11) / 2 + 3)
            canvas.line(start, middle, centre - reach, middle, stroke=colour, width=width)
            start = centre + reach
        canvas.arrow(start, end, middle, width, fill=colour, title=lane.title)
        canvas.text(centre, middle + 4, lane.label, size=11, anchor="middle", weight=500)
        y += height


def _draw_box(canvas: Canvas, placed: _Placed, x: float) -> None:
    row, middle = placed.row, placed.middle
    canvas.rect(x, placed.y, _BOX, placed.height, fill=PAPER, stroke=INK, radius=5, stroke_width=1.2,
                title=row.full_name)  # fmt: skip
    badge = f"× {row.copies}" if row.copies > 1 else ""
    room = _BOX - 24 - (text_width(badge, 12) + 8 if badge else 0)
    canvas.text(x + 12, middle - 3, elide(row.spelling, 14.5, room), size=13.5, weight=650)
    canvas.text(x + _BOX - 12, middle - 3, badge, size=12, weight=600, fill=BLUE, anchor="end")
    canvas.text(x + 12, middle + 13, elide(row.name, 11, _BOX - 24), size=11, fill=MUTED)


def _draw_inner(
    canvas: Canvas, layout: _Layout, source: _Placed, target: _Placed, edge: Inner, box: float
) -> None:
    colour, width = HOME_COLOURS[edge.home], layout.width(edge.size_bytes)
    where = "in registers" if edge.home == "register" else f"in {edge.home}"
    if edge.is_next:
        x, top, bottom = box + 46, source.y + source.height, target.y
        canvas.down_arrow(x, top + 0.6, bottom - 0.6, width, fill=colour, title=edge.value)
        label = f"{bytes_text(edge.size_bytes)} stays {where}"
        canvas.text(x + width / 2 + 10, (top + bottom) / 2 + 4, label, size=11, fill=INK)
        return
    x, out = box + _BOX, box + _BOX + 20.0
    width = min(width, 12.0)
    y0, y1 = source.middle, target.middle - 8
    canvas.path(
        f"M{x} {y0}C{out} {y0} {out} {y0} {out} {y0 + 14}L{out} {y1 - 14}C{out} {y1} {out} {y1} {x + 8} {y1}",
        stroke=colour, width=width, title=f"{edge.value}: {bytes_text(edge.size_bytes)} stays {where}",
    )  # fmt: skip
    half = width / 2 + 3.5
    canvas.path(f"M{x + 9} {y1 - half}L{x} {y1}L{x + 9} {y1 + half}Z", fill=colour)


def _draw_fold(canvas: Canvas, frame: _Frame, right: float, deepest: int) -> None:
    fold, inset = frame.part, 6.0 * frame.depth
    assert isinstance(fold, Fold)
    fill = PALE if frame.depth % 2 else _FOLD_FILL
    canvas.rect(
        8 + inset, frame.y0, right - 2 * inset, frame.y1 - frame.y0, fill=fill, stroke=LINE, radius=10,
        dash="5 4",
    )  # fmt: skip
    x = right + 16 + _BRACKET * (deepest - 1 - frame.depth)
    canvas.path(f"M{x} {frame.y0}h6V{frame.y1}h-6", stroke=BLUE, width=1.6)
    canvas.text(x + 14, frame.y0 + 24, f"× {fold.total}", size=17, weight=650, fill=BLUE)
    if len(fold.counts) > 1:
        parts = "+".join(map(str, fold.counts))
        canvas.text(x + 14, frame.y0 + 40, parts if len(parts) < 9 else "in all", size=11, fill=MUTED)


def _draw_legend(canvas: Canvas, layout: _Layout, most: int) -> None:
    x = canvas.swatches(
        _MARGIN, 100,
        ((ORANGE, "intermediate values"), (GREY, "weights"), (SKY, "model input and output"),
         (GREEN, "stays in registers"), (HOME_COLOURS["cache"], "stays in cache")),
    )  # fmt: skip
    canvas.arrow(x + 4, x + 50, 95, layout.width(most), fill=ORANGE)
    canvas.text(x + 58, 100, bytes_text(most), size=12, fill=MUTED)
