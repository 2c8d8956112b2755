"""Statements to blocks: loops, stores, branches and buffers; register buffers as SSA values.

A register buffer is a list of operands, one for each vector of its innermost dimension. Around a
serial loop or a branch, those that are stored inside become phi nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from onepass.core.dtypes import I64
from onepass.core.errors import InternalError
from onepass.loops.affine import range_of
from onepass.loops.ir import PARALLEL, Alloc, Buffer, Expr, For, If, Prefetch, Stmt, Store
from onepass.loops.walk import statements
from onepass.targets.llvm.address import Scope
from onepass.targets.llvm.expressions import Expressions
from onepass.targets.llvm.interleave import in_turns, mixed_iterations
from onepass.targets.llvm.writer import Lines, flatten, stored_type, type_of

LEAST_STREAMED_BYTES = 32  # of a vector that is written past the caches: half a line at least
SHARED_LOOPS = 16  # of a kernel, of which a count is kept; any more are split evenly
PORTIONS = 16  # of a worker's iterations, each taken at once
VICTIMS = 4  # neighbours whose iterations a worker takes over: looking costs a miss each
Bounds = tuple[int, int]


def width_of(buffer: Buffer) -> int:
    """Lanes of the vectors of a register buffer; 0 where they are scalars."""
    return buffer.shape[-1] if buffer.shape and buffer.shape[-1] > 1 else 0


class Statements(Expressions):
    """Adds statements; `scratch` says which pointer of the function each scratch buffer is."""

    def begin(self) -> None:
        """Forgets everything; a function starts."""
        super().begin()
        self.scratch: dict[tuple[str, int], str] = {}
        self.streams, self.shared_loops = False, 0
        self._stored: dict[int, frozenset[str]] = {}
        self._mixed: dict[int, int] = {}

    def statement(self, stmt: Stmt) -> None:
        """Writes one statement."""
        match stmt:
            case Store():
                self.memo = {}
                self._store(stmt)
            case For():
                self._loop(stmt)
            case Alloc():
                self._alloc(stmt)
            case If():
                self._if(stmt)
            case Prefetch():
                self._prefetch(stmt)

    def statements(self, body: Iterable[Stmt]) -> None:
        """Writes statements in order."""
        for stmt in body:
            self.statement(stmt)

    def _scalar(self, expr: Expr) -> str:
        self.memo = {}
        return self.evaluate(expr, hoisted=False)

    def _stored_registers(self, stmt: For | If) -> list[tuple[str, int]]:
        """The register elements that `stmt` stores: buffer, and number of the vector."""
        names = self._stored.get(id(stmt))
        if names is None:
            names = frozenset(s.buffer for s in statements(stmt.body) if isinstance(s, Store))
            self._stored[id(stmt)] = names
        found = [name for name in self.registers if name in names]
        return [(name, i) for name in found for i in range(len(self.registers[name]))]

    def _loop(self, stmt: For) -> None:
        start, stop = self._scalar(stmt.start), self._scalar(stmt.stop)
        literal = start[0] != "%" and stop[0] != "%"
        trips = len(range(int(start), int(stop), stmt.step)) if literal else None
        if trips == 0:
            return
        low, high = range_of(stmt.start, self.ranges)[0], range_of(stmt.stop, self.ranges)[1] - 1
        if stmt.mode == "unroll" or (trips == 1 and stmt.mode not in PARALLEL):
            self._unroll(stmt, int(start), int(stop))
        elif stmt.mode == "vector":
            before = self.enter("vector", stmt.index, (0, int(stop) - 1))
            self.vector, self.extent = stmt.index, int(stop)
            self.statements(stmt.body)
            self.vector = None
            self.leave(before)
        elif stmt.mode in PARALLEL:
            iterations = range(int(start), int(stop), stmt.step)
            shared = stmt.mode == "shared" and self.shared_loops < SHARED_LOOPS
            (self._shared if shared else self._parallel)(stmt, iterations, (low, high))
        else:
            self._serial(stmt, start, stop, trips is not None, (low, high))

    def _unroll(self, stmt: For, start: int, stop: int) -> None:
        positions = range(start, stop, stmt.step)
        before = self.enter("unroll", stmt.index, (positions[0], positions[-1]))
        if id(stmt) not in self._mixed:
            self._mixed[id(stmt)] = mixed_iterations(stmt, self.target.vector_registers, self.roots)
        width, outer = self._mixed[id(stmt)], self.lines
        for first in range(0, len(positions), width):
            parts: list[Lines] = []
            for position in positions[first : first + width]:
                self.lines = Lines() if width > 1 else outer
                parts.append(self.lines)
                self.consts[stmt.index] = position
                self.statements(stmt.body)
            self.lines = outer
            if width > 1:
                self.lines += in_turns([flatten(part) for part in parts])
        del self.consts[stmt.index]
        self.leave(before)

    def _part(self, worker: str, iterations: range) -> tuple[str, str]:
        """The first of the iterations of a worker, counted from 0, and the first after them."""
        following = self.op(f"add i64 {worker}, 1")
        first, end = (self.op(f"mul i64 {edge}, {len(iterations)}") for edge in (worker, following))
        return self.op(f"udiv i64 {first}, %workers"), self.op(f"udiv i64 {end}, %workers")

    def _run(
        self, stmt: For, iterations: range, part: tuple[str, str], certain: bool, bounds: Bounds
    ) -> None:
        """The iterations of `part`."""
        edges = []
        for edge in part:
            edge = self.op(f"mul i64 {edge}, {stmt.step}") if stmt.step > 1 else edge
            edges.append(self.op(f"add i64 {edge}, {iterations.start}") if iterations.start else edge)
        self._serial(stmt, edges[0], edges[1], certain, bounds)

    def _parallel(self, stmt: For, iterations: range, bounds: Bounds) -> None:
        """This worker's contiguous part of the iterations."""
        self._run(stmt, iterations, self._part("%worker", iterations), False, bounds)

    def _shared(self, stmt: For, iterations: range, bounds: Bounds) -> None:
        """This worker's part, a few at a time, then what its neighbours have not begun of theirs.

        `%taken` counts, for each worker and each loop, the iterations of its part that are taken.
        """
        number, self.shared_loops = self.shared_loops, self.shared_loops + 1
        known, self.known = self.known, dict(self.known)
        owner, take, some, done, leave = (self.label() for _ in range(5))
        reach = self.intrinsic("umin", I64, 0, "%workers", str(1 + VICTIMS))
        entry, following = self.block, self.name()
        self.do(f"br label %{owner}")
        self.start(owner)
        away = self.fresh(f"phi i64 [0, %{entry}], [{following}, %{done}]")
        turn = self.fresh(f"add i64 %worker, {away}")
        past = self.fresh(f"icmp uge i64 {turn}, %workers")
        worker = self.fresh(f"select i1 {past}, i64 {self.fresh(f'sub i64 {turn}, %workers')}, i64 {turn}")
        first, end = self._part(worker, iterations)
        few = self.fresh(f"lshr i64 {self.fresh(f'sub i64 {end}, {first}')}, {PORTIONS.bit_length() - 1}")
        few = self.intrinsic("umax", I64, 0, few, "1")
        place = self.fresh(f"getelementptr [{SHARED_LOOPS} x i64], ptr %taken, i64 {worker}, i64 {number}")
        self.do(f"br label %{take}")
        self.start(take)
        before = self.fresh(f"atomicrmw add ptr {place}, i64 {few} monotonic")
        start = self.fresh(f"add i64 {first}, {before}")
        left = self.fresh(f"icmp ult i64 {start}, {end}")
        self.do(f"br i1 {left}, label %{some}, label %{done}")
        self.start(some)
        stop = self.intrinsic("umin", I64, 0, self.fresh(f"add i64 {start}, {few}"), end)
        self._run(stmt, iterations, (start, stop), True, bounds)
        self.do(f"br label %{take}")
        self.start(done)
        self.do(f"{following} = add i64 {away}, 1")
        self.do(f"br i1 {self.fresh(f'icmp ult i64 {following}, {reach}')}, label %{owner}, label %{leave}")
        self.start(leave)
        self.known = known

    def _serial(self, stmt: For, start: str, stop: str, certain: bool, bounds: tuple[int, int]) -> None:
        """A loop with its test at the end; `certain`: it runs at least once."""
        carried = self._stored_registers(stmt)
        initial = [self.registers[name][i] for name, i in carried]
        body, leave, entry = self.label(), self.label(), self.block
        if certain:
            self.do(f"br label %{body}")
        else:
            some = self.op(f"icmp slt i64 {start}, {stop}")
            self.do(f"br i1 {some}, label %{body}, label %{leave}")
        self.start(body)
        variable, phis, prologue = self.name(), Lines(), Lines()
        self.lines.extend((phis, prologue))
        kinds = [type_of(self.buffers[name].dtype, width_of(self.buffers[name])) for name, _ in carried]
        inside = [self.name() for _ in carried]
        for (name, i), operand in zip(carried, inside, strict=True):
            self.registers[name][i] = operand
        before, known = self.enter(stmt.mode, stmt.index, bounds), self.known
        self.known = dict(known)
        self.scopes.append(Scope(prologue))
        self.dynamic[stmt.index] = (variable, len(self.scopes) - 1)
        self.statements(stmt.body)
        del self.dynamic[stmt.index]
        self.scopes.pop()
        self.leave(before)
        self.known = known
        following = self.fresh(f"add nsw i64 {variable}, {stmt.step}")
        again = self.fresh(f"icmp slt i64 {following}, {stop}")
        latch = self.block
        self.do(f"br i1 {again}, label %{body}, label %{leave}")
        phis.append(f"  {variable} = phi i64 [{start}, %{entry}], [{following}, %{latch}]")
        final = [self.registers[name][i] for name, i in carried]
        for kind, operand, first, last in zip(kinds, inside, initial, final, strict=True):
            phis.append(f"  {operand} = phi {kind} [{first}, %{entry}], [{last}, %{latch}]")
        self.start(leave)
        if not certain:
            self._merge(carried, (initial, entry), (final, latch))

    def _merge(
        self, carried: list[tuple[str, int]], a: tuple[list[str], str], b: tuple[list[str], str]
    ) -> None:
        """Phi nodes for register elements that come from block `a` or `b`."""
        for (name, i), first, second in zip(carried, a[0], b[0], strict=True):
            if first != second:
                kind = type_of(self.buffers[name].dtype, width_of(self.buffers[name]))
                self.registers[name][i] = self.fresh(f"phi {kind} [{first}, %{a[1]}], [{second}, %{b[1]}]")

    def _if(self, stmt: If) -> None:
        condition = self._scalar(stmt.condition)
        if condition[0] != "%":
            if condition == "true":
                self.statements(stmt.body)
            return
        self.branch(condition, stmt)

    def branch(self, condition: str, stmt: If) -> None:
        """Writes the body of `stmt` where the operand `condition` holds."""
        carried = self._stored_registers(stmt)
        before = [self.registers[name][i] for name, i in carried]
        yes, leave, entry = self.label(), self.label(), self.block
        self.do(f"br i1 {condition}, label %{yes}, label %{leave}")
        self.start(yes)
        known, self.known = self.known, dict(self.known)
        self.statements(stmt.body)
        self.known = known
        end = self.block
        self.do(f"br label %{leave}")
        self.start(leave)
        self._merge(carried, (before, entry), ([self.registers[name][i] for name, i in carried], end))

    def _alloc(self, stmt: Alloc) -> None:
        self.define(stmt.buffer)
        self.statements(stmt.body)
        self.undefine(stmt.buffer)

    def define(self, buffer: Buffer) -> None:
        """Begins the life of a register or cache buffer."""
        if buffer.name in self.buffers:
            raise InternalError("emit", f"buffer '{buffer.name}' is defined twice")
        self.buffers[buffer.name] = buffer
        if buffer.home == "register":
            self.registers[buffer.name] = ["poison"] * math.prod(buffer.shape[:-1])
        else:
            self.roots[buffer.name] = self.scratch[buffer.name, buffer.size_bytes]

    def undefine(self, buffer: Buffer) -> None:
        """Ends it."""
        del self.buffers[buffer.name]
        self.registers.pop(buffer.name, None)
        self.roots.pop(buffer.name, None)

    def _prefetch(self, stmt: Prefetch) -> None:
        buffer = self.buffers[stmt.buffer]
        if buffer.home == "register" or buffer.streamed:
            return
        self.memo = {}
        const, form = self.place(stmt, buffer)
        pointer = self.pointer(self.roots[buffer.name], form, const)
        self.declarations["llvm.prefetch.p0"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
        write = int(stmt.buffer in self.written)
        self.do(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {write}, i32 {2 if stmt.far else 3}, i32 1)")

    def _store(self, stmt: Store) -> None:
        buffer = self.buffers[stmt.buffer]
        if buffer.home == "register":
            self._store_register(stmt, buffer)
            return
        dtype, size = buffer.dtype, buffer.dtype.size_bytes
        const, form = self.place(stmt, buffer)
        value = self.value(stmt.value)
        root = self.roots[buffer.name]
        if self.vector is None or (not form.lane and not self.varies(form)):
            # Without a lane in the address all iterations write one element: the last one counts.
            operand = self.lane_of(value, dtype, self.extent - 1)
            self._write(self.pointer(root, form, const), operand, buffer, 0)
            return
        if form.lane == size and not self.varies(form):
            wide, steps = self.extent * size, (const, *(c for _, c in form.terms))
            past = buffer.streamed and wide >= LEAST_STREAMED_BYTES and not any(step % wide for step in steps)
            past = past and wide & (wide - 1) == 0  # LLVM knows alignments to powers of two alone
            whole, place = self.spread(value, dtype), self.pointer(root, form, const)
            self._write(place, whole, buffer, self.extent, wide if past else 0)
            return
        for lane in range(self.extent):
            operand = self.lane_of(value, dtype, lane)
            if self.varies(form):
                self.at_lane(lane, lambda x=operand: self._store_operand(stmt, buffer, x))  # type: ignore[misc]
            else:
                self._write(self.pointer(root, form, const + lane * form.lane), operand, buffer, 0)

    def _store_operand(self, stmt: Store, buffer: Buffer, operand: str) -> str:
        const, form = self.place(stmt, buffer)
        self._write(self.pointer(self.roots[buffer.name], form, const), operand, buffer, 0)
        return operand

    def _write(self, pointer: str, operand: str, buffer: Buffer, lanes: int, streamed_bytes: int = 0) -> None:
        """Stores `operand`; past the caches where `streamed_bytes`, to which it is aligned, are not 0."""
        kind = stored_type(buffer.dtype, lanes)
        if buffer.dtype.kind == "bool":
            operand = self.op(f"zext {type_of(buffer.dtype, lanes)} {operand} to {kind}")
        self.streams |= bool(streamed_bytes)
        past = ", !nontemporal !0" if streamed_bytes else ""
        align = streamed_bytes or buffer.dtype.size_bytes
        self.do(f"store {kind} {operand}, ptr {pointer}, align {align}{past}")

    def _store_register(self, stmt: Store, buffer: Buffer) -> None:
        value = self.value(stmt.value)
        row, at, step = self.register_slot(stmt, buffer)
        values, width = self.registers[buffer.name], width_of(buffer)
        dtype, old = buffer.dtype, values[row]
        if not width:
            values[row] = self.lane_of(value, dtype, self.extent - 1)
            return
        kind = type_of(dtype, width)
        if self.vector is not None and step == 1 and at == 0 and width == self.extent:
            values[row] = self.spread(value, dtype)
            return
        lanes = range(self.extent) if self.vector is not None and step else range(1)
        if len(lanes) == 1 and value[1]:
            value = self.lane_of(value, dtype, self.extent - 1), False
        for lane in lanes:
            operand = self.lane_of(value, dtype, lane)
            old = self.op(
                f"insertelement {kind} {old}, {type_of(dtype, 0)} {operand}, i64 {at + lane * step}"
            )
        values[row] = old
