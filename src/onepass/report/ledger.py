"""The ledger as text: one decision a line, and the answer to `why A B`.

In: a Plan. Out: JSON lines with stable keys; or one sentence about the edge between two names.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from onepass.core.errors import UserError
from onepass.fuse.plan import Decision, Plan
from onepass.graph.ir import Graph
from onepass.report.units import bytes_text, seconds_text

_WHERE = {"register": "stays in registers", "cache": "stays in cache", "memory": "goes through memory"}


def decision_json(decision: Decision) -> dict[str, object]:
    """The ledger's entry as plain data; always the same keys in the same order."""
    return {
        "value": decision.value,
        "producer": decision.producer,
        "consumer": decision.consumer,
        "home": decision.home,
        "reason": decision.reason,
        "detail": decision.detail,
        "value_bytes": decision.value_bytes,
        "saved_bytes": {level: decision.saved_bytes.get(level, 0) for level in ("l2", "l3", "memory")},
        "seconds": decision.seconds,
        "alternative": decision.alternative,
        "alternative_s": decision.alternative_s,
    }


def ledger_jsonl(plan: Plan) -> str:
    """Every decision of `plan`, one JSON object a line."""
    lines = (json.dumps(decision_json(decision), ensure_ascii=False) for decision in plan.decisions)
    return "".join(line + "\n" for line in lines)


def why(plan: Plan, a: str, b: str) -> str:
    """Why the edge between `a` and `b` (nodes or values, in either order) has its home; a line for each edge.

    Raises UserError for a name that the model does not have.
    """
    known = [*(node.name for node in plan.graph.nodes), *plan.graph.types]
    for name in (a, b):
        check_name(name, known)
    makers = {value: node.name for value, node in plan.graph.producers().items()}
    found = [d for d in plan.decisions if {a, b} <= {d.producer, d.consumer, d.value}]
    # A value stands for its producer too, so that two values, one computed from the other, name an edge.
    found = found or [
        d for d in plan.decisions
        if all(name in (d.producer, d.consumer, d.value) or makers.get(name) == d.consumer for name in (a, b))
    ]  # fmt: skip
    if a == b or not found:
        return _no_edge(plan.graph, a, b)
    return "\n".join(map(_sentence, found))


def check_name(name: str, known: Iterable[str]) -> None:
    """Raises UserError, with the closest known names, when `name` is not one of `known`."""
    names = list(known)
    if name in names:
        return
    close = get_close_matches(name, names, n=3, cutoff=0.4) or [n for n in names if name in n][:3]
    remedy = "`onepass explain` lists all names."
    if close:
        remedy = "closest: " + ", ".join(f"'{n}'" for n in close)
    raise UserError(f"no node or value is called '{name}'", why="the model does not have it", remedy=remedy)


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
    return text + "."


def _no_edge(graph: Graph, a: str, b: str) -> str:
    if a == b:
        return f"'{a}' and '{b}' are the same; name the two ends of an edge."
    for name in (a, b):
        if name in graph.constants:
            return f"'{name}' is a weight: every kernel that uses it reads it, there is nothing to decide."
    for source, target in ((a, b), (b, a)):
        path = _path(graph, source, target)
        if path:
            inner = [name for name in path if name not in (source, target)]
            through = ", ".join(f"'{name}'" for name in inner)
            return f"No edge joins '{source}' and '{target}': the way from one to the other is {through}."
    return f"'{a}' and '{b}' are not connected: neither is computed from the other."


def _path(graph: Graph, source: str, target: str) -> list[str]:
    """Node names on a shortest way from `source` down to `target`, empty where there is none."""
    consumers, producers = graph.consumers(), graph.producers()
    nodes = {node.name: node for node in graph.nodes}
    goal = target if target in nodes else producers[target].name if target in producers else ""
    start = [source] if source in nodes else [node.name for node in consumers[source]]
    came_from: dict[str, str] = dict.fromkeys(start, "")
    queue = deque(start)
    while queue:
        name = queue.popleft()
        if name == goal:
            return _trace_back(came_from, name)
        for value in nodes[name].outputs:
            for node in consumers.get(value, ()):
                if node.name not in came_from:
                    came_from[node.name] = name
                    queue.append(node.name)
    return []


def _trace_back(came_from: Mapping[str, str], name: str) -> list[str]:
    path = []
    while name:
        path.append(name)
        name = came_from[name]
    return path[::-1]
