"""A small canvas that writes SVG: boxes, texts, arrows; one palette for every picture.

Everything is written as presentation attributes, without ids or style sheets, so that several
pictures can be put inline into one page. Every text is escaped.
"""

from __future__ import annotations

from html import escape

from onepass.report.units import text_width

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

# Okabe and Ito (2008): distinguishable with every common colour-vision deficiency.
ORANGE, SKY, GREEN, BLUE = "#E69F00", "#56B4E9", "#009E73", "#0072B2"
VERMILION, PURPLE = "#D55E00", "#CC79A7"
INK, MUTED, LINE, PALE, PAPER, GREY = "#1b2430", "#566273", "#c9d1da", "#f3f5f8", "#ffffff", "#a9b3bf"
HOME_COLOURS = {"register": GREEN, "cache": PURPLE, "memory": ORANGE}


def number(value: float) -> str:
    """A coordinate, at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


class Canvas:
    """Collects elements in drawing order; `render` wraps them into one SVG document."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def rect(
        self, x: float, y: float, width: float, height: float, *, fill: str = "none", stroke: str = "none",
        radius: float = 0, dash: str = "", stroke_width: float = 1, title: str = "",
    ) -> None:  # fmt: skip
        """A rectangle with an optional tooltip."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" '
            f'rx="{number(radius)}" fill="{fill}" stroke="{stroke}" '
            f'stroke-width="{number(stroke_width)}"{dashes}>{_title(title)}</rect>'
        )

    def line(
        self, x0: float, y0: float, x1: float, y1: float, *, stroke: str = LINE, width: float = 1,
        dash: str = "",
    ) -> None:  # fmt: skip
        """A straight line."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<line x1="{number(x0)}" y1="{number(y0)}" x2="{number(x1)}" y2="{number(y1)}" '
            f'stroke="{stroke}" stroke-width="{number(width)}"{dashes}/>'
        )

    def path(
        self, d: str, *, fill: str = "none", stroke: str = "none", width: float = 1, title: str = ""
    ) -> None:
        """A path given by its commands."""
        self._parts.append(
            f'<path d="{d}" fill="{fill}" stroke="{stroke}" stroke-width="{number(width)}" '
            f'stroke-linejoin="round">{_title(title)}</path>'
        )

    def circle(
        self, x: float, y: float, radius: float, *, fill: str, stroke: str, opacity: float = 1,
        title: str = "",
    ) -> None:  # fmt: skip
        """A dot with an optional tooltip."""
        self._parts.append(
            f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}" fill="{fill}" '
            f'fill-opacity="{number(opacity)}" stroke="{stroke}" stroke-width="1.5">{_title(title)}</circle>'
        )

    def text(
        self, x: float, y: float, text: str, *, size: float = 12, fill: str = INK, weight: int = 400,
        anchor: str = "start", halo: bool = False, turn: float = 0,
    ) -> None:  # fmt: skip
        """A line of text, `y` at its baseline; `halo` keeps it readable over lines; `turn` in degrees."""
        extra = ""
        if halo:
            extra += f' stroke="{PAPER}" stroke-width="4" stroke-linejoin="round" paint-order="stroke"'
        if turn:
            extra += f' transform="rotate({number(turn)} {number(x)} {number(y)})"'
        self._parts.append(
            f'<text x="{number(x)}" y="{number(y)}" font-size="{number(size)}" font-weight="{weight}" '
            f'fill="{fill}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'
        )

    def arrow(self, x0: float, x1: float, y: float, width: float, *, fill: str, title: str = "") -> None:
        """A horizontal arrow from `x0` to `x1`, its shaft `width` pixels thick."""
        way = 1.0 if x1 > x0 else -1.0
        neck, half, tip = x1 - way * head_length(width), width / 2, width / 2 + 3.5
        points = ((x0, y - half), (neck, y - half), (neck, y - tip), (x1, y), (neck, y + tip),
                  (neck, y + half), (x0, y + half))  # fmt: skip
        self.path(_polygon(points), fill=fill, title=title)

    def down_arrow(self, x: float, y0: float, y1: float, width: float, *, fill: str, title: str = "") -> None:
        """A vertical arrow from `y0` down to `y1`, its shaft `width` pixels thick."""
        half, tip = width / 2, width / 2 + 3.5
        neck = y1 - min(head_length(width), (y1 - y0) * 0.6)
        points = ((x - half, y0), (x - half, neck), (x - tip, neck), (x, y1), (x + tip, neck),
                  (x + half, neck), (x + half, y0))  # fmt: skip
        self.path(_polygon(points), fill=fill, title=title)

    def swatches(self, x: float, y: float, entries: tuple[tuple[str, str], ...], size: float = 12) -> float:
        """A legend in one line: (colour, text) each; returns the x where it ends."""
        for colour, label in entries:
            self.rect(x, y - 10, 16, 11, fill=colour, radius=2)
            self.text(x + 22, y, label, size=size, fill=MUTED)
            x += 22 + text_width(label, size) + 16
        return x

    def render(self, width: float, height: float, title: str, description: str) -> str:
        """The SVG document; `title` and `description` are what a screen reader says."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {number(width)} {number(height)}" '
            f'width="{number(width)}" height="{number(height)}" role="img" font-family="{FONT}">'
            f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"
            f'<rect width="100%" height="100%" fill="{PAPER}"/>' + "\n".join(self._parts) + "</svg>\n"
        )


def head_length(width: float) -> float:
    """Length of the head of an arrow whose shaft is `width` thick."""
    return min(14.0, 6.0 + width * 0.35)


def _polygon(points: tuple[tuple[float, float], ...]) -> str:
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points) + "Z"


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""
