"""Short constructors for expressions and loops, with the obvious constants folded as they are made."""

from __future__ import annotations

from onepass.core.dtypes import BOOL, I64, DType
from onepass.loops import ir

IntoIndex = ir.Expr | int


def const(value: ir.Scalar, dtype: DType = I64) -> ir.Const:
    """A literal of `dtype`."""
    return ir.Const(value, dtype)


def index(value: IntoIndex) -> ir.Expr:
    """An int64 expression from a Python int or an expression."""
    return ir.Const(value, I64) if isinstance(value, int) else value


def unary(op: ir.UnaryOp, x: ir.Expr) -> ir.Unary:
    """`op(x)`; predicates give a bool, everything else keeps the dtype of `x`."""
    return ir.Unary(op, x, BOOL if op in ir.PREDICATES else x.dtype)


def binary(op: ir.BinaryOp, a: ir.Expr, b: ir.Expr) -> ir.Expr:
    """`a op b`; comparisons give a bool, everything else the dtype of `a`."""
    return ir.Binary(op, a, b, BOOL if op in ir.COMPARISONS else a.dtype)


def fma(a: ir.Expr, b: ir.Expr, c: ir.Expr) -> ir.Fma:
    """`a * b + c`, rounded once."""
    return ir.Fma(a, b, c, c.dtype)


def select(condition: ir.Expr, yes: ir.Expr, no: ir.Expr) -> ir.Expr:
    """`yes if condition else no`; decided here where the condition is a literal."""
    if isinstance(condition, ir.Const):
        return yes if condition.value else no
    return ir.Select(condition, yes, no, yes.dtype)


def cast(x: ir.Expr, dtype: DType) -> ir.Expr:
    """`x` converted to `dtype`; `x` itself where it already has it."""
    return x if x.dtype == dtype else ir.Cast(x, dtype)


def add(a: IntoIndex, b: IntoIndex) -> ir.Expr:
    """Sum of two index expressions; literals fold."""
    a, b = index(a), index(b)
    if isinstance(a, ir.Const) and isinstance(b, ir.Const):
        return ir.Const(int(a.value) + int(b.value))
    if isinstance(a, ir.Const) and a.value == 0:
        return b
    if isinstance(b, ir.Const) and b.value == 0:
        return a
    return ir.Binary("add", a, b, I64)


def sub(a: IntoIndex, b: IntoIndex) -> ir.Expr:
    """Difference of two index expressions; literals fold."""
    a, b = index(a), index(b)
    if isinstance(b, ir.Const):
        return add(a, -int(b.value))
    return ir.Binary("sub", a, b, I64)


def mul(a: IntoIndex, b: IntoIndex) -> ir.Expr:
    """Product of two index expressions; literals fold."""
    a, b = index(a), index(b)
    if isinstance(a, ir.Const):
        a, b = b, a
    if isinstance(b, ir.Const):
        if isinstance(a, ir.Const):
            return ir.Const(int(a.value) * int(b.value))
        if b.value == 1:
            return a
        if b.value == 0:
            return ir.Const(0)
    return ir.Binary("mul", a, b, I64)


def floordiv(a: IntoIndex, b: int) -> ir.Expr:
    """`a // b` for a positive literal `b`."""
    a = index(a)
    if b == 1:
        return a
    return (
        ir.Const(int(a.value) // b) if isinstance(a, ir.Const) else ir.Binary("floordiv", a, ir.Const(b), I64)
    )


def mod(a: IntoIndex, b: int) -> ir.Expr:
    """`a % b` for a positive literal `b`."""
    a = index(a)
    if b == 1:
        return ir.Const(0)
    return ir.Const(int(a.value) % b) if isinstance(a, ir.Const) else ir.Binary("mod", a, ir.Const(b), I64)


def loop(
    name: str, stop: IntoIndex, body: tuple[ir.Stmt, ...], mode: ir.LoopMode = "serial", start: IntoIndex = 0
) -> ir.For:
    """`for name in range(start, stop)` in the given mode."""
    return ir.For(name, index(start), index(stop), body, mode)


def idx(name: str) -> ir.Index:
    """The loop variable `name`."""
    return ir.Index(name)
