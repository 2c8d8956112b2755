"""The layouts of a GPU: images with their channels last, so that a product reads them contiguously.

Convolutions produce such values, ops that keep channels in place pass them on; everything else, and what
the user sees, is plain. There are no borders: a tile's loads are masked.
"""

from __future__ import annotations

from onepass.fuse.layouts import passed_on
from onepass.graph.ir import Graph
from onepass.graph.layout import Layout


def channels_last(graph: Graph) -> dict[str, Layout]:
    """The layout of each value that does not lie plain; a block holds all channels."""
    layouts: dict[str, Layout] = {}
    for node in graph.nodes:
        lowering = graph.lowering(node)
        kind = lowering.output_types[0]
        if kind.rank < 3 or kind.shape[1] <= 1:
            continue
        product = node.op in ("conv", "conv_transpose")
        if product or passed_on(graph, node, lowering, layouts) > 1:
            layouts |= {
                name: Layout(graph.types[name].shape[1])
                for name in node.outputs if name and name not in graph.outputs
            }  # fmt: skip
    return layouts
