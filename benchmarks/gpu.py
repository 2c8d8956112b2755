"""One GPU, in a few minutes and without a network: numbers, roofs, the suite, and how predictions held.

Run: python benchmarks/gpu.py [--only NAME] [--seconds S] [--output FILE]. Each workload is compiled op by op
and fused, checked against PyTorch in float64, and timed against PyTorch, eager and compiled, by the GPU's
clock. Prints a table and what follows from it, and writes all as JSON. `--tiny --target cuda:sm_90` tries the
script where no GPU is, in Triton's interpreter (TRITON_INTERPRET=1): then times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onepass.compare.setup import GpuSetup, gpu_setup, inputs_of
from onepass.compare.torch_ops import check_ops, numbers_of, run_graph
from onepass.core.dtypes import DTYPES
from onepass.core.errors import UserError
from onepass.core.files import write_text
from onepass.core.settings import Settings
from onepass.cost.gpu import Gpu, machine
from onepass.frontends.onnx_import import import_onnx
from onepass.frontends.onnx_model import load_onnx
from onepass.fuse.plan import Plan
from onepass.gpu_pipeline import GpuCompiled
from onepass.graph.ir import Graph
from onepass.graph.precision import lower_precision
from onepass.report.diagnosis import diagnose, model_error
from onepass.report.outcome import agree
from onepass.report.terminal import Terminal, table
from onepass.report.units import roof_text, seconds_text, share_text
from onepass.runtime.gpu_host import interpreted, require
from onepass.runtime.trace import Trace
from onepass.zoo import catalog

RESULTS = Path(__file__).with_name("gpu_results.json")
BUDGET_S, RUNS = 300.0, 20
NOISE = 0.05  # kernels whose times differ by less are equally fast
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Workload:
    """A model as it is built for a size, which is `size`, or `tiny` to try the script."""

    name: str
    build: Callable[[int], onnx.ModelProto]
    size: int
    tiny: int | None = None
    dtype: str = "float16"


def network(nodes: Sequence[tuple[str, str, str, Json]], shapes: Mapping[str, Sequence[int]],
            weights: Mapping[str, Sequence[int]]) -> onnx.ModelProto:  # fmt: skip
    """A model of `nodes` (op, inputs, output, attributes); the last output is the model's."""
    random = np.random.default_rng(0)
    made = [helper.make_node(op, ins.split(), [out], name=out, **attrs) for op, ins, out, attrs in nodes]
    inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
              for name, shape in shapes.items()]  # fmt: skip
    output = helper.make_tensor_value_info(nodes[-1][2], onnx.TensorProto.FLOAT, None)
    constants = [
        numpy_helper.from_array(np.abs(random.standard_normal(shape, np.float32)) / 8 + 0.1, name)
        for name, shape in weights.items()
    ]
    graph = helper.make_graph(made, "net", inputs, [output], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def pointwise(size: int) -> onnx.ModelProto:
    """Six ops on `size` elements."""
    nodes = [("Add", "a b", "s", {}), ("Tanh", "s", "t", {}), ("Mul", "t a", "u", {}),
             ("Sigmoid", "u", "v", {}), ("Add", "v b", "w", {}), ("Relu", "w", "y", {})]  # fmt: skip
    return network(nodes, {"a": [size], "b": [size]}, {})


def norm(size: int) -> onnx.ModelProto:
    """relu(LayerNorm(a + b)), `size` rows of 1,024."""
    nodes = [("Add", "a b", "s", {}), ("LayerNormalization", "s scale shift", "n", {"axis": -1}),
             ("Relu", "n", "y", {})]  # fmt: skip
    shapes = {"a": [size, 1024], "b": [size, 1024]}
    return network(nodes, shapes, {"scale": [1024], "shift": [1024]})


def softmax(size: int) -> onnx.ModelProto:
    """The softmax of `size` rows of 2,048, scaled."""
    return network([("Mul", "x scale", "s", {}), ("Softmax", "s", "y", {"axis": -1})],
                   {"x": [size, 2048]}, {"scale": [1]})  # fmt: skip


def convolution(size: int) -> onnx.ModelProto:
    """Convolution, batch norm and ReLU on `size` images of 64 channels."""
    nodes = [("Conv", "x w", "c", {"pads": [1, 1, 1, 1]}),
             ("BatchNormalization", "c scale shift mean var", "n", {}), ("Relu", "n", "y", {})]  # fmt: skip
    side = 56 if size > 1 else 8
    vectors = {name: [64] for name in ("scale", "shift", "mean", "var")}
    return network(nodes, {"x": [size, 64, side, side]}, {"w": [64, 64, 3, 3], **vectors})


def zoo(name: str) -> Callable[[int], onnx.ModelProto]:
    """The model `name` for a batch."""

    def build(batch: int) -> onnx.ModelProto:
        model = catalog.build(name)
        shapes = {key: (batch, *shape[1:]) for key, shape in catalog.default_shapes(model).items()}
        for value in model.graph.input:
            for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
                dim.dim_value = size
        return model

    return build


WORKLOADS = (
    Workload("pointwise chain", pointwise, 1 << 26, 1 << 10),
    Workload("layer norm chain", norm, 1 << 16, 2),
    Workload("softmax", softmax, 1 << 15, 2),
    Workload("conv + bn + relu", convolution, 64, 1),
    Workload("resnet50 b1", zoo("resnet50"), 1),
    Workload("resnet50 b64", zoo("resnet50"), 64),
    Workload("bert_base b1", zoo("bert_base"), 1),
    Workload("bert_base b32", zoo("bert_base"), 32),
)


def seconds_of(torch: Any, device: str, run: Callable[[], object], runs: int = RUNS) -> Json:
    """Minimum and median seconds of `run` by the device's clock, after warming up."""
    found = []
    for _ in range(3):
        run()
    for _ in range(runs):
        if device == "cpu":
            start = time.perf_counter()
            run()
            found.append(time.perf_counter() - start)
            continue
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        run()
        last.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(last) * 1e-3)
    return {"min_s": min(found), "median_s": statistics.median(found)}


def roofs(torch: Any, device: str, tiny: bool) -> dict[str, float]:
    """What PyTorch reaches: a copy (byte/s, read and written), products (flop/s), a launch in a graph (s)."""
    size, side = (1 << 12, 64) if tiny else (1 << 28, 8192)
    a = torch.ones(size, dtype=torch.float32, device=device)
    b = torch.empty_like(a)
    found = {"memory": 8 * size / seconds_of(torch, device, lambda: b.copy_(a))["min_s"]}
    for name in ("float16", "float32"):
        x = torch.ones((side, side), dtype=getattr(torch, name), device=device)
        found[f"{name} fma"] = 2 * side**3 / seconds_of(torch, device, lambda x=x: x @ x, 5)["min_s"]
    small, count = torch.zeros(1, device=device), 1000

    def launches() -> None:
        for _ in range(count):
            small.add_(1)

    run: Callable[[], object] = launches
    if device != "cpu":
        launches()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launches()
        run = graph.replay
    return found | {"launch": seconds_of(torch, device, run, 5)["min_s"] / count}


def torch_network(torch: Any, graph: Graph, device: str, wide: bool = False) -> Callable[..., list[Any]]:
    """`graph` in PyTorch; with `wide` every float in it is float64, as the inputs are to be."""
    check_ops(graph)
    if wide:
        nodes = (
            replace(node, attrs={**node.attrs, "to": "float64"})
            if node.op == "cast" and DTYPES[str(node.attrs["to"])].is_float else node
            for node in graph.nodes
        )  # fmt: skip
        graph = replace(graph, nodes=tuple(nodes))
    constants = {name: tensor(torch, array, device, wide) for name, array in graph.constants.items()}
    constants |= numbers_of(graph)

    def run(*given: Any) -> list[Any]:
        return run_graph(torch, graph, constants | dict(zip(graph.inputs, given, strict=True)))

    return run


def tensor(torch: Any, array: Any, device: str, wide: bool = False) -> Any:
    """`array` on the device, floats as float64 with `wide`."""
    made = torch.from_numpy(np.array(array)).to(device)
    return made.double() if wide and made.is_floating_point() else made


def measure(torch: Any, device: str, workload: Workload, setup: GpuSetup, tiny: bool) -> Json:
    """One row: errors, times and what the plan said. Raises UserError as compiling and running do."""
    loaded = load_onnx(workload.build(workload.size if workload.tiny is None or not tiny else workload.tiny))
    graph = import_onnx(loaded, {})
    setup = replace(setup, dtype=DTYPES[workload.dtype])
    started = time.perf_counter()
    fused, unfused = setup.compile(graph), setup.with_fuse("none").compile(graph)
    compile_s = time.perf_counter() - started
    kinds = fused.plan.graph.types
    inputs = inputs_of(loaded, graph)
    arrays = [inputs[name].astype(kinds[name].dtype.numpy) for name in graph.inputs]
    given = [tensor(torch, array, device) for array in arrays]
    with torch.inference_mode():
        wide = [tensor(torch, array, device, wide=True) for array in arrays]
        exact = torch_network(torch, graph, device, wide=True)(*wide)
        errors = {name: relative_l2(each.program.run(given), exact)
                  for name, each in (("unfused", unfused), ("fused", fused))}  # fmt: skip
        del wide, exact
        eager = torch_network(torch, lower_precision(graph, DTYPES[workload.dtype]), device)
        times: Json = {"eager": seconds_of(torch, device, lambda: eager(*given))}
        if not tiny:
            compiled = torch.compile(eager, fullgraph=True)
            times["torch.compile"] = seconds_of(torch, device, lambda: compiled(*given))
    traces = [each.program.trace(arrays, RUNS if not tiny else 1) for each in (unfused, fused)]
    for name, trace in zip(("unfused", "fused"), traces, strict=True):
        times[name] = {"min_s": trace.min_s, "median_s": trace.median_s}
    return {
        "workload": workload.name, "dtype": workload.dtype, "compile_s": compile_s, "errors": errors,
        "right": is_right(errors, workload.dtype), "times": times,
        **judged(unfused, fused, traces[0], traces[1], setup.gpu),
    }  # fmt: skip


def relative_l2(found: Sequence[Any], exact: Sequence[Any]) -> float:
    """The worst output's; infinite where one is not finite."""
    worst = 0.0
    for a, b in zip(found, exact, strict=True):
        error = float((a.double() - b).norm() / b.norm().clamp(min=1e-300))
        worst = max(worst, error if np.isfinite(error) else float("inf"))
    return worst


def is_right(errors: Mapping[str, float], dtype: str) -> bool:
    """Whether the fused error is within the bound of the element type, and three times the unfused one."""
    return agree(errors["fused"], errors["unfused"], dtype)


def judged(unfused: GpuCompiled, fused: GpuCompiled, before: Trace, after: Trace, gpu: Gpu) -> Json:
    """What the traces say of the plan: seconds against predicted ones, bytes a second, the verdicts."""
    regions = fused.plan.regions
    moved = sum(sum(region.estimate.traffic.bytes_at.values()) for region in regions)
    error = model_error(diagnose(fused.plan, after, machine(gpu), 1))
    predicted = [sum(region.estimate.seconds for region in each.plan.regions) for each in (unfused, fused)]
    return {
        "kernels": {"unfused": len(unfused.kernels), "fused": len(fused.kernels)},
        "predicted_s": {"unfused": predicted[0], "fused": predicted[1]},
        "model_error": asdict(error) if error else None,
        "bytes": moved, "bytes_per_s": moved / after.median_s if after.median_s else 0.0,
        "retiled": sum(len(kernel.steps) > 1 for kernel in fused.kernels),
        "split": sum(decision.reason == "does_not_fit" for decision in fused.plan.decisions),
        "verdicts": verdicts(unfused.plan, before, fused.plan, after),
    }  # fmt: skip


def verdicts(unfused: Plan, before: Trace, fused: Plan, after: Trace) -> Json:
    """For each fused kernel of several nodes: was it no slower than those nodes' own kernels together?"""
    seconds, apart = after.seconds_of_region(), before.seconds_of_region()
    alone = {node.name: apart.get(region.id, 0.0) for region in unfused.regions for node in region.nodes}
    found: dict[str, float] = {}
    for region in fused.regions:
        if len(region.nodes) > 1 and region.id in seconds:
            found[region.name] = seconds[region.id] / max(1e-12, sum(alone[n.name] for n in region.nodes))
    wrong = {name: ratio for name, ratio in found.items() if ratio > 1 + NOISE}
    return {"fused": len(found), "held": len(found) - len(wrong), "wrong": wrong}


def cells(row: Json, limits: Mapping[str, float]) -> list[str]:
    """One line of the table."""
    times, fused = row["times"], row["times"]["fused"]["min_s"]
    launches = row["kernels"]["fused"] * limits["launch"]
    error = row["model_error"]
    return [
        row["workload"], *(seconds_text(times[name]["min_s"]) if name in times else "–"
                           for name in ("unfused", "fused", "eager", "torch.compile")),
        seconds_text(row["predicted_s"]["fused"]), share_text(error["median"]) if error else "–",
        share_text(launches / fused), share_text(row["bytes_per_s"] / limits["memory"]),
        f"{row['verdicts']['held']}/{row['verdicts']['fused']}",
        f"{row['errors']['fused']:.1e}{'' if row['right'] else ' WRONG'}",
    ]  # fmt: skip


HEADINGS = ["unfused", "fused", "eager", "compile", "predicted", "error of\nmodel", "launch\nshare",
            "of memory\nroof", "verdicts\nheld", "relative\nerror"]  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Runs the workloads; 1 where one is wrong or none ran."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=[workload.name for workload in WORKLOADS])
    parser.add_argument("--seconds", type=float, default=BUDGET_S, help="start nothing after (%(default)s)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON (%(default)s)")
    parser.add_argument("--target", default="cuda", help="the GPU (%(default)s: the one that is present)")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the script")
    options = parser.parse_args(arguments)
    show, started = Terminal(width=140), time.perf_counter()
    try:
        torch = require("torch")
        setup = gpu_setup(Settings(), options.target, None)
    except UserError as error:
        show.say(str(error))
        return 2
    assert setup is not None
    device = "cpu" if interpreted() else "cuda"
    limits = roofs(torch, device, options.tiny)
    units = {"memory": "byte/s", "launch": "s"}
    show.say("Measured: " + ", ".join(f"{name} {roof_text(value, units.get(name, 'flop/s'))}"
                                      for name, value in limits.items()) + ".")  # fmt: skip
    rows, notes = [], []
    for workload in WORKLOADS:
        if options.only not in (None, workload.name) or (options.tiny and workload.tiny is None):
            continue
        if time.perf_counter() - started > options.seconds:
            notes.append(f"{workload.name} was skipped: {options.seconds:.0f} s are over.")
            continue
        show.say(f"{workload.name} …")
        try:
            rows.append(measure(torch, device, workload, setup, options.tiny))
        except UserError as error:
            notes.append(f"{workload.name} did not run: {error}")
    show.show(table(["workload"], HEADINGS, [cells(row, limits) for row in rows]))
    show.say(*notes)
    versions = {name: version(name) for name in ("onepass", "torch", "triton")}
    write_text(options.output, json.dumps({
        "gpu": setup.gpu.name, "device": device, "versions": versions, "roofs": limits, "rows": rows,
        "notes": notes, "seconds": time.perf_counter() - started,
    }, indent=1) + "\n")  # fmt: skip
    show.say(f"Written: {options.output}")
    return 0 if rows and all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
