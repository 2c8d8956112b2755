"""The zoo in small and odd sizes, unfused and fused, against the float64 oracle."""

import pytest
from compiled import check, compiled

from onepass.frontends.onnx_import import import_onnx
from onepass.zoo import catalog

ZOO = {
    "resnet50": ({"blocks": (1, 1, 1, 1), "width": 16}, (2, 3, 45, 61)),
    "mobilenet_v2": ({}, (1, 3, 75, 45)),
    "convnext_tiny": ({"depths": (1, 1, 1, 1)}, (1, 3, 71, 64)),
    "bert_base": ({"layers": 1, "hidden": 96, "heads": 4}, None),
    "vit_b16": ({"layers": 1, "hidden": 96, "heads": 4}, None),
    "unet": ({"features": 8}, (1, 3, 16, 48)),
    "dncnn": ({"features": 16}, (1, 1, 33, 17)),
    "espcn": ({}, (2, 3, 13, 17)),
    "row_chain": ({}, (37, 256)),
    "vector_add": ({}, (1003,)),
}


def with_free_sizes(model):
    """The model with every dimension of its inputs symbolic."""
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{axis}"
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("name", ZOO)
def test_zoo_model_in_an_odd_size(name):
    options, shape = ZOO[name]
    model = catalog.build(name, **options)
    shapes = catalog.default_shapes(model)
    if shape is not None:
        shapes = dict.fromkeys(shapes, shape)
        model = with_free_sizes(model)
    inputs = catalog.example_inputs(model, shapes=shapes)
    check(import_onnx(model, shapes), inputs, fuse=("none", "auto"), length=4096)


def test_zoo_resnet50_runs_in_at_most_60_launches():
    model = catalog.build("resnet50")
    graph = import_onnx(model, catalog.default_shapes(model))
    assert len(graph.nodes) == 175
    assert len(compiled(graph).program.launches) <= 60
