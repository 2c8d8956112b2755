"""Traversals of expressions and statements: children, rebuilding, substitution, collection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from onepass.loops.ir import (
    Alloc,
    Binary,
    Cast,
    Const,
    Expr,
    Fma,
    For,
    If,
    Index,
    Load,
    Select,
    Stmt,
    Unary,
)

# By type, not by `match`: this is the innermost call of the compiler.
_OPERANDS: Mapping[type[Expr], Callable[..., tuple[Expr, ...]]] = {
    Load: lambda e: e.indices,
    Unary: lambda e: (e.x,),
    Cast: lambda e: (e.x,),
    Binary: lambda e: (e.a, e.b),
    Fma: lambda e: (e.a, e.b, e.c),
    Select: lambda e: (e.condition, e.yes, e.no),
}


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands of `expr`, the indices of a load included."""
    fields = _OPERANDS.get(type(expr))
    return fields(expr) if fields is not None else ()


def rebuild(expr: Expr, operands: tuple[Expr, ...]) -> Expr:
    """`expr` with other operands; the same object where they are the same objects."""
    if all(new is old for new, old in zip(operands, children(expr), strict=True)):
        return expr
    match expr:
        case Load():
            return Load(expr.buffer, operands, expr.dtype, expr.fill)
        case Unary():
            return Unary(expr.op, operands[0], expr.dtype)
        case Cast():
            return Cast(operands[0], expr.dtype)
        case Binary():
            return Binary(expr.op, operands[0], operands[1], expr.dtype)
        case Fma():
            return Fma(operands[0], operands[1], operands[2], expr.dtype)
        case Select():
            return Select(operands[0], operands[1], operands[2], expr.dtype)
        case _:
            return expr


def transform(expr: Expr, rewrite: Callable[[Expr], Expr]) -> Expr:
    """Applies `rewrite` to every subexpression, operands first."""
    operands = children(expr)
    if operands:
        expr = rebuild(expr, tuple(transform(operand, rewrite) for operand in operands))
    return rewrite(expr)


def substitute(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """Replaces each `Index` named in `values`."""
    return transform(expr, lambda e: values.get(e.name, e) if isinstance(e, Index) else e)


def subexpressions(expr: Expr) -> Iterator[Expr]:
    """`expr` and everything in it, outermost first."""
    pending = [expr]
    while pending:
        expr = pending.pop()
        yield expr
        pending.extend(reversed(children(expr)))


def loads(expr: Expr) -> tuple[Load, ...]:
    """Every load in `expr`, those inside the indices of others included."""
    return tuple(e for e in subexpressions(expr) if isinstance(e, Load))


def index_names(expr: Expr) -> frozenset[str]:
    """Names of the loop variables that `expr` depends on."""
    return frozenset(e.name for e in subexpressions(expr) if isinstance(e, Index))


def arithmetic(expr: Expr) -> int:
    """Operations a point on values, not on indices: an `Fma` counts two, a cast or select none.

    Transcendental functions count one, as in the published rules for counting (one op, one flop).
    """
    match expr:
        case Load() | Const() | Index():
            return 0
        case Unary():
            return 1 + arithmetic(expr.x)
        case Binary():
            return 1 + arithmetic(expr.a) + arithmetic(expr.b)
        case Fma():
            return 2 + arithmetic(expr.a) + arithmetic(expr.b) + arithmetic(expr.c)
        case Select():
            return arithmetic(expr.yes) + arithmetic(expr.no)
        case Cast():
            return arithmetic(expr.x)
        case _:
            return 0


def statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement in `body`, outer before inner."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, For | If | Alloc):
            yield from statements(stmt.body)
