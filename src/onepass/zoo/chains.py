"""Memory-bound micro models of the zoo: nothing but elementwise ops and row reductions."""

from __future__ import annotations

from onepass.core.dtypes import F32
from onepass.zoo.builder import ModelBuilder


def row_chain(seed: int = 0, width: int = 256) -> ModelBuilder:
    """LayerNorm, GELU, sigmoid and softmax over 65536 rows of 256: one pass over memory when fused."""
    b = ModelBuilder("row_chain", opset=20, seed=seed)
    x = b.layer_norm("norm", b.input("input", F32, ("N", width)), width, 1e-5)
    x = b.node("act", "Sigmoid", [b.node("gelu", "Gelu", [x], approximate="none")])
    b.output(b.node("softmax", "Softmax", [x], axis=-1), "output", F32, ("N", width))
    return b


def vector_add(seed: int = 0) -> ModelBuilder:
    """Sum of two vectors of 16 Mi floats: one operation for twelve bytes."""
    b = ModelBuilder("vector_add", opset=17, seed=seed)
    left, right = b.input("a", F32, ("N",)), b.input("b", F32, ("N",))
    b.output(b.node("", "Add", [left, right]), "output", F32, ("N",))
    return b
