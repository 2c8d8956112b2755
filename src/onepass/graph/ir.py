"""The graph: nodes in topological order over named values, everything static and immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onepass.core.tensor import TensorType
from onepass.ops.opdef import OPS, Array, Attrs, Lowering, OpDef


@dataclass(frozen=True, slots=True)
class Node:
    """One op. `inputs` are value names, '' for an optional input left out.

    `name` is the user's node name (made unique; built from the output where it had none); `spelling`
    is the op as the user's model spells it (`BatchNormalization`). A node that a pass made from another has
    a name of its own, and in `origin` the name of the user's node.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Attrs = field(default_factory=dict)
    spelling: str = ""
    origin: str = ""

    @property
    def user_name(self) -> str:
        """The node of the user's model that this one belongs to."""
        return self.origin or self.name

    @property
    def opdef(self) -> OpDef:
        """The definition of the node's op."""
        return OPS[self.op]


@dataclass(frozen=True, slots=True)
class Graph:
    """`types` holds every value; `constants` those that are known, as read-only arrays."""

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, Array]
    _lowerings: dict[tuple[object, ...], Lowering] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )

    def lowering(self, node: Node) -> Lowering:
        """The stages of `node`, from the types of its inputs; computed once for equal nodes."""
        types = tuple(self.types[name] if name else None for name in node.inputs)
        key = (node.op, types, tuple(sorted(node.attrs.items())))
        if key not in self._lowerings:
            self._lowerings[key] = node.opdef.lower(types, node.attrs)
        return self._lowerings[key]

    @property
    def constant_bytes(self) -> int:
        """Bytes of all constants: what streams past in one run."""
        return sum(array.nbytes for array in self.constants.values())

    def producers(self) -> dict[str, Node]:
        """The node that computes each value (graph inputs and constants have none)."""
        return {output: node for node in self.nodes for output in node.outputs if output}

    def consumers(self) -> dict[str, tuple[Node, ...]]:
        """The nodes that read each value, in order, each once."""
        found: dict[str, list[Node]] = {name: [] for name in self.types}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    found[name].append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}
