"""The rules that every kernel obeys; a broken one is a bug of the pass that made the kernel.

In: a `Kernel`. Out: nothing, or an `InternalError` that quotes the statement and names the rule.
Targets and the interpreter may rely on all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NoReturn, get_args

from onepass.core.dtypes import BOOL, I64, DType, Kind
from onepass.core.errors import InternalError
from onepass.loops.ir import (
    BINARY_OPS,
    COMPARISONS,
    PREDICATES,
    UNARY_OPS,
    Alloc,
    Binary,
    Buffer,
    Cast,
    Const,
    Expr,
    Fma,
    For,
    Home,
    If,
    Index,
    Kernel,
    Load,
    LoopMode,
    Prefetch,
    Select,
    Stmt,
    Store,
    Unary,
)
from onepass.loops.numerics import limits
from onepass.loops.printer import print_expr
from onepass.loops.walk import children, index_names, loads

_ANY: frozenset[Kind] = frozenset({"float", "int", "uint", "bool"})
_NUMBER = _ANY - {"bool"}
_INTEGER = _NUMBER - {"float"}
_BITS = _ANY - {"float"}
_FLOAT: frozenset[Kind] = frozenset({"float"})
# Which operand kinds an operation takes; the unary operations that are not named take floats.
_KINDS: dict[str, frozenset[Kind]] = {
    **dict.fromkeys(UNARY_OPS, _FLOAT),
    **dict.fromkeys(("neg", "abs", "sign", "add", "sub", "mul", "div", "pow"), _NUMBER),
    **dict.fromkeys(("rem", "fmod", "floordiv", "mod"), _NUMBER),
    **dict.fromkeys(("shl", "shr"), _INTEGER),
    **dict.fromkeys(("not", "and", "or", "xor"), _BITS),
    **dict.fromkeys(("max", "min", *COMPARISONS), _ANY),
}


@dataclass(frozen=True, slots=True)
class _Scope:
    """What is visible at a statement. `loops` are all bound names, `unrolled` those that become literals."""

    kernel: str
    buffers: dict[str, Buffer]
    loops: frozenset[str] = frozenset()
    unrolled: frozenset[str] = frozenset()
    vector: str | None = None
    lanes: int = 0

    def fail(self, detail: str) -> NoReturn:
        raise InternalError("verify", f"kernel '{self.kernel}': {detail}")


def verify(kernel: Kernel) -> None:
    """Raises `InternalError` unless `kernel` obeys every rule of the loop IR."""
    scope = _Scope(kernel.name, {})
    for buffer in kernel.params:
        if buffer.home != "memory":
            scope.fail(f"parameter '{buffer.name}' has home {buffer.home}, not memory")
        scope = _declare(buffer, scope)
    _verify_body(kernel.body, scope)


def _declare(buffer: Buffer, scope: _Scope) -> _Scope:
    if buffer.name in scope.buffers:
        scope.fail(f"buffer '{buffer.name}' is declared twice")
    if buffer.home not in get_args(Home):
        scope.fail(f"buffer '{buffer.name}' has the unknown home {buffer.home}")
    if min(buffer.shape, default=0) < 0:
        scope.fail(f"buffer '{buffer.name}' has a negative extent")
    return replace(scope, buffers=scope.buffers | {buffer.name: buffer})


def _verify_body(body: tuple[Stmt, ...], scope: _Scope) -> None:
    for stmt in body:
        match stmt:
            case For():
                _verify_for(stmt, scope)
            case Store():
                _verify_store(stmt, scope)
            case If():
                _verify_expr(stmt.condition, scope)
                if stmt.condition.dtype != BOOL:
                    scope.fail(f"condition {print_expr(stmt.condition)} is not a bool")
                _verify_body(stmt.body, scope)
            case Alloc():
                if stmt.buffer.home == "memory":
                    scope.fail(f"alloc of '{stmt.buffer.name}' has home memory")
                _verify_body(stmt.body, _declare(stmt.buffer, scope))
            case Prefetch():
                buffer = _verify_access(stmt.buffer, stmt.indices, scope)
                if buffer.home == "register":
                    scope.fail(f"prefetch of register buffer '{buffer.name}'")
            case _:
                scope.fail(f"no statement of the loop IR: {stmt!r}")


def _verify_for(loop: For, scope: _Scope) -> None:
    name = loop.index
    if loop.mode not in get_args(LoopMode):
        scope.fail(f"loop '{name}' has the unknown mode {loop.mode}")
    if name in scope.loops:
        scope.fail(f"loop '{name}' shadows an outer loop of that name")
    if loop.step < 1:
        scope.fail(f"loop '{name}' has step {loop.step}, not at least 1")
    for bound in (loop.start, loop.stop):
        _verify_expr(bound, scope)
        if bound.dtype != I64:
            scope.fail(f"bound {print_expr(bound)} of loop '{name}' is not an int64")
    inner = replace(scope, loops=scope.loops | {name})
    match loop.mode:
        case "parallel":
            if scope.loops:
                scope.fail(f"parallel loop '{name}' is not outermost")
        case "unroll":
            if not all(_is_static(bound, scope.unrolled) for bound in (loop.start, loop.stop)):
                scope.fail(f"unroll loop '{name}' has bounds that are not static")
            inner = replace(inner, unrolled=scope.unrolled | {name})
        case "vector":
            inner = replace(inner, vector=name, lanes=_verify_vector_head(loop, scope))
    _verify_body(loop.body, inner)


def _verify_vector_head(loop: For, scope: _Scope) -> int:
    """The rules of a vector loop itself; returns its number of lanes."""
    name, stop = loop.index, loop.stop
    if loop.start != Const(0) or loop.step != 1:
        scope.fail(f"vector loop '{name}' does not count from 0 by 1")
    if not isinstance(stop, Const) or stop.value < 1:
        scope.fail(f"vector loop '{name}' stops at {print_expr(stop)}, not at a literal of at least 1")
    for stmt in loop.body:
        if not isinstance(stmt, Store):
            scope.fail(f"vector loop '{name}' holds a {type(stmt).__name__}; only stores may stand there")
        if stop.value > 1 and not any(name in index_names(index) for index in stmt.indices):
            scope.fail(f"all lanes of vector loop '{name}' store to one element of '{stmt.buffer}'")
    return int(stop.value)


def _verify_store(store: Store, scope: _Scope) -> None:
    buffer = _verify_access(store.buffer, store.indices, scope)
    _verify_expr(store.value, scope)
    value = store.value
    if value.dtype != buffer.dtype:
        scope.fail(f"store of {value.dtype} {print_expr(value)} to {buffer.dtype} buffer '{buffer.name}'")


def _verify_access(name: str, indices: tuple[Expr, ...], scope: _Scope) -> Buffer:
    if name not in scope.buffers:
        scope.fail(f"buffer '{name}' is not declared here")
    buffer = scope.buffers[name]
    rank = len(buffer.shape)
    if len(indices) != rank:
        scope.fail(f"'{name}' of rank {rank} is accessed with {len(indices)} indices")
    for position, index in enumerate(indices):
        _verify_expr(index, scope)
        if index.dtype != I64:
            scope.fail(f"index {print_expr(index)} of '{name}' is not an int64")
        if buffer.home == "register" and not _is_static(index, scope.unrolled):
            _verify_lane(index, buffer, position == rank - 1, scope)
    return buffer


def _verify_lane(index: Expr, buffer: Buffer, last: bool, scope: _Scope) -> None:
    text = f"index {print_expr(index)} of register buffer '{buffer.name}'"
    if not (last and isinstance(index, Index) and index.name == scope.vector):
        scope.fail(f"{text} is neither static nor the vector variable in last place")
    if scope.lanes > buffer.shape[-1]:
        scope.fail(f"{text} counts {scope.lanes} lanes, and there are {buffer.shape[-1]}")


def _is_static(expr: Expr, unrolled: frozenset[str]) -> bool:
    return index_names(expr) <= unrolled and not loads(expr)


def _verify_expr(root: Expr, scope: _Scope) -> None:
    """Checks every subexpression once: expressions may share operands."""
    pending, seen = [root], set[int]()
    while pending:
        expr = pending.pop()
        if id(expr) in seen:
            continue
        seen.add(id(expr))
        for detail in _broken_rules(expr):
            scope.fail(f"{detail} in {print_expr(expr)}")
        if isinstance(expr, Index) and expr.name not in scope.loops:
            scope.fail(f"index '{expr.name}' is not bound by a loop")
        if isinstance(expr, Load):
            buffer = _verify_access(expr.buffer, expr.indices, scope)
            if expr.dtype != buffer.dtype:
                scope.fail(f"load as {expr.dtype} of {buffer.dtype} buffer '{expr.buffer}'")
        else:
            pending.extend(children(expr))


def _broken_rules(expr: Expr) -> Iterator[str]:
    """The rules on dtypes and operands that `expr` itself breaks."""
    match expr:
        case Const():
            if not _holds(expr):
                yield f"a {expr.dtype} cannot be {expr.value!r}"
        case Load():
            if expr.fill is not None:
                yield "a load in a kernel has a fill"
        case Unary():
            yield from _broken_operands(expr.op, UNARY_OPS, expr.dtype, (expr.x,))
        case Binary():
            yield from _broken_operands(expr.op, BINARY_OPS, expr.dtype, (expr.a, expr.b))
        case Fma():
            if not expr.dtype.is_float or {expr.a.dtype, expr.b.dtype, expr.c.dtype} != {expr.dtype}:
                yield "operands and result of fma are not one float dtype"
        case Select():
            if expr.condition.dtype != BOOL:
                yield "the condition of a select is not a bool"
            if {expr.yes.dtype, expr.no.dtype} != {expr.dtype}:
                yield "the arms of a select differ in dtype"
        case Index() | Cast():
            return
        case _:
            yield f"no expression of the loop IR: {expr!r}"


def _broken_operands(
    op: str, known: tuple[str, ...], dtype: DType, operands: tuple[Expr, ...]
) -> Iterator[str]:
    if op not in known:
        yield f"unknown operation '{op}'"
        return
    first = operands[0].dtype
    if any(operand.dtype != first for operand in operands):
        yield f"the operands of {op} differ in dtype"
    if first.kind not in _KINDS[op]:
        yield f"{op} takes no {first}"
    if dtype != (BOOL if op in COMPARISONS or op in PREDICATES else first):
        yield f"{op} of {first} is said to be {dtype}"


def _holds(const: Const) -> bool:
    low, high = limits(const.dtype)
    match const.dtype.kind:
        case "float":
            return isinstance(const.value, float | int) and not isinstance(const.value, bool)
        case "bool":
            return isinstance(const.value, bool)
        case _:
            return type(const.value) is int and low <= const.value <= high
