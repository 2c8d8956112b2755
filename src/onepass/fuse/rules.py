"""Legality: the claims that must hold before two regions become one, and the words for each refusal.

A rule is wrong or right, never cheap or dear: profit is the planner's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onepass.forms.regions import is_in_place
from onepass.graph.ir import Graph, Node
from onepass.loops.ir import Load
from onepass.loops.walk import loads
from onepass.ops.opdef import Compute

REASONS: Mapping[str, str] = {
    "fused": "producer and consumer share one loop nest",
    "row_in_cache": "the row stays in cache between the passes of a reduction",
    "winograd": "made in scratch by Winograd's form, a block of tiles at a time",
    "rows_in_cache": "the consumer reads a few rows at a time, which stay in cache",
    "graph_boundary": "the user gives or receives this value, so it lies in memory",
    "view": "only the shape's name changes: no element is moved",
    "in_place_concat": "each part is written where the whole has it: no element is moved",
    "in_place_slice": "the slice is read where its source has it: no element is moved",
    "also_output": "fused, and written too because something else reads it",
    "computed_again": "each reader computes it for itself, which is cheaper than to store it",
    "no_cycle": "the consumer also depends on the producer by another way",
    "one_reduction": "both reduce: the consumer needs finished sums of the whole tensor",
    "same_space": "the consumer reads the producer at other places than it computes",
    "prologue_would_repeat": "the producer would be computed again for every place of the window",
    "border_of_zeros": "written once with a border of zeros, so that the window reads without guards",
    "several_consumers": "the value is also read elsewhere, so it is written in any case",
    "form_mismatch": "no loop shape fits both",
    "does_not_fit": "compiled as one kernel they take more than the GPU has",
    "slower": "fusing would be slower by the cost model, together against apart",
    "switched_off": "fusion is switched off for these nodes",
}


def reads(graph: Graph, node: Node, value: str) -> list[tuple[Compute, Load]]:
    """Every place where `node` reads `value`: stage and load."""
    names = {f"in{i}" for i, name in enumerate(node.inputs) if name == value}
    return [
        (stage, load)
        for stage in graph.lowering(node).stages
        for load in loads(stage.body)
        if load.buffer in names
    ]


def same_space(graph: Graph, consumer: Node, value: str) -> bool:
    """The consumer reads `value` at the very places it computes, so it can follow in the same loop."""
    shape = graph.types[value].shape
    found = reads(graph, consumer, value)
    return bool(found) and all(
        stage.type.shape == shape and is_in_place(stage, load) for stage, load in found
    )


def only_moves(graph: Graph, node: Node) -> bool:
    """The node computes nothing: each element of its output is one element of an input."""
    stages = graph.lowering(node).stages
    return all(isinstance(stage.body, Load) and not stage.reduce_axes for stage in stages)


def has_cycle(first: frozenset[int], second: frozenset[int], successors: Mapping[int, Sequence[int]]) -> bool:
    """Whether something outside `first | second` lies on a path from `first` to `second`.

    Groups are sets of node positions; positions grow along every edge.
    """
    both, limit = first | second, max(second)
    stack = [n for p in first for n in successors[p] if n not in both]
    seen: set[int] = set()
    while stack:
        position = stack.pop()
        if position in seen or position > limit:
            continue
        seen.add(position)
        for after in successors[position]:
            if after in both:
                return True
            stack.append(after)
    return False
