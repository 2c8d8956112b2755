"""Vector forms of exp, log, tanh, erf and sigmoid for float32."""

from __future__ import annotations

from onepass.targets.llvm.description import TargetDescription

VECTOR_FUNCTIONS: frozenset[str] = frozenset()


def vector_function(
    op: str, name: str, lanes: int, target: TargetDescription, declarations: dict[str, str]
) -> str:
    """IR text."""
    raise KeyError(op)
