"""The zoo's models are valid, as big as the originals, run with activations of order one, and repeat."""

import collections

import numpy as np
import onnx
import pytest

from onepass.core.errors import UserError
from onepass.zoo import catalog as zoo

# Parameters of the published models (torchvision, timm and transformers model cards), batch norm statistics
# not counted. Our U-Net, DnCNN and ESPCN variants are counted by hand from their layer tables.
PARAMETERS = {
    "resnet50": 25_557_032,
    "mobilenet_v2": 3_504_872,
    "convnext_tiny": 28_589_128,
    "bert_base": 109_482_240,
    "vit_b16": 86_567_656,
    "unet": 7_763_041,
    "dncnn": 223_104,
    "espcn": 26_796,
    "row_chain": 512,
    "vector_add": 0,
}
SMALL = {
    "resnet50": {"blocks": (1, 1, 1, 1), "width": 16},
    "convnext_tiny": {"depths": (1, 1, 1, 1)},
    "bert_base": {"layers": 2, "hidden": 96, "heads": 4},
    "vit_b16": {"layers": 2, "hidden": 96, "heads": 4},
    "unet": {"features": 8},
    "dncnn": {"features": 16},
}


def count_ops(model):
    return collections.Counter(node.op_type for node in model.graph.node)


def test_resnet50_is_the_one_of_the_exporters():
    counts = count_ops(zoo.build("resnet50"))
    assert counts == {
        "Conv": 53, "BatchNormalization": 53, "Relu": 49, "Add": 16, "MaxPool": 1,
        "GlobalAveragePool": 1, "Flatten": 1, "Gemm": 1,
    }
    assert counts.total() == 175


def test_every_model_has_a_parameter_count():
    assert set(PARAMETERS) == set(zoo.ENTRIES)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_match_the_published_model(name):
    model = zoo.build(name)
    total = sum(
        int(np.prod(tensor.dims))
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and tensor.dims and "running_" not in tensor.name
    )
    assert total == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_model_is_valid_and_its_activations_are_of_order_one(name):
    ort = pytest.importorskip("onnxruntime")
    model = zoo.build(name, **SMALL.get(name, {}))
    onnx.checker.check_model(model, full_check=True)
    outputs = {value.name for value in model.graph.output}
    for node in model.graph.node:
        model.graph.output.extend(onnx.ValueInfoProto(name=o) for o in node.output if o not in outputs)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values = session.run(None, zoo.example_inputs(model, zoo.default_shapes(model) | small_shapes(name)))
    for output, value in zip(session.get_outputs(), values, strict=True):
        assert np.isfinite(value).all(), output.name
        # Masked attention scores are the lowest float; probabilities are small by nature.
        kept = value[np.abs(value) < 1e30]
        if value.dtype == np.float32 and value.size > 1 and not any(
            part in output.name for part in ("mask", "Softmax")
        ) and name != "row_chain":
            assert 0.05 < kept.std() < 10, output.name


def small_shapes(name):
    return {"espcn": {"input": (1, 3, 20, 24)}, "row_chain": {"input": (32, 256)}}.get(name, {})


def test_the_same_seed_repeats_and_another_differs():
    first, same, other = (zoo.build("mobilenet_v2", seed=seed).SerializeToString() for seed in (3, 3, 4))
    assert first == same != other


def test_batch_is_symbolic_and_defaults_travel_with_the_model(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(zoo.build("dncnn"), path)
    model = onnx.load(path)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    assert zoo.default_shapes(model) == zoo.ENTRIES["dncnn"].shapes == {"input": (1, 1, 256, 256)}
    assert zoo.example_inputs(model, {"input": (3, 1, 8, 8)})["input"].shape == (3, 1, 8, 8)


def test_example_integers_stay_in_range():
    model = zoo.build("bert_base", **SMALL["bert_base"])
    inputs = zoo.example_inputs(model, zoo.default_shapes(model))
    assert {array.dtype for array in inputs.values()} == {np.dtype(np.int64)}
    assert 1000 < inputs["input_ids"].max() < 30522
    assert inputs["token_type_ids"].max() == inputs["attention_mask"].max() == 1


def test_unknown_name_gives_the_closest_and_the_list():
    with pytest.raises(UserError) as caught:
        zoo.build("resnet5")
    assert "zoo:resnet50" in caught.value.remedy
    assert "mobilenet_v2" in caught.value.why
