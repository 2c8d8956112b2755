"""Bad models: each a clear `UserError` that names what is wrong, before anything is allocated."""

import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_layers import f32, i64, model, node

from onepass.core.dtypes import BF16
from onepass.core.errors import ModelError, OnepassError, OptionError, ShapeError
from onepass.frontends.onnx_import import import_onnx
from onepass.frontends.onnx_model import describe_inputs

X = {"x": np.zeros((2, 3), np.float32)}


def chain(*nodes, opset=17, constants=None, inputs=X, outputs=("y",), **options):
    return model(list(nodes), inputs, dict.fromkeys(outputs, np.float32), constants, opset, **options)


def refused(source, *words, error=ModelError, shapes=None):
    with pytest.raises(error) as caught:
        import_onnx(source, shapes or {})
    for word in words:
        assert word in str(caught.value), f"'{word}' not in:\n{caught.value}"


def test_files_that_are_no_models(tmp_path):
    refused(tmp_path / "nowhere.onnx", "does not exist", "nowhere.onnx")
    refused(tmp_path, "folder")
    (tmp_path / "empty.onnx").write_bytes(b"")
    refused(tmp_path / "empty.onnx", "empty")
    (tmp_path / "text.onnx").write_bytes(b"This is a letter to my aunt, not a model." * 20)
    refused(str(tmp_path / "text.onnx"), "not an ONNX model")
    refused(b"\x00\x01\x02", "not an ONNX model")


def test_truncated_at_every_place():
    data = chain(node("MatMul", "x w", "y"), constants={"w": f32(1, 3, 700)}).SerializeToString()
    for size in [*range(60), *range(60, len(data) - 1, 97), len(data) - 1]:
        with pytest.raises(ModelError):
            import_onnx(data[:size])


def test_damaged_bytes_never_escape():
    data = chain(
        node("MatMul", "x w", "t"),
        node("Reshape", "t shape", "y"),
        constants={"w": f32(1, 3, 8), "shape": i64(4, -1)},
    ).SerializeToString()
    choose = random.Random(5)
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(choose.randint(1, 3)):
            damaged[choose.randrange(len(data))] = choose.randrange(256)
        try:
            import_onnx(bytes(damaged))
        except OnepassError:
            continue


def test_unsupported_nodes_are_listed_at_once():
    nodes = [
        helper.make_node("FusedGelu", ["x"], ["a"], name="gelu_1", domain="com.microsoft"),
        helper.make_node("Unique", ["a"], ["b"], name="unique_1"),
        helper.make_node("Gelu", ["b"], ["c"], name="gelu_2"),
        helper.make_node("Unique", ["c"], ["y"], name="unique_2"),
    ]
    refused(chain(*nodes), "4 nodes", "com.microsoft.FusedGelu", "'gelu_1'",
     "Gelu does not exist in opset 17",
            "'unique_1', 'unique_2'")  # fmt: skip


def test_control_flow():
    body = helper.make_graph(
        [node("Relu", "x", "z")], "body", [], [helper.make_tensor_value_info("z", 1, None)]
    )
    branch = helper.make_node("If", ["c"], ["y"], name="choice", then_branch=body, else_branch=body)
    refused(chain(branch, inputs={**X, "c": np.array(True)}), "If runs a subgraph", "'choice'")


def test_sequences_and_sparse_tensors():
    refused(chain(node("SequenceConstruct", "x", "y")), "SequenceConstruct is not supported")
    proto = chain(node("Relu", "x", "y"))
    proto.graph.sparse_initializer.add().values.name = "thin"
    refused(proto, "sparse", "thin")


@pytest.mark.parametrize("kind", ["FLOAT8E5M2", "FLOAT8E4M3FN", "STRING", "COMPLEX64", "INT4"])
def test_element_types(kind):
    code = TensorProto.DataType.Value(kind)
    refused(chain(helper.make_node("Cast", ["x"], ["y"], name="narrow", to=code)), kind.lower(), "'narrow'")
    proto = chain(node("Relu", "x", "y"))
    proto.graph.input[0].type.tensor_type.elem_type = code
    refused(proto, kind.lower(), "x")
    proto = chain(node("Relu", "x", "y"))
    proto.graph.initializer.append(TensorProto(name="weights", data_type=code, dims=[2]))
    refused(proto, kind.lower(), "'weights'")


@pytest.mark.parametrize("opset", [6, 24])
def test_opsets_outside(opset):
    refused(chain(node("Relu", "x", "y"), opset=opset), f"opset {opset}", "7 to 23")


def test_cycle_names_its_nodes():
    nodes = [
        helper.make_node("Add", ["x", "c"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
        helper.make_node("Neg", ["b"], ["c"], name="third"),
        helper.make_node("Neg", ["c"], ["y"], name="after"),
    ]
    with pytest.raises(ModelError, match="cycle") as caught:
        import_onnx(chain(*nodes))
    assert {"'first'", "'second'", "'third'"} == set(caught.value.where.removeprefix("nodes ").split(", "))


def test_values_that_are_missing_or_computed_twice():
    refused(
        chain(helper.make_node("Add", ["x", "ghost"], ["y"], name="sum")),
        "'ghost' is never computed",
        "'sum'",
    )
    refused(chain(node("Relu", "x", "z")), "'y' is never computed", "outputs")
    twice = [helper.make_node("Relu", ["x"], ["y"], name=name) for name in ("one", "two")]
    refused(chain(*twice), "'y' is computed twice", "'one'", "'two'")
    refused(chain(node("Relu", "x", "x"), outputs=("x",)), "'x' is computed twice")
    proto = chain(node("Relu", "x", "y"))
    proto.graph.output.append(proto.graph.output[0])
    refused(proto, "listed twice")


def test_what_is_declared_twice_or_not_at_all():
    proto = chain(node("Add", "x c", "y"), constants={"c": np.ones(3, np.float32)})
    for what, repeated in (("input 'x'", proto.graph.input), ("initializer 'c'", proto.graph.initializer)):
        repeated.add().CopyFrom(repeated[0])
        refused(proto, f"{what} is declared 2 times")
        repeated.pop()
    del proto.graph.output[:]
    refused(proto, "no outputs")


def test_nodes_in_any_order():
    graph = import_onnx(chain(node("Neg", "a", "y"), node("Relu", "x", "a")))
    assert [n.op for n in graph.nodes] == ["relu", "neg"]


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ([-2, 3], "negative"),
        ([1 << 40, 1 << 20], "1 TiB"),
        ([1 << 62, 1 << 62, 4], "1 TiB"),
        ([5, 3], "bytes"),
    ],
)
def test_initializer_sizes(dims, words):
    proto = chain(node("Add", "x w", "y"), constants={"w": f32(1, 2, 3)})
    proto.graph.initializer[0].ClearField("dims")
    proto.graph.initializer[0].dims.extend(dims)
    refused(proto, words, "'w'")


def test_initializer_with_too_few_typed_elements():
    proto = chain(node("Add", "x w", "y"))
    proto.graph.initializer.append(
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], float_data=[1, 2])
    )
    refused(proto, "declares 3 elements but holds 2", "'w'")


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("ConstantOfShape", "s", "y")], {"s": i64(1 << 30, 1 << 30)}),
        ([node("Expand", "x s", "y")], {"s": i64(1 << 40, 2, 3)}),
        ([node("Tile", "x s", "y")], {"s": i64(1 << 30, 1 << 30)}),
        ([node("Range", "a b c", "y")], {"a": np.int64(0), "b": np.int64(1 << 50), "c": np.int64(1)}),
    ],
)
def test_huge_results_are_refused_before_allocation(nodes, constants):
    refused(chain(*nodes, constants=constants), nodes[0].op_type)


def test_shapes_that_depend_on_data():
    inputs = {**X, "shape": i64(3, 2)}
    refused(chain(helper.make_node("Reshape", ["x", "shape"], ["y"], name="view"), inputs=inputs),
            "'view'", "data-dependent shape", "'shape'")  # fmt: skip
    nodes = [node("NonZero", "x", "places"), node("Cast", "places", "y", to=1)]
    refused(chain(*nodes), "NonZero", "data-dependent")


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "opset", "words"),
    [
        ("BatchNormalization", "image c c c c", {"spatial": 0}, 7, "spatial"),
        ("BatchNormalization", "image c c c c", {"training_mode": 1}, 15, "training mode"),
        ("Dropout", "x ratio yes", {}, 13, "training mode"),
        ("MaxPool", "image", {"kernel_shape": [2, 2], "storage_order": 1}, 12, "storage_order"),
        ("Conv", "image w", {"kernel_shape": [2, 2]}, 12, "contradicts"),
        ("Conv", "image w", {"pads": [1, 1]}, 12, "rank 2"),
        ("Conv", "image", {}, 12, "1 inputs"),
        ("Conv", "image w", {"group": 2}, 12, ""),
        ("Conv", "image w", {"strides": [0, 1]}, 12, "positive"),
        ("Conv", "image w", {"auto_pad": "SAME"}, 12, "auto_pad"),
        ("Relu", "x", {"colour": 3}, 12, "'colour' does not exist"),
        ("Conv", "image w", {"strides": 2}, 12, "wrong type"),
        ("Transpose", "x", {"perm": [0, 0]}, 12, "permutation"),
        ("Concat", "x x", {"axis": 2}, 12, "axis 2"),
        ("Flatten", "x", {"axis": 3}, 12, "axis 3"),
        ("Squeeze", "x", {"axes": [0]}, 11, "not 1"),
        ("Reshape", "x five", {}, 12, "cannot be reshaped"),
        ("Add", "x c4", {}, 12, "broadcast"),
        ("MatMul", "x c4", {}, 12, ""),
        ("Slice", "x zero zero zero zero", {}, 12, "step is 0"),
        ("LRN", "image", {}, 13, "'size' is missing"),
        ("Conv", "bytes w", {}, 12, "uint8[1,3,8,8], an element type"),
        ("Mul", "x yes", {}, 13, "bool[], an element type"),
        ("MatMul", "x wide", {}, 13, "float32 and float64"),
        ("Concat", "x x wide", {"axis": 0}, 13, "float32 and float64"),
    ],
)
def test_nodes_that_make_no_sense(op, inputs, attrs, opset, words):
    constants = {
        "c": np.ones(3, np.float32), "c4": np.ones(4, np.float32), "w": f32(1, 4, 3, 3, 3),
        "ratio": np.float32(0.5), "yes": np.array(True), "five": i64(5), "zero": i64(0),
        "wide": np.ones((3, 3)),
    }  # fmt: skip
    image = np.zeros((1, 3, 8, 8), np.float32)
    given = {**X, "image": image, "bytes": image.astype(np.uint8)}
    proto = chain(helper.make_node(op, inputs.split(), ["y"], name="culprit", **attrs), opset=opset,
                  constants=constants, inputs=given)  # fmt: skip
    refused(proto, "'culprit'", words, error=(ModelError, ShapeError))


def test_open_dimensions_ask_for_a_shape():
    proto = chain(node("Relu", "x", "y"), dims={"x": ["batch", 3]})
    refused(proto, "x: float32[batch,3]", "--shape x=1x3", error=OptionError)
    image = {"image": np.zeros((1, 3, 8, 8), np.float32)}
    for dim in ("", "?", "-1", -1, 0):
        proto = chain(node("Relu", "image", "y"), inputs=image, dims={"image": [dim, 3, dim, dim]})
        assert describe_inputs(proto)[0].dims == ("?", 3, "?", "?")
        refused(proto, "--shape image=1x3x224x224", error=OptionError)
        assert import_onnx(proto, {"image": (2, 3, 8, 9)}).types["y"].shape == (2, 3, 8, 9)


def test_symbols_bind_alike():
    inputs = {"a": np.zeros((2, 3), np.float32), "b": np.zeros((2, 3), np.float32)}
    proto = chain(node("Add", "a b", "y"), inputs=inputs, dims={"a": ["n", "m"], "b": ["n", "m"]})
    assert import_onnx(proto, {"a": (5, 4)}).types["b"].shape == (5, 4)
    refused(proto, "'n' is 5", "'a'", "'b'", error=ShapeError, shapes={"a": (5, 4), "b": (6, 4)})
    refused(proto, "no input 'c'", "a: float32[n,m]", error=OptionError, shapes={"c": (1,)})


@pytest.mark.parametrize(
    ("shape", "words"),
    [((2, 4), "declared as 3"), ((3,), "rank 2"), ((-1, 3), "negative"), ((1 << 50, 3), "1 TiB")],
)
def test_shapes_that_contradict(shape, words):
    dims = ["n", 3] if len(shape) == 2 else [2, 3]
    refused(
        chain(node("Relu", "x", "y"), dims={"x": dims}), words, "'x'", error=ShapeError, shapes={"x": shape}
    )


def external(tmp_path, **entries):
    """A saved model whose weight `w` (24 bytes) lies in a side file."""
    (tmp_path / "weights.bin").write_bytes(b"\0" * 64 + f32(1, 2, 3).tobytes())
    proto = chain(node("Add", "x w", "y"))
    tensor = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[2, 3], data_location=TensorProto.EXTERNAL
    )
    for key, value in ({"location": "weights.bin", "offset": 64, "length": 24} | entries).items():
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    proto.graph.initializer.append(tensor)
    onnx.save(proto, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_external_data_is_mapped(tmp_path):
    weight = import_onnx(external(tmp_path)).constants["w"]
    np.testing.assert_array_equal(weight, f32(1, 2, 3))
    assert not weight.flags.writeable
    assert not weight.flags.owndata


def test_external_data_without_length_or_offset(tmp_path):
    assert import_onnx(external(tmp_path, length=None, offset=None)).constants["w"].sum() == 0


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"location": "gone.bin"}, "'gone.bin' is missing"),
        ({"location": "/etc/hostname"}, "outside"),
        ({"location": "../weights.bin"}, "outside"),
        ({"location": "sub/../../weights.bin"}, "outside"),
        ({"location": ""}, "outside"),
        ({"location": "link.bin"}, "outside"),
        ({"location": "w" * 5000}, "cannot be read"),
        ({"location": "w\0x"}, "cannot be read"),
        ({"offset": 68}, "too short"),
        ({"offset": -4}, "too short"),
        ({"length": 20}, "shape and type need 24"),
        ({"offset": "here"}, "not a number"),
    ],
)
def test_bad_external_data(tmp_path, entries, words):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(b"\0" * 100)
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    refused(external(folder, **entries), words, "'w'")


def test_external_data_needs_a_folder(tmp_path):
    data = external(tmp_path).read_bytes()
    refused(data, "not loaded from a file", "path")
    refused(onnx.ModelProto.FromString(data), "not loaded from a file")


def test_weights_are_views_of_the_file(tmp_path):
    proto = chain(node("MatMul", "x w", "y"), constants={"w": f32(2, 3, 4000)})
    onnx.save(proto, tmp_path / "model.onnx")
    weight = import_onnx(tmp_path / "model.onnx").constants["w"]
    np.testing.assert_array_equal(weight, f32(2, 3, 4000))
    assert not weight.flags.writeable


def test_packed_and_typed_elements():
    half = np.array([1.5, -2, 65504], np.float16)
    brain = np.array([1.5, -2, 3e38], BF16.numpy)
    halves = [
        TensorProto(name=name, data_type=code, dims=[3], int32_data=array.view(np.uint16).tolist())
        for name, code, array in (("h", TensorProto.FLOAT16, half), ("t", TensorProto.BFLOAT16, brain))
    ]
    raw = TensorProto(name="r", data_type=TensorProto.BFLOAT16, dims=[3], raw_data=brain.tobytes())
    flags = helper.make_tensor("b", TensorProto.BOOL, [2], [True, False])
    nodes = [node("Not", "b", "z"), *(node("Identity", *pair) for pair in ("hy", "tu", "rv"))]
    proto = model(nodes, {}, {"y": np.float16, "z": bool, "u": BF16.numpy, "v": BF16.numpy})
    proto.graph.initializer.extend([*halves, raw, flags, numpy_helper.from_array(np.zeros(1), "unused")])
    graph = import_onnx(proto)
    values = {node.outputs[0]: graph.constants[node.inputs[0]].tolist() for node in graph.nodes}
    assert values == {"y": half.tolist(), "z": [False, True], "u": brain.tolist(), "v": brain.tolist()}
