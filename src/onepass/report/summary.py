"""The end of `optimize` on a terminal: a short table and the verdict in words.

In: an Outcome. Out: one rich renderable; rich leaves colour out where the output is no terminal.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group
from rich.table import Table
from rich.text import Text

from onepass.report.outcome import MOVED_LEVELS, NOISE, Outcome, headline, verdict
from onepass.report.units import bytes_text, seconds_text


def summary(outcome: Outcome) -> Group:
    """Table of unfused against fused, then headline and verdict."""
    table = Table(title=Text(f"{outcome.model} on {outcome.machine}"), title_justify="left")
    table.add_column("")
    for heading in ("unfused", "fused", "ratio"):
        table.add_column(heading, justify="right")
    unfused, fused = outcome.unfused, outcome.fused
    table.add_row("time, minimum", *_compared(unfused.min_s, fused.min_s, seconds_text))
    table.add_row("time, median", *_compared(unfused.median_s, fused.median_s, seconds_text))
    table.add_row("kernels", *_compared(unfused.kernels, fused.kernels, "{:,.0f}".format))
    table.add_row(
        "intermediate bytes", *_compared(unfused.intermediate_bytes, fused.intermediate_bytes, bytes_text)
    )
    for level in MOVED_LEVELS:
        pair = (unfused.bytes_at.get(level, 0), fused.bytes_at.get(level, 0))
        table.add_row(f"traffic at {level}", *_compared(*pair, bytes_text))
    error = outcome.error
    table.add_row("relative error", f"{error.unfused_relative_l2:.1e}", f"{error.relative_l2:.1e}", "")
    good = outcome.speedup >= 1 - NOISE
    style = "bold green" if good else "bold red"
    homes = ", ".join(f"{outcome.decisions.get(home, 0)} {home}" for home in ("register", "cache", "memory"))
    notes = f"Homes of the edges: {homes}. Compiled in {seconds_text(outcome.compile_s)}."
    return Group(table, Text(headline(outcome), style=style), *map(Text, verdict(outcome)), Text(notes))


def _compared(before: float, after: float, show: Callable[[float], str]) -> tuple[str, str, str]:
    ratio = f"{before / after:.2f}x" if after else "–"
    return show(before), show(after), ratio
