"""Numbers and names as people read them: bytes, seconds, rates, shares, shortened names.

In: raw numbers in base units (bytes, seconds, shares of one). Out: short texts; and a cautious
width of a text in a sans-serif font, so that drawings can leave enough room.
"""

from __future__ import annotations

_NARROW = frozenset("ijl.,:;'|!()[]ftrI /-·")
_WIDE = frozenset("mwMW@%×−→…⇄")
_CONTROL = dict.fromkeys({*range(32), *range(127, 160)} - {ord("\n")})


def plain(text: str) -> str:
    """`text` without control characters except line ends: they steer terminals and are illegal in SVG."""
    return text.translate(_CONTROL)


def _scaled(value: float, units: tuple[str, ...], step: float) -> str:
    index = 0
    while abs(value) >= step * 0.9995 and index < len(units) - 1:
        value, index = value / step, index + 1
    digits = 0 if value >= 99.95 or (index == 0 and value == int(value)) else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {units[index]}"


def bytes_text(count: float) -> str:
    """`3.21 MB`: decimal units, three significant digits."""
    return _scaled(float(count), ("B", "kB", "MB", "GB", "TB"), 1000.0)


def seconds_text(seconds: float | None) -> str:
    """`1.23 ms`: from nanoseconds to seconds; a dash for what was not measured."""
    if seconds is None:
        return "–"
    return _scaled(seconds * 1e9, ("ns", "µs", "ms", "s"), 1000.0)


def count_text(count: float, unit: str) -> str:
    """`4.12 Gflop`: a large count with its unit."""
    return _scaled(float(count), (unit, f"k{unit}", f"M{unit}", f"G{unit}", f"T{unit}"), 1000.0)


def roof_text(value: float, unit: str) -> str:
    """A measured limit in `flop/s`, `byte/s` or `s`."""
    return seconds_text(value) if unit == "s" else count_text(value, unit.replace("byte", "B"))


def share_text(share: float | None) -> str:
    """`63 %`: a share of one; one decimal below 10 %; a dash for None."""
    if share is None:
        return "–"
    percent = 100.0 * share
    return f"{percent:.0f} %" if abs(percent) >= 9.95 or percent == 0 else f"{percent:.1f} %"


def plural(count: int, noun: str) -> str:
    """`1 read`, `3 reads`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def text_width(text: str, size: float) -> float:
    """Pixels that `text` takes at most in a common sans-serif font of `size` pixels.

    Classes of DejaVu Sans's advance widths: the widest of the usual system fonts, so others fit too.
    """
    em = sum(
        0.42 if ch in _NARROW else 1.0 if ch in _WIDE or ord(ch) > 0x2FF else 0.72 if ch.isupper() else 0.63
        for ch in text
    )
    return em * size


def elide(text: str, size: float, width: float) -> str:
    """`text`, its middle replaced by an ellipsis where it is wider than `width` pixels; the end says most."""
    if text_width(text, size) <= width:
        return text
    keep = min(len(text), int(width / (0.42 * size)) + 1)  # no more of the narrowest fit
    shortened = text
    while keep > 1 and text_width(shortened, size) > width:
        keep -= 1
        head = keep // 3
        shortened = f"{text[:head]}…{text[len(text) - (keep - head):]}"
    return shortened
