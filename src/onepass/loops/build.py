"""Short constructors for expressions and loops, with the obvious constants folded as they are made."""

from __future__ import annotations

from onepass.core.dtypes import BOOL, I64, DType
from onepass.loops.ir import (
    COMPARISONS,
    PREDICATES,
    Binary,
    BinaryOp,
    Cast,
    Const,
    Expr,
    Fma,
    For,
    Index,
    LoopMode,
    Scalar,
    Select,
    Stmt,
    Unary,
    UnaryOp,
)

IntoIndex = Expr | int


def const(value: Scalar, dtype: DType = I64) -> Const:
    """A literal of `dtype`."""
    return Const(value, dtype)


def index(value: IntoIndex) -> Expr:
    """An int64 expression from a Python int or an expression."""
    return Const(value, I64) if isinstance(value, int) else value


def unary(op: UnaryOp, x: Expr) -> Unary:
    """`op(x)`; predicates give a bool, everything else keeps the dtype of `x`."""
    return Unary(op, x, BOOL if op in PREDICATES else x.dtype)


def binary(op: BinaryOp, a: Expr, b: Expr) -> Expr:
    """`a op b`; comparisons give a bool, everything else the dtype of `a`."""
    return Binary(op, a, b, BOOL if op in COMPARISONS else a.dtype)


def fma(a: Expr, b: Expr, c: Expr) -> Fma:
    """`a * b + c`, rounded once."""
    return Fma(a, b, c, c.dtype)


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """`yes if condition else no`; decided here where the condition is a literal."""
    if isinstance(condition, Const):
        return yes if condition.value else no
    return Select(condition, yes, no, yes.dtype)


def cast(x: Expr, dtype: DType) -> Expr:
    """`x` converted to `dtype`; `x` itself where it already has it."""
    return x if x.dtype == dtype else Cast(x, dtype)


def add(a: IntoIndex, b: IntoIndex) -> Expr:
    """Sum of two index expressions; literals fold."""
    a, b = index(a), index(b)
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(int(a.value) + int(b.value))
    if isinstance(a, Const) and a.value == 0:
        return b
    if isinstance(b, Const) and b.value == 0:
        return a
    return Binary("add", a, b, I64)


def sub(a: IntoIndex, b: IntoIndex) -> Expr:
    """Difference of two index expressions; literals fold."""
    a, b = index(a), index(b)
    if isinstance(b, Const):
        return add(a, -int(b.value))
    return Binary("sub", a, b, I64)


def mul(a: IntoIndex, b: IntoIndex) -> Expr:
    """Product of two index expressions; literals fold."""
    a, b = index(a), index(b)
    if isinstance(a, Const):
        a, b = b, a
    if isinstance(b, Const):
        if isinstance(a, Const):
            return Const(int(a.value) * int(b.value))
        if b.value == 1:
            return a
        if b.value == 0:
            return Const(0)
    return Binary("mul", a, b, I64)


def floordiv(a: IntoIndex, b: int) -> Expr:
    """`a // b` for a positive literal `b`."""
    a = index(a)
    if b == 1:
        return a
    return Const(int(a.value) // b) if isinstance(a, Const) else Binary("floordiv", a, Const(b), I64)


def mod(a: IntoIndex, b: int) -> Expr:
    """`a % b` for a positive literal `b`."""
    a = index(a)
    if b == 1:
        return Const(0)
    return Const(int(a.value) % b) if isinstance(a, Const) else Binary("mod", a, Const(b), I64)


def loop(
    name: str, stop: IntoIndex, body: tuple[Stmt, ...], mode: LoopMode = "serial", start: IntoIndex = 0
) -> For:
    """`for name in range(start, stop)` in the given mode."""
    return For(name, index(start), index(stop), body, mode)


def idx(name: str) -> Index:
    """The loop variable `name`."""
    return Index(name)
