"""The text form of kernels and expressions: for people, dumps and golden tests.

In: a `Kernel` or an `Expr`. Out: text that depends on nothing but the value. Operators bind as in
Python; a literal carries its dtype unless it is int64 (`3`, `0.5f32`, `true`).
"""

from __future__ import annotations

import math

from onepass.core.dtypes import BOOL, I64
from onepass.loops import ir

_INFIX: dict[str, tuple[str, int]] = {
    "eq": ("==", 1), "ne": ("!=", 1), "lt": ("<", 1), "le": ("<=", 1), "gt": (">", 1), "ge": (">=", 1),
    "or": ("|", 2), "xor": ("^", 3), "and": ("&", 4), "shl": ("<<", 5), "shr": (">>", 5),
    "add": ("+", 6), "sub": ("-", 6), "mul": ("*", 7), "div": ("/", 7),
    "floordiv": ("//", 7), "mod": ("%", 7),
}  # fmt: skip
_ATOM = 9


def print_expr(expr: ir.Expr) -> str:
    """One line of text."""
    return _expr(expr)[0]


def print_kernel(kernel: ir.Kernel) -> str:
    """The whole kernel, a statement a line, two spaces a level, ending in a newline."""
    params = ", ".join(_buffer(buffer) for buffer in kernel.params)
    return "\n".join([f"kernel {kernel.name}({params}):", *_block(kernel.body, 1)]) + "\n"


def _buffer(buffer: ir.Buffer) -> str:
    home = buffer.home + " streamed" * buffer.streamed
    return f"{buffer.name}: {buffer.dtype}[{', '.join(map(str, buffer.shape))}] {home}"


def _block(body: tuple[ir.Stmt, ...], depth: int) -> list[str]:
    if not body:
        return ["  " * depth + "pass"]
    return [line for stmt in body for line in _stmt(stmt, depth)]


def _stmt(stmt: ir.Stmt, depth: int) -> list[str]:
    indent = "  " * depth
    match stmt:
        case ir.For():
            return [f"{indent}{_for_head(stmt)}:", *_block(stmt.body, depth + 1)]
        case ir.Store():
            return [f"{indent}{_element(stmt.buffer, stmt.indices)} = {print_expr(stmt.value)}"]
        case ir.If():
            return [f"{indent}if {print_expr(stmt.condition)}:", *_block(stmt.body, depth + 1)]
        case ir.Alloc():
            return [f"{indent}alloc {_buffer(stmt.buffer)}:", *_block(stmt.body, depth + 1)]
        case ir.Prefetch():
            return [f"{indent}prefetch{' far' * stmt.far} {_element(stmt.buffer, stmt.indices)}"]
        case _:
            raise TypeError(f"no statement of the loop IR: {stmt!r}")


def _for_head(loop: ir.For) -> str:
    bounds = [print_expr(loop.start), print_expr(loop.stop), str(loop.step)]
    if loop.step == 1:
        bounds.pop()
        if loop.start == ir.Const(0):
            bounds.pop(0)
    mode = "" if loop.mode == "serial" else loop.mode + " "
    return f"{mode}for {loop.index} in range({', '.join(bounds)})"


def _element(buffer: str, indices: tuple[ir.Expr, ...]) -> str:
    return f"{buffer}[{', '.join(map(print_expr, indices))}]"


def _literal(const: ir.Const) -> str:
    if const.dtype == BOOL:
        return "true" if const.value else "false"
    if const.dtype == I64:
        return str(const.value)
    suffix = const.dtype.kind[0] + str(const.dtype.bits)
    return f"{_number(const.value)}{suffix}" if const.dtype.is_float else f"{const.value}{suffix}"


def _number(value: ir.Scalar) -> str:
    return repr(float(value)) if math.isfinite(value) else f"{float(value)}_"


def _expr(expr: ir.Expr) -> tuple[str, int]:
    """The text, and how tightly its outermost operator binds."""
    match expr:
        case ir.Const():
            return _literal(expr), _ATOM
        case ir.Index():
            return expr.name, _ATOM
        case ir.Load():
            text = _element(expr.buffer, expr.indices)
            return (text, _ATOM) if expr.fill is None else (f"{text[:-1]}; fill {_number(expr.fill)}]", _ATOM)
        case ir.Binary(op=op) if op in _INFIX:
            symbol, level = _INFIX[op]
            # Left-associative, and comparisons do not chain; floats do not reassociate.
            left = _operand(expr.a, level + (level == 1))
            return f"{left} {symbol} {_operand(expr.b, level + 1)}", level
        case ir.Unary():
            return _call(expr.op, expr.x)
        case ir.Binary():
            return _call(expr.op, expr.a, expr.b)
        case ir.Fma():
            return _call("fma", expr.a, expr.b, expr.c)
        case ir.Select():
            return _call("select", expr.condition, expr.yes, expr.no)
        case ir.Cast():
            return _call(expr.dtype.name, expr.x)
        case _:
            raise TypeError(f"no expression of the loop IR: {expr!r}")


def _operand(expr: ir.Expr, level: int) -> str:
    text, own = _expr(expr)
    return text if own >= level else f"({text})"


def _call(name: str, *operands: ir.Expr) -> tuple[str, int]:
    return f"{name}({', '.join(map(print_expr, operands))})", _ATOM
