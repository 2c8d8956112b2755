"""Chains of nests that run row by row, against float64 and against the same members one after another."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from region_runs import check, graph_of, planned, random_inputs, run_regions

from onepass.core.dtypes import F64
from onepass.core.tensor import TensorType
from onepass.core.tolerance import compare
from onepass.fuse.rules import REASONS
from onepass.graph.interpret import evaluate


def normal(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Chain:
    """A graph of members in a row, each of which reads the one before; the first reads a copy of `x`."""

    def __init__(self, channels, height, width, batch=1):
        self.inputs = {"x": (batch, channels, height, width)}
        self.channels, self.nodes, self.constants, self.last = channels, [], {}, "x"

    def then(self, op, names="", **attrs):
        self.nodes.append((op, f"{self.last} {names}", attrs))
        self.last = f"v{len(self.nodes) - 1}"
        return self

    def conv(self, out, kernel=(3, 3), pads=(1, 1, 1, 1), strides=(1, 1), dilations=(1, 1), group=1):
        name, window = f"w{len(self.nodes)}", self.channels // group * kernel[0] * kernel[1]
        weights = normal(out, self.channels // group, *kernel, seed=len(self.nodes)) / np.sqrt(window)
        self.constants[name], self.channels = weights.astype(np.float32), out
        return self.then("conv", name, kernel_shape=kernel, pads=pads, strides=strides, dilations=dilations,
                         group=group)  # fmt: skip

    def depthwise(self, **given):
        return self.conv(self.channels, group=self.channels, **given)

    def transposed(self, out, strides=(1, 1)):
        self.constants[f"w{len(self.nodes)}"] = normal(self.channels, out, 3, 3) / 4
        self.channels = out
        return self.then("conv_transpose", f"w{len(self.nodes)}", kernel_shape=(3, 3), pads=(1,) * 4,
                         strides=strides, dilations=(1, 1), group=1)  # fmt: skip

    def pool(self, op="max_pool", kernel=(3, 3), pads=(0, 0, 0, 0), strides=(2, 2), **given):
        return self.then(op, kernel_shape=kernel, pads=pads, strides=strides, dilations=(1, 1), **given)

    def end(self):
        """A sum over the image, so that the last member's value has a block too."""
        return self.then("reduce_sum", axes=(2, 3), keepdims=0)

    def graph(self, outputs=None):
        return graph_of(self.inputs, *self.nodes, constants=self.constants, outputs=outputs)


def chains(graph, lanes=4, fuse="all"):
    """The members of each chain in the plan of `graph`."""
    _, made = planned(graph, fuse, lanes)
    return [len(shaped.chain.bodies) for shaped in made.shaped if shaped is not None and shaped.chain]


def runs_like_its_members(chain, members):
    """It is one chain of so many members, for every width of vectors, and gives the very same bits."""
    graph = chain.end().graph()
    inputs = random_inputs(graph)
    for lanes in (4, 8, 16):
        assert chains(graph, lanes) == [members]
        together, kernels = run_regions(graph, inputs, "all", lanes, native=True)
        apart, more = run_regions(graph, inputs, "none", lanes, native=True)
        assert len(kernels) < len(more)
        for name in graph.outputs:
            np.testing.assert_array_equal(together[name], apart[name])
    check(graph, fuse=("all",), modes=("native",))


CHAINS = {
    "3x3 twice": (lambda: Chain(5, 9, 8).conv(10).then("relu").conv(11), 2),
    "7x7": (lambda: Chain(4, 7, 7).conv(12).conv(8), 2),
    "13x17, batch 3": (lambda: Chain(3, 13, 17, batch=3).conv(10).then("relu").conv(9), 2),
    "fewer rows than workers": (lambda: Chain(4, 1, 9).conv(9).conv(10), 2),
    "two rows": (lambda: Chain(4, 2, 5).conv(9).conv(10), 2),
    "more channels than lanes": (lambda: Chain(9, 6, 6).conv(19).conv(21), 2),
    "stride 2 last": (lambda: Chain(4, 11, 9).conv(10).conv(9, strides=(2, 2)), 2),
    "stride 2 first": (lambda: Chain(4, 11, 9).conv(10, strides=(2, 2)).conv(9), 2),
    "strides 2 and 2": (
        lambda: Chain(4, 15, 9).conv(10).conv(9, strides=(2, 1)).conv(8, strides=(2, 2)), 3),
    "asymmetric pads": (
        lambda: Chain(4, 8, 7).conv(10, pads=(0, 1, 1, 0)).conv(9, pads=(2, 0, 0, 1))
        .conv(8, pads=(0, 0, 1, 1)), 3),
    "no pads": (lambda: Chain(4, 9, 9).conv(10, pads=(0,) * 4).conv(9, pads=(0,) * 4), 2),
    "dilation": (
        lambda: Chain(4, 11, 9).conv(10).conv(9, dilations=(2, 3), pads=(2, 3, 2, 3)), 2),
    "window larger than the image": (
        lambda: Chain(4, 3, 3).conv(10).conv(9, kernel=(5, 5), pads=(2,) * 4), 2),
    "5x1 and 1x5": (
        lambda: Chain(4, 9, 8).conv(10, kernel=(5, 1), pads=(2, 0, 2, 0))
        .conv(9, kernel=(1, 5), pads=(0, 2, 0, 2)), 2),
    "inverted residual": (
        lambda: Chain(5, 9, 9).conv(12, (1, 1), (0,) * 4).then("relu").depthwise()
        .then("relu").conv(9, (1, 1), (0,) * 4), 3),
    "pool without pads": (lambda: Chain(3, 12, 11).conv(10).then("relu").pool(), 2),
    "maximum of negative values, padded": (
        lambda: Chain(3, 9, 9).conv(10).then("abs").then("neg").pool(pads=(1, 1, 1, 1)), 2),
    "pool between": (lambda: Chain(3, 13, 13).conv(10).pool(pads=(1, 1, 0, 0)).conv(9), 3),
    "mean that does not count pads": (
        lambda: Chain(3, 9, 9).conv(10).pool("average_pool", pads=(1, 1, 1, 1)).conv(9), 3),
    "mean, last window overhangs": (
        lambda: Chain(3, 10, 8).conv(10)
        .pool("average_pool", ceil_mode=1, count_include_pad=1), 2),
    "residual that is the chain's input": (
        lambda: Chain(5, 9, 9).conv(10).conv(11).then("relu").conv(10).then("add", "v0"), 2),
    "transposed first": (
        lambda: Chain(8, 6, 6).transposed(9).conv(10), 2),
    "four members": (lambda: Chain(4, 9, 9).conv(10).conv(9, (1, 1), (0,) * 4).depthwise().conv(12), 4),
}  # fmt: skip


@pytest.mark.parametrize("case", CHAINS)
def test_chain(case):
    build, members = CHAINS[case]
    runs_like_its_members(build(), members)


INTERPRETED = {
    "two windows": lambda: Chain(1, 5, 3).conv(4).conv(5),
    "strides": lambda: Chain(1, 6, 3, batch=2).conv(4, (1, 1), (0,) * 4).conv(5, strides=(2, 2)),
    "a pool": lambda: Chain(1, 5, 3).conv(5, (1, 1), (0,) * 4).then("neg").pool(pads=(1, 1, 1, 1)),
    "channels apart": lambda: Chain(1, 4, 4).conv(5, (1, 1), (0,) * 4).depthwise().conv(4, (1, 1), (0,) * 4),
}


@pytest.mark.parametrize("case", INTERPRETED)
def test_interpreted(case):
    graph = INTERPRETED[case]().end().graph()
    assert len(chains(graph)) == 1
    check(graph, fuse=("all",))


def ring_rows(graph):
    """What the ledger says of each value in a ring."""
    _, made = planned(graph, "all")
    return [d for d in made.plan.decisions if d.reason == "rows_in_cache"]


def test_the_ledger_tells_ring_and_halo():
    graph = Chain(4, 40, 8).conv(6).conv(5).end().graph()
    (edge,) = ring_rows(graph)
    assert (edge.home, edge.alternative) == ("cache", "memory")
    assert edge.detail.startswith(REASONS["rows_in_cache"])
    assert "KB for each worker" in edge.detail
    # Two workers: the second one computes the two rows around its first one that the first one has too.
    assert "2 of 40 rows computed again" in edge.detail
    _, made = planned(graph, "all")
    assert all("v0" not in (*region.inputs, *region.outputs) for region in made.plan.regions)


def refused(chain, outputs=None):
    graph = chain.graph(outputs)
    assert chains(graph) == []
    check(graph, fuse=("all",), modes=("native",))


def test_a_value_with_several_readers_is_written():
    chain = Chain(4, 8, 8).conv(6).conv(6)
    chain.nodes += [("reduce_sum", "v0", {"axes": (2, 3), "keepdims": 0}),
                    ("reduce_sum", "v1", {"axes": (2, 3), "keepdims": 0})]  # fmt: skip
    refused(chain, ("v2", "v3"))


def test_a_residual_from_within_is_written():
    """The second convolution's epilogue reads at its own places what its window reads around them."""
    refused(Chain(4, 8, 8).conv(4).conv(4).then("add", "v0").end())


def test_the_users_output_is_written():
    refused(Chain(4, 8, 8).conv(6).conv(6).end(), ("v0", "v2"))


@pytest.mark.parametrize("second", [
    lambda c: c.conv(5, kernel=(1, 1), pads=(0,) * 4, strides=(2, 2)),  # skips rows
    lambda c: c.transposed(8, strides=(2, 2)),
    lambda c: c.conv(6, group=2),  # channels not in blocks
    lambda c: c.then("global_average_pool"),
    lambda c: c.then("softmax", axis=1),
    lambda c: c.then("transpose", perm=(0, 1, 3, 2)).conv(5),
])  # fmt: skip
def test_what_reads_no_rows_in_order_is_no_member(second):
    refused(second(Chain(4, 8, 8).conv(6)).end())


def test_other_types_are_no_members():
    chain = Chain(4, 8, 8).conv(6).conv(6).end()
    chain.constants = {name: array.astype(np.float64) for name, array in chain.constants.items()}
    chain.inputs = {"x": TensorType(F64, (1, 4, 8, 8))}
    refused(chain)


def test_short_rows_stay_rows():
    """Alone, a tile of the second convolution would take several rows of 5."""
    chain = Chain(8, 5, 5, batch=2).conv(128, (1, 1), (0,) * 4).conv(128)
    runs_like_its_members(chain, 2)


def test_an_image_without_elements_is_no_member():
    refused(Chain(4, 8, 8, batch=0).conv(6).conv(6).end())


def test_rows_that_do_not_fit_the_cache_are_written():
    """One row of 512 channels and 200 places, three of them in the ring: more than half of a megabyte."""
    assert chains(Chain(1, 8, 200).conv(512, (1, 1), (0,) * 4).depthwise().end().graph()) == []


WINDOWS = st.fixed_dictionaries(
    {
        "kernel": st.tuples(st.integers(1, 4), st.integers(1, 3)),
        "pads": st.tuples(*(st.integers(0, 2),) * 4),
        "strides": st.tuples(st.integers(1, 3), st.integers(1, 2)),
    }
)
MEMBERS = st.tuples(st.sampled_from(["conv", "depthwise", "max_pool", "average_pool"]), WINDOWS,
                    st.integers(1, 9), st.booleans())  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(st.lists(MEMBERS, min_size=2, max_size=4), st.tuples(st.integers(1, 14), st.integers(1, 9)),
       st.integers(1, 3), st.integers(1, 6))  # fmt: skip
def test_random_chains(members, image, batch, channels):
    """Whatever the planner accepts can be built, and computes what its members compute apart."""
    chain, size = Chain(channels, *image, batch=batch), image
    for kind, window, out, has_relu in members:
        kernel, strides, pads = (window[key] for key in ("kernel", "strides", "pads"))
        if "pool" in kind:  # each window holds a place of the image
            pads = tuple(min(pad, edge - 1) for pad, edge in zip(pads, kernel * 2, strict=True))
        room = [n + pads[k] + pads[k + 2] - kernel[k] for k, n in enumerate(size)]
        if min(room) < 0:
            break
        size = [n // stride + 1 for n, stride in zip(room, strides, strict=True)]
        if kind == "conv":
            chain.conv(out, **{**window, "pads": pads})
        elif kind == "depthwise":
            chain.depthwise(**{**window, "pads": pads})
        else:
            chain.pool(kind, kernel, pads, strides)
        if has_relu:
            chain.then("relu")
    if chain.nodes:
        graph = chain.end().graph()
        inputs = random_inputs(graph)
        want = evaluate(graph, inputs, np.float64)
        for lanes in (4, 8):
            found, _ = run_regions(graph, inputs, "all", lanes, native=True)
            for name, values in want.items():
                magnitude = max(1.0, float(np.abs(values).max(initial=0)))
                assert compare(found[name], values, 256, magnitude=magnitude).within
