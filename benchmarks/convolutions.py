"""Single convolutions, conv + batch norm + ReLU in one kernel: share of the measured FMA peak.

Run: .venv/bin/python benchmarks/convolutions.py [THREADS]. Weights and activations lie as inside a network: a
ReLU writes the input and a pool reads the output, so no layout is bent for the user's arrays.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onepass.compare.setup import set_up
from onepass.core.settings import Settings
from onepass.frontends.onnx_import import import_onnx

# (input channels, size, output channels, kernel, stride): ResNet-50's shapes, and its stem.
LAYERS = (
    (64, 56, 64, 3, 1),
    (256, 14, 256, 3, 1),
    (512, 7, 512, 3, 1),
    (256, 56, 64, 1, 1),
    (1024, 14, 256, 1, 1),
    (2048, 7, 512, 1, 1),
    (3, 224, 64, 7, 2),
)
RUNS = 30


def network(channels: int, size: int, out: int, kernel: int, stride: int) -> onnx.ModelProto:
    """ReLU, convolution, batch norm, ReLU, global pool."""
    random = np.random.default_rng(0)
    weights = random.standard_normal((out, channels, kernel, kernel), np.float32)
    arrays = {"w": weights / np.float32(np.sqrt(weights[0].size))}
    arrays |= {name: random.random(out, np.float32) + np.float32(0.5) for name in ("s", "b", "m", "v")}
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Conv", ["a", "w"], ["c"], pads=[kernel // 2] * 4, strides=[stride] * 2),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["y"]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, size, size])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, out, 1, 1])
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "layer", [given], [made], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def main() -> None:
    """Prints one line a layer."""
    setup = set_up(Settings(threads=int(sys.argv[1]) if len(sys.argv) > 1 else None))
    peak = setup.machine.peak_flops_per_s("float32", setup.workers)
    print(f"{setup.workers} workers, peak {peak / 1e9:.1f} GFLOP/s")
    for layer in LAYERS:
        compiled = setup.compile(import_onnx(network(*layer)))
        regions = {region.id: region for region in compiled.plan.regions if region.form == "contraction"}
        x = np.random.default_rng(1).standard_normal((1, layer[0], layer[1], layer[1]), np.float32)
        for launch in compiled.program.trace([x], RUNS).launches:
            if launch.region in regions:
                rate = regions[launch.region].estimate.traffic.flops / launch.min_s
                share = f"{rate / 1e9:.1f} GFLOP/s, {rate / peak:.1%} of peak"
                print(f"{layer}: {launch.min_s * 1e6:.0f} us, {share}")


if __name__ == "__main__":
    main()
