"""Runs a graph region by region, each kernel in the interpreter or natively, on a machine made up here.

What a kernel may not rely on is poisoned: the unused lanes of blocked values, what lies between the rows of
a part, and outputs before they are written, hold NaN (or a large integer).
"""

from dataclasses import replace

import numpy as np
from loop_interpreter import interpret
from native import run_native

from onepass.core.dtypes import F32, dtype_of_numpy
from onepass.core.tensor import TensorType
from onepass.core.tolerance import compare
from onepass.cost.machine import Machine, Roof
from onepass.forms.regions import Context, build_region
from onepass.fuse.layouts import assign_layouts
from onepass.fuse.planner import FuseMode, make_plan
from onepass.graph.interpret import evaluate
from onepass.graph.ir import Graph, Node
from onepass.graph.layout import PLAIN
from onepass.graph.verify import verify as verify_graph
from onepass.loops.verify import verify
from onepass.ops.registry import OPS

WORKERS = 2


def machine(lanes=4):
    """Two workers at round figures; `lanes` float32 in a vector."""
    figures = {"float32 fma": 1e11, "float32 fma chain": 2.5e10, "float64 fma": 5e10}
    figures |= {"l1": 4e11, "l2": 2e11, "l3": 1e11, "memory": 3e10}
    roofs = [Roof(what, value, "", 2, "made up", "") for what, value in {**figures, "launch": 1e-7}.items()]
    registers = 32 if lanes == 16 else 16
    return Machine("made up", "any", 32 * lanes, registers, 2, 32 << 10, 1 << 20, 32 << 20, tuple(roofs))


def read_only(array):
    array = np.array(array, order="C")
    array.setflags(write=False)
    return array


def graph_of(inputs, *nodes, constants=None, outputs=None):
    """A graph from input shapes (or types) and (op, inputs, attrs) triples; node k makes `v{k}`."""
    constants = {name: read_only(array) for name, array in (constants or {}).items()}
    types = {n: TensorType(dtype_of_numpy(a.dtype), a.shape) for n, a in constants.items()}
    types |= {n: s if isinstance(s, TensorType) else TensorType(F32, s) for n, s in inputs.items()}
    made = []
    for k, (op, names, attrs) in enumerate(nodes):
        names = tuple(names.split())
        kinds = OPS[op].lower([types[n] for n in names], attrs).output_types
        results = tuple(f"v{k}" if j == 0 else f"v{k}_{j}" for j in range(len(kinds)))
        made.append(Node(f"{op}{k}", op, names, results, attrs, op))
        types |= dict(zip(results, kinds, strict=True))
    graph = Graph("test", tuple(made), tuple(inputs), outputs or made[-1].outputs[:1], types, constants)
    verify_graph(graph)
    return graph


def random_inputs(graph, seed=0):
    random = np.random.default_rng(seed)
    found = {}
    for name in graph.inputs:
        kind = graph.types[name]
        values = (
            random.standard_normal(kind.shape) if kind.dtype.is_float else random.integers(0, 9, kind.shape)
        )
        found[name] = np.asarray(values).astype(kind.dtype.numpy)
    return found


def poison(dtype):
    return np.nan if dtype.kind == "f" else dtype.type(77 if dtype.kind != "b" else 1)


def interior(layout):
    return tuple(slice(before, -after or None) for before, after in layout.pads)


def to_physical(array, layout):
    """`array` as it lies in memory, its unused lanes poisoned."""
    if layout.is_plain:
        return array.copy()
    out = np.zeros(layout.physical_shape(array.shape), array.dtype)
    if layout.block == 1:
        out[(slice(None), slice(None), *interior(layout))] = array
        return out
    n, channels = array.shape[:2]
    full = np.full((n, out.shape[1] * layout.block, *array.shape[2:]), poison(array.dtype), array.dtype)
    full[:, :channels] = array
    full = np.moveaxis(full.reshape(n, out.shape[1], layout.block, *array.shape[2:]), 2, -1)
    out[(slice(None), slice(None), *interior(layout))] = full
    return out


def from_physical(buffer, layout, shape):
    """The logical array; asserts that the border holds zeros."""
    if layout.is_plain:
        return buffer
    inner = (slice(None), slice(None), *interior(layout))
    border = buffer.copy()
    border[inner] = 0
    assert not border.any(), "the border does not hold zeros"
    values = buffer[inner]
    if layout.block == 1:
        return values
    return np.moveaxis(values, -1, 2).reshape(shape[0], -1, *shape[2:])[:, : shape[1]]


def moved_by_nothing(node, layouts, graph, memory):
    """The output of a view: elements that lie where they belong already."""
    shape, output = graph.types[node.outputs[0]].shape, layouts.get(node.outputs[0], PLAIN)
    if node.op == "concat":
        return np.concatenate([memory[name] for name in node.inputs], node.attrs["axis"])
    source = memory[node.inputs[0]]
    if node.op == "reshape":
        return source.reshape(shape)
    outer = layouts.get(node.inputs[0], PLAIN).place
    start = output.place.start - (outer.start if outer else 0)
    start //= output.block if output.place.axis == 1 else 1
    size = output.own_shape(shape)[output.place.axis]
    return source.take(range(start, start + size), output.place.axis)


def planned(
    graph, fuse="auto", lanes=4, rewrites=frozenset({"fold_batch_norm"}), layouts=None, workers=WORKERS
):
    """The context and the plan of `graph`; `layouts` replaces those that would be chosen."""
    mode = FuseMode.parse(fuse)
    rewrites = mode.allowed(rewrites)
    if layouts is None:
        graph, layouts = assign_layouts(graph, lanes, rewrites)
    context = Context(graph, layouts, machine(lanes), workers, rewrites)
    made = make_plan(context, mode)
    return replace(context, graph=made.plan.graph, layouts=made.plan.layouts), made


def run_regions(
    graph, inputs, fuse="none", lanes=4, native=False, layouts=None, reshape=lambda shaped: shaped,
    workers=WORKERS, **options,
):
    """Outputs by name, and the kernels that ran; `reshape` may change how each region is built."""
    context, made = planned(graph, fuse, lanes, layouts=layouts, workers=workers, **options)
    graph = context.graph
    memory = {n: to_physical(a, context.layouts.get(n, PLAIN)) for n, a in inputs.items()}
    kernels = []
    for region, shaped in zip(made.plan.regions, made.shaped, strict=True):
        if shaped is None:
            node = region.nodes[0]
            memory[node.outputs[0]] = moved_by_nothing(node, context.layouts, graph, memory)
            continue
        built = build_region(context, reshape(shaped))
        verify(built.kernel)
        kernels.append(built.kernel)
        known = {**graph.constants, **shaped.body.constants, **built.made}
        arrays, own = {}, {}
        for buffer, arg in zip(built.kernel.params, built.args, strict=True):
            if arg in built.packed:
                packed = built.packed[arg]
                arrays[buffer.name] = np.array(packed.unpacked(known[packed.source]))
            elif arg in known:
                arrays[buffer.name] = np.array(known[arg])
            else:
                dtype = buffer.dtype.numpy
                shape = context.layouts.get(arg, PLAIN).own_shape(graph.types[arg].shape)
                own[arg] = tuple(slice(0, extent) for extent in shape)  # beyond it: other parts of its whole
                arrays[buffer.name] = np.full(buffer.shape, poison(np.dtype(dtype)), dtype)
                if arg not in region.outputs:
                    arrays[buffer.name][own[arg]] = memory[arg]
            assert arrays[buffer.name].shape == buffer.shape, arg
        if native:
            arrays = run_native(built.kernel, arrays, workers)
        else:
            interpret(built.kernel, arrays, workers)
        names = {arg: buffer.name for buffer, arg in zip(built.kernel.params, built.args, strict=True)}
        memory |= {arg: arrays[names[arg]][own[arg]] for arg in region.outputs if arg in names}
        for name in set(region.outputs) - memory.keys():
            assert graph.types[name].size == 0
            memory[name] = np.zeros(graph.types[name].shape, graph.types[name].dtype.numpy)
    outputs = {
        name: from_physical(memory[name], context.layouts.get(name, PLAIN), graph.types[name].shape)
        for name in graph.outputs
    }
    return outputs, kernels


def check(
    graph, inputs=None, *, length=256, layouts=None, fuse=("none", "all"), modes=("interpreted", "native")
):
    """Every way to run the graph agrees with the float64 oracle."""
    inputs = random_inputs(graph) if inputs is None else inputs
    expected = evaluate(graph, inputs, np.float64)
    for how in modes:
        for mode in fuse:
            lanes = 4 if how == "interpreted" else 16
            found, _ = run_regions(
                graph, inputs, mode, lanes, how == "native", layouts(lanes) if layouts else None
            )
            for name, want in expected.items():
                assert found[name].dtype == graph.types[name].dtype.numpy
                finite = np.abs(want[np.isfinite(want)]) if want.dtype.kind == "f" else np.ones(1)
                # What cancels is of order one.
                magnitude = max(1.0, float(finite.max(initial=0)))
                comparison = compare(found[name], want, length, magnitude=magnitude)
                assert comparison.within, f"{how}, fuse {mode}, {name}: {comparison}"
