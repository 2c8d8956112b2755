"""Graphs as programs of tile kernels for Triton's interpreter, planned as for a GPU."""

from dataclasses import replace

import numpy as np
from interpreted import Case

import onepass.ops.registry  # noqa: F401  (defines the ops)
from onepass.core.dtypes import F32
from onepass.core.tensor import TensorType
from onepass.cost.gpu import find_gpu, machine
from onepass.forms.regions import Context
from onepass.fuse.channels_last import channels_last
from onepass.fuse.planner import FuseMode, make_plan
from onepass.graph.ir import Graph, Node
from onepass.pipeline import simplified
from onepass.runtime.program import Launch
from onepass.tiles.shaper import GpuShaper


def planned_on_gpu(graph, fuse="auto", rewrites=("fold_batch_norm", "online_softmax")):
    """The plan of a graph, and the context to build its kernels in."""
    graph = simplified(graph)
    gpu = find_gpu("cuda:sm_90")
    shaper = GpuShaper(gpu)
    context = Context(graph, channels_last(graph), machine(gpu), 1, frozenset(rewrites), shaper=shaper)
    planned = make_plan(context, FuseMode.parse(fuse))
    return planned, replace(context, graph=planned.plan.graph, layouts=planned.plan.layouts)


def case_of_graph(graph, inputs, fuse, tile=None, form="row"):
    """A program of the graph's kernels, each value in a place of its own; `tile` cuts those of `form`."""
    planned, context = planned_on_gpu(graph, fuse)
    graph, shaper = context.graph, context.shaper
    kernels, launches, constants, views = {}, [], {}, {}
    for region, shaped in zip(planned.plan.regions, planned.shaped, strict=True):
        if shaped is None:
            views[region.outputs[0]] = views.get(region.inputs[0], region.inputs[0])
            continue
        if graph.types[shaped.outputs[0]].size == 0:
            continue
        cut = tile if tile is not None and shaped.form == form else shaped.tile
        built = shaper.build(context, shaped, cut)
        symbol = f"k{region.id}"
        labels = []
        for name in built.args:
            source = built.packed[name].source if name in built.packed else name
            array = shaped.body.constants.get(source, graph.constants.get(source))
            if array is not None:
                label = f"{symbol}:{name}"
                if name in built.packed:
                    array = built.packed[name].unpacked(array)
                constants[label] = np.ascontiguousarray(array)
                labels.append(label)
            else:
                labels.append(views.get(name, name))
        kernels[symbol] = built.kernel
        launches.append(Launch(region.id, symbol, tuple(labels)))
    slots = {label: ("constant", label) for label in constants}
    slots |= {name: ("input", at) for at, name in enumerate(graph.inputs)}
    slots |= {name: ("output", at) for at, name in enumerate(graph.outputs)}
    offset = 0
    for name in dict.fromkeys(label for launch in launches for label in launch.args):
        if name not in slots:
            slots[name] = ("arena", offset)
            offset += -(-graph.types[name].size_bytes // 64) * 64
    return Case(
        kernels, launches, slots, {name: (graph.types[name], inputs[name]) for name in graph.inputs},
        {name: graph.types[name] for name in graph.outputs}, constants, offset,
    )  # fmt: skip


def graph_of(inputs, nodes, outputs=None, dtype=F32, constants=()):
    """`nodes`: op, inputs and attributes; the value of node k is `v{k}`, and the last one is the output."""
    arrays = {name: np.float32(array).astype(dtype.numpy) for name, array in dict(constants).items()}
    types = {name: TensorType(dtype, shape) for name, shape in inputs.items()}
    types |= {name: TensorType(dtype, array.shape) for name, array in arrays.items()}
    made = []
    for at, (op, read, attrs) in enumerate(nodes):
        node = Node(f"{op}{at}", op, tuple(read.split()), (f"v{at}",), attrs)
        types[f"v{at}"] = node.opdef.lower([types[name] for name in node.inputs], attrs).output_types[0]
        made.append(node)
    outputs = outputs or (f"v{len(nodes) - 1}",)
    return Graph("test", tuple(made), tuple(inputs), tuple(outputs), types, arrays)


def normal(*shape, seed=0, scale=1.0):
    return np.random.default_rng(seed).standard_normal(shape) * scale


def attention(batch=2, heads=2, rows=13, length=13, width=40, dtype=F32, mask=None):
    """softmax(q k' / sqrt(width) + mask) v, as exporters spell it."""
    shapes = {"q": (batch, heads, rows, width), "k": (batch, heads, length, width)}
    shapes |= {"v": (batch, heads, length, width)}
    nodes = [("transpose", "k", {"perm": (0, 1, 3, 2)}), ("matmul", "q v0", {}), ("mul", "v1 scale", {})]
    if mask is not None:
        shapes["mask"] = mask
        nodes.append(("add", "v2 mask", {}))
    nodes.append(("softmax", f"v{len(nodes) - 1}", {"axis": -1}))
    nodes.append(("matmul", f"v{len(nodes) - 1} v", {}))
    return graph_of(shapes, nodes, dtype=dtype, constants={"scale": width**-0.5})


def mlp(rows=37, width=24, hidden=72, out=40, dtype=F32):
    """gelu(x a + bias) b + residual."""
    constants = {"a": normal(width, hidden, scale=0.2), "b": normal(hidden, out, seed=1, scale=0.2)}
    constants["bias"] = normal(hidden, seed=2)
    nodes = [("matmul", "x a", {}), ("add", "v0 bias", {}), ("gelu", "v1", {}), ("matmul", "v2 b", {}),
             ("add", "v3 residual", {})]  # fmt: skip
    return graph_of({"x": (rows, width), "residual": (rows, out)}, nodes, dtype=dtype, constants=constants)


def inputs_of(graph, **given):
    found = {}
    for seed, name in enumerate(graph.inputs):
        array = given.get(name, normal(*graph.types[name].shape, seed=seed))
        found[name] = np.asarray(array, np.float32).astype(graph.types[name].dtype.numpy)
    return found
