"""Ops whose meaning or spelling changed with the opset: each imported as the model's opset has it."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from small_layers import f32, i64, model, node, norm, softmax

from onepass.core.tolerance import compare
from onepass.frontends.onnx_import import import_onnx
from onepass.graph.interpret import evaluate
from onepass.graph.verify import verify

X = f32(1, 2, 3, 4, 5)
AX = {"ax": i64(1, -1)}


def cat(*parts, axis=-1):
    return np.concatenate(parts, axis=axis)


def flat_softmax(x, axis):
    return softmax(x.reshape(int(np.prod(x.shape[:axis])), -1)).reshape(x.shape)


S, T, M, V = f32(2, 3), f32(3, 3), f32(4, 3), abs(f32(5, 3)) + 0.1
STATISTICS = {"s": S, "t": T, "m": M, "v": V}
NORMED = norm(X, S, T, M, V)
BY_CHANNEL = X.reshape(2, 3, 1, 20)


def group_norm(scale, bias):
    mean, var = BY_CHANNEL.mean(-1, keepdims=True), BY_CHANNEL.astype(np.float64).var(-1, keepdims=True)
    y = (BY_CHANNEL - mean) / np.sqrt(var + 1e-5)
    return y.reshape(X.shape) * scale.reshape(-1, 1, 1) + bias.reshape(-1, 1, 1)


PADDED = np.pad(X, ((0, 0), (0, 0), (1, 0), (0, 2)), constant_values=0.5)
PADS, SOME_PADS, FILL = i64(0, 0, 1, 0, 0, 0, 0, 2), i64(1, 0, 0, 2), np.float32(0.5)
UP = X.repeat(2, 2).repeat(3, 3)
SCALES = np.array([1, 1, 2, 3], np.float32)
HALVES = X[:, :, :2], X[:, :, 2:]
ASYMMETRIC = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}

# Each row: the opset, the node, the constants, what comes out.
CASES = [
    (11, node("Softmax", "x", "y"), {}, [flat_softmax(X, 1)]),
    (11, node("Softmax", "x", "y", axis=-2), {}, [flat_softmax(X, 2)]),
    (13, node("Softmax", "x", "y"), {}, [softmax(X)]),
    (13, node("Softmax", "x", "y", axis=1), {}, [softmax(X, 1)]),
    (12, node("LogSoftmax", "x", "y"), {}, [np.log(flat_softmax(X, 1))]),
    (6 + 1, node("Clip", "x", "y", min=-0.5), {}, [np.maximum(X, -0.5)]),
    (10, node("Clip", "x", "y", min=-0.5, max=0.25), {}, [np.clip(X, -0.5, 0.25)]),
    (11, node("Clip", "x _ high", "y"), {"high": np.float32(0.25)}, [np.minimum(X, 0.25)]),
    (7, node("BatchNormalization", "x s t m v", "y", spatial=1), STATISTICS, [NORMED]),
    (9, node("BatchNormalization", "x s t m v", "y", momentum=0.5), STATISTICS, [NORMED]),
    (14, node("BatchNormalization", "x s t m v", "y"), STATISTICS, [NORMED]),
    (15, node("BatchNormalization", "x s t m v", "y", training_mode=0), STATISTICS, [NORMED]),
    (8, node("Pad", "x", "y", pads=PADS.tolist(), value=0.5), {}, [PADDED]),
    (11, node("Pad", "x p f", "y"), {"p": PADS, "f": FILL}, [PADDED]),
    (18, node("Pad", "x p f a", "y"), {"p": SOME_PADS, "f": FILL, "a": i64(2, -1)}, [PADDED]),
    (19, node("Pad", "x p", "y", mode="wrap"), {"p": PADS}, [np.pad(X, ((0, 0), (0, 0), (1, 0), (0, 2)),
     "wrap")]),
    (13, node("Pad", "x p", "y", mode="reflect"), {"p": -PADS}, [X[:, :, 1:, :-2]]),
    (9, node("Slice", "x", "y", starts=[1, -3], ends=[9, -1], axes=[1, 3]), {}, [X[:, 1:9, :, -3:-1]]),
    (10, node("Slice", "x b e a s", "y"), {"b": i64(9, 4), "e": i64(-99, 0), "a": i64(1, -1), "s": i64(-1,
     -2)},
     [X[:, ::-1, :, 4:0:-2]]),
    (13, node("Slice", "x b e", "y"), {"b": i64(1), "e": i64(2**63 - 1)}, [X[1:]]),
    (11, node("Squeeze", "row", "y"), {"row": X[:1, :1]}, [X[0, 0]]),
    (11, node("Squeeze", "row", "y", axes=[-3]), {"row": X[:, :1]}, [X[:, 0]]),
    (13, node("Squeeze", "row a", "y"), {"row": X[:, :1], "a": i64(1)}, [X[:, 0]]),
    (11, node("Unsqueeze", "x", "y", axes=[0, -1]), {}, [X[None, ..., None]]),
    (13, node("Unsqueeze", "x ax", "y"), AX, [X[:, None, ..., None]]),
    (11, node("ReduceSum", "x", "y", axes=[1, 3], keepdims=0), {}, [X.sum((1, 3))]),
    (13, node("ReduceSum", "x ax", "y"), AX, [X.sum((1, 3), keepdims=True)]),
    (13, node("ReduceSum", "x", "y", noop_with_empty_axes=1), {}, [X]),
    (13, node("ReduceSum", "x", "y", keepdims=0), {}, [X.sum()]),
    (17, node("ReduceMean", "x", "y", axes=[-1]), {}, [X.mean(-1, keepdims=True)]),
    (18, node("ReduceMean", "x ax", "y", keepdims=0), AX, [X.mean((1, 3))]),
    (9, node("Split", "x", "y z", axis=2), {}, HALVES),
    (11, node("Split", "x", "y z", axis=2, split=[1, 3]), {}, [X[:, :, :1], X[:, :, 1:]]),
    (13, node("Split", "x parts", "y z", axis=-2), {"parts": i64(1, 3)}, [X[:, :, :1], X[:, :, 1:]]),
    (18, node("Split", "x", "y z", axis=3, num_outputs=2), {}, [X[..., :3], X[..., 3:]]),
    (7, node("Upsample", "x", "y", scales=[1.0, 1.0, 2.0, 3.0]), {}, [UP]),
    (9, node("Upsample", "x scales", "y", mode="nearest"), {"scales": SCALES}, [UP]),
    (10, node("Resize", "x scales", "y"), {"scales": SCALES}, [UP]),
    (11, node("Resize", "x _ scales", "y", **ASYMMETRIC), {"scales": SCALES}, [UP]),
    (13, node("Resize", "x _ _ sizes", "y", **ASYMMETRIC), {"sizes": i64(2, 3, 8, 15)}, [UP]),
    (19, node("Resize", "x _ some", "y", axes=[2, 3], **ASYMMETRIC), {"some": SCALES[2:]}, [UP]),
    (9, node("Dropout", "x", "y", ratio=0.3), {}, [X]),
    (10, node("Dropout", "x", "y z"), {}, [X, np.ones(X.shape, bool)]),
    (13, node("Dropout", "x r no", "y"), {"r": np.float32(0.9), "no": np.array(False)}, [X]),
    (9, node("Flatten", "x", "y", axis=0), {}, [X.reshape(1, -1)]),
    (13, node("Flatten", "x", "y", axis=-1), {}, [X.reshape(-1, 5)]),
    (13, node("Reshape", "x to", "y"), {"to": i64(0, -1, 2)}, [X.reshape(2, -1, 2)]),
    (14, node("Reshape", "none to", "y", allowzero=1), {"none": X[:0], "to": i64(3, 0)}, [X[:0].reshape(3,
     0)]),
    (8, node("Expand", "row to", "y"), {"row": X[:, :1], "to": i64(3, 1, 1)}, [np.broadcast_to(X[:, :1],
     X.shape)]),
    (9, node("Concat", "x x", "y", axis=-1), {}, [cat(X, X)]),
    (7, node("Sum", "x x x", "y"), {}, [X + X + X]),
    (8, node("Max", "x", "y"), {}, [X]),
    (18, node("GroupNormalization", "x two too", "y", num_groups=3), {"two": S, "too": T}, [group_norm(S,
     T)]),
    (21, node("GroupNormalization", "x two too", "y", num_groups=3), {"two": S, "too": T}, [group_norm(S,
     T)]),
    (9, node("Cast", "x", "y", to=TensorProto.DOUBLE), {}, [X.astype(np.float64)]),
    (15, node("CastLike", "x like", "y"), {"like": i64(1)}, [X.astype(np.int64)]),
    (11, node("Gemm", "two x2", "y"), {"two": X[0, 0], "x2": X[0, 0].T}, [X[0, 0] @ X[0, 0].T]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1].op_type}-{case[0]}")
def test_op_of_opset(case):
    opset, one, constants, expected = case
    outputs = dict(zip(one.output, (np.asarray(array).dtype for array in expected), strict=False))
    outputs = {name: np.float32 if dtype == np.float64 and one.op_type != "Cast" else dtype
               for name, dtype in outputs.items()}  # fmt: skip
    graph = import_onnx(model([one], {"x": X}, outputs, constants, opset))
    verify(graph)
    results = evaluate(graph, {"x": X})
    for name, want in zip(one.output, expected, strict=True):
        assert results[name].dtype == outputs[name]
        comparison = compare(results[name], np.asarray(want), 64)
        assert comparison.within, comparison


def test_shape_arithmetic_vanishes():
    """What exporters write for x.view(x.shape[0], -1) and a mask of the input's size."""
    nodes = [
        node("Shape", "x", "s"), node("Gather", "s zero", "n", axis=0), node("Unsqueeze", "n z", "nu"),
        node("Concat", "nu minus", "to", axis=0), node("Reshape", "x to", "flat"), node("Shape", "flat",
         "fs"),
        node("ConstantOfShape", "fs", "zeros"), node("Add", "flat zeros", "y"), node("Size", "x", "size"),
        node("Range", "zero size one", "range"), node("Slice", "range z two", "z2"),
    ]  # fmt: skip
    constants = {"zero": np.int64(0), "one": np.int64(1), "z": i64(0), "two": i64(2), "minus": i64(-1)}
    graph = import_onnx(model(nodes, {"x": X}, {"y": np.float32, "z2": np.int64}, constants))
    assert [n.op for n in graph.nodes] == ["reshape", "add", "identity"]
    assert graph.nodes[0].attrs["shape"] == (2, 60)
    assert graph.constants[graph.nodes[2].inputs[0]].tolist() == [0, 1]


def test_constant_nodes():
    nodes = [
        helper.make_node("Constant", [], ["a"], value_float=2.0), helper.make_node("Constant", [], ["b"],
         value_ints=[2, 60]),
        helper.make_node("Constant", [], ["c"], value=helper.make_tensor("t", 1, [1], [3.0])),
        node("Mul", "x a", "m"), node("Reshape", "m b", "r"), node("Add", "r c", "y"),
    ]  # fmt: skip
    graph = import_onnx(model(nodes, {"x": X}, {"y": np.float32}))
    np.testing.assert_array_equal(evaluate(graph, {"x": X})["y"], X.reshape(2, 60) * 2 + 3)


def test_names_are_the_users_and_unique():
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="act"), helper.make_node("Relu", ["a"], ["b"],
         name="act"),
        helper.make_node("Softmax", ["b"], ["c"]), helper.make_node("Identity", ["c"], ["y"], name="end"),
    ]  # fmt: skip
    graph = import_onnx(model(nodes, {"x": X}, {"y": np.float32}, opset=11))
    assert [n.name for n in graph.nodes] == ["act", "act_2", "Softmax_c", "Softmax_c_2", "Softmax_c_3"]
    assert [n.spelling for n in graph.nodes] == ["Relu", "Relu", "Softmax", "Softmax", "Softmax"]
    assert graph.nodes[-1].outputs == ("y",)


def test_an_initializer_as_output():
    graph = import_onnx(
        model([node("Neg", "x", "y")], {"x": X}, {"y": np.float32, "w": np.float32}, {"w": S})
    )
    verify(graph)
    np.testing.assert_array_equal(evaluate(graph, {"x": X})["w"], S)


def test_initializers_that_are_also_inputs_are_no_inputs():
    proto = model([node("Add", "x w", "y")], {"x": X, "w": X}, {"y": np.float32}, {"w": X})
    assert import_onnx(proto).inputs == ("x",)


def test_unread_outputs_are_dropped():
    nodes = [node("BatchNormalization", "x s t m v", "y unread1 unread2")]
    assert import_onnx(model(nodes, {"x": X}, {"y": np.float32}, STATISTICS, opset=9)).nodes[0].outputs == (
        "y",
    )


def test_sizes_from_scales_are_computed_in_float32():
    nodes, scales = [node("Resize", "x _ scales", "y")], np.array([0.7, 1 / 3], np.float32)
    graph = import_onnx(model(nodes, {"x": f32(1, 10, 9)}, {"y": np.float32}, {"scales": scales}))
    assert graph.types["y"].shape == (7, 3)
