"""Every op that onepass knows: importing this module defines them all; `OPS` maps name to `OpDef`."""

from onepass.ops import activations, contraction, normalization, pointwise, reductions  # noqa: F401
from onepass.ops.opdef import OPS

__all__ = ["OPS"]
