"""The report: one self-contained page with the verdict, the pictures, the kernels and the ledger.

In: Outcome, both plans, their traces, Machine. Out: HTML as text. The page makes no request: style and
script are inline, and its content security policy allows those two texts only, by their hashes. Names
from the model are untrusted: everything is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from onepass.core.settings import REWRITES
from onepass.cost.machine import Machine
from onepass.fuse.plan import Decision, Plan
from onepass.report.diagnosis import FACTS, OpRow, diagnose, error_sentence
from onepass.report.flow_svg import before_after_svg
from onepass.report.outcome import HOMES, Outcome, headline, verdict
from onepass.report.roofline_svg import roofline_svg
from onepass.report.timebar_svg import timebar_svg
from onepass.report.units import bytes_text, plural, roof_text, seconds_text, share_text
from onepass.runtime.trace import Trace

_SECTIONS = {
    "flow": ("Data flow", "A value that stays inside a kernel is neither written to memory nor read back."),
    "time": ("Time", "The kernels' median times on one scale: by kind of operator (a fused kernel counts as "
             "its first one), and by what the time is spent on."),
    "roofline": ("Roofline", "The roofs are what this machine was measured to reach. A kernel under a slope "
                 "waits for data, one under the flat roof computes. Fusion moves kernels to the right."),
    "kernels": ("Kernels", ""),
    "ledger": ("Ledger", "One entry for each edge of the graph: where the value lives, why, and what the "
               "best other choice would have cost."),
    "method": ("Method", ""),
}  # fmt: skip


def _cell(html: str, value: float | None = None, style: str = "") -> str:
    """One cell of a table: `value` is what a number is sorted by, `html` is used as it is."""
    style = style or ("number" if value is not None else "")
    attributes = f' class="{style}"' if style else ""
    if value is not None:
        attributes += f' data-value="{value!r}"'
    return f"<td{attributes}>{html}</td>"


def report_html(
    outcome: Outcome,
    before: Plan,
    after: Plan,
    traces: tuple[Trace | None, Trace | None],
    machine: Machine,
) -> str:
    """The whole page; `traces` are those of `before` and `after`."""
    rows = [
        diagnose(plan, trace, machine, outcome.threads)
        for plan, trace in zip((before, after), traces, strict=True)
    ]
    sections = (
        _section("flow", f"<figure>{before_after_svg(before, after)}</figure>"),
        _section("time", f"<figure>{timebar_svg(before, after, *traces)}</figure>"),
        _section("roofline", f"<figure>{roofline_svg(rows[0], rows[1], machine, outcome.threads)}</figure>"),
        _section("kernels", _kernels(rows[1], rows[0])),
        _section("ledger", _ledger(after.decisions)),
        _section("method", _method(outcome, machine)),
    )
    return _page(outcome, "\n".join(sections))


def _page(outcome: Outcome, content: str) -> str:
    folder = files("onepass.report")
    style, script = (folder.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    links = " ".join(f'<a href="#{key}">{title}</a>' for key, (title, _) in _SECTIONS.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(f"onepass: {outcome.model}")}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#flow">Skip to the picture</a>
<header>
<p class="context">{_context(outcome)}</p>
<h1>{escape(headline(outcome))}</h1>
<div class="lead">{"".join(map(_paragraph, verdict(outcome)))}</div>
{_figures(outcome)}
<nav aria-label="Sections">{links}</nav>
</header>
<main>
{content}
</main>
<footer>Made by onepass on {escape(outcome.date)}. This page works offline and loads nothing.</footer>
<script>{script}</script>
</body>
</html>
"""


def _paragraph(text: str) -> str:
    """With non-breaking hyphens in exponents."""
    text = re.sub(r"(?<=[0-9]e)-(?=[0-9])", "\N{NON-BREAKING HYPHEN}", text)
    return f"<p>{escape(text)}</p>"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _section(key: str, content: str) -> str:
    title, intro = _SECTIONS[key]
    heading = f'<h2 id="{key}-title">{title}</h2>' + (f"<p>{escape(intro)}</p>" if intro else "")
    return f'<section id="{key}" aria-labelledby="{key}-title">{heading}{content}</section>'


def _context(outcome: Outcome) -> str:
    shapes = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in outcome.shapes.items())
    parts = (shapes, outcome.machine, plural(outcome.threads, "thread"))
    return " · ".join((f"<strong>{escape(outcome.model)}</strong>", *map(escape, filter(None, parts))))


def _figures(outcome: Outcome) -> str:
    unfused, fused, error = outcome.unfused, outcome.fused, outcome.error
    assert error is not None, "the page is that of a run"
    figures = (
        ("Time", f"{outcome.speedup:.2f}×", f"{seconds_text(unfused.min_s)} → {seconds_text(fused.min_s)}"),
        ("Intermediate bytes", f"−{share_text(outcome.intermediate_bytes_cut)}",
         f"{bytes_text(unfused.intermediate_bytes)} → {bytes_text(fused.intermediate_bytes)}"),
        ("Kernels", f"{fused.kernels:,}", f"instead of {unfused.kernels:,}"),
        ("Relative error", f"{error.relative_l2:.1e}", f"unfused {error.unfused_relative_l2:.1e}"),
        ("Compile time", seconds_text(outcome.compile_s), "import to first run"),
    )  # fmt: skip
    items = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for name, value, note in figures
    )
    return f'<dl class="figures">{"".join(items)}</dl>'


def _kernels(after: Sequence[OpRow], before: Sequence[OpRow]) -> str:
    return (
        f"<p>{escape(error_sentence(after))}</p>"
        + _kernel_table(after, "Kernels after fusion")
        + f"<details><summary>The {len(before):,} kernels before fusion</summary>"
        + _kernel_table(before, "Kernels before fusion")
        + "</details>"
    )


def _kernel_table(rows: Sequence[OpRow], label: str) -> str:
    headings = ["#", "Nodes", *(heading.replace("\n", " ").capitalize() for heading, _, _ in FACTS)]
    return _table(label, headings, 2, (_kernel_cells(i, row) for i, row in enumerate(rows, 1)))


def _kernel_cells(index: int, row: OpRow) -> str:
    values = [(getattr(row, name), show) for _, name, show in FACTS]
    return (
        _cell(str(index), index)
        + _cell(f"{_name(row.node)}<small>{escape(row.op)}</small>", style="name wide")
        + "".join(
            _cell(escape(show(value)), style="number") if isinstance(value, str)
            else _cell(show(value), -1.0 if value is None else value)
            for value, show in values
        )
    )  # fmt: skip


def _table(
    label: str, headings: Iterable[str], first_number: int, rows: Iterable[str], key: str = ""
) -> str:
    """A sortable table; `rows` holds the cells of each row, columns from `first_number` on are numbers."""
    heads = "".join(
        f'<th scope="col"{" class=number" if i >= first_number else ""}>'
        f'<button type="button">{name}</button></th>'
        for i, name in enumerate(headings)
    )
    named = f' id="{key}"' if key else ""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{label}"><table{named} data-sortable>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _ledger(decisions: Sequence[Decision]) -> str:
    boxes = "".join(
        f'<label><input type="checkbox" value="{home}" checked> '
        f'{home} ({sum(decision.home == home for decision in decisions):,})</label>'
        for home in HOMES
    )  # fmt: skip
    headings = ("Home", "From", "To", "Why", "Bytes", "Saved", "Predicted", "Alternative")
    return (
        '<div class="filter"><label>Find <input type="search" id="ledger-text" '
        'placeholder="node, value, operator or reason" autocomplete="off" spellcheck="false"></label>'
        f'<fieldset id="ledger-homes"><legend>Home</legend>{boxes}</fieldset>'
        f'<output id="ledger-count" aria-live="polite">{len(decisions)} edges</output></div>'
        + _table("Ledger", headings, 4, map(_ledger_cells, decisions), "ledger-table")
    )


def _ledger_cells(d: Decision) -> str:
    saved = sum(d.saved_bytes.values())
    price = "ruled out" if d.alternative_s is None else seconds_text(d.alternative_s)
    return "".join((
        _cell(f'<span class="home {escape(d.home)}">{escape(d.home)}</span>'),
        _cell(f"{_name(d.producer or 'model input')}<small>{_name(d.value)}</small>", style="name"),
        _cell(_name(d.consumer or "model output"), style="name"),
        _cell(f"{escape(d.detail)} <code>{escape(d.reason)}</code>", style="why"),
        _cell(bytes_text(d.value_bytes), d.value_bytes),
        _cell(bytes_text(saved) if saved else "–", saved),
        _cell(seconds_text(d.seconds), d.seconds),
        _cell(f"{escape(d.alternative)}<br>{price}" if d.alternative else "–", d.alternative_s or 0.0),
    ))  # fmt: skip


def _name(name: str) -> str:
    """Escaped, with places where a long name may break."""
    return re.sub(r"(?<=[/._])(?=[^/._])", "<wbr>", escape(name, quote=False))


def _method(outcome: Outcome, machine: Machine) -> str:
    rewrites = "; ".join(f"<code>{name}</code>, {REWRITES[name]}" for name in outcome.rewrites) or "none"
    notes = (
        "Unfused and fused run in turns, in one process, on the same inputs, with the same code generator; "
        "the minimum is compared, so that disturbance by other programs counts least.",
        "Predicted seconds are the larger of operations over peak and, for each memory level, bytes over "
        "bandwidth, plus the cost of launching. Bytes are exact counts, not estimates.",
        "Waiting is the time by which moving data takes longer than computing on it.",
        "Errors are relative L2 norms against an evaluation in float64. No precision is lowered unasked.",
    )
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    roofs = (
        "".join(map(_cell, map(escape, (roof.what, roof.method, roof.date))))
        + _cell(str(roof.workers), roof.workers)
        + _cell(roof_text(roof.value, roof.unit), roof.value)
        for roof in machine.roofs
    )
    headings = ("Roof", "Method", "Date", "Workers", "Value")
    return (
        f"<ul>{items}<li>Rewrites in use that may change results: {rewrites}.</li></ul>"
        f"<p>Roofs of {escape(machine.name)} ({escape(machine.isa)}), as measured:</p>"
        + _table("Roofs", headings, 3, roofs)
    )
