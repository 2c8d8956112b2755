"""Every op that onepass knows: importing this module defines them all; `OPS` maps name to `OpDef`."""

from onepass.ops import (  # noqa: F401
    activations,
    contraction,
    indexing,
    movement,
    normalization,
    pointwise,
    pooling,
    reductions,
    resize,
)
from onepass.ops.opdef import OPS

__all__ = ["OPS"]
