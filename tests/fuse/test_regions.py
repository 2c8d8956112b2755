"""Fused graphs give the right numbers where optimisers go wrong: readers, residuals, outputs, cycles."""

import numpy as np
import pytest
from region_runs import check, graph_of, planned, random_inputs, run_regions


def normal(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


CONV = {"kernel_shape": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1,) * 4, "group": 1}
IMAGE = (1, 5, 6, 7)


def conv(x, weights="w"):
    return ("conv", f"{x} {weights}", CONV)


GRAPHS = {
    "residual read again after the add": [
        ("relu", "x", {}), conv("v0"), ("add", "v1 v0", {}), ("relu", "v2", {}), conv("v3"),
        ("sub", "v4 v0", {}),
    ],
    "shared weights": [conv("x"), ("relu", "v0", {}), conv("v1"), ("tanh", "v2", {}), ("add", "v3 v1", {})],
    "three readers": [
        ("sigmoid", "x", {}), ("neg", "v0", {}), ("reduce_mean", "v0", {"axes": (2, 3), "keepdims": 1}),
        ("transpose", "v0", {"perm": (0, 2, 3, 1)}), ("mul", "v1 v2", {}),
    ],
    "a cycle through a product": [
        ("relu", "x", {}), conv("v0"), ("softmax", "v1", {"axis": 1}), ("add", "v0 v2", {}),
    ],
    "diamond": [
        ("exp", "x", {}), ("neg", "v0", {}), ("abs", "v0", {}), ("add", "v1 v2", {}), ("add", "v3 v0", {}),
    ],
    "the same value twice": [("relu", "x", {}), ("mul", "v0 v0", {}), ("concat", "v1 v1", {"axis": 1})],
    "normalised twice": [
        ("softmax", "x", {"axis": 3}), ("reduce_sum", "v0", {"axes": (3,), "keepdims": 1}),
        ("div", "v0 v1", {}), ("softmax", "v2", {"axis": 3}),
    ],
}  # fmt: skip


def build(name, outputs=None):
    return graph_of({"x": IMAGE}, *GRAPHS[name], constants={"w": normal(5, 5, 3, 3) / 5}, outputs=outputs)


@pytest.mark.parametrize("name", GRAPHS)
def test_none_auto_and_all_agree_with_the_oracle(name):
    check(build(name), fuse=("none", "auto", "all"), modes=("native",))


@pytest.mark.parametrize("name", GRAPHS)
def test_every_value_may_be_an_output(name):
    """Outputs in the middle of a region are written, and the region stays right."""
    values = tuple(f"v{k}" for k in range(len(GRAPHS[name])))
    check(build(name, values), fuse=("all",), modes=("native",))


@pytest.mark.parametrize("name", GRAPHS)
def test_each_merge_alone(name):
    for limit in range(4):
        check(build(name), fuse=(f"limit={limit}",), modes=("native",))


def test_a_view_of_an_output_keeps_both():
    graph = graph_of(
        {"x": (4, 6)}, ("relu", "x", {}), ("reshape", "v0", {"shape": (24,)}), ("exp", "v1", {}),
        outputs=("v0", "v1", "v2"),
    )  # fmt: skip
    check(graph, fuse=("none", "auto", "all"))


def test_outputs_that_are_inputs_and_constants():
    graph = graph_of({"x": (3, 4)}, ("identity", "x", {}), ("add", "x c", {}), constants={"c": normal(3, 4)},
                     outputs=("v0", "v1"))  # fmt: skip
    check(graph)


def test_fused_kernels_do_not_write_what_stays_inside():
    graph = build("diamond")
    _, made = planned(graph, "all")
    assert [region.outputs for region in made.plan.regions] == [("v4",)]
    _, kernels = run_regions(graph, random_inputs(graph), "all")
    assert [len(kernel.params) for kernel in kernels] == [2]


def test_cheap_producers_are_computed_for_each_reader_or_kept_once():
    """Whatever the price says, each reader sees the same value."""
    shape = (64, 96)
    graph = graph_of(
        {"x": shape}, ("relu", "x", {}), ("reduce_sum", "v0", {"axes": (1,), "keepdims": 0}),
        ("reduce_sum", "v0", {"axes": (0,), "keepdims": 0}), ("transpose", "v0", {"perm": (1, 0)}),
        outputs=("v1", "v2", "v3"),
    )  # fmt: skip
    check(graph, fuse=("none", "auto", "all"), modes=("native",))
