"""One ONNX node while it is imported: what a converter may ask, and what it may emit.

In: the node, its inputs' types and known values. Out: graph nodes, aliases or known values, given to
the `Building` that all nodes of a model share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from onnx import AttributeProto, NodeProto, TensorProto, defs, helper

from onepass.core.dtypes import DType, dtype_of_numpy
from onepass.core.errors import ModelError, UserError
from onepass.core.tensor import Shape, TensorType
from onepass.frontends.onnx_model import NEWEST_OPSET
from onepass.frontends.onnx_tensors import TensorReader, check_shape, dtype_name, dtype_named, dtype_of
from onepass.graph.interpret import fold_node
from onepass.graph.ir import Node
from onepass.ops.opdef import OPS, Array, AttrValue

FOLD_ELEMENTS = 1 << 20
"""Nodes over known values up to this many elements are evaluated at once; larger ones on demand."""

RawAttr = AttrValue | TensorProto
_DATA = set(map(AttributeProto.AttributeType.Value, ("FLOAT", "FLOATS", "INT", "INTS", "STRING", "TENSOR")))


@dataclass(slots=True)
class Building:
    """The graph under construction: values so far, and nodes in order.

    `value_names` are all names of the model; `used_names` those that a node or the model's outputs read.
    """

    opset: int
    reader: TensorReader
    types: dict[str, TensorType] = field(default_factory=dict)
    known: dict[str, Array] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    producers: dict[str, Node] = field(default_factory=dict)
    node_names: set[str] = field(default_factory=set)
    value_names: set[str] = field(default_factory=set)
    used_names: set[str] = field(default_factory=set)

    def resolve(self, name: str) -> str:
        """The value that `name` stands for, behind `Identity` and the like."""
        return self.aliases.get(name, name)

    def define(self, name: str, array: Array) -> None:
        """Makes `name` a known value."""
        array = array.view()
        array.setflags(write=False)
        self.known[name] = array
        self.types[name] = TensorType(dtype_of_numpy(array.dtype), array.shape)

    def value(self, name: str) -> Array | None:
        """The known elements of `name`, evaluating its producers where they depend on no input."""
        if name in self.known:
            return self.known[name]
        node = self.producers.get(name)
        if node is None or any(self.value(source) is None for source in node.inputs if source):
            return None
        self.known.update(fold_node(node, self.known, self.types))
        return self.known[name]

    def add(self, node: Node, types: Sequence[TensorType]) -> None:
        """Appends `node`, or its result where all its inputs are known and small."""
        for name, tensor in zip(node.outputs, types, strict=False):
            if name:
                self.types[name] = tensor
                self.producers[name] = node
        sizes = [self.types[name].size for name in (*node.inputs, *node.outputs) if name]
        if all(name in self.known for name in node.inputs if name) and max(sizes, default=0) <= FOLD_ELEMENTS:
            self.known.update(fold_node(node, self.known, self.types))
        else:
            self.nodes.append(node)

    def new_value(self, wanted: str) -> str:
        """A name for a value: `wanted`, numbered where the model has a value of that name."""
        return unique(wanted, self.value_names)


class Site:
    """One ONNX node, with attributes completed by the defaults of its schema."""

    def __init__(self, building: Building, node: NodeProto, name: str) -> None:
        self.building, self.node, self.name = building, node, name
        self.opset = building.opset
        inputs = [building.resolve(value) for value in node.input]
        while inputs and not inputs[-1]:
            inputs.pop()
        self.inputs = tuple(inputs)
        schema = defs.get_schema(node.op_type, building.opset, "")
        if not schema.min_input <= len(node.input) <= schema.max_input or (schema.min_input and not inputs):
            needed = f"{node.op_type} needs {schema.min_input} or more"
            raise self.error(f"{len(inputs)} inputs are given, {needed}")
        self.attrs: dict[str, RawAttr] = dict(default_attrs(node.op_type, building.opset))
        types = attribute_types(node.op_type, building.opset)
        for attribute in node.attribute:
            name = f"attribute '{attribute.name}'"
            if attribute.name not in types:
                raise self.error(f"{name} does not exist in {node.op_type} of opset {building.opset}")
            if attribute.type != types[attribute.name]:
                raise self.error(f"{name} has the wrong type")
            self.attrs[attribute.name] = attribute_value(attribute)
        present = {attribute.name for attribute in node.attribute}
        for missing in sorted(_required_attributes(node.op_type, building.opset) - present):
            raise self.error(f"attribute '{missing}' is missing")
        self._check_types()

    def _check_types(self) -> None:
        """Raises `ModelError` for element types that the op does not take, or not together."""
        formals = _formal_inputs(self.node.op_type, self.opset)
        bound: dict[str, tuple[int, DType]] = {}
        for position, name in enumerate(self.inputs):
            tensor = self.building.types.get(name)
            if tensor is None:
                continue
            variable, allowed, homogeneous = formals[min(position, len(formals) - 1)]
            if tensor.dtype not in allowed:
                raise self.error(f"input {position} is {tensor}, an element type that the op does not take")
            first, dtype = bound.setdefault(variable, (position, tensor.dtype))
            if homogeneous and dtype != tensor.dtype:
                raise self.error(
                    f"inputs {first} and {position} are {dtype} and {tensor.dtype}, not of one element type"
                )

    @property
    def where(self) -> str:
        """The node in the user's words."""
        return f"node '{self.name}' ({self.node.op_type})"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the node's outputs, '' for one that nobody reads, without those at the end."""
        used = self.building.used_names
        outputs = [name if i == 0 or name in used else "" for i, name in enumerate(self.node.output)]
        while outputs and not outputs[-1]:
            outputs.pop()
        return tuple(outputs)

    def error(self, what: str, why: str = "", remedy: str = "") -> ModelError:
        """A `ModelError` that points at this node."""
        return ModelError(what, where=self.where, why=why, remedy=remedy)

    def has(self, position: int) -> bool:
        """Whether the input is present."""
        return position < len(self.inputs) and self.inputs[position] != ""

    def type(self, position: int) -> TensorType:
        """Type of an input that must be present."""
        if not self.has(position):
            raise self.error(f"input {position} is missing")
        return self.building.types[self.inputs[position]]

    def shape(self, position: int = 0) -> Shape:
        """Shape of an input that must be present."""
        return self.type(position).shape

    def array(self, position: int, meaning: str) -> Array | None:
        """The known elements of an input, None where it is left out; `ModelError` for data-dependent ones."""
        if not self.has(position):
            return None
        array = self.building.value(self.inputs[position])
        if array is None:
            raise self.error(
                f"its {meaning} (input '{self.node.input[position]}') is computed from the model's inputs",
                why="a data-dependent shape: code is generated for sizes that are known beforehand",
                remedy="export the model with a fixed size, or simplify it first",
            )
        return array

    def ints(self, position: int, meaning: str) -> tuple[int, ...] | None:
        """The known integers of an input, None where it is left out."""
        array = self.array(position, meaning)
        return None if array is None else tuple(int(value) for value in array.reshape(-1))

    def int_attr(self, name: str, default: int = 0) -> int:
        """An integer attribute, `default` where it is absent."""
        value = self.attrs.get(name)
        return value if isinstance(value, int) else default

    def ints_attr(self, name: str) -> tuple[int, ...] | None:
        """An attribute that is a list of integers, None where it is absent."""
        value = self.attrs.get(name)
        return tuple(int(item) for item in value) if isinstance(value, tuple) else None

    def axis(self, value: int, rank: int) -> int:
        """`value` counted from the front; `ModelError` where there is no such axis."""
        if not -rank <= value < rank:
            raise self.error(f"axis {value} does not exist in a tensor of rank {rank}")
        return value % rank if rank else 0

    def tensor(self, proto: TensorProto) -> Array:
        """The elements of a tensor attribute."""
        return self.building.reader.read(proto, self.where)

    def constant(self, array: Array, label: str) -> str:
        """A new known value beside the node's first output."""
        name = self.building.new_value(f"{self.node.output[0]}:{label}")
        self.building.define(name, array)
        return name

    def alias(self, source: str, output: int = 0) -> None:
        """Makes an output another name of the value `source`."""
        self.building.aliases[self.node.output[output]] = source

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, RawAttr],
        outputs: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Adds a node; `outputs` are this node's own unless given. Returns their names."""
        names = tuple(outputs) or self.outputs
        plain = {key: value for key, value in attrs.items() if not isinstance(value, TensorProto)}
        own = unique(self.name, self.building.node_names)
        node = Node(own, op, tuple(inputs), names, plain, self.node.op_type)
        types = [self.building.types[name] if name else None for name in inputs]
        try:
            found = OPS[op].lower(types, plain).output_types
        except UserError as error:
            raise type(error)(error.what, where=self.where, why=error.why, remedy=error.remedy) from error
        except ArithmeticError as error:
            raise self.error(f"its attributes make no sense: {error}") from error
        if len(names) > len(found):
            raise self.error(f"output {len(found)} is not supported")
        for tensor in found:
            check_shape(tensor.shape, tensor.dtype, self.where)
        self.building.add(node, found)
        return names

    def emit_between(self, op: str, inputs: Sequence[str], attrs: Mapping[str, RawAttr], label: str) -> str:
        """Adds a node whose one output is a new value, named after the node's first output."""
        name = self.building.new_value(f"{self.node.output[0]}:{label}")
        return self.emit(op, inputs, attrs, (name,))[0]

    def dtype_attr(self, name: str) -> DType:
        """An attribute that holds an ONNX element type."""
        code = self.int_attr(name)
        dtype = dtype_of(code)
        if dtype is None:
            raise self.error(f"element type {dtype_name(code)} is not supported")
        return dtype


Converter = Callable[[Site], None]


@lru_cache(maxsize=1024)
def default_attrs(op_type: str, opset: int) -> Mapping[str, RawAttr]:
    """Every attribute of the op with its default, None where it has none.

    Names that only the newest schema has are added with their defaults; where both have one, the
    schema of `opset` decides (`Softmax` changed the default axis).
    """
    attrs: dict[str, RawAttr] = {}
    for version in (min(NEWEST_OPSET, defs.onnx_opset_version()), opset):
        for name, attribute in defs.get_schema(op_type, version, "").attributes.items():
            default = attribute.default_value
            attrs[name] = attribute_value(default) if default.type else None
    return attrs


@lru_cache(maxsize=1024)
def _required_attributes(op_type: str, opset: int) -> frozenset[str]:
    """Attributes without which the op means nothing."""
    attributes = defs.get_schema(op_type, opset, "").attributes
    return frozenset(name for name, attribute in attributes.items() if attribute.required)


@lru_cache(maxsize=1024)
def _formal_inputs(op_type: str, opset: int) -> tuple[tuple[str, frozenset[DType], bool], ...]:
    """Of each declared input: its type variable, the element types it may have, and whether all inputs of
    that variable have the same one. The last may stand for several inputs.

    The newest version that the op has says which types: what older ones leave out is computed alike.
    """
    newest = defs.get_schema(op_type, min(NEWEST_OPSET, defs.onnx_opset_version()), "").inputs
    formals = []
    for at, formal in enumerate(defs.get_schema(op_type, opset, "").inputs):
        spelled = formal.types | (newest[at].types if at < len(newest) else set())
        found = {dtype_named(kind.removeprefix("tensor(").removesuffix(")")) for kind in spelled}
        formals.append((formal.type_str, frozenset(filter(None, found)), formal.is_homogeneous))
    return tuple(formals)


@lru_cache(maxsize=1024)
def attribute_types(op_type: str, opset: int) -> Mapping[str, int]:
    """The `AttributeProto` type of each attribute that the op has in `opset`."""
    attributes = defs.get_schema(op_type, opset, "").attributes
    # The stub hides that the binding's enumeration converts to the proto's numbers.
    return {name: int(attribute.type) for name, attribute in attributes.items()}  # type: ignore[call-overload]


def attribute_value(attribute: AttributeProto) -> RawAttr:
    """An attribute as a Python value: tuples for lists, tensors as they are; None for what is not data."""
    if attribute.type not in _DATA:
        return None
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return tuple(value) if isinstance(value, Sequence) else value


def unique(wanted: str, taken: set[str]) -> str:
    """`wanted`, or the first of `wanted_2`, `wanted_3`, ... that is not taken; takes it."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name)
    return name
