"""Which values lie inside others, so that a concatenation or a slice moves nothing.

The parts of a concatenation are written where the whole has them; a slice is read where its source has it.
Either needs a value that lies in memory in any case: what a reduction has finished. What can be fused
into its reader is better not stored at all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onepass.core.tensor import TensorType
from onepass.fuse.rules import same_space
from onepass.graph.ir import Graph, Node
from onepass.graph.layout import PLAIN, Layout, Pads, Place
from onepass.graph.parts import cut_of
from onepass.ops.shapes import attr, normalize_axis

REORDER = "Reorder"
ALIGNMENT_BYTES = 16  # of every buffer that a kernel is given


@dataclass(frozen=True, slots=True)
class Part:
    """The claim that `value` is `whole` from `start` on along `axis`."""

    value: str
    whole: str
    axis: int
    start: int


def parts_of(graph: Graph, node: Node) -> tuple[Part, ...]:
    """What must hold for `node` to move nothing: inputs in its output, or the reverse; () where it moves."""
    output = node.outputs[0]
    if node.op == "concat":
        axis = normalize_axis(attr(node.attrs, "axis", 0), graph.types[output].rank)
        return tuple(_side_by_side(graph, node.inputs, output, axis))
    cut = cut_of(graph, node)
    return (Part(output, node.inputs[0], *cut),) if cut else ()


def _side_by_side(graph: Graph, values: tuple[str, ...], whole: str, axis: int) -> Iterator[Part]:
    start = 0
    for value in values:
        yield Part(value, whole, axis, start)
        start += graph.types[value].shape[axis]


def is_in_place(graph: Graph, layouts: Mapping[str, Layout], node: Node) -> bool:
    """Whether every element that the concatenation or slice would move already lies where it belongs."""
    parts = parts_of(graph, node)
    return bool(parts) and all(_lies_in(layouts, part) for part in parts)


def _lies_in(layouts: Mapping[str, Layout], part: Part) -> bool:
    inner, outer = (layouts.get(name, PLAIN).place for name in (part.value, part.whole))
    whole, start = (outer.whole, outer.start) if outer else (part.whole, 0)
    place = (whole, part.axis, start + part.start)
    return inner is not None and (inner.whole, inner.axis, inner.start) == place


class Places:
    """Decides, node by node in topological order; `bordered` values want a border of zeros.

    `parents` holds the part that each value is of another; `types` is given the copies' types.
    """

    def __init__(self, graph: Graph, types: dict[str, TensorType], bordered: Mapping[str, Pads]) -> None:
        self.graph, self.types, self.bordered = graph, types, bordered
        self.parents: dict[str, Part] = {}
        self._axes: dict[str, int] = {}  # along which a value is a part or has parts
        self._finished: set[str] = set()
        self._producers, self._consumers = graph.producers(), graph.consumers()

    def place(self, value: str) -> Place | None:
        """Where `value` lies in the outermost whole, None for one with a buffer of its own."""
        start, whole, axis = 0, value, 0
        while whole in self.parents:
            part = self.parents[whole]
            start, whole, axis = start + part.start, part.whole, part.axis
        return None if whole == value else Place(whole, axis, start, self.types[whole].shape[axis])

    def computed(self, node: Node) -> None:
        """Notes whether `node`, which is a kernel or a reshape, ends what a reduction began."""
        follows = any(
            name in self._finished and (node.opdef.view or same_space(self.graph, node, name))
            for name in node.inputs
        )
        if follows or self._reduces(node):
            self._finished.update(node.outputs)

    def sliced(self, node: Node, layouts: Mapping[str, Layout]) -> int | None:
        """The block of a slice that is read in place, None for one that is not."""
        parts = parts_of(self.graph, node)
        if not parts or parts[0].whole not in self._finished or parts[0].value in self.graph.outputs:
            return None
        block = layouts.get(parts[0].whole, PLAIN).block
        if not self._fits(parts[0], block):
            return None
        self._add(parts)
        return block

    def joined(self, node: Node, layouts: Mapping[str, Layout]) -> tuple[Node, list[Node], int] | None:
        """A concatenation whose parts are written in place: the node, the copies it needs, its block.

        What cannot lie there, such as a part of something else, is copied. None where that is no gain.
        """
        output, parts = node.outputs[0], parts_of(self.graph, node)
        sizes = Counter[int]()
        for part in parts:
            if self._can_move(part):
                sizes[layouts.get(part.value, PLAIN).block] += self.types[part.value].size
        block = max(sizes, key=lambda block: sizes[block], default=1)
        if not sizes or (block > 1 and output in self.graph.outputs):
            return None
        if not all(self._fits(part, block) for part in parts):
            return None
        inputs, copies = list(node.inputs), list[Node]()
        finished = copied = 0
        for at, part in enumerate(parts):
            size, own = self.types[part.value].size, layouts.get(part.value, PLAIN).block
            if own == block and self._can_move(part) and part.value not in inputs[:at]:
                is_view = self._producers[part.value].opdef.view  # no longer, where it is written in place
                finished += size if part.value in self._finished and not is_view else 0
                continue
            inputs[at], copied = f"{output}#part{at}", copied + size
            copies.append(reorder(f"{node.name}#part{at}", part.value, inputs[at], node.user_name))
        whole = self.types[output].size
        # A reader that is fused needs no whole: then only what is stored in any case may be its parts.
        stored = output in self.graph.outputs or any(map(self._reduces, self._consumers[output]))
        if not finished or 2 * copied > whole or (finished < whole and not stored):
            return None
        self.types.update((copy.outputs[0], self.types[copy.inputs[0]]) for copy in copies)
        self._add([replace(part, value=name) for part, name in zip(parts, inputs, strict=True)])
        return replace(node, inputs=tuple(inputs)), copies, block

    def _add(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self.parents[part.value] = part
            self._axes[part.value] = self._axes[part.whole] = part.axis
            self._finished.update((part.value, part.whole))

    def _can_move(self, part: Part) -> bool:
        """Whether a kernel makes the value of `part`, and nothing yet says where it lies."""
        value = part.value
        if value not in self._producers or value in self.graph.outputs or value in self.parents:
            return False
        return self._axes.get(value, part.axis) == part.axis

    def _fits(self, part: Part, block: int) -> bool:
        """Whether `part` starts where a buffer of `block` may start, and no border comes between."""
        kind = self.types[part.value]
        if kind.size == 0 or self._axes.get(part.whole, part.axis) != part.axis:
            return False
        if block > 1 and part.axis == 1:
            return part.start % block == 0
        if (block == 1 or part.axis) and not self.bordered.keys().isdisjoint((part.value, part.whole)):
            return False
        inner = math.prod(kind.shape[part.axis + 1 :]) * kind.dtype.size_bytes
        return block > 1 or part.start * inner % ALIGNMENT_BYTES == 0

    def _reduces(self, node: Node) -> bool:
        return any(stage.reduce_axes for stage in self.graph.lowering(node).stages)


def reorder(name: str, value: str, copy: str, origin: str = "") -> Node:
    """A node `name` that copies `value` to where, or as, it has to lie too."""
    return Node(name, "identity", (value,), (copy,), {}, REORDER, origin)
