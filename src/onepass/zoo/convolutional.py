"""Convolutional models of the zoo. In: a seed and sizes. Out: a builder that holds the whole graph."""

from __future__ import annotations

from onepass.core.dtypes import F32
from onepass.zoo.builder import ModelBuilder


def resnet50(seed: int = 0, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64) -> ModelBuilder:
    """ResNet-50 v1.5 (He et al. 2015; stride in the 3x3), batch norm not folded; 175 nodes."""
    b = ModelBuilder("resnet50", opset=17, seed=seed)
    x = b.input("input", F32, ("N", 3, 224, 224))
    x = b.batch_norm("bn1", b.conv("conv1", x, 3, width, 7, stride=2, gain=1.0), width)
    x = b.node("relu", "Relu", [x])
    x = b.node("maxpool", "MaxPool", [x], ceil_mode=0, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    channels = width
    for stage, count in enumerate(blocks):
        middle = width << stage
        for block in range(count):
            stride = 2 if block == 0 and stage > 0 else 1
            x = _bottleneck(b, f"layer{stage + 1}.{block}", x, channels, middle, stride)
            channels = 4 * middle
    x = b.node("flatten", "Flatten", [b.node("avgpool", "GlobalAveragePool", [x])], axis=1)
    b.output(b.gemm("fc", x, channels, 1000), "output", F32, ("N", 1000))
    return b


def _bottleneck(b: ModelBuilder, path: str, x: str, channels: int, middle: int, stride: int) -> str:
    y = b.batch_norm(f"{path}.bn1", b.conv(f"{path}.conv1", x, channels, middle, 1), middle)
    y = b.node(f"{path}.relu", "Relu", [y])
    y = b.batch_norm(f"{path}.bn2", b.conv(f"{path}.conv2", y, middle, middle, 3, stride=stride), middle)
    y = b.node(f"{path}.relu_1", "Relu", [y])
    # The branch is scaled down so that sixteen sums in a row keep the activations near one.
    y = b.batch_norm(f"{path}.bn3", b.conv(f"{path}.conv3", y, middle, 4 * middle, 1), 4 * middle, scale=0.3)
    if channels != 4 * middle:
        x = b.conv(f"{path}.downsample.0", x, channels, 4 * middle, 1, stride=stride)
        x = b.batch_norm(f"{path}.downsample.1", x, 4 * middle)
    return b.node(f"{path}.relu_2", "Relu", [b.node(path, "Add", [y, x])])
