"""How ONNX spells each op: for every op type the converters, each from the opset on that it holds.

A new ONNX op is one row here and one `OpDef`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from onepass.frontends import onnx_layout as layout
from onepass.frontends import onnx_values as values
from onepass.frontends import onnx_windows as windows
from onepass.frontends.onnx_convert import (
    convert_batch_normalization,
    convert_group_normalization_18,
    convert_variadic,
    flattened_softmax,
    plain,
    reduction,
)
from onepass.frontends.onnx_site import Converter

Row = tuple[str, Converter]
"""Name of the op that the node becomes ('' where it becomes no node), and its converter."""

Versions = tuple[tuple[int, Row], ...]
"""Rows, each with the opset from which on it holds, oldest first."""

# Ops that differ in spelling only.
_PLAIN = """
Abs Acos Acosh Add And Asin Asinh Atan Atanh BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil Cos Cosh
DepthToSpace Div Elu Equal Erf Exp Floor GatherElements Gelu Gemm GlobalAveragePool GlobalMaxPool Greater
GreaterOrEqual HardSigmoid HardSwish InstanceNormalization IsInf IsNaN LRN LayerNormalization LeakyRelu
Less LessOrEqual Log MatMul Mish Mod Mul Neg Not Or PRelu Pow RMSNormalization Reciprocal Relu Round Selu
Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Tan Tanh Where Xor
"""
_AXIS = "Concat Gather ArgMax ArgMin"
_POOLS = "MaxPool AveragePool"
_VARIADIC = "Sum Max Min Mean"
_REDUCTIONS = "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare"
_IRREGULAR = {"MatMul": "matmul", "PRelu": "prelu", "LRN": "lrn", "IsNaN": "is_nan"}


def snake(op_type: str) -> str:
    """The name here of an op that ONNX calls `op_type`: `ReduceSumSquare` is `reduce_sum_square`."""
    return (
        _IRREGULAR.get(op_type)
        or re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", op_type).lower()
    )


def _rows(op_types: str, converter: Callable[[str], Converter]) -> dict[str, Versions]:
    """One row for each of the op types in a text, the same in all opsets."""
    return {op_type: ((1, (snake(op_type), converter(snake(op_type)))),) for op_type in op_types.split()}


SPELLINGS: dict[str, Versions] = {
    **_rows(_PLAIN, plain),
    **_rows(_AXIS, layout.convert_axis_op),
    **_rows(_REDUCTIONS, reduction),
    **_rows(_POOLS, windows.convert_pool),
    **_rows(_VARIADIC, convert_variadic),
    **{
        op_type: ((1, (op, flattened_softmax(op))), (13, (op, layout.convert_axis_op(op))))
        for op_type, op in (("Softmax", "softmax"), ("LogSoftmax", "log_softmax"))
    },
    "Clip": ((1, ("clip", values.convert_clip_6)), (11, ("clip", plain("clip")))),
    "Conv": ((1, ("conv", windows.convert_conv)),),
    "ConvTranspose": ((1, ("conv_transpose", windows.convert_conv_transpose)),),
    "Upsample": ((1, ("resize", windows.convert_resize_10)),),
    "Resize": ((1, ("resize", windows.convert_resize_10)), (11, ("resize", windows.convert_resize))),
    "BatchNormalization": ((1, ("batch_normalization", convert_batch_normalization)),),
    "GroupNormalization": (
        (18, ("group_normalization", convert_group_normalization_18)),
        (21, ("group_normalization", plain("group_normalization"))),
    ),
    "Reshape": ((1, ("reshape", layout.convert_reshape)),),
    "Flatten": ((1, ("reshape", layout.convert_flatten)),),
    "Squeeze": ((1, ("reshape", layout.convert_squeeze)),),
    "Unsqueeze": ((1, ("reshape", layout.convert_unsqueeze)),),
    "Transpose": ((1, ("transpose", layout.convert_transpose)),),
    "Slice": ((1, ("slice", layout.convert_slice)),),
    "Pad": ((1, ("pad", layout.convert_pad)),),
    "Expand": ((1, ("expand", layout.convert_expand)),),
    "Tile": ((1, ("tile", layout.convert_tile)),),
    "Split": ((1, ("split", layout.convert_split)),),
    "Cast": ((1, ("cast", values.convert_cast)),),
    "CastLike": ((1, ("cast", values.convert_cast_like)),),
    "Identity": ((1, ("", values.convert_identity)),),
    "Dropout": ((1, ("", values.convert_dropout)),),
    "Constant": ((1, ("", values.convert_constant)),),
    "ConstantOfShape": ((1, ("", values.convert_constant_of_shape)),),
    "Shape": ((1, ("", values.convert_shape)),),
    "Size": ((1, ("", values.convert_size)),),
    "Range": ((1, ("", values.convert_range)),),
    "NonZero": ((1, ("", values.convert_non_zero)),),
}


def row_of(op_type: str, opset: int) -> Row | None:
    """The row for an op type in a model of `opset`, None where there is none."""
    found = [row for since, row in SPELLINGS.get(op_type, ()) if since <= opset]
    return found[-1] if found else None
