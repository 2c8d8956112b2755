"""Which slices are a run of their input along one axis."""

from __future__ import annotations

from onepass.graph.ir import Graph, Node
from onepass.loops.affine import linear
from onepass.loops.ir import Index, Load


def cut_of(graph: Graph, node: Node) -> tuple[int, int] | None:
    """The one axis that a slice shortens and the place from which it keeps what follows, in order.

    None for another op, and for a slice of several axes, of none, in steps or backwards.
    """
    if node.op != "slice":
        return None
    body = graph.lowering(node).stages[0].body
    assert isinstance(body, Load)
    whole, shape = (graph.types[name].shape for name in (node.inputs[0], node.outputs[0]))
    cut = list[tuple[int, int]]()
    for axis, index in enumerate(body.indices):
        form = linear(index, {})
        if form.terms != ((Index(f"i{axis}"), 1),) and shape[axis] != 1:
            return None
        if shape[axis] != whole[axis]:
            cut.append((axis, form.const))
    return cut[0] if len(cut) == 1 else None
