"""Gives every value its physical layout: channels in blocks where vectors run over channels.

Convolutions produce blocked values; ops that keep channels in place pass the layout on; everything
else, and what the user sees, is plain. A value read by a padded window carries its border of zeros, so
the window's kernel needs no guards. A graph input that needs another layout is copied by an explicit node.
Parts of a concatenation lie inside it where that is possible (`places`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from onepass.core.tensor import TensorType
from onepass.forms.narrow import is_few
from onepass.forms.winograd import POINTS, shape_of
from onepass.fuse.places import REORDER, Places, reorder
from onepass.fuse.rules import reads
from onepass.graph.ir import Graph, Node
from onepass.graph.layout import PLAIN, Layout, Pads
from onepass.loops.affine import Range, range_of
from onepass.loops.ir import Index, Load
from onepass.loops.walk import loads
from onepass.ops.opdef import Compute, Lowering
from onepass.ops.shapes import attr

# A border that grows a tensor more than this is not worth its zeros: guards instead. Measured on one Zen 4
# core at growths of 2.8 to 4: 3x3 and 5x5 windows run at 0.75 to 1 of the speed of guards, a 7x7 one at 1.3.
MAX_BORDER_GROWTH = 2.5


def assign_layouts(graph: Graph, lanes: int, rewrites: frozenset[str]) -> tuple[Graph, dict[str, Layout]]:
    """The graph, with a copy of each value that has to lie elsewhere too, and the layout of each value."""
    edges = (1, max(POINTS)) if "winograd" in rewrites else (1,)
    graph = _copy_padded_inputs(graph, edges)
    borders = _borders(graph, edges)
    windowed = _windowed(graph)
    types = dict(graph.types)
    places = Places(graph, types, borders)
    layouts: dict[str, Layout] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        joined, cut = None, None
        if node.op == "concat":
            joined = places.joined(node, layouts)
        elif node.op == "slice":
            cut = places.sliced(node, layouts)
        if joined is not None:
            node, copies, block = joined
            layouts |= {copy.outputs[0]: Layout(block) for copy in copies}
            nodes += copies
        elif cut is not None:
            block = cut
        else:
            block = _output_block(graph, node, graph.lowering(node), layouts, lanes)
            if windowed.issuperset(node.outputs) and _gathers_channels(graph, node, layouts, lanes):
                block = lanes
            places.computed(node)
        nodes.append(node)
        layouts |= {name: Layout(block) for name in node.outputs if name and name not in graph.outputs}
    return replace(graph, nodes=tuple(nodes), types=types), _placed(layouts, borders, types, places)


def _placed(
    layouts: Mapping[str, Layout],
    borders: Mapping[str, Pads],
    types: Mapping[str, TensorType],
    places: Places,
) -> dict[str, Layout]:
    """The layouts with borders and places: a whole and its parts have the largest border of them all."""
    found = {name: places.place(name) for name in layouts}
    wholes = {name: place.whole if place else name for name, place in found.items()}
    common: dict[str, Pads] = {}
    for name, whole in wholes.items():
        pads = _larger(common.get(whole, ()), borders.get(name, ()))
        common[whole] = pads if _pays(pads, types[name]) else ()
    return {name: Layout(layout.block, common[wholes[name]], found[name]) for name, layout in layouts.items()}


def _copy_padded_inputs(graph: Graph, edges: Sequence[int]) -> Graph:
    """A node that copies an input into a bordered buffer, in front of the windows that pad it."""
    borders = _borders(graph, edges)
    nodes: list[Node] = []
    types = dict(graph.types)
    renamed: dict[str, str] = {}
    for name in graph.inputs:
        if name in borders and graph.types[name].rank >= 3:
            copy = f"{name}#bordered"
            renamed[name], types[copy] = copy, graph.types[name]
            nodes.append(reorder(f"{REORDER}_{name}", name, copy))
    if not nodes:
        return graph
    for node in graph.nodes:
        padded = _wanted_borders(graph, node)
        inputs = tuple(renamed[n] if n in renamed and n in padded else n for n in node.inputs)
        nodes.append(replace(node, inputs=inputs))
    return replace(graph, nodes=tuple(nodes), types=types)


def _wanted_borders(graph: Graph, node: Node, edge: int = 1) -> dict[str, Pads]:
    """The border of zeros that `node` wants around its inputs, for 3x3 windows in whole tiles of `edge`."""
    wanted: dict[str, Pads] = {}
    for stage in graph.lowering(node).stages:
        for load in loads(stage.body):
            if load.fill == 0 and load.buffer.startswith("in") and stage.reduce_axes:
                name = node.inputs[int(load.buffer[2:])]
                pads = _wanted_border(load, stage, graph.types[name], edge)
                if name not in graph.constants and pads:
                    wanted[name] = _larger(wanted.get(name, ()), pads)
    return wanted


def _borders(graph: Graph, edges: Sequence[int]) -> dict[str, Pads]:
    """The border of each value that windows pad: for tiles of the last of `edges` that it may grow to."""
    found: dict[str, Pads] = {}
    for edge in edges:
        borders: dict[str, Pads] = {}
        for node in graph.nodes:
            for name, pads in _wanted_borders(graph, node, edge).items():
                borders[name] = _larger(borders.get(name, ()), pads)
        found |= {name: pads for name, pads in borders.items() if _pays(pads, graph.types[name])}
    return found


def _pays(pads: Pads, kind: TensorType) -> bool:
    return Layout(1, pads).physical_size(kind.shape) <= MAX_BORDER_GROWTH * max(1, kind.size)


def _wanted_border(load: Load, stage: Compute, kind: TensorType, edge: int) -> Pads:
    ranges: dict[str, Range] = {
        axis.name: (0, max(0, axis.extent - 1)) for axis in (*stage.axes, *stage.reduce_axes)
    }
    if shape_of(stage) is not None:
        ranges |= {axis.name: (0, -(-axis.extent // edge) * edge - 1) for axis in stage.axes[2:]}
    reached = [range_of(index, ranges) for index in load.indices]
    pads = [
        (max(0, -low), max(0, high - extent + 1))
        for (low, high), extent in zip(reached, kind.shape, strict=True)
    ]
    return tuple(pads[2:]) if not any(map(any, pads[:2])) and any(map(any, pads[2:])) else ()


def _larger(a: Pads, b: Pads) -> Pads:
    if not a or not b:
        return a or b
    return tuple((max(x[0], y[0]), max(x[1], y[1])) for x, y in zip(a, b, strict=True))


def _output_block(
    graph: Graph, node: Node, lowering: Lowering, layouts: Mapping[str, Layout], lanes: int
) -> int:
    kind = lowering.output_types[0]
    if kind.rank < 3 or kind.dtype.size_bytes != 4 or math.prod(kind.shape[2:]) == 1:
        return 1
    if node.op in ("conv", "conv_transpose"):
        channels, group = kind.shape[1], attr(node.attrs, "group", 1)
        depthwise = group == channels == graph.types[node.inputs[0]].shape[1]
        blocked_input = layouts.get(node.inputs[0], PLAIN).block > 1
        few = node.op == "conv" and group == 1 and is_few(channels, lanes)
        wide = channels >= lanes // 2 or (blocked_input and not few)
        ends = (channels, graph.types[node.inputs[0]].shape[1])
        whole = node.op == "conv" and all(end % (lanes * group) == 0 for end in ends)
        return lanes if wide and (group == 1 or depthwise or whole) else 1
    if node.spelling == REORDER:
        return lanes if kind.shape[1] >= lanes // 2 else 1
    if node.op == "concat":
        blocks = [layouts.get(name, PLAIN).block for name in node.inputs]
        aligned = all(4 * math.gcd(graph.types[n].shape[1], blocks[0]) >= blocks[0] for n in node.inputs[:-1])
        same = blocks[0] > 1 and len(set(blocks)) == 1
        return blocks[0] if same and (aligned or node.attrs.get("axis") not in (1, 1 - kind.rank)) else 1
    return passed_on(graph, node, lowering, layouts)


def _windowed(graph: Graph) -> frozenset[str]:
    """Values that a convolution or a pool reads, as they are or after ops that keep channels in place."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        slides = any(len(stage.reduce_axes) > 1 for stage in graph.lowering(node).stages)
        if node.op == "conv":
            found.add(node.inputs[0])
        elif slides or not found.isdisjoint(node.outputs):
            found |= {
                name for name in node.inputs
                if all(_keeps_channel(stage, load) for stage, load in reads(graph, node, name))
            }  # fmt: skip
    return frozenset(found)


def _gathers_channels(graph: Graph, node: Node, layouts: Mapping[str, Layout], lanes: int) -> bool:
    """Whether `node` moves what lies side by side in its plain input to the channels.

    Then a block of them is one vector of the input, where plain channels would be gathered one by one.
    """
    (stage, *more), kind = graph.lowering(node).stages, graph.types[node.outputs[0]]
    if more or kind.rank < 3 or kind.dtype.size_bytes != 4 or kind.shape[1] < lanes // 2:
        return False
    if any(layouts.get(name, PLAIN).block > 1 for name in node.inputs):
        return False
    return isinstance(stage.body, Load) and stage.body.indices[-1:] == (Index(stage.axes[1].name),)


def passed_on(graph: Graph, node: Node, lowering: Lowering, layouts: Mapping[str, Layout]) -> int:
    """The block of the inputs where the op keeps channels in place, 1 otherwise."""
    block = 1
    for name in dict.fromkeys(node.inputs):
        if not name or name in graph.constants:
            continue
        mine = layouts.get(name, PLAIN).block
        if mine > 1:
            if not all(_keeps_channel(stage, load) for stage, load in reads(graph, node, name)):
                return 1
            block = mine
        elif graph.types[name].size > 1 and graph.types[name].shape == lowering.output_types[0].shape:
            return 1
    return block if len({kind.shape for kind in lowering.output_types}) == 1 else 1


def _keeps_channel(stage: Compute, load: Load) -> bool:
    if len(stage.axes) < 2 or len(load.indices) < 2:
        return False
    channel = load.indices[1]
    return isinstance(channel, Index) and channel.name == stage.axes[1].name
