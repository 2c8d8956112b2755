"""A kernel of the loop IR as LLVM IR text.

In: a `Kernel` and a `TargetDescription`. Out: text with one exported function,
`void SYMBOL(ptr args, i64 worker, i64 workers)`: `args` is an array of pointers, one for each
parameter in order, to memory aligned to 16 bytes that does not overlap, and, if the kernel has `cache`
buffers, one more to `scratch_of(kernel).size_bytes` bytes for each worker. Each worker calls it once.
A statement outside of any parallel loop that writes to a parameter is run by worker 0 alone.
"""

from __future__ import annotations

import math
import re

from onepass.core.dtypes import BOOL
from onepass.loops.ir import PARALLEL, Alloc, Const, For, If, Kernel, Stmt, Store
from onepass.loops.walk import Scratch, scratch_of, statements
from onepass.targets.llvm.compile import CONSTANTS_STAY
from onepass.targets.llvm.description import TargetDescription
from onepass.targets.llvm.statements import Statements
from onepass.targets.llvm.writer import Lines, flatten

TILE_VECTORS = 12  # a register tile: no row of a reduction has as many accumulators


def _holds_tile(kernel: Kernel) -> bool:
    """Whether a register tile is one phase of several.

    LLVM moves the constants of the other phases out of the loop around all of them, into registers that
    the tile needs: 124 spills in a 14x2 tile of the Winograd form, 2 without. In other kernels it pays (1.2x
    on a softmax of a GELU).
    """
    buffers = (s.buffer for s in statements(kernel.body) if isinstance(s, Alloc))
    return any(b.home == "register" and math.prod(b.shape[:-1]) >= TILE_VECTORS for b in buffers)


def symbol_of(kernel: Kernel) -> str:
    """The name of the kernel's function."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", kernel.name)


def emit(kernel: Kernel, target: TargetDescription) -> str:
    """LLVM IR of `kernel`; see the module's description for the calling convention."""
    return _Emitter(target).kernel(kernel)


class _Emitter(Statements):
    """Writes one kernel."""

    def kernel(self, kernel: Kernel) -> str:
        self.begin()
        self.written = frozenset(s.buffer for s in statements(kernel.body) if isinstance(s, Store))
        prologue = Lines()
        self.lines = [prologue]
        self.reset(prologue)
        for i, buffer in enumerate(kernel.params):
            self.buffers[buffer.name], self.roots[buffer.name] = buffer, f"%p{i}"
        scratch = scratch_of(kernel)
        self.scratch = {key: f"%s{i}" for i, key in enumerate(scratch.offsets)}
        self._top(kernel.body, kernel)
        if self.streams:
            self.do("fence seq_cst")  # before the next kernel reads what lies in write buffers still
        self.do("ret void")
        symbol = symbol_of(kernel)
        body = flatten(self.lines)
        first = CONSTANTS_STAY if scratch.offsets and _holds_tile(kernel) else ""
        return first + "\n".join([*self._header(kernel, symbol, scratch), *body, "}", *self._footer()]) + "\n"

    def _top(self, body: tuple[Stmt, ...], kernel: Kernel) -> None:
        """Statements that are not in a loop yet."""
        params = {buffer.name for buffer in kernel.params}
        for stmt in body:
            inner = tuple(statements((stmt,)))
            if any(isinstance(s, For) and s.mode in PARALLEL for s in inner):
                if isinstance(stmt, Alloc):
                    self.define(stmt.buffer)
                    self._top(stmt.body, kernel)
                    self.undefine(stmt.buffer)
                else:
                    self.statement(stmt)
            elif any(isinstance(s, Store) and s.buffer in params for s in inner):
                first = self.op("icmp eq i64 %worker, 0")
                self.branch(first, If(Const(True, BOOL), (stmt,)))
            else:
                self.statement(stmt)

    def _header(self, kernel: Kernel, symbol: str, scratch: Scratch) -> list[str]:
        pointers = "".join(
            f"ptr noalias align 16{'' if buffer.name in self.written else ' readonly'} %p{i}, "
            for i, buffer in enumerate(kernel.params)
        )
        given = "ptr noalias readonly %args, i64 %worker, i64 %workers, ptr %taken"
        out = [f"define void @{symbol}({given}) nounwind {{"]
        for i in range(len(kernel.params)):
            out.append(f"  %a{i} = getelementptr i8, ptr %args, i64 {8 * i}")
            out.append(f"  %p{i} = load ptr, ptr %a{i}, align 8")
        arguments = "".join(f"ptr %p{i}, " for i in range(len(kernel.params)))
        if scratch.offsets:
            out.append(f"  %a = getelementptr i8, ptr %args, i64 {8 * len(kernel.params)}")
            out += ["  %all = load ptr, ptr %a, align 8", f"  %own = mul i64 %worker, {scratch.size_bytes}"]
            out.append("  %scratch = getelementptr i8, ptr %all, i64 %own")
        for name, offset in zip(self.scratch.values(), scratch.offsets.values(), strict=True):
            out.append(f"  {name} = getelementptr i8, ptr %scratch, i64 {offset}")
            arguments += f"ptr {name}, "
            pointers += f"ptr noalias align 64 {name}, "
        out.append(f"  tail call void @{symbol}.body({arguments}i64 %worker, i64 %workers, ptr %taken)")
        out += ["  ret void", "}"]
        out.append(
            f"define internal void @{symbol}.body({pointers}i64 %worker, i64 %workers, ptr %taken) "
            "noinline nounwind {"
        )
        return [*out, "entry:"]

    def _footer(self) -> list[str]:
        zeros = f"@onepass.zeros = private constant [{self.zeros_bytes} x i8] zeroinitializer, align 64"
        metadata = ["!0 = !{i32 1}"] if self.streams else []
        texts = (*self.functions.values(), *self.declarations.values())
        return [*([zeros] if self.zeros_bytes else []), *texts, *metadata]
