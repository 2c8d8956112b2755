"""Checks an op three ways: its stages, its numpy reference, and ONNX's own node cases."""

import re
import warnings
from functools import cache

import numpy as np
import onnx
from onnx import numpy_helper

from onepass.core.dtypes import DTYPES, dtype_of_numpy
from onepass.core.tensor import TensorType
from onepass.core.tolerance import compare
from onepass.ops.evaluate import evaluate
from onepass.ops.registry import OPS

CONSTANT_INPUTS = {"CumSum": {1: "axis"}}
NAMES = {"PRelu": "prelu", "LRN": "lrn", "IsNaN": "is_nan", "RMSNormalization": "rms_normalization"}


def types_of(arrays):
    return [None if x is None else TensorType(dtype_of_numpy(x.dtype), x.shape) for x in arrays]


def run(op, inputs, attrs=None):
    """The stages' outputs; the types that the stages declare must be those of the arrays."""
    lowering = OPS[op].lower(types_of(inputs), attrs or {})
    outputs = evaluate(lowering, inputs)
    for array, declared in zip(outputs, lowering.output_types, strict=True):
        assert (array.shape, array.dtype) == (declared.shape, declared.dtype.numpy)
    return outputs


def oracle(op, inputs, attrs=None):
    """The reference; real inputs in float64."""
    wide = [x.astype(np.float64) if x is not None and x.dtype.kind == "f" else x for x in inputs]
    return OPS[op].reference(wide, attrs or {})


def check(op, inputs, attrs=None, reduction_length=1, magnitude=None):
    """Stages against the float64 reference; the reference keeps dtype and shape. Returns the first output."""
    actual, expected = run(op, inputs, attrs), oracle(op, inputs, attrs)
    kept = OPS[op].reference(inputs, attrs or {})
    for got, want, own in zip(actual, expected, kept, strict=True):
        assert (own.dtype, own.shape) == (got.dtype, got.shape)
        comparison = compare(got, want, reduction_length, magnitude=magnitude)
        assert comparison.within, f"{op} {attrs}: {comparison}\n{got}\n{want}"
    return actual[0]


def snake(onnx_name):
    return NAMES.get(onnx_name) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", onnx_name).lower()


def _attribute(attribute):
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.name == "to":
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value)).name
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS) else value


@cache
def _all_cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases  # noqa: PLC0415  (generates 1,900 models)

        return collect_testcases(None)


def onnx_cases(operators):
    """ONNX's node cases for these operators as (name, op, inputs, attrs, first output), newest opset."""
    found = []
    for case in _all_cases():
        node = case.model.graph.node[0]
        if len(case.model.graph.node) != 1 or node.op_type not in operators or node.domain:
            continue
        arrays, outputs = case.data_sets[0]
        present = iter(arrays)
        inputs = [_array(next(present)) if name else None for name in node.input]
        expected = _array(outputs[0])
        if any(isinstance(x, str) for x in (*inputs, expected)):
            continue
        attrs = {attribute.name: _attribute(attribute) for attribute in node.attribute}
        if attrs.get("training_mode"):
            continue
        constants = CONSTANT_INPUTS.get(
            node.op_type, {1: "axes"} if node.op_type.startswith("Reduce") else {}
        )
        for position, name in constants.items():
            if position < len(inputs) and inputs[position] is not None:
                value = inputs[position].tolist()
                attrs[name] = tuple(value) if isinstance(value, list) else value
        inputs = [x for k, x in enumerate(inputs) if k not in constants]
        found.append((case.name, snake(node.op_type), inputs, attrs, expected))
    return found


def _array(value):
    """The array, or a string that says why it is no tensor of ours."""
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    if not isinstance(value, np.ndarray | np.generic):
        return type(value).__name__
    value = np.asarray(value)
    return value if value.dtype.name in DTYPES else value.dtype.name


def check_onnx_cases(operators):
    """Stages and reference against ONNX's expected arrays; every operator has a case."""
    cases = onnx_cases(operators)
    assert {op for _, op, *_ in cases} == {snake(name) for name in operators}
    failures = []
    for name, op, inputs, attrs, expected in cases:
        length = max((x.size for x in inputs if x is not None), default=1)
        for who, outputs in (
            ("stages", run(op, inputs, attrs)),
            ("reference", OPS[op].reference(inputs, attrs)),
        ):
            if (outputs[0].dtype, outputs[0].shape) != (expected.dtype, expected.shape):
                failures.append(f"{name}, {who}: {outputs[0].dtype}{outputs[0].shape}, not {expected.shape}")
                continue
            comparison = compare(outputs[0], expected, length)
            if not comparison.within:
                failures.append(f"{name}, {who}: {comparison}")
    assert not failures, "\n".join(failures)
    return len(cases)
