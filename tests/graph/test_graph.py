"""The graph's own tools: verifier, interpreter and passes, on graphs written by hand."""

import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from small_layers import f32

import onepass.ops.registry  # noqa: F401  (defines the ops)
from onepass.core.dtypes import F16, F32, I64
from onepass.core.errors import InternalError, ShapeError
from onepass.core.tensor import TensorType
from onepass.graph.interpret import evaluate, frozen
from onepass.graph.ir import Graph, Node
from onepass.graph.passes import drop_dead_nodes, fold_constants, simplify_views
from onepass.graph.verify import verify


def graph_of(nodes, outputs=("y",), constants=None, x=TensorType(F32, (2, 3))):  # noqa: B008
    """A graph over one input `x`; types come from the lowerings."""
    constants = {name: frozen(np.asarray(array)) for name, array in (constants or {}).items()}
    types = {
        "x": x,
        **{n: TensorType(F32 if a.dtype.kind == "f" else I64, a.shape) for n, a in constants.items()},
    }
    graph = Graph("small", (), ("x",), tuple(outputs), types, constants)
    for one in nodes:
        graph = replace(graph, nodes=(*graph.nodes, one))
        types |= dict(zip(one.outputs, graph.lowering(one).output_types, strict=False))
    return graph


def make(op, inputs, output, **attrs):
    return Node(f"n_{output}", op, tuple(inputs.split()), tuple(output.split()), attrs, op.title())


def ops(graph):
    return [one.op for one in graph.nodes]


GOOD = graph_of([make("add", "x w", "a"), make("relu", "a", "y")], constants={"w": f32(1, 3)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": GOOD.nodes[::-1]}, "reads 'a' before"),
        ({"nodes": (GOOD.nodes[0], replace(GOOD.nodes[1], name="n_a"))}, "two nodes are called 'n_a'"),
        ({"nodes": (GOOD.nodes[0], replace(GOOD.nodes[1], op="rolu"))}, "unknown op 'rolu'"),
        ({"nodes": (GOOD.nodes[0], replace(GOOD.nodes[1], outputs=("y", "z")))}, "too many outputs"),
        ({"nodes": (GOOD.nodes[0], replace(GOOD.nodes[1], outputs=("a",)))}, "'a' is defined twice"),
        ({"types": {**GOOD.types, "y": TensorType(F16, (2, 3))}}, "its lowering says float32[2,3]"),
        ({"types": {**GOOD.types, "w": TensorType(F32, (4,))}}, "constant 'w' is float32[3]"),
        ({"constants": {"w": f32(1, 3)}}, "can be written"),
        ({"outputs": ("x",)}, "output 'x' is not computed"),
        ({"outputs": ("y", "y")}, "listed twice"),
    ],
)
def test_verifier_names_what_is_broken(change, words):
    verify(GOOD)
    with pytest.raises(InternalError, match="some_pass") as caught:
        verify(replace(GOOD, **change), "some_pass")
    assert words in str(caught.value)


def test_interpreter_keeps_what_it_is_asked_for():
    x = f32(2, 2, 3)
    outputs = evaluate(GOOD, {"x": x}, keep=("a", "w"))
    assert list(outputs) == ["y", "a", "w"]
    np.testing.assert_array_equal(outputs["a"], x + GOOD.constants["w"])
    np.testing.assert_array_equal(outputs["y"], np.maximum(outputs["a"], 0))
    assert list(evaluate(GOOD, {"x": x})) == ["y"]


def test_interpreter_refuses_wrong_inputs():
    for wrong in ({}, {"x": f32(1, 3, 2)}, {"x": np.zeros((2, 3))}):
        with pytest.raises(ShapeError, match="'x'"):
            evaluate(GOOD, wrong)


def test_oracle_widens_floats_but_keeps_what_a_narrow_cast_loses():
    graph = graph_of([make("cast", "x", "h", to="float16"), make("cast", "h", "y", to="float32"),
                      make("cast", "x", "z", to="float64"), make("cast", "x", "i", to="int32")],
                     outputs=("y", "z", "i"))  # fmt: skip
    x = np.full((2, 3), 1.0001, np.float32)
    outputs = evaluate(graph, {"x": x}, np.float64)
    assert [outputs[name].dtype for name in "yzi"] == [np.float64, np.float64, np.int32]
    assert outputs["y"].max() == np.float16(1.0001)
    assert outputs["z"].max() == np.float64(np.float32(1.0001))


def test_interpreter_frees_dead_values():
    """A chain of large values never holds more than three of them."""
    size = 1 << 20
    names = ["x", *(f"v{i}" for i in range(20)), "y"]
    nodes = [make("neg", a, b) for a, b in pairwise(names)]
    graph = graph_of(nodes, x=TensorType(F32, (size,)))
    x = np.zeros(size, np.float32)
    tracemalloc.start()
    evaluate(graph, {"x": x})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * x.nbytes


def test_dead_nodes_go_and_nothing_else():
    graph = graph_of([make("relu", "x", "dead"), make("add", "x w", "y"), make("neg", "dead", "dead2")],
                     constants={"w": f32(1, 3), "unused": f32(2, 5)})  # fmt: skip
    smaller = drop_dead_nodes(graph)
    assert (
        ops(smaller) == ["add"] and set(smaller.constants) == {"w"} and set(smaller.types) == {"x", "w", "y"}
    )
    assert drop_dead_nodes(smaller) is smaller


def test_constants_fold():
    graph = graph_of([make("transpose", "w", "t", perm=(1, 0)), make("neg", "t", "u"), make("matmul",
        "x u", "y")],
                     constants={"w": f32(1, 4, 3)})  # fmt: skip
    folded = fold_constants(graph)
    verify(folded)
    assert ops(folded) == ["matmul"]
    np.testing.assert_array_equal(folded.constants["u"], -f32(1, 4, 3).T)
    assert fold_constants(folded) is folded


def test_outputs_and_big_expansions_do_not_fold():
    graph = graph_of([make("neg", "w", "y"), make("expand", "w", "big", shape=(1 << 20, 3)), make("relu",
        "big", "z")],
                     outputs=("y", "z"), constants={"w": f32(1, 3)})  # fmt: skip
    assert fold_constants(graph) is graph


def test_views_simplify():
    nodes = [
        make("reshape", "x", "a", shape=(6,)), make("reshape", "a", "b", shape=(3, 2)),
        make("reshape", "b", "c", shape=(3, 2)), make("transpose", "c", "d", perm=(0, 1)),
        make("cast", "d", "e", to="float32"), make("identity", "e", "f"), make("relu", "f", "y"),
    ]  # fmt: skip
    simple = simplify_views(graph_of(nodes))
    verify(simple)
    assert ops(simple) == ["reshape", "relu"]
    assert simple.nodes[0].inputs == ("x",) and simple.nodes[0].attrs["shape"] == (3, 2)
    assert simplify_views(simple) is simple


def test_views_that_move_or_are_outputs_stay():
    nodes = [make("transpose", "x", "t", perm=(1, 0)), make("relu", "t", "r"), make("identity", "r", "y"),
             make("reshape", "r", "z", shape=(3, 2))]  # fmt: skip
    graph = graph_of(nodes, outputs=("y", "z"))
    assert simplify_views(graph) is graph


def test_a_transpose_of_unit_axes_is_no_work():
    nodes = [make("reshape", "x", "a", shape=(1, 1, 6)), make("transpose", "a", "t", perm=(1, 0, 2)),
             make("relu", "t", "y")]  # fmt: skip
    assert ops(simplify_views(graph_of(nodes))) == ["reshape", "relu"]
