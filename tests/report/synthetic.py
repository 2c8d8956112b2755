"""Plans with invented but consistent numbers, built from records only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from onepass.core.dtypes import F32
from onepass.core.tensor import Shape, TensorType
from onepass.cost.machine import Machine, Roof
from onepass.cost.roofline import Traffic, estimate
from onepass.fuse.plan import Decision, Plan, Region
from onepass.graph.ir import Graph, Node
from onepass.graph.layout import PLAIN
from onepass.loops.ir import Home
from onepass.report.outcome import HOMES, ErrorFigures, Outcome, RunFigures
from onepass.runtime.trace import LaunchTime, Trace

WORKERS = 2


def machine() -> Machine:
    """Two cores with AVX-512."""
    roofs = []
    for workers, scale in ((1, 1.0), (2, 1.95)):
        for what, value, unit in (
            ("float32 fma", 116e9, "flop/s"), ("float32 fma chain", 29e9, "flop/s"),
            ("l1", 400e9, "byte/s"), ("l2", 170e9, "byte/s"), ("l3", 60e9, "byte/s"),
            ("memory", 16e9, "byte/s"),
        ):  # fmt: skip
            roofs.append(Roof(what, value * scale, unit, workers, "best of 20 runs", "2025-11-29"))
        roofs.append(Roof("launch", 0.4e-6 * workers, "s", workers, "empty kernel", "2025-11-29"))
    return Machine("Test CPU, 2 cores", "avx512", 512, 32, 2, 32 << 10, 1 << 20, 32 << 20, tuple(roofs))


@dataclass
class Builder:
    """Adds nodes one by one; `groups` collects which of them run as one kernel after fusion."""

    nodes: list[Node] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    flops: dict[str, int] = field(default_factory=dict)
    groups: list[list[str]] = field(default_factory=list)

    def input(self, name: str, shape: Shape) -> str:
        self.types[name] = TensorType(F32, shape)
        return name

    def weight(self, name: str, shape: Shape) -> str:
        self.types[name] = TensorType(F32, shape)
        self.constants[name] = np.broadcast_to(np.float32(0), shape)
        return name

    def op(
        self, spelling: str, name: str, inputs: Sequence[str], shape: Shape, flops: int, joins: bool = False
    ) -> str:
        out = f"{name}_output_0"
        self.nodes.append(Node(name, spelling.lower(), tuple(inputs), (out,), {}, spelling))
        self.types[out] = TensorType(F32, shape)
        self.flops[name] = flops
        if joins:
            self.groups[-1].append(name)
        else:
            self.groups.append([name])
        return out

    def conv(self, name: str, x: str, channels: int, kernel: int = 3, stride: int = 1) -> str:
        n, c, h, w = self.types[x].shape
        shape = (n, channels, h // stride, w // stride)
        weight = self.weight(f"{name}.weight", (channels, c, kernel, kernel))
        flops = 2 * n * channels * c * kernel * kernel * shape[2] * shape[3]
        return self.op("Conv", name, (x, weight), shape, flops)

    def bn(self, name: str, x: str) -> str:
        shape = self.types[x].shape
        stats = [self.weight(f"{name}.{part}", (shape[1],)) for part in ("scale", "bias", "mean", "var")]
        return self.op("BatchNormalization", name, (x, *stats), shape, 2 * self.types[x].size, joins=True)

    def relu(self, name: str, x: str) -> str:
        return self.op("Relu", name, (x,), self.types[x].shape, self.types[x].size, joins=True)

    def add(self, name: str, x: str, y: str) -> str:
        return self.op("Add", name, (x, y), self.types[x].shape, self.types[x].size, joins=True)

    def graph(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
        return Graph(name, tuple(self.nodes), tuple(inputs), tuple(outputs), self.types, self.constants)


def small(prefix: str = "") -> tuple[Plan, Plan]:
    """conv, bn, relu, conv, bn, add, relu with a residual; before and after."""
    b = Builder()
    x = b.input("x", (1, 64, 56, 56))
    y = b.relu(f"{prefix}relu1", b.bn(f"{prefix}bn1", b.conv(f"{prefix}conv1", x, 64)))
    z = b.bn(f"{prefix}bn2", b.conv(f"{prefix}conv2", y, 64))
    out = b.relu(f"{prefix}relu2", b.add(f"{prefix}add", z, y))
    return plans(b, b.graph("small", ["x"], [out]))


def three() -> tuple[Plan, Plan]:
    """conv, bn, relu: the headline picture."""
    b = Builder()
    out = b.relu("relu", b.bn("bn", b.conv("conv", b.input("x", (1, 64, 112, 112)), 64)))
    return plans(b, b.graph("conv_bn_relu", ["x"], [out]))


def gelu() -> tuple[Plan, Plan]:
    """A chain whose first value is used twice inside the region, and a row that stays in cache."""
    b = Builder()
    shape = (4096, 1024)
    x = b.input("x", shape)
    size = 4096 * 1024
    v = b.op("LayerNormalization", "norm", (x, b.weight("gamma", (1024,))), shape, 8 * size)
    e = b.op("Erf", "erf", (v,), shape, 8 * size, joins=True)
    m = b.op("Mul", "mul", (v, e), shape, size, joins=True)
    out = b.op("Softmax", "softmax", (m,), shape, 5 * size)
    return plans(b, b.graph("gelu", ["x"], [out]), cached={"norm"})


def resnet50(batch: int = 1) -> tuple[Plan, Plan]:
    """ResNet-50 as exporters write it: 175 nodes."""
    b = Builder()
    x = b.relu("/relu/Relu", b.bn("/bn1/BatchNormalization", b.conv("/conv1/Conv", b.input(
        "input", (batch, 3, 224, 224)), 64, 7, 2)))  # fmt: skip
    x = b.op("MaxPool", "/maxpool/MaxPool", (x,), (batch, 64, 56, 56), 9 * batch * 64 * 56 * 56)
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
        for block in range(blocks):
            x = _bottleneck(b, f"/layer{stage}/layer{stage}.{block}", x, width, block == 0, 1 + (stage > 1))
    x = b.op("GlobalAveragePool", "/avgpool/GlobalAveragePool", (x,), (batch, 2048, 1, 1), batch * 2048 * 49)
    x = b.op("Flatten", "/Flatten", (x,), (batch, 2048), 0)
    x = b.op("Gemm", "/fc/Gemm", (x, b.weight("fc.weight", (1000, 2048)), b.weight("fc.bias", (1000,))),
             (batch, 1000), 2 * batch * 2048 * 1000)  # fmt: skip
    return plans(b, b.graph("resnet50", ["input"], [x]))


def _bottleneck(b: Builder, name: str, x: str, width: int, first: bool, stride: int) -> str:
    y = b.relu(f"{name}/relu/Relu", b.bn(f"{name}/bn1/BatchNormalization", b.conv(
        f"{name}/conv1/Conv", x, width, 1)))  # fmt: skip
    y = b.relu(f"{name}/relu_1/Relu", b.bn(f"{name}/bn2/BatchNormalization", b.conv(
        f"{name}/conv2/Conv", y, width, 3, stride if first else 1)))  # fmt: skip
    if first:
        skip = b.bn(f"{name}/downsample/downsample.1/BatchNormalization", b.conv(
            f"{name}/downsample/downsample.0/Conv", x, 4 * width, 1, stride))  # fmt: skip
    y = b.bn(f"{name}/bn3/BatchNormalization", b.conv(f"{name}/conv3/Conv", y, 4 * width, 1))
    return b.relu(f"{name}/relu_2/Relu", b.add(f"{name}/Add", y, skip if first else x))


def plans(b: Builder, graph: Graph, cached: frozenset[str] | set[str] = frozenset()) -> tuple[Plan, Plan]:
    """The plan with one region a node, and the one with `b.groups` as regions."""
    alone = [[node.name] for node in graph.nodes]
    return _plan(b, graph, alone, set()), _plan(b, graph, b.groups, cached)


def _plan(b: Builder, graph: Graph, groups: Sequence[Sequence[str]], cached: Mapping | set) -> Plan:
    by_name = {node.name: node for node in graph.nodes}
    consumers = graph.consumers()
    regions, region_of = [], {name: i for i, group in enumerate(groups) for name in group}
    for i, group in enumerate(groups):
        nodes = tuple(by_name[name] for name in group)
        made = {out for node in nodes for out in node.outputs}
        reads = tuple(dict.fromkeys(v for node in nodes for v in node.inputs if v not in made))
        leaves = {v for v in made if any(c.name not in group for c in consumers[v])}
        writes = tuple(v for v in made if v in graph.outputs or v in leaves)
        moved = sum(graph.types[v].size_bytes for v in (*reads, *writes))
        view = nodes[0].spelling == "Flatten"
        level = "memory" if moved > 8e6 else "l3"
        levels = {"l2": moved // 4, level: moved}
        traffic = Traffic(sum(b.flops[n] for n in group), 0 if view else moved, {} if view else levels,
                          launches=0 if view else 1, flop_efficiency=0.9)  # fmt: skip
        form = "contraction" if nodes[0].spelling in ("Conv", "Gemm") else "pointwise"
        regions.append(Region(i, form, nodes, reads, writes, estimate(traffic, machine(), WORKERS)))
    decisions = []
    producers = graph.producers()
    for value in graph.types:
        if value in graph.constants:
            continue
        ends = [node.name for node in consumers[value]] + ([""] if value in graph.outputs else [])
        for end in ends:
            source = producers[value].name if value in producers else ""
            decisions.append(_decision(graph, value, source, end, region_of, regions, cached))
    return Plan(graph, tuple(regions), tuple(decisions), {v: PLAIN for v in graph.types}, 1 << 20)


def _decision(graph, value, source, end, region_of, regions, cached) -> Decision:
    size = graph.types[value].size_bytes
    home: Home = "memory"
    if source and end and region_of[source] == region_of[end]:
        home = "cache" if source in cached else "register"
    seconds = regions[region_of[end or source]].estimate.seconds
    if home == "memory":
        reason = "graph_boundary" if not (source and end) else "no_form"
        return Decision(value, source, end, home, reason, "No form holds both nodes in one loop nest.", size,
                        {}, seconds)  # fmt: skip
    saved = {"l3" if size < 4e6 else "memory": 2 * size}
    return Decision(value, source, end, home, "pays", f"Saves {2 * size} bytes of traffic.", size, saved,
                    seconds, "memory", seconds * 1.4)  # fmt: skip


def trace(plan: Plan, factor: float = 1.1) -> Trace:
    """Measured times near the predicted ones."""
    launches = tuple(
        LaunchTime(r.id, f"k{r.id}_{r.form}", s * 0.95, s)
        for r in plan.regions
        if r.estimate.traffic.launches
        for s in [r.estimate.seconds * factor * (0.85 + 0.3 * ((r.id * 7919) % 10) / 10)]
    )
    total = sum(launch.median_s for launch in launches)
    return Trace(launches, total * 0.97, total, 20, WORKERS)


def outcome(before: Plan, after: Plan) -> Outcome:
    """What the pipeline would have recorded."""
    figures = []
    for plan, factor in ((before, 1.1), (after, 1.05)):
        t = trace(plan, factor)
        figures.append(RunFigures.of_plan(plan, t.min_s, t.median_s))
    return Outcome(
        model=before.graph.name, machine=machine().name, threads=WORKERS, date="2025-11-29",
        shapes={name: before.graph.types[name].shape for name in before.graph.inputs},
        unfused=figures[0], fused=figures[1], error=ErrorFigures(2.1e-6, 3.4e-7, 3.9e-7), compile_s=5.2,
        decisions={home: sum(d.home == home for d in after.decisions) for home in HOMES},
        rewrites=("fold_batch_norm",), cache={"hits": 3, "misses": 1},
    )  # fmt: skip
