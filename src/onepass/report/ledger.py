"""The ledger as text: one decision a line, and the answer to `why A B`.

In: a Plan. Out: JSON lines with stable keys; or one sentence about the edge between two names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from difflib import get_close_matches

from onepass.core.errors import UserError
from onepass.fuse.plan import Decision, Plan
from onepass.report.units import bytes_text, seconds_text

WEIGHT = "A weight is read by every kernel that uses it: there is nothing to decide."
_WHERE = {"register": "stays in registers", "cache": "stays in cache", "memory": "goes through memory"}


def decision_json(decision: Decision) -> dict[str, object]:
    """The ledger's entry as plain data; always the same keys in the same order."""
    saved = {level: decision.saved_bytes.get(level, 0) for level in ("l2", "l3", "memory")}
    return asdict(decision) | {"saved_bytes": saved}


def ledger_jsonl(plan: Plan) -> str:
    """Every decision of `plan`, one JSON object a line."""
    lines = (json.dumps(decision_json(decision), ensure_ascii=False) for decision in plan.decisions)
    return "".join(line + "\n" for line in lines)


def why(plan: Plan, a: str, b: str | None = None) -> str:
    """Why the edge between `a` and `b` (nodes or values, in either order) has its home; a line for each edge.

    Without `b` every edge of `a`. Raises UserError for a name that the model does not have.
    """
    known = [*(node.name for node in plan.graph.nodes), *plan.graph.types]
    check_name(a, known)
    if b is None:
        found = [d for d in plan.decisions if a in d.names]
        return "\n".join(map(_sentence, found)) or WEIGHT
    check_name(b, known)
    makers = {value: node.name for value, node in plan.graph.producers().items()}
    found = [d for d in plan.decisions if {a, b} <= d.names]
    # A value stands for its producer too, so that two values, one computed from the other, name an edge.
    found = found or [
        d for d in plan.decisions if all(name in d.names or makers.get(name) == d.consumer for name in (a, b))
    ]
    if a != b and found:
        return "\n".join(map(_sentence, found))
    if {a, b} & plan.graph.constants.keys():
        return WEIGHT
    ends = {end for d in plan.decisions if a in d.names for end in (d.producer, d.consumer)}
    near = ", ".join(f"'{end}'" for end in sorted(ends - {a, ""}))
    answer = f"No edge joins '{a}' and '{b}'" + (f"; edges join '{a}' and {near}." if near else ".")
    together = any({a, b} <= {node.name for node in region.nodes} for region in plan.regions)
    return f"{answer} Both run in one kernel." if together and a != b else answer


def check_name(name: str, known: Iterable[str]) -> None:
    """Raises UserError, with the closest known names, when `name` is not one of `known`."""
    names = list(known)
    if name not in names:
        close = get_close_matches(name, names, n=3, cutoff=0.4) or [n for n in names if name in n][:3]
        remedy = "closest: " + ", ".join(f"'{n}'" for n in close) if close else "see: onepass explain"
        raise UserError(f"no node or value is called '{name}'", remedy=remedy)


def _sentence(d: Decision) -> str:
    source = f"from '{d.producer}'" if d.producer else "(an input of the model)"
    target = f"to '{d.consumer}'" if d.consumer else "out of the model"
    text = f"'{d.value}' ({bytes_text(d.value_bytes)}) {source} {target} {_WHERE[d.home]}"
    saved = [f"{bytes_text(size)} at {level}" for level, size in d.saved_bytes.items() if size]
    if saved:
        text += f" and saves {' and '.join(saved)}"
    text += f": {d.detail.rstrip('.')} ({d.reason}); predicted {seconds_text(d.seconds)}"
    if d.alternative and d.alternative_s is not None:
        text += f", against {seconds_text(d.alternative_s)} with {d.alternative} as its home"
    elif d.alternative:
        text += f"; {d.alternative} is ruled out"
    if d.timed:
        ways = (
            f"{seconds_text(t.measured_s)} as {t.what} (predicted {seconds_text(t.predicted_s)})"
            for t in d.timed[:2]
        )
        text += f"; measured {', against '.join(ways)}"
    if d.fits:
        text += f"; compiled: {'; then '.join(map(str, d.fits))}"
    return text + "."
