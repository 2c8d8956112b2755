"""Nest kernels (convolutions, products, pools, pointwise) against float64: odd sizes, every window."""

import numpy as np
import pytest
from region_runs import check, graph_of, planned, random_inputs, run_regions

from onepass.core.dtypes import F16, F64, I32
from onepass.core.tensor import TensorType
from onepass.forms.choose import choose_schedule
from onepass.graph.layout import Layout
from onepass.loops.printer import print_kernel


def normal(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def conv_attrs(rank, kernel, **given):
    attrs = {
        "kernel_shape": kernel,
        "strides": (1,) * rank,
        "dilations": (1,) * rank,
        "pads": (0,) * (2 * rank),
    }
    return {**attrs, "group": 1, **given}


CONVOLUTIONS = {
    "7x7 image, 5 to 7 channels": ((1, 5, 7, 7), 7, {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
    "13x17 image, batch 2": ((2, 3, 13, 17), 5, {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
    "stride 2, asymmetric pads": (
        (1, 4, 7, 9),
        6,
        {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (0, 1, 1, 0)},
    ),
    "dilation": ((1, 4, 9, 9), 4, {"kernel_shape": (3, 3), "dilations": (2, 2), "pads": (2, 2, 2, 2)}),
    "groups": ((1, 6, 5, 6), 9, {"kernel_shape": (3, 2), "group": 3}),
    "wide groups": ((1, 10, 5, 6), 20, {"kernel_shape": (1, 1), "group": 2}),
    "depthwise": (
        (1, 9, 7, 8),
        9,
        {"kernel_shape": (3, 3), "group": 9, "pads": (1, 1, 1, 1), "strides": (2, 1)},
    ),
    "depthwise, two outputs a channel": ((1, 5, 6, 6), 10, {"kernel_shape": (3, 3), "group": 5}),
    "pointwise": ((1, 19, 5, 5), 21, {"kernel_shape": (1, 1)}),
    "pointwise, one channel over": ((1, 17, 5, 5), 17, {"kernel_shape": (1, 1)}),
    "pointwise in groups, padded": (
        (1, 32, 9, 4), 192, {"kernel_shape": (1, 1), "pads": (1, 1, 1, 1), "group": 2}
    ),
    "many channels to one": ((1, 17, 5, 6), 1, {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
    "1-D": ((2, 5, 19), 6, {"kernel_shape": (5,), "pads": (2, 1), "strides": (2,)}),
    "3-D": ((1, 3, 4, 5, 6), 5, {"kernel_shape": (2, 3, 1), "pads": (1, 0, 0, 0, 1, 0)}),
    "window larger than the image": ((1, 3, 2, 2), 5, {"kernel_shape": (5, 5), "pads": (2, 2, 2, 2)}),
}


def convolution(case, tail=()):
    shape, out, given = CONVOLUTIONS[case]
    attrs = conv_attrs(len(shape) - 2, **{"kernel": given["kernel_shape"], **given})
    weights = normal(out, shape[1] // attrs["group"], *attrs["kernel_shape"])
    nodes = [("conv", "x w b", attrs), *tail]
    return graph_of({"x": shape}, *nodes, constants={"w": weights, "b": normal(out, seed=2)})


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution(case):
    check(convolution(case), fuse=("none",))


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution_between_blocked_and_bordered_values(case):
    """A second convolution and an epilogue: the value between has a block, a border, and unused lanes."""
    shape, out, given = CONVOLUTIONS[case]
    rank = len(shape) - 2
    attrs = conv_attrs(rank, (3,) * rank, pads=(1,) * (2 * rank))
    first = conv_attrs(rank, **{"kernel": given["kernel_shape"], **given})
    constants = {"w": normal(out, shape[1] // first["group"], *first["kernel_shape"]) / 4,
                 "u": normal(3, out, *(3,) * rank, seed=3) / 4, "b": normal(3, seed=4)}  # fmt: skip
    graph = graph_of(
        {"x": shape}, ("conv", "x w", first), ("relu", "v0", {}), ("conv", "v1 u b", attrs),
        ("sigmoid", "v2", {}), constants=constants,
    )  # fmt: skip
    check(graph, modes=("native",))


@pytest.mark.parametrize(
    "layout", [Layout(), Layout(4), Layout(1, ((1, 2), (2, 1))), Layout(4, ((1, 1), (1, 1)))]
)
def test_layouts_in_and_out(layout):
    """The same convolution from and to each layout."""
    attrs = conv_attrs(2, (3, 3), pads=(1, 1, 1, 1))
    graph = graph_of(
        {"x": (2, 6, 5, 6)}, ("relu", "x", {}), ("conv", "v0 w", attrs), ("tanh", "v1", {}),
        ("neg", "v2", {}), constants={"w": normal(7, 6, 3, 3)},
    )  # fmt: skip
    check(graph, layouts=lambda lanes: {"v0": layout, "v1": layout, "v2": layout}, modes=("interpreted",))


def test_batch_norm_relu_and_residual_follow_in_registers():
    statistics = {name: np.abs(normal(6, seed=k)) + 0.5 for k, name in enumerate("smv")}
    graph = graph_of(
        {"x": (1, 6, 7, 7)},
        ("conv", "x w", conv_attrs(2, (3, 3), pads=(1, 1, 1, 1))),
        ("batch_normalization", "v0 s t m v", {"epsilon": 1e-5}),
        ("add", "v1 x", {}),
        ("relu", "v2", {}),
        constants={"w": normal(6, 6, 3, 3), "t": normal(6), **statistics},
    )
    check(graph)
    _, kernels = run_regions(graph, random_inputs(graph), "all")
    assert len(kernels) == 2  # the input is copied into its border, and one kernel does the rest


# Channels that are no multiple of the lanes, on sizes that are none of the tiles.
@pytest.mark.parametrize("size", [(7, 7), (13, 17), (5, 3)])
@pytest.mark.parametrize(("channels", "out", "given"), [
    (37, 1, {"pads": (1, 1, 1, 1)}), (40, 3, {"pads": (1, 1, 1, 1)}), (19, 2, {}),
    (33, 4, {"strides": (2, 1), "pads": (1, 0, 2, 1)}), (35, 70, {"pads": (1, 1, 1, 1)}),
    (35, 70, {"strides": (2, 2), "pads": (1, 1, 1, 1)}), (21, 70, {"kernel_shape": (1, 1)}),
])  # fmt: skip
def test_convolution_within_a_network(size, channels, out, given):
    """A convolution reads what another has written, in blocks: wide and narrow ones, flat tiles and rows."""
    attrs = conv_attrs(2, (3, 3), **{"kernel_shape": (3, 3), **given})
    graph = graph_of(
        {"x": (2, 5, *size)}, ("conv", "x u", conv_attrs(2, (1, 1))), ("conv", "v0 w b", attrs),
        ("sigmoid", "v1", {}),
        constants={"u": normal(channels, 5, 1, 1), "w": normal(out, channels, *attrs["kernel_shape"]),
                   "b": normal(out)},
    )  # fmt: skip
    check(graph, length=channels * 9, modes=("native",))


@pytest.mark.parametrize(("size", "given"), [
    ((7, 7), {"pads": (1, 1, 1, 1)}), ((5, 3), {"pads": (1, 1, 1, 1)}), ((14, 14), {"pads": (0, 2, 2, 0)}),
    ((11, 13), {"pads": (1, 1, 1, 1)}), ((14, 14), {"strides": (2, 2), "pads": (0, 1, 1, 0)}),
    ((9, 7), {"dilations": (2, 2)}),
])  # fmt: skip
def test_slices_of_a_reduction_add_up_to_the_same_bits(size, given, monkeypatch):
    """Where the weights are much for a cache all tiles pass a slice of them; their sums wait meanwhile."""
    attrs = conv_attrs(2, (3, 3), **given)
    graph = graph_of(
        {"x": (1, 5, *size)}, ("conv", "x u", conv_attrs(2, (1, 1))), ("conv", "v0 w b", attrs),
        ("relu", "v1", {}),
        constants={"u": normal(64, 5, 1, 1), "w": normal(512, 64, 3, 3), "b": normal(512)},
    )  # fmt: skip
    check(graph, length=64 * 9, modes=("native",), fuse=("all",))
    inputs = random_inputs(graph)
    sliced, kernels = run_regions(graph, inputs, "all", 16, True)
    assert any(" slice in range(4):" in print_kernel(kernel) for kernel in kernels)
    monkeypatch.setattr("onepass.forms.choose._depth", lambda *_: 0)
    whole, kernels = run_regions(graph, inputs, "all", 16, True)
    assert not any("slice" in print_kernel(kernel) for kernel in kernels)
    np.testing.assert_array_equal(sliced["v2"], whole["v2"])


@pytest.mark.parametrize("rows", [(40,), (7, 7), (3, 5), (2, 3, 5)])
def test_slices_of_a_matrix_product(rows):
    """Rows of one axis, or of two short ones that share a tile."""
    constants = {"w": normal(1008, 384) / 32, "b": normal(384)}
    graph = graph_of({"x": (*rows, 1008)}, ("matmul", "x w", {}), ("add", "v0 b", {}), constants=constants)
    check(graph, length=1008, modes=("native",), fuse=("all",))
    _, kernels = run_regions(graph, random_inputs(graph), "all", 16, True)
    assert any(" slice in range(" in print_kernel(kernel) for kernel in kernels)


@pytest.mark.parametrize("width", [16, 32])
def test_groups_of_whole_blocks(width):
    """Groups as wide as blocks of lanes stay blocked, and read their own blocks only."""
    attrs = conv_attrs(2, (3, 3), pads=(1, 1, 1, 1), group=2)
    graph = graph_of(
        {"x": (1, 3, 7, 13)}, ("conv", "x u", conv_attrs(2, (1, 1))), ("conv", "v0 w", attrs),
        ("relu", "v1", {}),
        constants={"u": normal(32, 3, 1, 1), "w": normal(2 * width, 16, 3, 3)},
    )  # fmt: skip
    check(graph, length=144, modes=("native",))


def test_narrow_convolution_keeps_nan_where_it_is():
    """Lanes past the last channel hold NaN and reach no sum; a NaN of the image reaches its window only."""
    image = normal(1, 3, 9, 21)
    image[0, 1, 4, 7] = np.nan
    graph = graph_of(
        {"x": image.shape}, ("conv", "x u", conv_attrs(2, (1, 1))),
        ("conv", "v0 w", conv_attrs(2, (3, 3), pads=(1, 1, 1, 1))),
        constants={"u": normal(19, 3, 1, 1), "w": normal(1, 19, 3, 3)},
    )  # fmt: skip
    found, _ = run_regions(graph, {"x": image}, lanes=16, native=True)
    wrong = np.isnan(found["v1"][0, 0])
    assert wrong[3:6, 6:9].all() and wrong.sum() == 9


@pytest.mark.parametrize("attrs", [
    {"strides": (2, 2), "pads": (1, 1, 1, 1)}, {"strides": (2, 2), "kernel_shape": (2, 2)},
    {"strides": (2, 2), "kernel_shape": (4, 4), "pads": (1, 1, 1, 1)},
    {"strides": (3, 2), "pads": (0, 0, 1, 0), "group": 2},
    {"strides": (1, 2), "pads": (0, 0, 0, 0), "dilations": (2, 1)},
])  # fmt: skip
def test_transposed_convolution(attrs):
    attrs = conv_attrs(2, (3, 3), **{"kernel_shape": (3, 3), **attrs})
    for out, modes in ((3, ("interpreted", "native")), (21, ("native",))):
        weights = {"w": normal(4, out, *attrs["kernel_shape"])}
        check(graph_of({"x": (1, 4, 5, 4)}, ("conv_transpose", "x w", attrs), constants=weights), modes=modes)


def test_transposed_convolution_to_few_channels():
    """Vectors run along the channels of the blocked input, also where places a stride apart differ."""
    attrs = conv_attrs(2, (2, 2), strides=(2, 2))
    graph = graph_of(
        {"x": (1, 3, 5, 9)}, ("conv", "x u", conv_attrs(2, (1, 1))), ("conv_transpose", "v0 w", attrs),
        ("sigmoid", "v1", {}),
        constants={"u": normal(20, 3, 1, 1), "w": normal(20, 2, 2, 2)},
    )  # fmt: skip
    check(graph, length=20, modes=("native",))
    _, kernels = run_regions(graph, random_inputs(graph), "all", 16, True)
    (narrow,) = (text for text in map(print_kernel, kernels) if "phase3" in text)
    assert "vector for lane in range(1):" not in narrow


@pytest.mark.parametrize("parts,lanes", [((24, 24), 8), ((20, 16), 4), ((24, 19, 8), 0)])
def test_concatenation_within_blocks(parts, lanes):
    """Joints within a block of 16: vectors of the largest part that none cuts; plain if that is under 4."""
    constants = {f"u{k}": normal(size, 3, 1, 1) for k, size in enumerate(parts)}
    convolutions = [("conv", f"x u{k}", conv_attrs(2, (1, 1))) for k in range(len(parts))]
    names = " ".join(f"v{k}" for k in range(len(parts)))
    last = ("conv", f"v{len(parts)} w", conv_attrs(2, (3, 3), pads=(1, 1, 1, 1)))
    constants["w"] = normal(16, sum(parts), 3, 3)
    nodes = (*convolutions, ("concat", names, {"axis": 1}), last)
    graph = graph_of({"x": (1, 3, 5, 9)}, *nodes, constants=constants)
    check(graph, length=9 * sum(parts), modes=("native",))
    _, kernels = run_regions(graph, random_inputs(graph), "none", 16, True)
    (joined,) = (text for text in map(print_kernel, kernels) if "select" in text)
    assert not lanes or f"vector for lane in range({lanes}):" in joined


@pytest.mark.parametrize("op", ["max_pool", "average_pool"])
@pytest.mark.parametrize("given", [
    {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
    {"kernel_shape": (2, 3), "strides": (2, 2), "pads": (0, 0, 1, 1), "ceil_mode": 1, "count_include_pad": 1},
    {"kernel_shape": (3, 2), "dilations": (2, 1)},
])  # fmt: skip
def test_pool_of_blocked_and_plain(op, given):
    attrs = {**conv_attrs(2, (3, 3)), **given}
    del attrs["group"]
    weights = {"w": normal(6, 3, 1, 1)}
    check(graph_of({"x": (2, 3, 7, 9)}, (op, "x", attrs)), fuse=("none",))
    check(
        graph_of(
            {"x": (1, 3, 9, 7)}, ("conv", "x w", conv_attrs(2, (1, 1))), (op, "v0", attrs), constants=weights
        )
    )


PRODUCTS = [((5, 7), (7, 9)), ((3, 1, 17), (3, 17, 33)), ((7,), (7, 5)), ((4, 7), (7,)), ((7,), (7,)),
            ((1, 33), (33, 1)), ((2, 3, 5, 4), (3, 4, 2)), ((3, 0), (0, 4))]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), PRODUCTS)
@pytest.mark.parametrize("constant", [False, True])
def test_matrix_product(a, b, constant):
    constants = {"y": normal(*b)} if constant else {}
    inputs = {"x": a} if constant else {"x": a, "y": b}
    check(graph_of(inputs, ("matmul", "x y", {}), ("gelu", "v0", {}), constants=constants))


@pytest.mark.parametrize("dtype", [F16, F64, I32])
def test_other_dtypes(dtype):
    kinds = {"x": TensorType(dtype, (3, 19)), "y": TensorType(dtype, (19, 5))}
    check(graph_of(kinds, ("matmul", "x y", {}), ("add", "v0 v0", {})), modes=("native",))


POINTWISE = {
    "a scalar": ((), [("exp", "x", {})]),
    "one element": ((1, 1), [("exp", "x", {})]),
    "odd row": ((37,), [("sigmoid", "x", {}), ("mul", "v0 x", {})]),
    "transpose": ((3, 5, 7), [("transpose", "x", {"perm": (2, 0, 1)}), ("relu", "v0", {})]),
    "transpose, long": ((19, 21), [("tanh", "x", {}), ("transpose", "v0", {"perm": (1, 0)})]),
    "reshape": ((6, 35), [("reshape", "x", {"shape": (2, 3, 5, 7)}), ("abs", "v0", {})]),
    "broadcast": ((4, 1, 5), [("expand", "x", {"shape": (4, 3, 5)}), ("add", "v0 x", {})]),
    "concat": ((2, 5, 3), [("relu", "x", {}), ("concat", "x v0 x", {"axis": 1}), ("neg", "v1", {})]),
    "backward slice": (
        (5, 17), [("slice", "x", {"starts": (15,), "ends": (0,), "axes": (1,), "steps": (-3,)})],
    ),
    "pad and crop": ((4, 6), [("pad", "x", {"pads": (1, -1, -2, 3), "mode": "constant", "value": 2.5})]),
    "depth to space": ((1, 8, 3, 5), [("depth_to_space", "x", {"blocksize": 2, "mode": "CRD"})]),
    "empty": ((0, 7), [("exp", "x", {}), ("concat", "v0 x", {"axis": 0})]),
}  # fmt: skip


@pytest.mark.parametrize("case", POINTWISE)
def test_pointwise(case):
    shape, nodes = POINTWISE[case]
    check(graph_of({"x": shape}, *nodes))


def test_gather_through_a_concat():
    graph = graph_of(
        {"x": (3, 7)}, ("gather", "x i", {"axis": 1}), ("concat", "x v0", {"axis": 1}), ("abs", "v1", {}),
        constants={"i": np.array([6, -7, 2, 2], np.int64)},
    )  # fmt: skip
    check(graph)


def test_empty_batch():
    graph = graph_of(
        {"x": (0, 3, 7, 7)}, ("conv", "x w", conv_attrs(2, (3, 3))), ("relu", "v0", {}),
        ("global_average_pool", "v1", {}), constants={"w": normal(5, 3, 3, 3)},
    )  # fmt: skip
    check(graph)


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-40, 3e38, -3e38] * 2, np.float32)


@pytest.mark.parametrize("op", ["relu", "neg", "abs", "sqrt", "sigmoid", "tanh", "identity", "sign", "floor"])
def test_special_values_keep_nan_infinity_and_the_sign_of_zero(op):
    graph = graph_of({"x": SPECIAL.shape}, (op, "x", {}))
    check(graph, {"x": SPECIAL})
    with np.errstate(all="ignore"):
        want = graph.nodes[0].opdef.reference([SPECIAL], {})[0]
    found, _ = run_regions(graph, {"x": SPECIAL}, lanes=16, native=True)
    zeros = (want == 0) & (op != "relu")  # max(-0, 0) may be either zero
    np.testing.assert_array_equal(np.signbit(found["v0"][zeros]), np.signbit(want[zeros]))


def test_nan_and_infinity_in_a_padded_convolution_stay_where_they_are():
    """The border is zero times a weight; a lane beyond the last channel must not reach another."""
    image = normal(1, 5, 6, 7)
    image[0, 1, 2, 3], image[0, 4, 0, 0] = np.nan, np.inf
    graph = graph_of(
        {"x": image.shape}, ("conv", "x w", conv_attrs(2, (3, 3), pads=(1, 1, 1, 1))), ("relu", "v0", {}),
        constants={"w": normal(6, 5, 3, 3)},
    )  # fmt: skip
    check(graph, {"x": image})
    found, _ = run_regions(graph, {"x": image}, "all", 16, True)
    assert np.isnan(found["v1"][0, :, 1:4, 2:5]).all()
    assert np.isfinite(found["v1"][0, :, 4:, :]).all()


def test_transposing_kernels_tile_along_what_they_read():
    """The tile's axis is the one that the input holds contiguously."""
    graph = graph_of({"x": (1, 6, 6, 32)}, ("transpose", "x", {"perm": (0, 3, 1, 2)}))
    _, made = planned(graph, "none", 4)
    assert made.shaped[0].form == "pointwise"
    check(graph)


def test_a_pool_of_a_constant_pads_with_minus_infinity():
    """Packed constants hold zeros outside; this window wants another value there."""
    attrs = {"kernel_shape": (3,), "strides": (1,), "dilations": (1,), "pads": (1, 1)}
    constant = -1 - np.abs(normal(1, 1, 8))
    nodes = [("max_pool", "c", attrs), ("add", "v0 x", {})]
    check(graph_of({"x": (1, 1, 8)}, *nodes, constants={"c": constant}, outputs=("v0", "v1")))


@pytest.mark.parametrize(("channels", "size"), [(40, (13, 17)), (16, (7, 7)), (21, (5, 9))])
def test_channels_moved_from_the_end_come_in_blocks_where_a_window_reads_them(channels, size):
    """As in ConvNeXt: products with channels last between depthwise convolutions, and a residual."""
    attrs = {"kernel_shape": (7, 7), "strides": (1, 1), "dilations": (1, 1), "pads": (3,) * 4}
    depthwise = {**attrs, "group": channels}
    graph = graph_of(
        {"x": (1, *size, channels)}, ("transpose", "x", {"perm": (0, 3, 1, 2)}), ("conv", "v0 w", depthwise),
        ("transpose", "v1", {"perm": (0, 2, 3, 1)}), ("matmul", "v2 m", {}), ("gelu", "v3", {}),
        ("transpose", "v4", {"perm": (0, 3, 1, 2)}), ("add", "v5 v0", {}), ("conv", "v6 w", depthwise),
        constants={"w": normal(channels, 1, 7, 7) / 7, "m": normal(channels, channels) / 6},
    )  # fmt: skip
    check(graph, fuse=("none", "auto", "all"), modes=("native",))
    layouts = planned(graph, lanes=16)[0].layouts
    assert {layouts[name].block for name in ("v0", "v1", "v5", "v6")} == {16}
    assert {layouts[name].block for name in ("v2", "v3", "v4")} == {1}


@pytest.mark.parametrize(("rows", "columns", "whole"), [(13, 35, True), (1, 7, False), (7, 129, False)])
def test_pointwise_kernels_walk_along_rows_where_there_are_enough(rows, columns, whole):
    """Columns 4 KiB apart fall into the same sets of a cache; a row is read in order."""
    graph = graph_of({"x": (rows, columns)}, ("exp", "x", {}), ("mul", "v0 x", {}))
    check(graph)
    context, made = planned(graph, "all", lanes=16)
    schedule = choose_schedule(made.shaped[0].body, context.graph, context.layouts, context.machine)
    assert schedule.whole == whole
