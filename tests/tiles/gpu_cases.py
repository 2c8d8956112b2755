"""Graphs as programs of tile kernels for Triton's interpreter, planned as for a GPU."""

from dataclasses import replace

import numpy as np
from interpreted import Case

import onepass.ops.registry  # noqa: F401  (defines the ops)
from onepass.cost.gpu import find_gpu, machine
from onepass.forms.regions import Context
from onepass.fuse.channels_last import channels_last
from onepass.fuse.planner import FuseMode, make_plan
from onepass.pipeline import GRAPH_PASSES
from onepass.runtime.program import Launch
from onepass.tiles.shaper import GpuShaper


def planned_on_gpu(graph, fuse="auto", rewrites=("fold_batch_norm", "online_softmax")):
    """The plan of a graph, and the context to build its kernels in."""
    for step in GRAPH_PASSES:
        graph = step(graph)
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
