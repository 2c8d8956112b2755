"""Concatenations and slices that move nothing: right against float64, and views just where they may be."""

import numpy as np
import pytest
from compiled import check, compiled
from region_runs import check as check_regions
from region_runs import graph_of, random_inputs

from onepass.compare.kernels import check_kernels
from onepass.compare.setup import set_up
from onepass.core.settings import Settings


def weights(out, channels, kernel=3, seed=0):
    data = np.random.default_rng(seed + out + channels)
    return (data.standard_normal((out, channels, kernel, kernel)) / np.sqrt(channels * kernel**2)).astype(
        np.float32
    )


def conv(x, name, kernel=3, pad=None):
    pads = (kernel // 2 if pad is None else pad,) * 4
    attrs = {"kernel_shape": (kernel,) * 2, "strides": (1, 1), "dilations": (1, 1), "pads": pads, "group": 1}
    return ("conv", f"{x} {name}", attrs)


def pool(x):
    attrs = {"kernel_shape": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1,) * 4, "ceil_mode": 0}
    return ("max_pool", x, attrs)


def concat(*names, axis=1):
    return ("concat", " ".join(names), {"axis": axis})


def cut(x, start, end, axis=1, step=1):
    return ("slice", x, {"starts": (start,), "ends": (end,), "axes": (axis,), "steps": (step,)})


def relu(x):
    return ("relu", x, {})


CHANNELS = (3, 16, 20, 32, 48)
W = {f"w{out}_{channels}": weights(out, channels) for out in (16, 20, 32) for channels in CHANNELS}
W |= {"p": weights(16, 32, 1), "q": weights(16, 16, 5), "k": weights(1, 16, 7, 7).reshape(1, 16, 7, 7)}
A, B = conv("x", "w16_3"), conv("x", "w32_3")

# name -> (nodes, outputs, nodes that move nothing)
CASES = {
    "two convolutions": ([A, relu("v0"), B, concat("v1", "v2"), conv("v3", "w16_48")], None, ["concat3"]),
    "a pointwise reader": ([A, B, concat("v0", "v1"), ("exp", "v2", {})], None, ["concat2"]),
    "parts with readers of their own": (
        [A, B, concat("v0", "v1"), conv("v2", "w16_48"), conv("v0", "q", 5), ("add", "v3 v4", {}),
         pool("v1")],
        ("v5", "v6"), ["concat2"]),
    "an odd number of channels first": (
        [conv("x", "w20_3"), A, concat("v0", "v1"), conv("v2", "w36")], None, []),
    "an odd number of channels last": (
        [A, conv("x", "w20_3"), concat("v0", "v1"), conv("v2", "w36")], None, ["concat2"]),
    "one part in two concatenations": (
        [A, B, concat("v0", "v1"), concat("v1", "v0"), conv("v2", "w16_48"), conv("v3", "w16_48"),
         ("add", "v4 v5", {})], None, ["concat2"]),
    "one part twice": ([A, concat("v0", "v0"), conv("v1", "p", 1)], None, ["concat1"]),
    "a concatenation of a concatenation": (
        [A, A, concat("v0", "v1"), conv("v2", "w16_32"), concat("v2", "v3"), conv("v4", "w16_48"),
         conv("v2", "p", 1), ("add", "v5 v6", {})], None, ["concat2", "concat4"]),
    "a graph input as a part": (
        [conv("y", "w32_16"), concat("v0", "y"), conv("v1", "w16_48")], None, ["concat1"]),
    "mostly graph inputs": ([conv("y", "w16_16"), concat("v0", "y", "y"), conv("v1", "w16_48")], None, []),
    "a constant as a part": (
        [A, B, concat("c", "v0", "v1"), conv("v2", "w16_64")], None, ["concat2"]),
    "a result that is a part": (
        [A, B, concat("v0", "v1"), conv("v2", "w16_48")], ("v1", "v3"), []),
    "a whole that is a result": ([A, B, concat("v0", "v1"), conv("v2", "w16_48")], ("v2", "v3"), []),
    "plain parts of a result": (
        [("reduce_sum", "y", {"axes": (3,), "keepdims": 0}),
         ("reduce_max", "y", {"axes": (3,), "keepdims": 0}),
         concat("v0", "v1"), ("exp", "v0", {}), ("reduce_sum", "v2", {"axes": (1,), "keepdims": 0})],
        ("v2", "v3", "v4"), ["concat2"]),
    "an upsampled part": (
        [A, pool("v0"), ("tile", "v1", {"repeats": (1, 1, 1, 1)}), ("exp", "v2", {}), B,
         concat("v3", "v4"), conv("v5", "w16_48")], None, ["concat5"]),
    "along rows": (
        [A, pool("v0"), concat("v0", "v1", axis=2), ("softmax", "v2", {"axis": 1})], None, ["concat2"]),
    "along rows with a border": ([A, A, concat("v0", "v1", axis=2), conv("v2", "q", 5)], None, []),
    "few channels with a border": (
        [conv("x", "n"), conv("x", "n"), concat("v0", "v1"), conv("v2", "o")], None, []),
    "along images": ([A, pool("v0"), concat("v0", "v1", axis=0), conv("v2", "q", 5)], None, ["concat2"]),
    "matrix products side by side": (
        [("matmul", "m a", {}), ("matmul", "m a", {}), concat("v0", "v1"), ("softmax", "v2", {"axis": 1})],
        None, ["concat2"]),
    "slices": (
        [conv("x", "w32_3"), cut("v0", 0, 16), cut("v0", 16, 32), conv("v1", "w16_16"), pool("v2"),
         ("add", "v3 v4", {})], None, ["slice1", "slice2"]),
    "overlapping slices, one of half a block": (
        [conv("x", "w32_3"), cut("v0", 0, 20), cut("v0", 16, 32), conv("v1", "w16_20"), conv("v2", "q", 5),
         ("add", "v3 v4", {})], None, ["slice1", "slice2"]),
    "a slice within a block": ([B, cut("v0", 3, 19), conv("v1", "w16_16")], None, []),
    "a slice of every second": ([B, cut("v0", 0, 32, step=2), conv("v1", "w16_16")], None, []),
    "a reversed slice": ([B, cut("v0", 31, -1, step=-1), conv("v1", "w16_32")], None, []),
    "a slice of a part": (
        [B, A, concat("v0", "v1"), cut("v0", 16, 32), conv("v2", "w16_48"), conv("v3", "w16_16"),
         ("add", "v4 v5", {})], None, ["concat2", "slice3"]),
    "a slice as a part": (
        [B, cut("v0", 16, 32), A, A, concat("v2", "v1", "v3"), conv("v4", "w16_48")], None,
        ["slice1", "concat4"]),
    "all slices of a value as parts": (
        [B, cut("v0", 0, 16), cut("v0", 16, 32), conv("v2", "w16_16"), concat("v1", "v2", "v3"),
         conv("v4", "w16_48")], None, ["slice2", "concat4"]),
    "more and more parts": (
        [A, A, concat("v0", "v1"), conv("v2", "w16_32"), concat("v0", "v1", "v3"), conv("v4", "w16_48")],
        None, ["concat2", "concat4"]),
    "a slice that is a result": ([B, cut("v0", 0, 16), conv("v1", "w16_16")], ("v1", "v2"), []),
    "rows of a product": (
        [("matmul", "m a", {}), cut("v0", 4, 8, axis=0), cut("v0", 8, 16), ("exp", "v1", {}),
         ("softmax", "v2", {"axis": 1})],
        ("v3", "v4"), ["slice1"]),
    "the reshape of a slice": (
        [("matmul", "m a", {}), cut("v0", 4, 8, axis=0), ("reshape", "v1", {"shape": (8, 8)}),
         ("matmul", "v2 e", {})],
        None, ["slice1", "reshape2"]),
    "the reshape of a slice with gaps": (
        [("matmul", "m a", {}), cut("v0", 8, 16), ("reshape", "v1", {"shape": (8, 12)}), ("exp", "v2", {})],
        None, ["slice1"]),
    "a slice of a reshape that is a result": (
        [("matmul", "m a", {}), ("reshape", "v0", {"shape": (3, 4, 16)}), cut("v1", 1, 3, axis=0),
         ("exp", "v2", {})],
        ("v0", "v3"), ["reshape1", "slice2"]),
}  # fmt: skip
MORE = {
    "w36": weights(16, 36), "w16_64": weights(16, 64),
    "c": weights(1, 16, 9)[:, :, :, :7],
    "n": weights(4, 3), "o": weights(4, 8),
    "a": weights(12, 16, 1).reshape(12, 16), "e": weights(8, 4, 1).reshape(8, 4),
}  # fmt: skip


def build(name, images=1):
    nodes, outputs, _ = CASES[name]
    read = " ".join(names for _, names, _ in nodes).split()
    inputs = {"x": (images, 3, 9, 7), "y": (images, 16, 9, 8), "m": (12, 12)}
    constants = {k: a for k, a in {**W, **MORE}.items() if k in read}
    if "c" in constants:
        constants["c"] = np.repeat(constants["c"], images, 0)
    given = {name: shape for name, shape in inputs.items() if name in read}
    return graph_of(given, *nodes, constants=constants, outputs=outputs)


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_right_in_every_mode(name, images):
    graph = build(name, images)
    check(graph, random_inputs(graph))


@pytest.mark.parametrize("name", CASES)
def test_no_kernel_reads_beside_its_part(name):
    """What lies between the rows of a part is poisoned here, unlike in the arena."""
    check_regions(build(name, 2), modes=("native",), fuse=("auto",))


@pytest.mark.parametrize("name", CASES)
def test_what_moves_nothing(name):
    plan = compiled(build(name)).plan
    assert [region.name for region in plan.regions if region.form == "view"] == CASES[name][2]


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize(
    "name", ["parts with readers of their own", "a slice as a part", "plain parts of a result"]
)
def test_each_kernel_alone(name, images):
    """What a kernel wrote into a part is read back from the whole."""
    graph = build(name, images)
    checks = check_kernels(graph, set_up(Settings(cache=False)), random_inputs(graph))
    assert checks
    assert all(check.comparison.within for check in checks), checks
