"""The meaning of a kernel: runs it on numpy arrays, one scalar operation at a time.

In: a verified `Kernel` and one array a parameter. Out: the arrays, changed in place. This is the
oracle that targets are tested against, so it is plain: each node becomes a Python closure, about half
a million nodes a second. Memory of an `Alloc` starts as NaN (or the least integer), and an
access outside a buffer is an `InternalError`: mistakes that native code would hide are seen here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from onepass.core.dtypes import DType
from onepass.core.errors import InternalError
from onepass.loops.ir import (
    Alloc,
    Binary,
    Buffer,
    Cast,
    Const,
    Expr,
    Fma,
    For,
    If,
    Index,
    Kernel,
    Load,
    Prefetch,
    Select,
    Stmt,
    Store,
    Unary,
)
from onepass.loops.numerics import Value, convert, fma, function, limits
from onepass.loops.verify import verify

Array = NDArray[np.generic]


@dataclass(slots=True)
class _State:
    """One worker in the middle of a kernel."""

    arrays: dict[str, Array]
    worker: int
    workers: int
    indices: dict[str, np.int64] = field(default_factory=dict)


_Code = Callable[[_State], np.generic]
_Action = Callable[[_State], None]


def interpret(kernel: Kernel, arrays: Mapping[str, Array], workers: int = 1) -> None:
    """Runs `kernel` on `arrays` (by parameter name, changed in place).

    The workers run one after another, each the whole body with its own contiguous range of every
    parallel loop; so a kernel whose parallel loops depend on one another gives wrong numbers here.
    Raises `InternalError` for a kernel that breaks a rule, an array that is not as declared, and an
    access outside its buffer.
    """
    verify(kernel)
    for buffer in kernel.params:
        array = arrays.get(buffer.name)
        if array is None or array.shape != buffer.shape or array.dtype != buffer.dtype.numpy:
            detail = f"kernel '{kernel.name}': no array fits parameter '{buffer.name}'"
            raise InternalError("interpret", detail)
    run = _compile_body(kernel.body)
    with np.errstate(all="ignore"):
        for worker in range(workers):
            run(_State(dict(arrays), worker, workers))


def _compile_body(body: Sequence[Stmt]) -> _Action:
    actions = [_compile_stmt(stmt) for stmt in body]

    def run(state: _State) -> None:
        for action in actions:
            action(state)

    return run


def _compile_stmt(stmt: Stmt) -> _Action:
    match stmt:
        case For(mode="vector"):
            return _compile_vector(stmt)
        case For():
            return _compile_for(stmt)
        case Store():
            return _compile_store(stmt)
        case If():
            return _compile_if(stmt)
        case Alloc():
            return _compile_alloc(stmt)
        case Prefetch():
            return lambda state: None
        case _:
            raise InternalError("interpret", f"no statement of the loop IR: {stmt!r}")


def _compile_for(loop: For) -> _Action:
    start, stop = _compile_expr(loop.start), _compile_expr(loop.stop)
    body = _compile_body(loop.body)
    name, step, parallel = loop.index, loop.step, loop.mode == "parallel"

    def run(state: _State) -> None:
        iterations = range(int(start(state)), int(stop(state)), step)
        if parallel:
            count = len(iterations)
            first, end = (count * worker // state.workers for worker in (state.worker, state.worker + 1))
            iterations = iterations[first:end]
        for value in iterations:
            state.indices[name] = np.int64(value)
            body(state)

    return run


def _compile_vector(loop: For) -> _Action:
    lanes = _compile_expr(loop.stop)
    stores = [stmt for stmt in loop.body if isinstance(stmt, Store)]
    codes = [(s.buffer, _compile_position(s.buffer, s.indices), _compile_expr(s.value)) for s in stores]

    def run(state: _State) -> None:
        for name, position, value in codes:
            # Every lane reads before any lane writes, as one vector instruction does.
            results = []
            for lane in range(int(lanes(state))):
                state.indices[loop.index] = np.int64(lane)
                results.append((position(state), value(state)))
            for at, result in results:
                state.arrays[name][at] = result

    return run


def _compile_store(store: Store) -> _Action:
    name, position, value = (
        store.buffer,
        _compile_position(store.buffer, store.indices),
        _compile_expr(store.value),
    )

    def run(state: _State) -> None:
        state.arrays[name][position(state)] = value(state)

    return run


def _compile_if(branch: If) -> _Action:
    condition, body = _compile_expr(branch.condition), _compile_body(branch.body)

    def run(state: _State) -> None:
        if condition(state):
            body(state)

    return run


def _compile_alloc(alloc: Alloc) -> _Action:
    buffer, body = alloc.buffer, _compile_body(alloc.body)

    def run(state: _State) -> None:
        state.arrays[buffer.name] = _undefined(buffer)
        body(state)

    return run


def _undefined(buffer: Buffer) -> Array:
    poison = math.nan if buffer.dtype.is_float else limits(buffer.dtype)[0]
    return np.full(buffer.shape, poison, buffer.dtype.numpy)


def _compile_position(name: str, indices: Sequence[Expr]) -> Callable[[_State], tuple[int, ...]]:
    codes = [_compile_expr(index) for index in indices]

    def position(state: _State) -> tuple[int, ...]:
        at = tuple(int(code(state)) for code in codes)
        shape = state.arrays[name].shape
        for index, extent in zip(at, shape, strict=True):
            if not 0 <= index < extent:
                raise InternalError(
                    "interpret", f"access to {name}{list(at)} lies outside shape {list(shape)}"
                )
        return at

    return position


def _compile_expr(expr: Expr) -> _Code:
    match expr:
        case Const():
            value = _scalar(expr.value, expr.dtype)
            return lambda state: value
        case Index(name=name):
            return lambda state: state.indices[name]
        case Load(buffer=name):
            position = _compile_position(name, expr.indices)
            return lambda state: cast(np.generic, state.arrays[name][position(state)])
        case Unary():
            return _compile_call(function(expr.op, expr.x.dtype), expr.x)
        case Binary():
            return _compile_call(function(expr.op, expr.a.dtype), expr.a, expr.b)
        case Fma(dtype=dtype):
            return _compile_call(lambda a, b, c: fma(a, b, c, dtype), expr.a, expr.b, expr.c)
        case Cast(dtype=dtype):
            return _compile_call(lambda x: convert(x, dtype), expr.x)
        case Select():
            condition, yes, no = map(_compile_expr, (expr.condition, expr.yes, expr.no))
            return lambda state: yes(state) if condition(state) else no(state)
        case _:
            raise InternalError("interpret", f"no expression of the loop IR: {expr!r}")


def _compile_call(call: Callable[..., Value], *operands: Expr) -> _Code:
    codes = [_compile_expr(operand) for operand in operands]
    return lambda state: cast(np.generic, call(*[code(state) for code in codes]))


def _scalar(value: float | int | bool, dtype: DType) -> np.generic:
    return cast(np.generic, np.asarray(value, dtype.numpy)[()])
