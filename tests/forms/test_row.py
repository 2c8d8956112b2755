"""Row kernels (softmax, normalisations, reductions) against float64: rows, columns, blocks, long sums."""

import numpy as np
import pytest
from region_runs import check, graph_of, machine, run_regions

from onepass.core.dtypes import F64, I32
from onepass.core.tensor import TensorType
from onepass.forms.body import join
from onepass.forms.nest import FormMismatch
from onepass.forms.regions import Context, form_of, shape_region
from onepass.loops.printer import print_kernel


def normal(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


SHAPES = [(5, 37), (3, 4, 1), (2, 19, 5, 4), (1, 1), (2, 33)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax_along_every_axis(op, shape):
    for axis in range(len(shape)):
        check(graph_of({"x": shape}, (op, "x", {"axis": axis})))


@pytest.mark.parametrize("op", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_l2",
                                "reduce_prod", "reduce_sum_square",
                                "reduce_l1"])  # fmt: skip
@pytest.mark.parametrize("axes", [(3,), (1,), (2, 3), (0, 2), (0, 1, 2, 3)])
def test_reductions(op, axes):
    for keepdims in (0, 1):
        check(graph_of({"x": (2, 5, 3, 7)}, (op, "x", {"axes": axes, "keepdims": keepdims})), fuse=("none",))


@pytest.mark.parametrize("op", ["reduce_sum", "reduce_max", "reduce_prod", "arg_max", "arg_min"])
def test_integers_are_exact(op):
    attrs = {"axis": 1, "keepdims": 0} if op.startswith("arg") else {"axes": (1,), "keepdims": 0}
    check(graph_of({"x": TensorType(I32, (3, 19))}, (op, "x", attrs)))


def test_reduction_over_nothing_gives_the_neutral_element():
    for op in ("reduce_sum", "reduce_prod"):
        check(graph_of({"x": (3, 0)}, (op, "x", {"axes": (1,), "keepdims": 0})))
    check(graph_of({"x": (0, 3)}, ("softmax", "x", {"axis": 1})))


def test_float64():
    check(graph_of({"x": TensorType(F64, (3, 21))}, ("softmax", "x", {"axis": 1})), modes=("native",))


@pytest.mark.parametrize("shape", [(3, 37), (2, 4, 16), (1, 5, 1)])
def test_normalisations_with_what_surrounds_them(shape):
    constants = {"s": normal(shape[-1]), "b": normal(shape[-1], seed=2)}
    graph = graph_of(
        {"x": shape},
        ("add", "x x", {}),
        ("layer_normalization", "v0 s b", {"axis": -1, "epsilon": 1e-5}),
        ("gelu", "v1", {}),
        ("sigmoid", "v2", {}),
        ("softmax", "v3", {"axis": -1}),
        ("mul", "v4 x", {}),
        constants=constants,
    )
    check(graph)
    _, kernels = run_regions(graph, {"x": normal(*shape)}, "all")
    assert len(kernels) == 1


@pytest.mark.parametrize("op", ["instance_normalization", "group_normalization"])
def test_other_normalisations(op):
    attrs = {"num_groups": 3} if op == "group_normalization" else {"epsilon": 1e-5}
    constants = {"s": normal(6), "b": normal(6, seed=2)}
    check(graph_of({"x": (2, 6, 5, 3)}, (op, "x s b", attrs), constants=constants))


def test_means_of_blocked_channels():
    attrs = {"kernel_shape": (1, 1), "strides": (1, 1), "dilations": (1, 1), "pads": (0,) * 4, "group": 1}
    graph = graph_of(
        {"x": (2, 3, 5, 4)}, ("conv", "x w", attrs), ("global_average_pool", "v0", {}), ("sigmoid", "v1", {}),
        ("mul", "v0 v2", {}), constants={"w": normal(19, 3, 1, 1)},
    )  # fmt: skip
    check(graph)


def test_a_costly_stage_of_another_row_is_computed_for_that_row():
    """exp is read at [i, j] for the sum and at [0, j] for the output: what is kept is one row's."""
    graph = graph_of(
        {"x": (3, 9)},
        ("exp", "x", {}),
        ("reduce_sum", "v0", {"axes": (1,), "keepdims": 1}),
        ("slice", "v0", {"starts": (0,), "ends": (1,), "axes": (0,), "steps": (1,)}),
        ("div", "v2 v1", {}),
    )
    check(graph)


def test_long_sums_are_taken_in_stretches():
    ones = np.full((1, 1 << 18), 0.1, np.float32)
    graph = graph_of({"x": ones.shape}, ("reduce_sum", "x", {"axes": (1,), "keepdims": 0}))
    found, _ = run_regions(graph, {"x": ones}, native=True, lanes=16)
    exact = float(ones.astype(np.float64).sum())
    assert abs(float(found["v0"][0]) - exact) <= 2e-6 * exact


def test_nan_and_infinity_in_rows():
    rows = normal(4, 21)
    rows[0, 3], rows[1, 5], rows[2, 7] = np.nan, np.inf, -np.inf
    check(graph_of({"x": rows.shape}, ("softmax", "x", {"axis": 1})), {"x": rows})
    check(graph_of({"x": rows.shape}, ("reduce_max", "x", {"axes": (1,), "keepdims": 0})), {"x": rows})
    empty = np.full((2, 5), -np.inf, np.float32)
    check(graph_of({"x": empty.shape}, ("log_softmax", "x", {"axis": 1})), {"x": empty})


def test_forms():
    window = {"kernel_shape": (3,), "strides": (1,), "dilations": (1,), "pads": (0, 0)}
    matmul = ("matmul", "x x", {})
    cases = {
        "pointwise": [("relu", "x", {})], "contraction": [matmul], "window": [("max_pool", "x", window)],
        "row": [("reduce_sum_square", "x", {"axes": (1,), "keepdims": 0})],
    }  # fmt: skip
    for form, nodes in cases.items():
        graph = graph_of({"x": (3, 4, 4)}, *nodes)
        assert form_of(join(graph, graph.nodes, graph.outputs, frozenset())) == form


def test_what_has_no_form_says_why():
    graph = graph_of({"x": (4, 4)}, ("matmul", "x x", {}), ("softmax", "v0", {"axis": 1}))
    context = Context(graph, {}, machine(), 2, frozenset())
    with pytest.raises(FormMismatch, match="a product and another reduction"):
        shape_region(context, graph.nodes, graph.outputs)
    graph = graph_of({"x": (4, 4)}, ("softmax", "x", {"axis": 1}), ("softmax", "v0", {"axis": 0}))
    with pytest.raises(FormMismatch, match=r"along another axis|several places"):
        shape_region(Context(graph, {}, machine(), 2, frozenset()), graph.nodes, graph.outputs)
    graph = graph_of(
        {"x": (4, 5)}, ("relu", "x", {}), ("transpose", "v0", {"perm": (1, 0)}), outputs=("v0", "v1")
    )
    with pytest.raises(FormMismatch, match="outputs of different shapes"):
        shape_region(Context(graph, {}, machine(), 2, frozenset()), graph.nodes, graph.outputs)


@pytest.mark.parametrize(("width", "pieces"), [(37, 3), (9000, 0)])
def test_the_next_row_is_asked_for_while_a_short_one_is_first_read(width, pieces):
    graph = graph_of({"x": (5, width)}, ("softmax", "x", {"axis": 1}))
    context = Context(graph, {}, machine(), 2, frozenset())
    text = print_kernel(shape_region(context, graph.nodes, ("v0",)).built.kernel)
    first, *others = text.split("total0[")
    assert first.count("prefetch p0[i0 + 1, ") == pieces
    assert not any("prefetch" in other for other in others)


@pytest.mark.parametrize("size", [(5, 3), (1, 1), (4, 9)])
def test_a_group_is_summed_once_and_not_for_each_of_its_channels(size):
    graph = graph_of(
        {"x": (2, 6, *size)},
        ("group_normalization", "x s b", {"num_groups": 2}),
        ("sigmoid", "v0", {}),
        ("mul", "v0 v1", {}),
        constants={"s": normal(6), "b": normal(6, seed=2)},
    )
    check(graph)
    context = Context(graph, {}, machine(), 2, frozenset())
    kernel = shape_region(context, graph.nodes, ("v2",)).built.kernel
    assert kernel.body[0].stop.value == 2 * 2
