"""Checks an op: its stages against its numpy reference in float64. (ONNX's cases: tests/frontends.)"""

import numpy as np
from stage_evaluation import evaluate

from onepass.core.dtypes import dtype_of_numpy
from onepass.core.tensor import TensorType
from onepass.core.tolerance import compare
from onepass.ops.registry import OPS

rng = np.random.default_rng(7)


def normal(*shape, dtype=np.float32):
    """Standard normal numbers."""
    return np.asarray(rng.standard_normal(shape), dtype)


def lowered(op, inputs, attrs=None):
    """The op's stages for these inputs."""
    types = [None if x is None else TensorType(dtype_of_numpy(x.dtype), x.shape) for x in inputs]
    return OPS[op].lower(types, attrs or {})


def run(op, inputs, attrs=None):
    """The stages' outputs; the types that the stages declare must be those of the arrays."""
    lowering = lowered(op, inputs, attrs)
    outputs = evaluate(lowering, inputs)
    for array, declared in zip(outputs, lowering.output_types, strict=True):
        assert (array.shape, array.dtype) == (declared.shape, declared.dtype.numpy)
    return outputs


def close(actual, expected, terms=1):
    """Asserts that `actual` lies within the project's tolerance."""
    comparison = compare(actual, expected, terms)
    assert comparison.within, f"{comparison}\n{actual}\n{expected}"


def check(op, inputs, attrs=None, terms=1):
    """Stages against the float64 reference; the reference keeps dtype and shape. Returns the first output."""
    wide = [x.astype(np.float64) if x is not None and x.dtype.kind == "f" else x for x in inputs]
    actual, expected = run(op, inputs, attrs), OPS[op].reference(wide, attrs or {})
    kept = OPS[op].reference(inputs, attrs or {})
    for got, want, own in zip(actual, expected, kept, strict=True):
        assert (own.dtype, own.shape) == (got.dtype, got.shape)
        close(got, want, terms)
    return actual[0]


def same_as_reference(op, inputs, attrs=None):
    """Asserts that the stages give the reference's elements exactly (movement: no arithmetic)."""
    actual, expected = run(op, inputs, attrs), OPS[op].reference(inputs, attrs or {})
    for got, want in zip(actual, expected, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    return actual[0]
