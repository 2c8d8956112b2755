"""The meaning of a kernel: runs it on numpy arrays, one scalar operation at a time.

In: a verified `Kernel` and one array a parameter. Out: the arrays, changed in place. This is the
oracle that targets are tested against, so it is plain, and slow: about 400,000 nodes a second. Memory of
an `Alloc` starts as NaN (or the least integer), and an access outside a buffer is an `InternalError`:
mistakes that native code would hide are seen here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onepass.core.errors import InternalError
from onepass.loops import ir
from onepass.loops.numerics import convert, fma, function, limits
from onepass.loops.verify import verify

Array = NDArray[Any]
_function = lru_cache(function)


def interpret(kernel: ir.Kernel, arrays: Mapping[str, Array], workers: int = 1) -> None:
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
    with np.errstate(all="ignore"):
        for worker in range(workers):
            _Worker(dict(arrays), worker, workers).run(kernel.body)


class _Worker:
    """One worker in the middle of a kernel."""

    def __init__(self, arrays: dict[str, Array], worker: int, workers: int) -> None:
        self.arrays, self.worker, self.workers = arrays, worker, workers
        self.indices: dict[str, np.int64] = {}

    def run(self, body: tuple[ir.Stmt, ...]) -> None:
        for stmt in body:
            match stmt:
                case ir.For(mode="vector"):
                    self.vector(stmt)
                case ir.For():
                    self.loop(stmt)
                case ir.Store():
                    self.arrays[stmt.buffer][self.position(stmt)] = self.value(stmt.value)
                case ir.If():
                    if self.value(stmt.condition):
                        self.run(stmt.body)
                case ir.Alloc():
                    buffer = stmt.buffer
                    poison = math.nan if buffer.dtype.is_float else limits(buffer.dtype)[0]
                    self.arrays[buffer.name] = np.full(buffer.shape, poison, buffer.dtype.numpy)
                    self.run(stmt.body)

    def loop(self, loop: ir.For) -> None:
        iterations = range(int(self.value(loop.start)), int(self.value(loop.stop)), loop.step)
        if loop.mode in ir.PARALLEL:
            count = len(iterations)
            first, end = (count * worker // self.workers for worker in (self.worker, self.worker + 1))
            iterations = iterations[first:end]
        for value in iterations:
            self.indices[loop.index] = np.int64(value)
            self.run(loop.body)

    def vector(self, loop: ir.For) -> None:
        for store in loop.body:
            assert isinstance(store, ir.Store)
            # Every lane reads before any lane writes, as one vector instruction does.
            results = []
            for lane in range(int(self.value(loop.stop))):
                self.indices[loop.index] = np.int64(lane)
                results.append((self.position(store), self.value(store.value)))
            for at, result in results:
                self.arrays[store.buffer][at] = result

    def position(self, access: ir.Load | ir.Store) -> tuple[int, ...]:
        at = tuple(int(self.value(index)) for index in access.indices)
        shape = self.arrays[access.buffer].shape
        if not all(0 <= index < extent for index, extent in zip(at, shape, strict=True)):
            detail = f"access to {access.buffer}{list(at)} lies outside shape {list(shape)}"
            raise InternalError("interpret", detail)
        return at

    def value(self, expr: ir.Expr) -> Any:
        match expr:
            case ir.Const():
                return np.asarray(expr.value, expr.dtype.numpy)[()]
            case ir.Index():
                return self.indices[expr.name]
            case ir.Load():
                return self.arrays[expr.buffer][self.position(expr)]
            case ir.Unary():
                return _function(expr.op, expr.x.dtype)(self.value(expr.x))
            case ir.Binary():
                return _function(expr.op, expr.a.dtype)(self.value(expr.a), self.value(expr.b))
            case ir.Fma():
                return fma(self.value(expr.a), self.value(expr.b), self.value(expr.c), expr.dtype)
            case ir.Cast():
                return convert(self.value(expr.x), expr.dtype)
            case ir.Select():
                return self.value(expr.yes if self.value(expr.condition) else expr.no)
        raise InternalError("interpret", f"no expression of the loop IR: {expr!r}")
