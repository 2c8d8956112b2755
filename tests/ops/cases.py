"""Runs one op three ways for the tests: its stages, its reference, and the float64 oracle."""

from collections.abc import Sequence

import numpy as np

import onepass.ops.registry  # noqa: F401
from onepass.core.dtypes import dtype_of_numpy
from onepass.core.tensor import TensorType
from onepass.core.tolerance import compare
from onepass.ops.evaluate import evaluate
from onepass.ops.opdef import OPS, Array, Attrs, Lowering
from onepass.ops.shapes import Numbers

rng = np.random.default_rng(7)


def normal(*shape: int) -> Numbers:
    """Standard normal float32."""
    return rng.standard_normal(shape).astype(np.float32)


def lowered(op: str, inputs: Sequence[Array | None], attrs: Attrs) -> Lowering:
    """The op's stages for these inputs."""
    types = [None if x is None else TensorType(dtype_of_numpy(x.dtype), x.shape) for x in inputs]
    return OPS[op].lower(types, attrs)


def check(op: str, inputs: Sequence[Array | None], terms: int = 1, **attrs: object) -> tuple[Array, ...]:
    """Asserts that stages and float32 reference agree with the float64 reference; returns the latter.

    `terms`: how many products or elements an output sums.
    """
    lowering = lowered(op, inputs, attrs)  # type: ignore[arg-type]
    exact = [x.astype(np.float64) if x is not None and x.dtype == np.float32 else x for x in inputs]
    wanted = OPS[op].reference(exact, attrs)  # type: ignore[arg-type]
    plain = OPS[op].reference(inputs, attrs)  # type: ignore[arg-type]
    types = lowering.output_types
    for got in (evaluate(lowering, inputs), plain):
        assert len(got) == len(wanted) == len(types)
        for mine, want, declared in zip(got, wanted, types, strict=True):
            assert mine.dtype == declared.dtype.numpy, (mine.dtype, declared)
            assert mine.shape == want.shape == declared.shape
            comparison = compare(mine, want, terms)
            assert comparison.within, comparison
    return wanted
