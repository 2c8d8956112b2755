"""The loop IR: expressions over scalars, statements over loops, and the kernel they make.

This file is the whole grammar. Everything that onepass generates is a `Kernel`: it goes in here
from the forms, and out to a target (LLVM, or the numpy interpreter that defines its meaning).

    Expr   = Const | Index | Load | Unary | Binary | Fma | Select | Cast
    Stmt   = For | Store | If | Alloc | Prefetch
    Kernel = name, params: Buffer*, body: Stmt*

Meaning, where it is not obvious:

* An index expression is an int64 `Expr`. Buffers are row-major and densely packed.
* `For.mode`: `serial`; `parallel` (outermost only; iterations are independent and are split among
  the workers in contiguous ranges; loops that follow one another meet no barrier); `shared` (the
  same, and a worker that is done takes over iterations that another one has not begun); `unroll`
  (static bounds; expanded); `vector` (static bounds, start 0, innermost; the body holds only
  stores, all lanes run at once as one vector of `stop` elements; iterations are independent).
* `Buffer.home`: `memory` (a parameter), `cache` (scratch of one worker, allocated by `Alloc`),
  `register` (allocated by `Alloc`; must be indexed by constants once unrolled, except that the
  last index may be the vector variable, or it plus a literal: the innermost dimension is held as
  one vector value; targets carry the elements through serial loops as SSA values).
* `Select` is lazy: a `Load` in the arm that is not chosen is not performed. So a guarded load
  never reads outside its buffer.
* Floating point is IEEE, no fast-math: `Fma` rounds once, and nothing else is contracted.
* Integer arithmetic wraps. `floordiv` and `mod` round towards minus infinity (Python's), `div` and
  `rem` towards zero (C's); integer division by zero gives 0 in every target, never a trap.
* `max`/`min` on floats propagate NaN (numpy's `maximum`/`minimum`), as ONNX asks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from onepass.core.dtypes import I64, DType

Scalar = float | int | bool
Home = Literal["register", "cache", "memory"]
LoopMode = Literal["serial", "parallel", "shared", "unroll", "vector"]
PARALLEL: frozenset[LoopMode] = frozenset({"parallel", "shared"})
UnaryOp = Literal[
    "neg", "abs", "sqrt", "floor", "ceil", "round", "trunc", "not", "is_nan", "is_inf", "sign",
    "exp", "log", "tanh", "erf", "sigmoid", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "asinh", "acosh", "atanh",
]  # fmt: skip
BinaryOp = Literal[
    "add", "sub", "mul", "div", "rem", "floordiv", "mod", "fmod", "pow", "max", "min",
    "and", "or", "xor", "shl", "shr", "eq", "ne", "lt", "le", "gt", "ge",
]  # fmt: skip
UNARY_OPS: tuple[str, ...] = get_args(UnaryOp)
BINARY_OPS: tuple[str, ...] = get_args(BinaryOp)
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
PREDICATES = frozenset({"is_nan", "is_inf"})


class Expr:
    """A scalar value; every subclass has a `dtype`."""

    __slots__ = ()
    dtype: DType


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A literal; `value` is a Python number that `dtype` can hold."""

    value: Scalar
    dtype: DType = I64


@dataclass(frozen=True, slots=True)
class Index(Expr):
    """A loop variable, or the axis of a `Compute`; always int64."""

    name: str

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return I64


@dataclass(frozen=True, slots=True)
class Load(Expr):
    """One element of a buffer.

    `fill` not None: indices may lie outside the buffer and then the value is `fill`. Only op
    definitions write that; a form turns it into a `Select`, or drops it where the buffer is padded.
    """

    buffer: str
    indices: tuple[Expr, ...]
    dtype: DType
    fill: Scalar | None = None


@dataclass(frozen=True, slots=True)
class Unary(Expr):
    """`op(x)`."""

    op: UnaryOp
    x: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """`a op b`, operands of one dtype."""

    op: BinaryOp
    a: Expr
    b: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Fma(Expr):
    """`a * b + c`, rounded once."""

    a: Expr
    b: Expr
    c: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """`yes if condition else no`, lazily."""

    condition: Expr
    yes: Expr
    no: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """Conversion as numpy's `astype`: float to int truncates, to bool tests for non-zero."""

    x: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named array. `home` says where it lives: it is the planner's decision, not a comment.

    `streamed`: whole vectors are written past the caches; the array is never read here.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    home: Home = "memory"
    streamed: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.size_bytes


class Stmt:
    """A statement of a kernel."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class For(Stmt):
    """`for index in range(start, stop, step): body`; start and stop may depend on outer loops."""

    index: str
    start: Expr
    stop: Expr
    body: tuple[Stmt, ...]
    mode: LoopMode = "serial"
    step: int = 1


@dataclass(frozen=True, slots=True)
class Store(Stmt):
    """`buffer[indices] = value`."""

    buffer: str
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class If(Stmt):
    """Runs `body` where `condition` holds; `condition` must not vary within a vector loop."""

    condition: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Alloc(Stmt):
    """`buffer` (home register or cache) exists within `body`; its elements start undefined."""

    buffer: Buffer
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Prefetch(Stmt):
    """A hint that the line of `buffer[indices]` will be read, or written if the kernel writes the buffer.

    It may lie outside. `far`: not soon, so the second-level cache will do.
    """

    buffer: str
    indices: tuple[Expr, ...]
    far: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch: every worker runs `body`; `params` lie in memory and do not overlap."""

    name: str
    params: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
