"""Float32 graphs in float16 and bfloat16: types, constants, casts, and what cannot be held."""

from dataclasses import replace

import numpy as np
import pytest
from small_graphs import SMALL_GRAPHS
from test_graph import graph_of, make

from onepass.core.dtypes import BF16, F16, F32, I64, finfo
from onepass.core.errors import ModelError
from onepass.core.tolerance import compare
from onepass.frontends.onnx_import import import_onnx
from onepass.graph.interpret import evaluate
from onepass.graph.passes import simplify_views
from onepass.graph.precision import lower_precision
from onepass.graph.verify import verify

NARROW = pytest.mark.parametrize("dtype", [F16, BF16], ids=str)


@NARROW
@pytest.mark.parametrize("name", SMALL_GRAPHS)
def test_every_small_graph_stays_sound(name, dtype):
    small = SMALL_GRAPHS[name]()
    graph = import_onnx(small.model, {key: array.shape for key, array in small.inputs.items()})
    lowered = lower_precision(graph, dtype)
    verify(lowered)
    assert [node.name for node in lowered.nodes] == [node.name for node in graph.nodes]
    for value, tensor in graph.types.items():
        assert lowered.types[value] == (replace(tensor, dtype=dtype) if tensor.dtype == F32 else tensor)


@NARROW
def test_results_are_those_of_the_narrow_graph(dtype):
    random = np.random.default_rng(0)
    w, x = random.standard_normal((3, 4)), random.standard_normal((2, 3)).astype(dtype.numpy)
    graph = graph_of(
        [make("matmul", "x w", "a"), make("add", "a b", "c"), make("relu", "c", "y")],
        constants={"w": w.astype(np.float32), "b": np.float32([1, 2, 3, 4])},
    )
    lowered = lower_precision(graph, dtype)
    (y,) = evaluate(lowered, {"x": x}).values()
    exact = np.maximum(x.astype(float) @ w.astype(dtype.numpy).astype(float) + [1, 2, 3, 4], 0)
    assert y.dtype == dtype.numpy and compare(y, exact, 3).within
    assert compare(evaluate(lowered, {"x": x}, np.float64)["y"], exact, 3).within


@NARROW
def test_casts(dtype):
    graph = graph_of([make("cast", "x", "d", to="float64"), make("cast", "d", "f", to="float32"),
                      make("cast", "f", "h", to=dtype.name), make("cast", "h", "g", to="float32"),
                      make("neg", "g", "y"), make("cast", "f", "i", to="int64")],
                     outputs=("y", "i"))  # fmt: skip
    lowered = simplify_views(lower_precision(graph, dtype))
    verify(lowered)
    assert [(node.op, node.attrs.get("to")) for node in lowered.nodes] == [
        ("cast", "float64"), ("cast", dtype.name), ("neg", None), ("cast", "int64"),
    ]  # fmt: skip
    assert lowered.types["i"].dtype == I64


def test_integers_keep_their_bits():
    graph = graph_of([make("gather", "x i", "y", axis=0)], constants={"i": np.int64([1, 0, 1])})
    lowered = lower_precision(graph, F16)
    assert lowered.constants["i"] is graph.constants["i"]


def masked(value):
    return graph_of([make("add", "x mask", "y")], constants={"mask": np.float32([0, value, 1])})


def test_a_constant_beyond_float16_is_named():
    with pytest.raises(ModelError) as caught:
        lower_precision(masked(-1e9), F16)
    text = str(caught.value)
    for word in ("'mask'", "-1e+09", "'n_y' (Add)", "65504", "bfloat16"):
        assert word in text
    assert lower_precision(masked(-1e9), BF16).constants["mask"][1] == np.float32(-1e9).astype(BF16.numpy)
    with pytest.raises(ModelError, match="compile in float32"):
        lower_precision(masked(3.4e38), BF16)


@NARROW
@pytest.mark.parametrize("sign", [1, -1])
def test_the_greatest_number_and_infinity_stay_what_they_are(dtype, sign):
    limit = lower_precision(masked(sign * np.finfo(np.float32).max), dtype).constants["mask"][1]
    assert limit == sign * finfo(dtype).max
    assert lower_precision(masked(sign * np.inf), dtype).constants["mask"][1] == sign * np.inf
    assert np.isnan(lower_precision(masked(np.nan), dtype).constants["mask"][1])
