"""The picture of data flow before and after fusion: operators, memory, arrows as wide as their bytes.

In: the plan with one region a node and the fused plan, over the same graph. Out: one SVG. The two
sides share their rows, so an operator stands at the same height on both; repeated blocks are drawn
once, with sums of their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from onepass.fuse.plan import Plan
from onepass.report.flow_rows import Block, Part, Row, flow_rows, rows_of
from onepass.report.flows import InnerEdge, Totals, Transfer, totals
from onepass.report.folding import Fold
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
_LEFT, _RIGHT = _MARGIN, _MARGIN + _PANEL + _BETWEEN
_TOP, _BRACKET = 246.0, 84
_ROW_MIN, _INNER_GAP, _HEADER, _FOOTER, _BLOCK_GAP, _FOLD_PAD = 42.0, 26.0, 24.0, 10.0, 12.0, 12.0
_SCALAR_BYTES = 64
_KIND_COLOURS = {"intermediate": ORANGE, "weights": GREY, "model": SKY}
_FUSED_FILL, _FUSED_INK, _FOLD_FILL = "#e6f5ef", "#00593f", "#f7f8fa"


def before_after_svg(before: Plan, after: Plan) -> str:
    """The picture of both plans side by side, as an SVG document."""
    parts = flow_rows(before, after)
    picture = _Picture(parts)
    canvas, bottom = picture.canvas, _TOP + picture.height_of(parts) + _BLOCK_GAP
    was, now = totals(before), totals(after)
    _draw_title(canvas, after.graph.name, was, now, picture.deepest > 0)
    picture.draw(parts, _TOP)
    for x, total in ((_LEFT, was), (_RIGHT, now)):
        _draw_heading(canvas, x, total, was)
        _draw_memory(canvas, x, bottom)
    picture.draw_legend()
    saved = f"{bytes_text(was.all_bytes)} before, {bytes_text(now.all_bytes)} after"
    return canvas.render(
        _RIGHT + _PANEL + _MARGIN + _BRACKET * picture.deepest, bottom + 16,
        f"Data flow of {after.graph.name} before and after fusion",
        f"{was.kernels} kernels move {saved} in {now.kernels} kernels.",
    )  # fmt: skip


def _draw_title(canvas: Canvas, model: str, was: Totals, now: Totals, is_folded: bool) -> None:
    text = "nothing is fused"
    if was.intermediate_bytes > now.intermediate_bytes:
        cut = 1 - now.intermediate_bytes / was.intermediate_bytes
        text = f"fusion removes {share_text(cut)} of the intermediate traffic"
        if now.intermediate_bytes == 0:
            text = "fusion keeps every intermediate value out of memory"
    canvas.text(_MARGIN, 40, f"{elide(model, 21, 330)}: {text}", size=21, weight=650)
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
    sizes = (total.intermediate_bytes, total.weight_bytes, total.model_bytes)
    for size, colour in zip(sizes, _KIND_COLOURS.values(), strict=True):
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


def _visible(transfers: Sequence[Transfer]) -> list[Transfer]:
    """All but scalar constants: an arrow for the bounds of a Clip would say nothing."""
    return [t for t in transfers if t.kind != "weights" or t.size_bytes >= _SCALAR_BYTES * t.copies]


def _depth(parts: Sequence[Part]) -> int:
    return max((1 + _depth(part.body) for part in parts if isinstance(part, Fold)), default=0)


class _Picture:
    """Draws blocks, rows and folds at one scale, so many pixels a byte; every y is a top edge."""

    def __init__(self, parts: Sequence[Part]) -> None:
        rows = rows_of(parts)
        self.most = max((t.size_bytes for row in rows for t in (*row.before, *row.after)), default=1)
        self.scale = (32.0 if len(rows) <= 10 else 22.0) / max(self.most, 1)
        self.deepest = _depth(parts)
        self.canvas = Canvas()

    def width(self, size_bytes: int) -> float:
        """Pixels of an arrow that carries so many bytes."""
        return max(1.5, size_bytes * self.scale)

    def lane_height(self, transfer: Transfer) -> float:
        """Room for the arrow, its head and its label."""
        return max(17.0, self.width(transfer.size_bytes) + 9.0)

    def row_height(self, row: Row) -> float:
        """Room for the arrows of the side that has more."""
        sides = (sum(map(self.lane_height, _visible(side))) for side in (row.before, row.after))
        return max(_ROW_MIN, max(sides) + 8)

    def height_of(self, parts: Sequence[Part]) -> float:
        """All parts below one another."""
        return sum(map(self.part_height, parts)) + _BLOCK_GAP * (len(parts) - 1)

    def part_height(self, part: Part) -> float:
        """Rows with gaps between them, and what frames them."""
        if isinstance(part, Fold):
            return self.height_of(part.body) + 2 * _FOLD_PAD
        rows = sum(map(self.row_height, part.rows)) + _INNER_GAP * (len(part.rows) - 1)
        return rows + (_HEADER + _FOOTER if part.is_fused else 0.0)

    def draw(self, parts: Sequence[Part], y: float, depth: int = 0) -> None:
        """`parts` from `y` downwards, inside `depth` folds."""
        for part in parts:
            height = self.part_height(part)
            if isinstance(part, Fold):
                self.draw_fold(part, y, height, depth)
                self.draw(part.body, y + _FOLD_PAD, depth + 1)
            else:
                self.draw_block(part, y, height)
            y += height + _BLOCK_GAP

    def draw_fold(self, fold: Fold[Block], y: float, height: float, depth: int) -> None:
        """A frame around both sides, and how often it repeats."""
        canvas, end, inset = self.canvas, _RIGHT + _PANEL, 6.0 * depth
        canvas.rect(
            8 + inset, y, end - 2 * inset, height, fill=PALE if depth % 2 else _FOLD_FILL, stroke=LINE,
            radius=10, dash="5 4",
        )  # fmt: skip
        x = end + 16 + _BRACKET * (self.deepest - 1 - depth)
        canvas.path(f"M{x} {y}h6V{y + height}h-6", stroke=BLUE, width=1.6)
        canvas.text(x + 14, y + 24, f"× {fold.total}", size=17, weight=650, fill=BLUE)
        if len(fold.counts) > 1:
            parts = "+".join(map(str, fold.counts))
            canvas.text(x + 14, y + 40, parts if len(parts) < 9 else "in all", size=11, fill=MUTED)

    def draw_block(self, block: Block, y: float, height: float) -> None:
        """The rows of one region on both sides; on the right one kernel around them."""
        canvas, box = self.canvas, _RIGHT + _BAR + _REACH + _PAD
        if block.is_fused:
            canvas.rect(
                box - _PAD, y, _PAD + _BOX + _GUTTER, height, fill=_FUSED_FILL, stroke=GREEN, radius=8,
                stroke_width=1.5, title=block.form,
            )  # fmt: skip
            label = "one kernel" if block.copies == 1 else f"one kernel, × {block.copies}"
            saved = f"saves {bytes_text(block.saved_bytes)}" if block.saved_bytes > 0 else ""
            canvas.text(box, y + 16, label, size=12, weight=650, fill=_FUSED_INK)
            canvas.text(box + _BOX, y + 16, saved, size=12, weight=650, fill=_FUSED_INK, anchor="end")
            y += _HEADER
        spans: list[tuple[float, float]] = []
        for row in block.rows:
            spans.append((y, y + self.row_height(row)))
            y = spans[-1][1] + _INNER_GAP
            if row.is_in_before:
                self.draw_row(row, row.before, spans[-1], _LEFT)
            self.draw_row(row, row.after, spans[-1], _RIGHT)
            for edge in row.inner:
                self.draw_inner(spans[edge.source], spans[-1], edge, box)

    def draw_row(
        self, row: Row, transfers: Sequence[Transfer], span: tuple[float, float], x: float
    ) -> None:
        """The arrows and the box of an operator; `x` is the left edge of the side."""
        canvas, middle = self.canvas, sum(span) / 2
        left, right = x + _BAR, x + _BAR + _REACH + _PAD
        if row.is_view:
            note = "a view: nothing moves"
            canvas.text(left + _REACH / 2, middle + 4, note, size=11, fill=MUTED, anchor="middle")
        y = middle - sum(map(self.lane_height, _visible(transfers))) / 2
        for transfer in _visible(transfers):
            height = self.lane_height(transfer)
            self.draw_lane(transfer, left, right, y + height / 2)
            y += height
        canvas.rect(right, span[0], _BOX, span[1] - span[0], fill=PAPER, stroke=INK, radius=5,
                    stroke_width=1.2, title=row.full_name)  # fmt: skip
        badge = f"× {row.copies}" if row.copies > 1 else ""
        room = _BOX - 24 - (text_width(badge, 12) + 8 if badge else 0)
        canvas.text(right + 12, middle - 3, elide(row.spelling, 14.5, room), size=13.5, weight=650)
        canvas.text(right + _BOX - 12, middle - 3, badge, size=12, weight=600, fill=BLUE, anchor="end")
        canvas.text(right + 12, middle + 13, elide(row.name, 11, _BOX - 24), size=11, fill=MUTED)

    def draw_lane(self, transfer: Transfer, left: float, right: float, y: float) -> None:
        """One arrow with its label; a thin one leaves a gap for it."""
        canvas, width, centre = self.canvas, self.width(transfer.size_bytes), left + _REACH / 2
        start, end = (right, left) if transfer.is_write else (left, right)
        colour = _KIND_COLOURS[transfer.kind]
        if width < 14:
            reach = (1 if end > start else -1) * (text_width(transfer.label, 11) / 2 + 3)
            canvas.line(start, y, centre - reach, y, stroke=colour, width=width)
            start = centre + reach
        canvas.arrow(start, end, y, width, fill=colour, title=transfer.title)
        canvas.text(centre, y + 4, transfer.label, size=11, anchor="middle", weight=500)

    def draw_inner(
        self, source: tuple[float, float], target: tuple[float, float], edge: InnerEdge, box: float
    ) -> None:
        """A value that stays in its kernel: an arrow down to the next row, else a curve around the boxes."""
        canvas, colour, width = self.canvas, HOME_COLOURS[edge.home], self.width(edge.size_bytes)
        where = "in registers" if edge.home == "register" else f"in {edge.home}"
        label = f"{bytes_text(edge.size_bytes)} stays {where}"
        if edge.source == edge.target - 1:
            x, top, bottom = box + 46, source[1], target[0]
            canvas.down_arrow(x, top + 0.6, bottom - 0.6, width, fill=colour, title=edge.value)
            canvas.text(x + width / 2 + 10, (top + bottom) / 2 + 4, label, size=11)
            return
        x, out, width = box + _BOX, box + _BOX + 20.0, min(width, 12.0)
        y0, y1, half = sum(source) / 2, sum(target) / 2 - 8, width / 2 + 3.5
        canvas.path(
            f"M{x} {y0}C{out} {y0} {out} {y0} {out} {y0 + 14}"
            f"L{out} {y1 - 14}C{out} {y1} {out} {y1} {x + 8} {y1}",
            stroke=colour, width=width, title=f"{edge.value}: {label}",
        )  # fmt: skip
        canvas.path(f"M{x + 9} {y1 - half}L{x} {y1}L{x + 9} {y1 + half}Z", fill=colour)

    def draw_legend(self) -> None:
        """The colours, and what the widest arrow carries."""
        x = self.canvas.swatches(
            _MARGIN, 100,
            ((ORANGE, "intermediate values"), (GREY, "weights"), (SKY, "model input and output"),
             (GREEN, "stays in registers"), (HOME_COLOURS["cache"], "stays in cache")),
        )  # fmt: skip
        self.canvas.arrow(x + 4, x + 50, 95, self.width(self.most), fill=ORANGE)
        self.canvas.text(x + 58, 100, bytes_text(self.most), size=12, fill=MUTED)
