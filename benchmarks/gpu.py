"""What onepass does on the GPU of this machine: numbers, roofs, and times beside PyTorch's.

Run: python benchmarks/gpu.py [--only NAME] [--output FILE] [--rounds N]. Needs `pip install 'onepass[cuda]'`
and an NVIDIA GPU; no network. Each workload runs fused and op by op in onepass, and in PyTorch, eager and
compiled (with CUDA graphs); all take turns on the same tensors. Results are checked against the float64
evaluation of a few of the batch's items. `launch_share`: of the model's time, what is not spent in kernels.
`bandwidth_share`: bytes that the kernels must move, by their time, over the measured roof. `held`: of the
regions of several nodes, how many are no slower than their nodes' own kernels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onepass.compare.setup import inputs_of
from onepass.compare.timing import interleave
from onepass.compare.torch_ops import check_ops, run_graph
from onepass.core.dtypes import F16, F32, DType
from onepass.core.errors import UserError
from onepass.core.files import write_text
from onepass.core.settings import Settings
from onepass.core.tolerance import compare, unit_roundoff
from onepass.frontends.onnx_import import import_onnx
from onepass.frontends.onnx_model import load_onnx
from onepass.gpu_pipeline import GpuCompiled, compile_for_gpu
from onepass.graph.interpret import evaluate
from onepass.graph.ir import Graph
from onepass.graph.precision import lower_precision
from onepass.ops.opdef import Array
from onepass.report.terminal import Terminal, table
from onepass.runtime.gpu_host import present_gpu, require
from onepass.runtime.trace import Trace
from onepass.targets.cache import default_directory
from onepass.zoo import catalog

OUTPUT = Path("results_gpu.json")
ITEMS = 2  # of a batch, that are also evaluated in float64
LOOSER, MOST_ROUNDOFFS = 3.0, 100.0  # times the unfused error, and the unit roundoff, that an error may be
BUDGET_S = 4.0
Row = dict[str, Any]
_TEXT = '<ir_version: 8, opset_import: ["" : 17]> net (float[{shape}] x) => (float[{out}] y) {{ {body} }}'
CHAINS = {
    "pointwise_chain": "a = Mul(x, x) b = Sigmoid(a) c = Mul(b, x) d = Add(c, x) y = Relu(d)",
    "layer_norm_chain": "a = Add(x, x) b = LayerNormalization<axis=-1>(a, s, t) c = Erf(b) y = Add(c, x)",
    "softmax": "y = Softmax<axis=-1>(x)",
    "conv_bn_relu": "a = Conv<pads=[1,1,1,1]>(x, w) b = BatchNormalization(a, s, t, t, v) y = Relu(b)",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """A model of the zoo or of `CHAINS`, for a batch of `shape[0]` items, the rest of which the zoo knows."""

    model: str
    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"{self.model} {'x'.join(map(str, self.shape))} {self.dtype}"

    def graph(self, batch: int) -> tuple[Graph, Mapping[str, Array]]:
        """The graph for so many items, and random inputs, both in this workload's precision."""
        proto = catalog.build(self.model) if self.model in catalog.ENTRIES else self._chain()
        loaded = load_onnx(proto)
        shapes = {name: (batch, *shape[1:]) for name, shape in catalog.default_shapes(proto).items()}
        graph = import_onnx(loaded, shapes or {"x": (batch, *self.shape[1:])})
        graph = graph if self.dtype == F32 else lower_precision(graph, self.dtype)
        inputs = inputs_of(loaded, graph)
        return graph, {name: _cast(array, graph.types[name].dtype) for name, array in inputs.items()}

    def _chain(self) -> onnx.ModelProto:
        """The chain with an open batch; weights are random, statistics those of normal data."""
        inner = ",".join(map(str, self.shape[1:]))
        text = _TEXT.format(shape=f"N,{inner}", out=f"N,{inner}", body=CHAINS[self.model])
        proto = onnx.parser.parse_model(text)
        channels = self.shape[1]
        rng = np.random.default_rng(0)
        weights = {"w": rng.standard_normal((channels, channels, 3, 3)) / np.sqrt(9 * channels)}
        weights |= {name: rng.uniform(0.5, 1.5, channels) for name in "sv"} | {"t": np.zeros(channels)}
        read = {name for node in proto.graph.node for name in node.input}
        for name in sorted(read & weights.keys()):
            array = weights[name].astype(np.float32)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        return proto


WORKLOADS = (
    Workload("pointwise_chain", (16384, 4096), F32),
    Workload("layer_norm_chain", (16384, 4096), F32),
    Workload("softmax", (32768, 4096), F16),
    Workload("conv_bn_relu", (64, 256, 56, 56), F16),
    Workload("resnet50", (1,), F16),
    Workload("resnet50", (64,), F16),
    Workload("bert_base", (1,), F16),
    Workload("bert_base", (32,), F16),
)


def _cast(array: Array, dtype: DType) -> Array:
    return array.astype(dtype.numpy) if dtype.is_float else array


class Device:
    """The GPU through PyTorch; where Triton interprets, the processor, for tests."""

    def __init__(self) -> None:
        self.torch: Any = require("torch")
        self.target = present_gpu()
        self.name = "cuda"

    def tensor(self, array: Array) -> Any:
        """`array` on the device."""
        return self.torch.from_numpy(np.array(array)).to(self.name)

    def wait(self) -> None:
        """Until all that was launched is done."""
        self.torch.cuda.synchronize()

    def waited(self, run: Callable[[], object]) -> Callable[[], object]:
        """`run`, until its results are there."""

        def done() -> None:
            run()
            self.wait()

        return done

    def least_s(self, run: Callable[[], object], runs: int = 20) -> float:
        """The least of the times of `runs` runs after a warm-up, by the host's clock."""
        done, found = self.waited(run), []
        done()
        for _ in range(runs):
            start = time.perf_counter()
            done()
            found.append(time.perf_counter() - start)
        return min(found)


def roofs(device: Device, size: int = 1 << 28, side: int = 8192) -> Row:
    """Measured: bytes a second of a copy of `size` float32, operations a second of square products of `side`,
    and seconds of an empty launch."""
    torch = device.torch
    source = torch.zeros(size, device=device.name)
    target = torch.empty_like(source)
    found = {"memory_bytes_per_s": 8 * size / device.least_s(lambda: target.copy_(source))}
    for name, dtype in (("float16", torch.float16), ("float32", torch.float32)):
        a = torch.randn(side, side, device=device.name, dtype=dtype)
        found[f"{name}_flops_per_s"] = 2 * side**3 / device.least_s(lambda a=a: a @ a, 5)  # type: ignore[misc]
    one = torch.zeros(1, device=device.name)
    found["launch_s"] = device.least_s(lambda: [one.add_(1.0) for _ in range(1000)]) / 1000
    return found


def peers(device: Device, graph: Graph, tensors: Sequence[Any]) -> dict[str, Callable[[], Any]]:
    """The model in PyTorch: operator by operator, and compiled."""
    torch = device.torch
    check_ops(graph)
    bounds = {name for node in graph.nodes if node.op == "clip" for name in node.inputs[1:]}
    numbers = {name: array.item() for name, array in graph.constants.items() if name in bounds}
    weights = {name: device.tensor(a) for name, a in graph.constants.items() if name not in bounds}

    def network(*given: Any) -> Any:
        return run_graph(torch, graph, {**numbers, **weights, **dict(zip(graph.inputs, given, strict=True))})

    compiled = torch.compile(network, mode="reduce-overhead", fullgraph=True)

    def running(function: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> Any:
            with torch.inference_mode():
                return function(*tensors)

        return run

    return {"torch": running(network), "torch.compile": running(compiled)}


def first_items(outputs: Sequence[Any], items: int) -> list[Array]:
    """The first items of each output, as arrays."""
    return [np.asarray(output[:items].cpu().numpy()) for output in outputs]


def error_of(outputs: Sequence[Array], expected: Mapping[str, Array]) -> float:
    """Relative L2 error of the worst output."""
    pairs = zip(outputs, expected.values(), strict=True)
    return max(compare(found, exact).relative_l2 for found, exact in pairs)


def held(fused: Mapping[int, float], plan_of: GpuCompiled, apart: Mapping[str, float]) -> tuple[int, int]:
    """Of the regions of several nodes, how many take no longer than the kernels of their nodes, and how many
    there are; `apart` holds the seconds of each node's own kernel."""
    several = [region for region in plan_of.plan.regions if len(region.nodes) > 1 and region.id in fused]
    good = [r for r in several if fused[r.id] <= 1.05 * sum(apart.get(node.name, 0.0) for node in r.nodes)]
    return len(good), len(several)


def judged(compiled: GpuCompiled, unfused: GpuCompiled, traces: Sequence[Trace], whole_s: float,
           memory_bytes_per_s: float) -> Row:  # fmt: skip
    """What the times of single kernels say: see the module's description."""
    seconds, alone = (trace.seconds_of_region() for trace in traces)
    node_s = {region.nodes[0].name: alone[region.id] for region in unfused.plan.regions if region.id in alone}
    good, several = held(seconds, compiled, node_s)
    in_kernels = sum(seconds.values())
    moved = sum(kernel.estimate.traffic.compulsory_bytes for kernel in compiled.kernels)
    errors = [
        abs(kernel.estimate.seconds - seconds[kernel.region]) / seconds[kernel.region]
        for kernel in compiled.kernels if seconds[kernel.region] > 0
    ]  # fmt: skip
    return {
        "kernels": len(compiled.kernels), "unfused_kernels": len(unfused.kernels),
        "launch_share": max(0.0, 1 - in_kernels / whole_s),
        "bandwidth_share": moved / in_kernels / memory_bytes_per_s,
        "prediction_error": statistics.median(errors),
        "predicted_s": sum(kernel.estimate.seconds for kernel in compiled.kernels),
        "retiled": sum(len(kernel.steps) > 1 for kernel in compiled.kernels),
        "held": good, "held_of": several,
    }  # fmt: skip


def row_of(device: Device, workload: Workload, memory_bytes_per_s: float, rounds: int) -> Row:
    """Compiles, checks and times one workload."""
    graph, inputs = workload.graph(workload.shape[0])
    items = min(ITEMS, workload.shape[0])
    few, _ = workload.graph(items)
    expected = evaluate(few, {name: array[:items] for name, array in inputs.items()}, np.float64)
    ways = {
        name: compile_for_gpu(graph, Settings(fuse=fuse), device.target, default_directory())
        for name, fuse in (("onepass", "auto"), ("unfused", "none"))
    }
    tensors = [device.tensor(inputs[name]) for name in graph.inputs]
    runs: dict[str, Callable[[], Any]] = {
        name: lambda way=way: way.program.run(tensors) for name, way in ways.items()  # type: ignore[misc]
    }  # fmt: skip
    missing = {}
    try:
        others = peers(device, graph, tensors)
    except UserError as error:
        others, missing = {}, {"torch": str(error)}
    errors = {}
    for name, run in [*runs.items(), *others.items()]:
        try:
            errors[name] = error_of(first_items(run(), items), expected)
            runs[name] = run
        except Exception as error:  # a peer's own errors have no common type
            if name not in others:
                raise
            missing[name] = " ".join(str(error).split())[:200]
    waited = {name: device.waited(run) for name, run in runs.items()}
    times = interleave(waited, BUDGET_S, 0.0, rounds)
    traces = [way.program.trace(tensors) for way in ways.values()]
    roundoff = unit_roundoff(workload.dtype)
    bound = min(LOOSER * max(errors["unfused"], roundoff), MOST_ROUNDOFFS * roundoff)
    return {
        "workload": str(workload), "within": errors["onepass"] <= bound, "errors": errors,
        "min_s": {name: each.min_s for name, each in times.items()},
        "median_s": {name: each.median_s for name, each in times.items()}, "missing": missing,
        **judged(ways["onepass"], ways["unfused"], traces, times["onepass"].min_s, memory_bytes_per_s),
    }  # fmt: skip


def shown(rows: Sequence[Row]) -> Any:
    """The rows as a table."""
    heads = ("microseconds", "fused", "unfused", "eager", "compile", "kernels", "launches", "of roof",
             "error", "predicted", "held")  # fmt: skip
    cells = []
    for row in rows:
        times = [f"{row['min_s'][name] * 1e6:.0f}" if name in row["min_s"] else "-"
                 for name in ("onepass", "unfused", "torch", "torch.compile")]  # fmt: skip
        shares = [f"{row[name]:.0%}" for name in ("launch_share", "bandwidth_share")]
        wrong = "" if row["within"] else " WRONG"
        cells.append((
            row["workload"], *times, str(row["kernels"]), *shares, f"{row['errors']['onepass']:.1e}{wrong}",
            f"±{row['prediction_error']:.0%}", f"{row['held']} of {row['held_of']}",
        ))  # fmt: skip
    return table(heads[:1], heads[1:], cells)


def main(given: Sequence[str] | None = None, workloads: Sequence[Workload] = WORKLOADS) -> int:
    """Runs the workloads and writes the results; 1 where a result is wrong, 2 where nothing can run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", metavar="NAME", help="only workloads of this model")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FILE", help=f"default: {OUTPUT}")
    parser.add_argument("--rounds", type=int, default=5, help="at least this many (5)")
    options = parser.parse_args(given)
    try:
        device = Device()
        found = roofs(device)
        rows = []
        for workload in workloads:
            if options.only in (None, workload.model):
                print(f"{workload} …", file=sys.stderr, flush=True)
                rows.append(row_of(device, workload, found["memory_bytes_per_s"], options.rounds))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    date = datetime.now(UTC).isoformat(timespec="seconds")
    name = device.torch.cuda.get_device_name(0)
    results = {"gpu": name, "target": device.target, "date": date, "roofs": found, "rows": rows}
    write_text(options.output, json.dumps(results, indent=1))
    screen = Terminal(width=160)
    screen.print(shown(rows))
    screen.say(f"{name}: memory {found['memory_bytes_per_s'] / 1e9:.0f} GB/s, "
               f"float16 {found['float16_flops_per_s'] / 1e12:.0f} TFLOP/s, "
               f"launch {found['launch_s'] * 1e6:.1f} us. Written: {options.output}")  # fmt: skip
    return 0 if all(row["within"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
