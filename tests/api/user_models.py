"""Small models as users have them, and ways to damage them."""

import dataclasses

import numpy as np
import onnx
from onnx import TensorProto, helper, parser
from synthetic import machine as synthetic_machine

from onepass.targets.llvm.description import describe_host


def quick_machine(fresh=False, workers=None):
    """Invented roofs for the host's registers, so that tests need not measure."""
    target = describe_host()
    return dataclasses.replace(
        synthetic_machine(), isa=target.isa, vector_bits=target.vector_bits,
        vector_registers=target.vector_registers,
    )  # fmt: skip


def conv_relu(batch="N"):
    """Convolution, ReLU and a sum over space, with an open batch size."""
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        small (float[{batch},3,8,8] image) => (float[{batch},4,8,8] map, float[{batch},4] sums)
        <int64[2] axes = {{2, 3}}>
        {{
            [conv] c = Conv<pads=[1,1,1,1]>(image, w)
            [relu] map = Relu(c)
            [sum] sums = ReduceSum<keepdims=0>(map, axes)
        }}""")
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def two_convolutions():
    """3x3 convolutions of 32 channels, the second between values that only kernels see, and a mean."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        two (float[1,32,16,16] image) => (float[1,32,1,1] means)
        {
            [one] a = Conv<pads=[1,1,1,1]>(image, w)
            [two] b = Conv<pads=[1,1,1,1]>(a, w)
            [mean] means = GlobalAveragePool(b)
        }""")
    weights = np.random.default_rng(0).standard_normal((32, 32, 3, 3), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def chain(op="Relu"):
    """`y = op(a + b)` over a vector of open length."""
    return parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        chain (float[N] a, float[N] b) => (float[N] y)
        {{
            [plus] s = Add(a, b)
            [act] y = {op}(s)
        }}""")


def with_external_weights(folder, offset=0, length=432, location="weights.bin"):
    """`conv_relu` as a file whose weights lie in a side file."""
    model = conv_relu("1")
    tensor = model.graph.initializer[1]
    data = onnx.numpy_helper.to_array(tensor).tobytes()
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    (folder / "weights.bin").write_bytes(data)
    path = folder / "external.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def cyclic():
    """Two nodes that each need the other's result."""
    model = chain()
    model.graph.node[0].input[1] = "y"
    return model


def unsupported():
    """A model with two ops that onepass does not know."""
    model = chain()
    model.graph.node[1].op_type = "Foo"
    model.graph.node.append(helper.make_node("Bar", ["y"], ["z"], name="bar_node"))
    return model
