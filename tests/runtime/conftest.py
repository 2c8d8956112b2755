"""Hand-written kernels in LLVM IR for the tests, and a loader that owes nothing to the targets."""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
import pytest

from onepass.core.dtypes import F32
from onepass.core.tensor import TensorType
from onepass.runtime.program import Launch, Program, Slot

# out[i] = f(a[i], b[i]) over n elements, split among the workers in contiguous ranges.
_POINTWISE = """
define void @{name}(ptr %args, i64 %worker, i64 %workers) {{
entry:
  %a = load ptr, ptr %args
  %b_at = getelementptr ptr, ptr %args, i64 1
  %b = load ptr, ptr %b_at
  %out_at = getelementptr ptr, ptr %args, i64 2
  %out = load ptr, ptr %out_at
  %lo_n = mul i64 %worker, {n}
  %lo = udiv i64 %lo_n, %workers
  %w1 = add i64 %worker, 1
  %hi_n = mul i64 %w1, {n}
  %hi = udiv i64 %hi_n, %workers
  br label %loop
loop:
  %i = phi i64 [%lo, %entry], [%i1, %body]
  %more = icmp ult i64 %i, %hi
  br i1 %more, label %body, label %exit
body:
  %pa = getelementptr float, ptr %a, i64 %i
  %pb = getelementptr float, ptr %b, i64 %i
  %po = getelementptr float, ptr %out, i64 %i
  %x = load float, ptr %pa
  %y = load float, ptr %pb
  %z = {op} float %x, %y
  store float %z, ptr %po
  %i1 = add i64 %i, 1
  br label %loop
exit:
  ret void
}}
"""

# Element `worker` of the argument is set to the sum of all workers' elements of the other: a race
# unless every worker waits for all the others between launches.
_GATHER = """
define void @gather(ptr %args, i64 %worker, i64 %workers) {
entry:
  %a = load ptr, ptr %args
  %out_at = getelementptr ptr, ptr %args, i64 1
  %out = load ptr, ptr %out_at
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
  %sum = phi i64 [1, %entry], [%sum1, %loop]
  %at = getelementptr i64, ptr %a, i64 %i
  %x = load i64, ptr %at
  %sum1 = add i64 %sum, %x
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %workers
  br i1 %more, label %loop, label %exit
exit:
  %to = getelementptr i64, ptr %out, i64 %worker
  store i64 %sum1, ptr %to
  ret void
}

define void @empty(ptr %args, i64 %worker, i64 %workers) {
  ret void
}
"""


class Code:
    """Linked machine code, as `Program` takes it."""

    def __init__(self, n: int) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        kernels = [_POINTWISE.format(name=op, op=op, n=n) for op in ("fadd", "fmul", "fsub")]
        module = llvm.parse_assembly("\n".join([*kernels, _GATHER]))
        machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()

    def address(self, symbol: str) -> int:
        return int(self._engine.get_function_address(symbol))


@pytest.fixture(scope="session")
def linked() -> Code:
    """The kernels above, for 1000 elements."""
    return Code(1000)


@pytest.fixture
def chain(linked: Code) -> Callable[[int], Program]:
    """Makes a program for a worker count: (x + y) * 2 in two launches, with the sum in the arena."""
    kind = TensorType(F32, (1000,))
    launches = [Launch(0, "fadd", ("x", "y", "t")), Launch(1, "fmul", ("t", "two", "o"))]
    slots: dict[str, Slot] = {
        "x": ("input", 0), "y": ("input", 1), "t": ("arena", 64), "two": ("constant", "k"),
        "o": ("output", 0),
    }  # fmt: skip
    constants = {"k": np.full(1000, 2, np.float32)}
    inputs, outputs = [("x", kind), ("y", kind)], [("o", kind)]
    return lambda workers: Program(linked, launches, slots, constants, inputs, outputs, 4096, workers)
