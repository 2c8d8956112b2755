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


_MOBILENET_ROWS = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)
)
"""Table 2 of the paper: expansion, output channels, repeats, stride of the first repeat."""


def mobilenet_v2(seed: int = 0) -> ModelBuilder:
    """MobileNetV2 (Sandler et al. 2018): expand, depthwise, project; ReLU6 as Clip(0, 6)."""
    b = ModelBuilder("mobilenet_v2", opset=17, seed=seed)
    x = _conv_bn_relu6(b, "features.0", b.input("input", F32, ("N", 3, 224, 224)), 3, 32, 3, stride=2)
    channels, index = 32, 1
    for expansion, out, repeats, first in _MOBILENET_ROWS:
        for repeat in range(repeats):
            stride = first if repeat == 0 else 1
            x = _inverted_residual(b, f"features.{index}", x, channels, out, expansion, stride)
            channels, index = out, index + 1
    x = _conv_bn_relu6(b, "features.18", x, channels, 1280, 1)
    x = b.node("flatten", "Flatten", [b.node("avgpool", "GlobalAveragePool", [x])], axis=1)
    b.output(b.gemm("classifier.1", x, 1280, 1000), "output", F32, ("N", 1000))
    return b


def _conv_bn_relu6(b: ModelBuilder, path: str, x: str, channels: int, out: int, kernel: int, *,
                   stride: int = 1, groups: int = 1) -> str:
    x = b.conv(f"{path}.0", x, channels, out, kernel, stride=stride, groups=groups)
    x = b.batch_norm(f"{path}.1", x, out)
    return b.node(f"{path}.2", "Clip", [x, b.floats("relu6.min", 0.0), b.floats("relu6.max", 6.0)])


def _inverted_residual(b: ModelBuilder, path: str, x: str, channels: int, out: int, expansion: int,
                       stride: int) -> str:
    hidden, y, step = channels * expansion, x, 0
    if expansion != 1:
        y = _conv_bn_relu6(b, f"{path}.conv.0", y, channels, hidden, 1)
        step = 1
    y = _conv_bn_relu6(b, f"{path}.conv.{step}", y, hidden, hidden, 3, stride=stride, groups=hidden)
    y = b.conv(f"{path}.conv.{step + 1}", y, hidden, out, 1)
    y = b.batch_norm(f"{path}.conv.{step + 2}", y, out, scale=0.7)
    return b.node(path, "Add", [x, y]) if stride == 1 and channels == out else y


def convnext_tiny(seed: int = 0, depths: tuple[int, ...] = (3, 3, 9, 3)) -> ModelBuilder:
    """ConvNeXt-T (Liu et al. 2022): depthwise 7x7, then LayerNorm and an MLP with channels last."""
    b = ModelBuilder("convnext_tiny", opset=20, seed=seed)
    x = b.conv("features.0.0", b.input("input", F32, ("N", 3, 224, 224)), 3, 96, 4, stride=4, pad=0,
               bias=True, gain=1.0)
    channels = 96
    x = _norm_channels(b, "features.0.1", x, channels)
    for stage, depth in enumerate(depths):
        if stage:
            x = _norm_channels(b, f"features.{2 * stage}.0", x, channels)
            x = b.conv(f"features.{2 * stage}.1", x, channels, 2 * channels, 2, stride=2, pad=0, bias=True,
                       gain=1.0)
            channels *= 2
        for block in range(depth):
            x = _convnext_block(b, f"features.{2 * stage + 1}.{block}", x, channels)
    x = _norm_channels(b, "classifier.0", b.node("avgpool", "GlobalAveragePool", [x]), channels)
    x = b.node("classifier.1", "Flatten", [x], axis=1)
    b.output(b.gemm("classifier.2", x, channels, 1000), "output", F32, ("N", 1000))
    return b


def _norm_channels(b: ModelBuilder, path: str, x: str, channels: int) -> str:
    x = b.node(path, "Transpose", [x], perm=[0, 2, 3, 1])
    x = b.layer_norm(path, x, channels, 1e-6)
    return b.node(f"{path}.back", "Transpose", [x], perm=[0, 3, 1, 2])


def _convnext_block(b: ModelBuilder, path: str, x: str, channels: int) -> str:
    y = b.conv(f"{path}.block.0", x, channels, channels, 7, groups=channels, bias=True, gain=1.0)
    y = b.node(f"{path}.block.1", "Transpose", [y], perm=[0, 2, 3, 1])
    y = b.layer_norm(f"{path}.block.2", y, channels, 1e-6)
    y = b.linear(f"{path}.block.3", y, channels, 4 * channels)
    y = b.node(f"{path}.block.4", "Gelu", [y], approximate="none")
    y = b.linear(f"{path}.block.5", y, 4 * channels, channels, gain=2.0)
    y = b.node(f"{path}.block.6", "Transpose", [y], perm=[0, 3, 1, 2])
    y = b.node(path, "Mul", [b.normal(f"{path}.layer_scale", (channels, 1, 1), 0.2, mean=0.3), y])
    return b.node(path, "Add", [y, x])


def unet(seed: int = 0, features: int = 32, levels: int = 4) -> ModelBuilder:
    """U-Net (Ronneberger et al. 2015) with batch norm, 32 first features, RGB to a mask, 256x256."""
    b = ModelBuilder("unet", opset=17, seed=seed)
    x = b.input("input", F32, ("N", 3, 256, 256))
    channels, skips = 3, []
    for level in range(levels):
        x = _double_conv(b, f"encoder{level + 1}", x, channels, features << level)
        channels = features << level
        skips.append(x)
        x = b.node(f"pool{level + 1}", "MaxPool", [x], ceil_mode=0, kernel_shape=[2, 2], pads=[0] * 4,
                   strides=[2, 2])
    x = _double_conv(b, "bottleneck", x, channels, 2 * channels)
    for level in reversed(range(levels)):
        out = features << level
        path = f"upconv{level + 1}"
        weight = b.normal(f"{path}.weight", (2 * out, out, 2, 2), (1.0 / (2 * out)) ** 0.5)
        bias = b.normal(f"{path}.bias", (out,), 0.05)
        x = b.node(path, "ConvTranspose", [x, weight, bias], dilations=[1, 1], group=1, kernel_shape=[2, 2],
                   pads=[0] * 4, strides=[2, 2])
        x = b.node(f"decoder{level + 1}", "Concat", [x, skips[level]], axis=1)
        x = _double_conv(b, f"decoder{level + 1}", x, 2 * out, out)
    x = b.conv("conv", x, features, 1, 1, bias=True)
    b.output(b.node("", "Sigmoid", [x]), "output", F32, ("N", 1, 256, 256))
    return b


def _double_conv(b: ModelBuilder, path: str, x: str, channels: int, out: int) -> str:
    for step in (1, 2):
        x = b.conv(f"{path}.conv{step}", x, channels, out, 3)
        x = b.node(f"{path}.relu{step}", "Relu", [b.batch_norm(f"{path}.norm{step}", x, out)])
        channels = out
    return x


def dncnn(seed: int = 0, layers: int = 8, features: int = 64) -> ModelBuilder:
    """DnCNN (Zhang et al. 2017) with 8 convolutions: predicts the noise of a grey 256x256 image."""
    b = ModelBuilder("dncnn", opset=17, seed=seed)
    image = b.input("input", F32, ("N", 1, 256, 256))
    x = b.node("dncnn.1", "Relu", [b.conv("dncnn.0", image, 1, features, 3, gain=1.0)])
    for layer in range(1, layers - 1):
        x = b.conv(f"dncnn.{3 * layer - 1}", x, features, features, 3)
        x = b.batch_norm(f"dncnn.{3 * layer}", x, features)
        x = b.node(f"dncnn.{3 * layer + 1}", "Relu", [x])
    noise = b.conv(f"dncnn.{3 * layers - 4}", x, features, 1, 3, gain=0.05)
    b.output(b.node("", "Sub", [image, noise]), "output", F32, ("N", 1, 256, 256))
    return b


def espcn(seed: int = 0, upscale: int = 2) -> ModelBuilder:
    """ESPCN (Shi et al. 2016): super-resolution from 540p to 1080p by sub-pixel convolution, tanh."""
    b = ModelBuilder("espcn", opset=17, seed=seed)
    x = b.input("input", F32, ("N", 3, "H", "W"))
    x = b.node("act1", "Tanh", [b.conv("conv1", x, 3, 64, 5, bias=True, gain=1.0)])
    x = b.node("act2", "Tanh", [b.conv("conv2", x, 64, 32, 3, bias=True)])
    x = b.conv("conv3", x, 32, 3 * upscale**2, 3, bias=True)
    x = b.node("pixel_shuffle", "DepthToSpace", [x], blocksize=upscale, mode="CRD")
    b.output(x, "output", F32, ("N", 3, "H_out", "W_out"))
    return b
