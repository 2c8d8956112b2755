"""What an op is: index-level stages that define shape, cost and loops, and a numpy reference.

`lower` turns input types and attributes into *stages*. A stage computes every element of one
tensor from the op's inputs and earlier stages:

    stage[axes] = combine over reduce_axes of body(axes, reduce_axes)

`body` loads `in0`, `in1`, ... (inputs, by position) and earlier stages by their name, at logical
indices. So `relu` has one stage without reduce axes, `softmax` three (row maximum, row sum of
exponentials, quotient). The tensor's shape is the extents of `axes`, a loop nest is one loop an axis, its
operations are counted in the body: nothing about an op is written down twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from onepass.core.dtypes import DType
from onepass.core.tensor import TensorType
from onepass.loops.ir import Expr

Array = NDArray[np.generic]
AttrValue = int | float | str | bool | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | None
Attrs = Mapping[str, AttrValue]
Combine = Literal["add", "mul", "max", "min"]


@dataclass(frozen=True, slots=True)
class Axis:
    """A named loop of static extent."""

    name: str
    extent: int


@dataclass(frozen=True, slots=True)
class Compute:
    """One stage. `combine` is None exactly when `reduce_axes` is empty."""

    name: str
    dtype: DType
    axes: tuple[Axis, ...]
    body: Expr
    reduce_axes: tuple[Axis, ...] = ()
    combine: Combine | None = None

    @property
    def type(self) -> TensorType:
        """Type of the tensor that the stage computes."""
        return TensorType(self.dtype, tuple(axis.extent for axis in self.axes))


@dataclass(frozen=True, slots=True)
class Lowering:
    """Stages in order, and the names of those that are the op's outputs."""

    stages: tuple[Compute, ...]
    outputs: tuple[str, ...]

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """Type of each output."""
        by_name = {stage.name: stage for stage in self.stages}
        return tuple(by_name[name].type for name in self.outputs)


InputTypes = Sequence[TensorType | None]
Lower = Callable[[InputTypes, Attrs], Lowering]
Reference = Callable[[Sequence[Array | None], Attrs], tuple[Array, ...]]


@dataclass(frozen=True, slots=True)
class OpDef:
    """An op. `reference` computes in the precision of the arrays it is given (float64: the oracle).

    `view` ops only rename the elements of a dense tensor (reshape): they need no kernel where input and
    output are plain row-major.
    """

    name: str
    lower: Lower
    reference: Reference
    view: bool = False


OPS: dict[str, OpDef] = {}


def define(name: str, lower: Lower, reference: Reference, view: bool = False) -> None:
    """Registers an op under its name; each name once."""
    if name in OPS:
        raise ValueError(f"op '{name}' is defined twice")
    OPS[name] = OpDef(name, lower, reference, view)
