"""Traversals of expressions and statements: children, rebuilding, substitution, collection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from onepass.loops import ir

# By type, not by `match`: this is the innermost call of the compiler.
_OPERANDS: Mapping[type[ir.Expr], Callable[..., tuple[ir.Expr, ...]]] = {
    ir.Load: lambda e: e.indices,
    ir.Unary: lambda e: (e.x,),
    ir.Cast: lambda e: (e.x,),
    ir.Binary: lambda e: (e.a, e.b),
    ir.Fma: lambda e: (e.a, e.b, e.c),
    ir.Select: lambda e: (e.condition, e.yes, e.no),
}


LINE_BYTES, PAGE_BYTES = 64, 4096


def children(expr: ir.Expr) -> tuple[ir.Expr, ...]:
    """The direct operands of `expr`, the indices of a load included."""
    fields = _OPERANDS.get(type(expr))
    return fields(expr) if fields is not None else ()


def rebuild(expr: ir.Expr, operands: tuple[ir.Expr, ...]) -> ir.Expr:
    """`expr` with other operands; the same object where they are the same objects."""
    if all(new is old for new, old in zip(operands, children(expr), strict=True)):
        return expr
    make: Callable[..., ir.Expr] = type(expr)
    match expr:
        case ir.Load():
            return ir.Load(expr.buffer, operands, expr.dtype, expr.fill)
        case ir.Unary() | ir.Binary():
            return make(expr.op, *operands, expr.dtype)
        case ir.Cast() | ir.Fma() | ir.Select():
            return make(*operands, expr.dtype)
    return expr


def transform(expr: ir.Expr, rewrite: Callable[[ir.Expr], ir.Expr]) -> ir.Expr:
    """Applies `rewrite` to every subexpression, operands first."""
    operands = children(expr)
    if operands:
        expr = rebuild(expr, tuple(transform(operand, rewrite) for operand in operands))
    return rewrite(expr)


def substitute(expr: ir.Expr, values: Mapping[str, ir.Expr]) -> ir.Expr:
    """Replaces each `Index` named in `values`."""
    return transform(expr, lambda e: values.get(e.name, e) if isinstance(e, ir.Index) else e)


def subexpressions(expr: ir.Expr) -> Iterator[ir.Expr]:
    """`expr` and everything in it, outermost first."""
    pending = [expr]
    while pending:
        expr = pending.pop()
        yield expr
        pending.extend(reversed(children(expr)))


def loads(expr: ir.Expr) -> tuple[ir.Load, ...]:
    """Every load in `expr`, those inside the indices of others included."""
    return tuple(e for e in subexpressions(expr) if isinstance(e, ir.Load))


def index_names(expr: ir.Expr) -> frozenset[str]:
    """Names of the loop variables that `expr` depends on."""
    return frozenset(e.name for e in subexpressions(expr) if isinstance(e, ir.Index))


def arithmetic(expr: ir.Expr) -> int:
    """Operations a point on values, not on indices: an `Fma` counts two, a cast or select none.

    Transcendental functions count one, as in the published rules for counting (one op, one flop).
    """
    if isinstance(expr, ir.Load):
        return 0
    operands = (expr.yes, expr.no) if isinstance(expr, ir.Select) else children(expr)
    return _COUNTED.get(type(expr), 0) + sum(map(arithmetic, operands))


_COUNTED: Mapping[type[ir.Expr], int] = {ir.Unary: 1, ir.Binary: 1, ir.Fma: 2}


def statements(body: tuple[ir.Stmt, ...]) -> Iterator[ir.Stmt]:
    """Every statement in `body`, outer before inner."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, ir.For | ir.If | ir.Alloc):
            yield from statements(stmt.body)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where the `cache` buffers of a kernel lie in the block of one worker: byte offsets by name and size."""

    offsets: Mapping[tuple[str, int], int]
    size_bytes: int


def scratch_of(kernel: ir.Kernel) -> Scratch:
    """The scratch of one worker, a whole number of pages; buffers of one name and size share a place."""
    offsets: dict[tuple[str, int], int] = {}
    end = 0
    for stmt in statements(kernel.body):
        if isinstance(stmt, ir.Alloc) and stmt.buffer.home == "cache":
            key = (stmt.buffer.name, stmt.buffer.size_bytes)
            if key not in offsets:
                offsets[key] = end
                end += -(-key[1] // LINE_BYTES) * LINE_BYTES
    return Scratch(offsets, -(-end // PAGE_BYTES) * PAGE_BYTES)
