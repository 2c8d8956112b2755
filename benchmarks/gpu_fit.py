"""What kernels take of a GPU, compiled with none in the machine: models, and graphs that ask for too much.

Run: python benchmarks/gpu_fit.py [--target cuda:sm_90] [--only PART]. The zoo's models in float16 and
float32; n values that live across a sum of their squares; two products D wide; LayerNorm of long rows of
sums. For each the kernels, the most registers and the least occupancy of one, the bytes spilled by what was
chosen, the tiles that were refused, and the regions that were split. Everything is compiled anew, in a folder
that is deleted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

import onepass.ops.registry  # noqa: F401  (defines the ops)
from onepass.core.dtypes import F16, F32, DType
from onepass.core.settings import Settings
from onepass.core.tensor import Shape, TensorType
from onepass.frontends.onnx_import import import_onnx
from onepass.frontends.onnx_model import load_onnx
from onepass.gpu_pipeline import GpuCompiled, compile_for_gpu
from onepass.graph.ir import Graph, Node
from onepass.ops.opdef import Array
from onepass.report.terminal import Terminal, table
from onepass.zoo import catalog

MODELS = ("resnet50", "mobilenet_v2", "convnext_tiny", "bert_base", "vit_b16")
HEADINGS = ("kernels", "registers", "occupancy", "spilled", "refused", "split", "bytes off", "edges", "s")
WIDTH = 120  # columns of the table
PARTS = ("models", "live", "products", "rows")


def graph_of(
    nodes: Sequence[Node], inputs: Sequence[str], outputs: Sequence[str], shape: Shape, dtype: DType = F32,
    constants: dict[str, Array] | None = None,
) -> Graph:  # fmt: skip
    """A graph whose values all have one shape; constants have their own."""
    types = dict.fromkeys((name for n in nodes for name in (*n.inputs, *n.outputs)), TensorType(dtype, shape))
    types |= {name: TensorType(dtype, array.shape) for name, array in (constants or {}).items()}
    return Graph("fit", tuple(nodes), tuple(inputs), tuple(outputs), types, constants or {})


def total(nodes: list[Node], parts: Sequence[str]) -> str:
    """Adds pairwise sums of `parts` to `nodes`; the name of their total."""
    waiting = list(parts)
    while len(waiting) > 1:
        name = f"sum_{len(nodes)}"
        nodes.append(Node(name, "add", tuple(waiting[:2]), (name,), {}))
        waiting = [*waiting[2:], name]
    return waiting[0]


def live(count: int, size: int = 1 << 24) -> Graph:
    """Each of `count` inputs is read again once the root of the sum of all squares is known."""
    inputs, outputs = ([f"{letter}{k}" for k in range(count)] for letter in "xy")
    nodes = [Node(f"square{k}", "mul", (x, x), (f"s{k}",), {}) for k, x in enumerate(inputs)]
    nodes.append(Node("root", "sqrt", (total(nodes, [f"s{k}" for k in range(count)]),), ("r",), {}))
    nodes += [Node(f"scale{k}", "mul", (x, "r"), (outputs[k],), {}) for k, x in enumerate(inputs)]
    return graph_of(nodes, inputs, outputs, (size,))


def squares(width: int, dtype: DType = F16, rows: int = 16384) -> Graph:
    """relu(x a) b; all matrices are `width` wide."""
    nodes = [Node("first", "matmul", ("x", "a"), ("u",), {}), Node("relu", "relu", ("u",), ("v",), {})]
    nodes.append(Node("second", "matmul", ("v", "b"), ("y",), {}))
    matrix = np.zeros((width, width), dtype.numpy)
    return graph_of(nodes, ("x",), ("y",), (rows, width), dtype, {"a": matrix, "b": matrix})


def rows(length: int, terms: int, dtype: DType = F32) -> Graph:
    """LayerNorm of a sum of `terms` inputs, along rows of `length`."""
    nodes = list[Node]()
    names = [f"x{k}" for k in range(terms)]
    whole = total(nodes, names)
    nodes.append(Node("norm", "layer_normalization", (whole, "scale", "shift"), ("y",), {"axis": -1}))
    constants = {"scale": np.ones(length, dtype.numpy), "shift": np.zeros(length, dtype.numpy)}
    return graph_of(nodes, names, ("y",), (4096, length), dtype, constants)


def zoo(name: str) -> Graph:
    """The model `name` at its default shapes."""
    loaded = load_onnx(catalog.build(name))
    return import_onnx(loaded, catalog.default_shapes(loaded.proto))


def cases(part: str) -> Iterator[tuple[str, Callable[[], Graph], DType | None]]:
    """Name, graph and precision to lower it to."""
    if part == "models":
        for name, dtype in product(MODELS, (F16, None)):
            yield f"{name}, {dtype or F32}", partial(zoo, name), dtype
    if part == "live":
        for count in (2, 4, 8, 16, 24, 32, 48, 64):
            yield f"{count} live values", partial(live, count), None
    if part == "products":
        for width in (64, 128, 256, 512):
            yield f"two products, D = {width}", partial(squares, width), None
    if part == "rows":
        for length, terms in product((1024, 4096, 16384, 65536), (1, 8)):
            yield f"rows of {length:,}, {terms} terms", partial(rows, length, terms), None


def bytes_off(found: GpuCompiled) -> float | None:
    """By how much predicted bytes of pointwise and row kernels exceed what lies behind their parameters."""
    shares = []
    for kernel in found.kernels:
        region = found.plan.regions[kernel.region]
        partly = {node.op for node in region.nodes} & {"gather", "slice"}  # they do not read all of it
        if region.form in ("pointwise", "row") and not partly:
            behind = sum(param.size_bytes for param in kernel.built.kernel.params)
            shares.append(abs(sum(region.estimate.traffic.bytes_at.values()) / behind - 1))
    return max(shares, default=None)


def row_of(name: str, found: GpuCompiled) -> tuple[str, ...]:
    """What was compiled, as `HEADINGS` say; `edges`: of those within kernels, how many are told of."""
    inside = [decision for decision in found.plan.decisions if decision.home != "memory"]
    told = sum(bool(decision.fits) and not decision.fits[-1].objection for decision in inside)
    off = bytes_off(found)
    registers = max(k.compiled.resources.registers for k in found.kernels if k.compiled.resources)
    return (
        name, str(len(found.kernels)), str(registers),
        f"{min(kernel.occupancy.share for kernel in found.kernels):.0%}",
        str(sum(kernel.spill_bytes for kernel in found.kernels)),
        str(sum(bool(step.objection) for kernel in found.kernels for step in kernel.steps)),
        str(sum(decision.reason == "does_not_fit" for decision in found.plan.decisions)),
        "" if off is None else f"{off:.1%}", f"{told} of {len(inside)}", f"{found.compile_s:.1f}",
    )  # fmt: skip


def main() -> None:
    """Says what is compiled, then prints a row for each graph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cuda:sm_90")
    parser.add_argument("--only", choices=PARTS, help="this part alone")
    options = parser.parse_args()
    started, found = time.perf_counter(), list[tuple[str, ...]]()
    for part in PARTS if options.only is None else (options.only,):
        for name, build, dtype in cases(part):
            print(f"{name} …", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                compiled = compile_for_gpu(build(), Settings(), options.target, Path(folder), dtype)
            found.append(row_of(name, compiled))
    Terminal(width=WIDTH).print(table(["graph"], HEADINGS, found))
    print(f"{options.target}, {time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()
