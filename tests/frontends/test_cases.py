"""The small graphs, imported and interpreted: in the model's dtypes and as the float64 oracle."""

import numpy as np
import pytest
from small_graphs import SMALL_GRAPHS, check

from onepass.frontends.onnx_import import import_onnx
from onepass.graph.interpret import evaluate
from onepass.graph.passes import fold_constants, simplify_views
from onepass.graph.verify import verify


def shapes_of(inputs):
    return {name: array.shape for name, array in inputs.items()}


@pytest.mark.parametrize("name", SMALL_GRAPHS)
def test_interpreted(name):
    small = SMALL_GRAPHS[name]()
    for inputs, expected in [(small.inputs, small.expected), *small.more_runs]:
        graph = import_onnx(small.model, shapes_of(inputs))
        verify(graph)
        check(small, evaluate(graph, inputs), expected)


@pytest.mark.parametrize("name", SMALL_GRAPHS)
def test_oracle(name):
    small = SMALL_GRAPHS[name]()
    outputs = evaluate(import_onnx(small.model, shapes_of(small.inputs)), small.inputs, np.float64)
    if small.exact:
        assert list(outputs) == list(small.expected)
    else:
        check(small, outputs)


@pytest.mark.parametrize("name", SMALL_GRAPHS)
def test_passes_change_no_bit(name):
    small = SMALL_GRAPHS[name]()
    graph = import_onnx(small.model, shapes_of(small.inputs))
    simplified = simplify_views(fold_constants(graph))
    verify(simplified)
    before, after = evaluate(graph, small.inputs), evaluate(simplified, small.inputs)
    assert {name: value.tobytes() for name, value in before.items()} == {
        name: value.tobytes() for name, value in after.items()
    }
