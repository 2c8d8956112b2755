"""Regions as Triton kernels: in Triton's interpreter they agree with the float64 oracle.

ONEPASS_GPU_SHAPES=200 tries so many shapes of every kind of region, in each precision, instead of a few.
"""

import os
import random
from pathlib import Path

import numpy as np
import pytest
from gpu_cases import attention, case_of_graph, inputs_of, mlp
from interpreted import interpret
from random_graphs import RandomGraph

from onepass.core.dtypes import BF16, F16, F32, dtype_of_numpy
from onepass.core.tolerance import compare
from onepass.graph.interpret import evaluate
from onepass.graph.ir import Graph
from onepass.graph.precision import lower_precision
from onepass.loops.tile import Tile

pytest.importorskip("torch")
pytest.importorskip("triton")
SHAPES = int(os.environ.get("ONEPASS_GPU_SHAPES", "2"))
LENGTH = 200  # of the longest sums in a random graph: the bound is the project's for that


def lowered(graph, inputs, dtype):
    """The graph in 16 bits, and its inputs."""
    narrow = {n: a.astype(dtype.numpy) if a.dtype == np.float32 else a for n, a in inputs.items()}
    return lower_precision(graph, dtype), narrow


def random_cases(seeds, dtype=None):
    """Random graphs by seed, with inputs, in float32 or lowered to `dtype`."""
    found = {}
    for seed in seeds:
        source = random.Random(seed)
        graph, inputs = RandomGraph(source).build(source.choice((1, 2, 3, 5, 8)))
        if dtype is not None:
            graph, inputs = lowered(graph, inputs, dtype)
        if all(graph.types[name].size for name in graph.outputs):
            found[seed] = (graph, inputs)
    return found


POINTWISE = ("unary", "binary", "broadcast")
MOVEMENT = ("transpose", "reshape", "concat", "slice", "pad", "split", "gather", "expand")
KINDS = {  # the steps of a random graph that may make a region of the kind, and the nodes that do
    "pointwise": (POINTWISE, lambda node: True),
    "movement": (MOVEMENT, lambda node: True),
    "reduction": (("reduce",), lambda node: True),
    "softmax": (("softmax",), lambda node: True),
    "layer norm": (("norm",), lambda node: node.op == "layer_normalization"),
    "group norm": (("group_norm",), lambda node: True),
    "matmul": (("matmul",), lambda node: True),
    "conv": (("window",), lambda node: node.op == "conv"),
    "depthwise": (("window",), lambda node: node.op == "conv" and node.attrs["group"] > 1),
    "pool": (("window",), lambda node: "pool" in node.op),
}  # fmt: skip


class OneOfAKind(RandomGraph):
    """A node of one kind, with pointwise ones before and after it."""

    def of(self, kind):
        steps, wanted = KINDS[kind]
        while True:
            self.__init__(self.random, self.dtype)
            self.input()
            self.pointwise()
            before = len(self.nodes)
            self.one_of(steps)
            made = self.nodes[before:]
            self.pointwise()
            if any(map(wanted, made)):
                return self.finish()

    def one_of(self, steps):
        x = self.values[-1]
        getattr(self, self.random.choice(steps))(x, self.types[x].shape)

    def pointwise(self):
        for _ in range(self.random.choice((0, 1, 2))):
            self.one_of(POINTWISE)

    def group_norm(self, x, shape):
        if len(shape) >= 3:
            groups = self.random.choice([d for d in range(1, shape[1] + 1) if shape[1] % d == 0])
            scale, shift = (self.constant(self.normal(shape[1:2])) for _ in range(2))
            self.add("group_normalization", x, scale, shift, num_groups=groups, epsilon=0.1)


def chain_of(kind, source):
    """Two products of any sizes, attention with and without a mask among them."""
    size = lambda most: source.randrange(1, most)  # noqa: E731
    if kind == "two products":
        return mlp(size(70), size(50), size(90), size(60))
    batch, heads, rows, length = size(3), size(3), size(40), size(90)
    mask = source.choice((None, (batch, 1, rows, length), (1, 1, 1, length)))
    return attention(batch, heads, rows, length, size(70), mask=mask)


def cases_of_kind(kind, seeds, dtype):
    """A graph for each seed."""
    found = {}
    for seed in seeds:
        source = random.Random(f"{kind} {seed}")
        if kind in KINDS:
            graph, inputs = OneOfAKind(source).of(kind)
        else:
            graph = chain_of(kind, source)
            inputs = inputs_of(graph)
        found[kind, seed] = (graph, inputs) if dtype == F32 else lowered(graph, inputs, dtype)
    return found


def unavoidable(graph, inputs, expected):
    """By output, twice the error of exact ops whose results are rounded to the types of the model."""
    values = dict(inputs)
    for node in graph.nodes:
        given = {name: values[name] for name in node.inputs if name and name not in graph.constants}
        alone = Graph("alone", (node,), tuple(given), node.outputs, graph.types, graph.constants)
        made = evaluate(alone, given, np.float64)
        values |= {name: array.astype(graph.types[name].dtype.numpy) for name, array in made.items()}
    errors = {name: np.abs(values[name].astype(np.float64) - exact) for name, exact in expected.items()}
    return {name: 2 * np.nanmax(error, initial=0, where=np.isfinite(error)) for name, error in errors.items()}


def check_all(graphs, folder: Path, fuses=("none", "auto"), tile=None):
    keys = [(seed, fuse) for seed in graphs for fuse in fuses]
    results = interpret([case_of_graph(*graphs[seed], fuse, tile) for seed, fuse in keys], folder)
    for (seed, fuse), outputs in zip(keys, results, strict=True):
        graph, inputs = graphs[seed]
        expected = evaluate(graph, inputs, np.float64)
        for name in graph.outputs:
            actual = outputs[name]
            assert dtype_of_numpy(actual.dtype) == graph.types[name].dtype
            # Every value between two kernels, and between two ops, is rounded to the type of the model.
            steps = LENGTH + 8 * len(graph.nodes)
            short = graph.types[name].dtype in (F16, BF16)
            operations = (4 if short else 64) * (1 + len(graph.nodes))
            found = compare(actual, expected[name], steps, operations=operations)
            if short and not found.within:  # perhaps what a later op makes much of
                least = unavoidable(graph, inputs, expected)[name]
                magnitude = (found.atol + least) / found.rtol
                found = compare(
                    actual, expected[name], steps, operations=operations, magnitude=magnitude
                )
            assert found.within, f"seed {seed}, fuse {fuse}, {name}: {found}"


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_every_kind_of_region(tmp_path, dtype):
    seeds = (52, *range(SHAPES - 1))  # 52: a pad that leaves nothing of its input
    graphs: dict = {}
    for kind in (*KINDS, "two products", "attention"):
        graphs |= cases_of_kind(kind, seeds, dtype)
        if len(graphs) >= 100:  # at a time
            check_all(graphs, tmp_path, ("auto",))
            graphs = {}
    check_all(graphs, tmp_path, ("auto",))


def test_random_graphs(tmp_path):
    check_all(random_cases(range(16)), tmp_path)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_random_graphs_in_half_precision(tmp_path, dtype):
    check_all(random_cases(range(200, 208), dtype), tmp_path)


def test_rows_in_chunks(tmp_path):
    """A row too long for one tile is walked in chunks, once for each pass."""
    check_all(random_cases(range(300, 304)), tmp_path, ("auto",), Tile(1, 0, 16))
