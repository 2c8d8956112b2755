"""The rules that every kernel obeys; a broken one is a bug of the pass that made the kernel.

In: a `Kernel`. Out: nothing, or an `InternalError` that quotes the statement and names the rule.
Targets and the interpreter may rely on all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

from onepass.core.dtypes import BOOL, I64, DType, Kind
from onepass.core.errors import InternalError
from onepass.loops import ir
from onepass.loops.numerics import limits
from onepass.loops.printer import print_expr
from onepass.loops.walk import children, index_names, loads

_ANY: frozenset[Kind] = frozenset({"float", "int", "uint", "bool"})
_NUMBER = _ANY - {"bool"}
# Which operand kinds an operation takes; the unary operations that are not named take floats.
_KINDS: dict[str, frozenset[Kind]] = {
    **dict.fromkeys(ir.UNARY_OPS, frozenset[Kind]({"float"})),
    **dict.fromkeys(("neg", "abs", "sign", *ir.BINARY_OPS), _NUMBER),
    **dict.fromkeys(("shl", "shr"), _NUMBER - {"float"}),
    **dict.fromkeys(("not", "and", "or", "xor"), _ANY - {"float"}),
    **dict.fromkeys(("max", "min", *ir.COMPARISONS), _ANY),
}


@dataclass(frozen=True, slots=True)
class _Scope:
    """What is visible at a statement. `loops` are all bound names, `unrolled` those that become literals."""

    kernel: str
    buffers: dict[str, ir.Buffer]
    loops: frozenset[str] = frozenset()
    unrolled: frozenset[str] = frozenset()
    vector: str | None = None
    lanes: int = 0

    def fail(self, detail: str) -> NoReturn:
        raise InternalError("verify", f"kernel '{self.kernel}': {detail}")


def verify(kernel: ir.Kernel) -> None:
    """Raises `InternalError` unless `kernel` obeys every rule of the loop IR."""
    scope = _Scope(kernel.name, {})
    for buffer in kernel.params:
        if buffer.home != "memory":
            scope.fail(f"parameter '{buffer.name}' has home {buffer.home}, not memory")
        scope = _declare(buffer, scope)
    _verify_body(kernel.body, scope)


def _declare(buffer: ir.Buffer, scope: _Scope) -> _Scope:
    if buffer.name in scope.buffers:
        scope.fail(f"buffer '{buffer.name}' is declared twice")
    return replace(scope, buffers=scope.buffers | {buffer.name: buffer})


def _verify_body(body: tuple[ir.Stmt, ...], scope: _Scope) -> None:
    for stmt in body:
        match stmt:
            case ir.For():
                _verify_for(stmt, scope)
            case ir.Store():
                buffer = _verify_access(stmt.buffer, stmt.indices, scope)
                value, dtype = stmt.value, stmt.value.dtype
                _verify_expr(value, scope)
                if dtype != buffer.dtype:
                    text = f"{dtype} {print_expr(value)} to {buffer.dtype} buffer '{buffer.name}'"
                    scope.fail(f"store of {text}")
            case ir.If():
                _verify_expr(stmt.condition, scope)
                if stmt.condition.dtype != BOOL:
                    scope.fail(f"condition {print_expr(stmt.condition)} is not a bool")
                _verify_body(stmt.body, scope)
            case ir.Alloc():
                if stmt.buffer.home == "memory":
                    scope.fail(f"alloc of '{stmt.buffer.name}' has home memory")
                _verify_body(stmt.body, _declare(stmt.buffer, scope))
            case ir.Prefetch():
                buffer = _verify_access(stmt.buffer, stmt.indices, scope)
                if buffer.home == "register":
                    scope.fail(f"prefetch of register buffer '{buffer.name}'")


def _verify_for(loop: ir.For, scope: _Scope) -> None:
    name = loop.index
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
        case "parallel" | "shared":
            if scope.loops:
                scope.fail(f"{loop.mode} loop '{name}' is not outermost")
        case "unroll":
            if not all(_is_static(bound, scope.unrolled) for bound in (loop.start, loop.stop)):
                scope.fail(f"unroll loop '{name}' has bounds that are not static")
            inner = replace(inner, unrolled=scope.unrolled | {name})
        case "vector":
            inner = replace(inner, vector=name, lanes=_verify_vector_head(loop, scope))
    _verify_body(loop.body, inner)


def _verify_vector_head(loop: ir.For, scope: _Scope) -> int:
    """The rules of a vector loop itself; returns its number of lanes."""
    name, stop = loop.index, loop.stop
    if loop.start != ir.Const(0) or loop.step != 1:
        scope.fail(f"vector loop '{name}' does not count from 0 by 1")
    if not isinstance(stop, ir.Const) or stop.value < 1:
        scope.fail(f"vector loop '{name}' stops at {print_expr(stop)}, not at a literal of at least 1")
    for stmt in loop.body:
        if not isinstance(stmt, ir.Store):
            scope.fail(f"vector loop '{name}' holds a {type(stmt).__name__}; only stores may stand there")
        if stop.value > 1 and not any(name in index_names(index) for index in stmt.indices):
            scope.fail(f"all lanes of vector loop '{name}' store to one element of '{stmt.buffer}'")
    return int(stop.value)


def _verify_access(name: str, indices: tuple[ir.Expr, ...], scope: _Scope) -> ir.Buffer:
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


def _verify_lane(index: ir.Expr, buffer: ir.Buffer, last: bool, scope: _Scope) -> None:
    text = f"index {print_expr(index)} of register buffer '{buffer.name}'"
    first = 0
    match index:
        case ir.Binary(op="add", a=ir.Index() as lane, b=ir.Const(value=value)):
            index, first = lane, int(value)
    if not (last and isinstance(index, ir.Index) and index.name == scope.vector):
        scope.fail(f"{text} is neither static nor the vector variable in last place")
    if first < 0 or first + scope.lanes > buffer.shape[-1]:
        scope.fail(f"{text} counts {first + scope.lanes} lanes, and there are {buffer.shape[-1]}")


def _is_static(expr: ir.Expr, unrolled: frozenset[str]) -> bool:
    return index_names(expr) <= unrolled and not loads(expr)


def _verify_expr(root: ir.Expr, scope: _Scope) -> None:
    """Checks every subexpression once: expressions may share operands."""
    pending, seen = [root], set[int]()
    while pending:
        expr = pending.pop()
        if id(expr) in seen:
            continue
        seen.add(id(expr))
        for detail in _broken_rules(expr):
            scope.fail(f"{detail} in {print_expr(expr)}")
        if isinstance(expr, ir.Index) and expr.name not in scope.loops:
            scope.fail(f"index '{expr.name}' is not bound by a loop")
        if isinstance(expr, ir.Load):
            buffer = _verify_access(expr.buffer, expr.indices, scope)
            if expr.dtype != buffer.dtype:
                scope.fail(f"load as {expr.dtype} of {buffer.dtype} buffer '{expr.buffer}'")
        else:
            pending.extend(children(expr))


def _broken_rules(expr: ir.Expr) -> Iterator[str]:
    """The rules on dtypes and operands that `expr` itself breaks."""
    match expr:
        case ir.Const():
            if not _holds(expr):
                yield f"a {expr.dtype} cannot be {expr.value!r}"
        case ir.Load():
            if expr.fill is not None:
                yield "a load in a kernel has a fill"
        case ir.Unary():
            yield from _broken_operands(expr.op, expr.dtype, expr.x.dtype, expr.x.dtype)
        case ir.Binary():
            yield from _broken_operands(expr.op, expr.dtype, expr.a.dtype, expr.b.dtype)
        case ir.Fma():
            if not expr.dtype.is_float or {expr.a.dtype, expr.b.dtype, expr.c.dtype} != {expr.dtype}:
                yield "operands and result of fma are not one float dtype"
        case ir.Select():
            if expr.condition.dtype != BOOL:
                yield "the condition of a select is not a bool"
            if {expr.yes.dtype, expr.no.dtype} != {expr.dtype}:
                yield "the arms of a select differ in dtype"


def _broken_operands(op: str, dtype: DType, first: DType, other: DType) -> Iterator[str]:
    if other != first:
        yield f"the operands of {op} differ in dtype"
    if first.kind not in _KINDS[op]:
        yield f"{op} takes no {first}"
    if dtype != (BOOL if op in ir.COMPARISONS or op in ir.PREDICATES else first):
        yield f"{op} of {first} is said to be {dtype}"


def _holds(const: ir.Const) -> bool:
    low, high = limits(const.dtype)
    kinds = {"float": (float, int), "bool": (bool,)}.get(const.dtype.kind, (int,))
    return type(const.value) in kinds and (const.dtype.is_float or low <= const.value <= high)
