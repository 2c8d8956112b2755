"""A small canvas that writes SVG: boxes, texts, arrows; one palette for every picture.

Everything is written as presentation attributes, without ids or style sheets, so that several
pictures can be put inline into one page. Every text is escaped.
"""

from __future__ import annotations

from html import escape

from onepass.report.units import plain, text_width

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

    def _add(self, tag: str, content: str, **attributes: float | str) -> None:
        """An element; an underscore in an attribute's name stands for a dash, empty ones are left out."""
        written = "".join(
            f' {name.replace("_", "-")}="{number(value) if isinstance(value, (int, float)) else value}"'
            for name, value in attributes.items()
            if value != ""
        )
        self._parts.append(f"<{tag}{written}>{content}</{tag}>")

    def rect(
        self, x: float, y: float, width: float, height: float, *, fill: str = "none", stroke: str = "none",
        radius: float = 0, dash: str = "", stroke_width: float = 1, title: str = "",
    ) -> None:  # fmt: skip
        """A rectangle with an optional tooltip."""
        self._add("rect", _title(title), x=x, y=y, width=width, height=height, rx=radius, fill=fill,
                  stroke=stroke, stroke_width=stroke_width, stroke_dasharray=dash)  # fmt: skip

    def line(
        self, x0: float, y0: float, x1: float, y1: float, *, stroke: str = LINE, width: float = 1,
        dash: str = "",
    ) -> None:  # fmt: skip
        """A straight line."""
        self._add("line", "", x1=x0, y1=y0, x2=x1, y2=y1, stroke=stroke, stroke_width=width,
                  stroke_dasharray=dash)  # fmt: skip

    def path(
        self, d: str, *, fill: str = "none", stroke: str = "none", width: float = 1, opacity: float = 1,
        dash: str = "", title: str = "",
    ) -> None:  # fmt: skip
        """A path given by its commands."""
        self._add("path", _title(title), d=d, fill=fill, fill_opacity=opacity, stroke=stroke,
                  stroke_width=width, stroke_linejoin="round", stroke_dasharray=dash)  # fmt: skip

    def circle(
        self, x: float, y: float, radius: float, *, fill: str, stroke: str, opacity: float = 1,
        title: str = "",
    ) -> None:  # fmt: skip
        """A dot with an optional tooltip."""
        self._add("circle", _title(title), cx=x, cy=y, r=radius, fill=fill, fill_opacity=opacity,
                  stroke=stroke, stroke_width=1.5)  # fmt: skip

    def text(
        self, x: float, y: float, text: str, *, size: float = 12, fill: str = INK, weight: int = 400,
        anchor: str = "start", halo: bool = False, turn: float = 0,
    ) -> None:  # fmt: skip
        """A line of text, `y` at its baseline; `halo` keeps it readable over lines; `turn` in degrees."""
        edge: dict[str, float | str] = {"stroke": PAPER, "stroke_width": 4, "stroke_linejoin": "round",
                                        "paint_order": "stroke"} if halo else {}  # fmt: skip
        self._add("text", escape(plain(text)), x=x, y=y, font_size=size, font_weight=weight, fill=fill,
                  text_anchor=anchor, **edge,
                  transform=f"rotate({number(turn)} {number(x)} {number(y)})" if turn else "")  # fmt: skip

    def arrow(self, x0: float, x1: float, y: float, width: float, *, fill: str, title: str = "") -> None:
        """A horizontal arrow from `x0` to `x1`, its shaft `width` pixels thick."""
        points = _arrow(x1 - x0, width, min(14.0, 6.0 + width * 0.35))
        self.path(_polygon([(x0 + along, y + across) for along, across in points]), fill=fill, title=title)

    def down_arrow(self, x: float, y0: float, y1: float, width: float, *, fill: str, title: str = "") -> None:
        """A vertical arrow from `y0` down to `y1`, its shaft `width` pixels thick."""
        points = _arrow(y1 - y0, width, min(14.0, 6.0 + width * 0.35, (y1 - y0) * 0.6))
        self.path(_polygon([(x + across, y0 + along) for along, across in points]), fill=fill, title=title)

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
            f"{_title(title)}<desc>{escape(plain(description))}</desc>"
            f'<rect width="100%" height="100%" fill="{PAPER}"/>' + "\n".join(self._parts) + "</svg>\n"
        )


def _arrow(length: float, width: float, head: float) -> list[tuple[float, float]]:
    """Corners as (along, across) from the middle of the tail; a negative `length` points back."""
    half, tip = width / 2, width / 2 + 3.5
    neck = length - head if length > 0 else length + head
    return [(0, -half), (neck, -half), (neck, -tip), (length, 0), (neck, tip), (neck, half), (0, half)]


def _polygon(points: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points) + "Z"


def _title(text: str) -> str:
    return f"<title>{escape(plain(text))}</title>" if text else ""
