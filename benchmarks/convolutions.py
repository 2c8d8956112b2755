"""Single layers as inside a network: share of the roof, which is the FMA peak or a bandwidth.

Run: .venv/bin/python benchmarks/convolutions.py [THREADS [WORD]]; WORD picks layers by their names. A
convolution writes the layer's input and a pool reads its output, so that both lie as inside a network. Batch
norm and ReLU follow a convolution in its kernel.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onepass.compare.setup import set_up
from onepass.core.settings import Settings
from onepass.cost.machine import Machine
from onepass.cost.roofline import Traffic
from onepass.frontends.onnx_import import import_onnx


class Layer(NamedTuple):
    """A convolution of `channels` x `size` to `out` channels; any other `op` keeps the channels.

    `spatial`: number of spatial axes, each `size` long. `attrs` of the op are added to those of its window.
    """

    channels: int
    size: int
    out: int = 0
    kernel: int = 1
    stride: int = 1
    group: int = 1
    dilation: int = 1
    spatial: int = 2
    op: str = "Conv"
    attrs: dict[str, object] = {}  # noqa: RUF012


LAYERS = {
    "ResNet-50 3x3": Layer(64, 56, 64, 3),
    "ResNet-50 3x3, 128": Layer(128, 28, 128, 3),
    "ResNet-50 3x3, 256": Layer(256, 14, 256, 3),
    "ResNet-50 3x3, 512": Layer(512, 7, 512, 3),
    "ResNet-50 1x1 to 64": Layer(256, 56, 64),
    "ResNet-50 1x1 to 256": Layer(1024, 14, 256),
    "ResNet-50 1x1 to 512": Layer(2048, 7, 512),
    "ResNet-50 1x1 from 64": Layer(64, 56, 256),
    "ResNet-50 1x1 from 512": Layer(512, 7, 2048),
    "ResNet-50 stem": Layer(3, 224, 64, 7, 2),
    "ResNet-50 3x3, stride 2": Layer(128, 56, 128, 3, 2),
    "ResNet-50 3x3, stride 2, 512": Layer(512, 14, 512, 3, 2),
    "ResNet-50 1x1, stride 2": Layer(256, 56, 512, 1, 2),
    "ResNet-50 1x1, stride 2, 1024": Layer(1024, 14, 2048, 1, 2),
    "13x13 grid": Layer(256, 13, 512, 3),
    "DnCNN first": Layer(1, 256, 64, 3),
    "DnCNN last": Layer(64, 256, 1, 3),
    "U-Net last": Layer(64, 256, 2),
    "Super-resolution first": Layer(3, 256, 64, 5),
    "Super-resolution last": Layer(32, 256, 12, 3),
    "Detector head": Layer(128, 40, 4, 3),
    "Depthwise 3x3": Layer(96, 112, 96, 3, group=96),
    "Depthwise 3x3, stride 2": Layer(96, 112, 96, 3, 2, group=96),
    "Depthwise 5x5": Layer(240, 28, 240, 5, group=240),
    "Depthwise 7x7": Layer(96, 56, 96, 7, group=96),
    "Depthwise 3x3, dilation 2": Layer(96, 56, 96, 3, group=96, dilation=2),
    "Groups of 4": Layer(128, 56, 128, 3, group=32),
    "Groups of 8": Layer(256, 28, 256, 3, group=32),
    "Groups of 16": Layer(512, 14, 512, 3, group=32),
    "3x3, dilation 2": Layer(128, 28, 128, 3, dilation=2),
    "1-D": Layer(64, 4096, 64, 9, spatial=1),
    "3-D": Layer(32, 24, 32, 3, spatial=3),
    "Transposed 2x2": Layer(128, 64, 64, 2, 2, op="ConvTranspose"),
    "Transposed 4x4": Layer(64, 32, 64, 4, 2, op="ConvTranspose"),
    "MaxPool 3x3, stride 2": Layer(64, 112, kernel=3, stride=2, op="MaxPool"),
    "MaxPool 2x2, stride 2": Layer(64, 112, kernel=2, stride=2, op="MaxPool"),
    "MaxPool 5x5": Layer(256, 20, kernel=5, op="MaxPool"),
    "AveragePool 3x3": Layer(192, 35, kernel=3, op="AveragePool"),
    "AveragePool 2x2, stride 2": Layer(128, 56, kernel=2, stride=2, op="AveragePool"),
    "GlobalAveragePool": Layer(512, 28, op="GlobalAveragePool"),
    "LRN": Layer(64, 55, op="LRN", attrs={"size": 5}),
    "Resize nearest": Layer(128, 40, op="Resize", attrs={"mode": "nearest"}),
    "Resize linear": Layer(64, 64, op="Resize", attrs={"mode": "linear"}),
    "Channel shuffle": Layer(116, 28, op="Shuffle"),
    "Channels last": Layer(96, 56, op="Transpose", attrs={"perm": [0, 2, 3, 1]}),
    "Transpose of keys": Layer(12, 128, op="Keys"),
}
RUNS = 30
WINDOWED = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")


def nodes_of(layer: Layer, arrays: dict[str, np.ndarray]) -> list[onnx.NodeProto]:
    """The layer itself, from `a` to `c`; adds its constants to `arrays`."""
    attrs = dict(layer.attrs)
    if layer.op in WINDOWED:
        attrs |= {"kernel_shape": [layer.kernel] * layer.spatial, "strides": [layer.stride] * layer.spatial}
        span = layer.dilation * (layer.kernel - 1) + 1
        whole = layer.kernel == layer.stride or layer.op == "ConvTranspose"
        attrs["pads"] = [0 if whole else span // 2] * (2 * layer.spatial)
    if layer.op in ("Conv", "ConvTranspose"):
        attrs |= {"group": layer.group, "dilations": [layer.dilation] * layer.spatial}
        ends = (layer.out, layer.channels // layer.group)
        shape = (ends if layer.op == "Conv" else ends[::-1]) + (layer.kernel,) * layer.spatial
        weights = np.random.default_rng(0).standard_normal(shape, np.float32)
        arrays["w"] = weights / np.float32(np.sqrt(weights[0].size))
        return [helper.make_node(layer.op, ["a", "w"], ["c"], name="layer", **attrs)]
    if layer.op == "Resize":
        arrays["scales"] = np.array([1, 1, 2, 2], np.float32)
        return [helper.make_node("Resize", ["a", "", "scales"], ["c"], name="layer", **attrs)]
    if layer.op == "Shuffle":
        arrays["split"] = np.array([1, 2, layer.channels // 2, layer.size, layer.size])
        arrays["joined"] = np.array([1, layer.channels, layer.size, layer.size])
        return [
            helper.make_node("Reshape", ["a", "split"], ["s0"]),
            helper.make_node("Transpose", ["s0"], ["s1"], name="layer", perm=[0, 2, 1, 3, 4]),
            helper.make_node("Reshape", ["s1", "joined"], ["c"]),
        ]
    if layer.op == "Keys":
        return [helper.make_node("Transpose", ["a"], ["c"], name="layer", perm=[0, 1, 3, 2])]
    return [helper.make_node(layer.op, ["a"], ["c"], name="layer", **attrs)]


def network(layer: Layer) -> onnx.ModelProto:
    """A depthwise convolution, the layer, and a global maximum of each channel."""
    random = np.random.default_rng(0)
    ones = (1,) * layer.spatial
    arrays: dict[str, np.ndarray] = {"before": random.random((layer.channels, 1, *ones), np.float32)}
    nodes = [helper.make_node("Conv", ["x", "before"], ["a"], group=layer.channels)]
    nodes += nodes_of(layer, arrays)
    if layer.out:
        arrays |= {name: random.random(layer.out, np.float32) + np.float32(0.5) for name in "sbmv"}
        nodes.append(helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]))
        nodes.append(helper.make_node("Relu", ["n"], ["r"]))
    nodes.append(helper.make_node("GlobalMaxPool", [nodes[-1].output[0]], ["y"]))
    shape = [1, layer.channels, *(layer.size,) * layer.spatial]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "layer", [given], [made], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def roof_s(traffic: Traffic, machine: Machine, workers: int) -> tuple[float, str]:
    """Least seconds that the machine's measured limits allow, and the limit."""
    limits = {"peak": traffic.flops / machine.peak_flops_per_s(traffic.dtype, workers)}
    for level, size in traffic.bytes_at.items():
        limits[level] = size / machine.bandwidth_bytes_per_s(level, workers)
    return max((seconds, name) for name, seconds in limits.items())


def main() -> None:
    """Prints one line a layer."""
    setup = set_up(Settings(threads=int(sys.argv[1]) if len(sys.argv) > 1 else None))
    machine, workers = setup.machine, setup.workers
    print(f"{workers} workers, peak {machine.peak_flops_per_s('float32', workers) / 1e9:.1f} GFLOP/s")
    for name, layer in LAYERS.items():
        if len(sys.argv) > 2 and sys.argv[2] not in name:
            continue
        graph = import_onnx(network(layer))
        compiled = setup.compile(graph)
        regions = {
            region.id: region
            for region in compiled.plan.regions
            if any(node.name.startswith("layer") for node in region.nodes)
        }
        x = np.random.default_rng(1).standard_normal(graph.types["x"].shape, np.float32)
        for launch in compiled.program.trace([x], RUNS).launches:
            if launch.region in regions:
                traffic = regions[launch.region].estimate.traffic
                least, limit = roof_s(traffic, machine, workers)
                rate, share = traffic.flops / launch.min_s / 1e9, least / launch.min_s
                print(f"{name:30} {launch.min_s * 1e6:6.0f} us, {rate:6.1f} GFLOP/s, {share:4.0%} of {limit}")


if __name__ == "__main__":
    main()
