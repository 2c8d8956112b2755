"""Expressions to operands: each value is a scalar, or varies over the lanes of the vector loop.

Scalars are spread over the lanes only where an operation needs it, so that the processor's
memory broadcast can be used. The arms of a `Select` are evaluated without a branch; loads in them are
guarded: by a mask, or by reading from a block of zeros instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from onepass.core.dtypes import BOOL, I32, I64, DType
from onepass.core.errors import InternalError
from onepass.loops import ir
from onepass.loops.affine import decide
from onepass.loops.walk import children
from onepass.targets.llvm.address import Addressing, Form
from onepass.targets.llvm.writer import constant, stored_type, type_of

Value = tuple[str, bool]  # operand, and whether it varies over the lanes
ZEROS = "@onepass.zeros"
_INDEX_OPS = frozenset({"add", "sub", "mul", "floordiv", "mod"})


@lru_cache(maxsize=4096)
def strides_of(shape: tuple[int, ...], unit: int) -> tuple[int, ...]:
    """Row-major strides, the last one `unit`."""
    out = [unit]
    for extent in reversed(shape[1:]):
        out.append(out[-1] * extent)
    return tuple(reversed(out)) if shape else ()


class Expressions(Addressing):
    """Adds the values of expressions; knows the buffers."""

    buffers: dict[str, ir.Buffer]
    roots: dict[str, str]  # pointer of each buffer in memory or cache
    written: frozenset[str]  # buffers that the kernel stores to
    registers: dict[str, list[str]]  # vectors (scalars) of each register buffer, row-major

    def begin(self) -> None:
        """Forgets all values; a function starts."""
        self.buffers, self.roots, self.registers, self.known = {}, {}, {}, {}
        self.zeros_bytes = 0
        self.memo: dict[int, Value] = {}
        self._guard: Value | None = None
        self._facts: dict[tuple[str, int], bool] = {}
        self._literals: dict[int, tuple[str, ir.Expr]] = {}
        self._visit: dict[type, Callable[..., Value]] = {
            ir.Const: self._const, ir.Index: self._index, ir.Load: self._load, ir.Unary: self._unary,
            ir.Binary: self._binary, ir.Fma: self._fma, ir.Select: self._select, ir.Cast: self._cast,
        }  # fmt: skip

    def value(self, expr: ir.Expr) -> Value:
        """The operand of `expr`; each subexpression object is evaluated once a statement."""
        found = self.memo.get(id(expr))
        if found is None:
            found = self._visit[type(expr)](expr)
            self.memo[id(expr)] = found
        return found

    def evaluate(self, expr: ir.Expr, hoisted: bool) -> str:
        """The scalar operand of an expression without lanes; `hoisted`: outside statement and guard."""
        saved = self.memo, self._guard, self.vector
        if hoisted:
            self.memo, self._guard, self.vector = {}, None, None
        operand, varies = self.value(expr)
        self.memo, self._guard, self.vector = saved
        if varies:
            raise InternalError("emit", "a value that varies over the lanes is used as a scalar")
        return operand

    def spread(self, value: Value, dtype: DType) -> str:
        """The operand of a value in a vector operation."""
        return value[0] if value[1] else self.splat(value[0], dtype, self.extent)

    def lane_of(self, value: Value, dtype: DType, lane: int) -> str:
        """The operand of a value in one lane."""
        return self.extract(value[0], dtype, self.extent, lane) if value[1] else value[0]

    def place(self, access: ir.Load | ir.Store | ir.Prefetch, buffer: ir.Buffer) -> tuple[int, Form]:
        """Where in its buffer an element lies, in bytes: a constant part and a resolved form."""
        strides = strides_of(buffer.shape, buffer.dtype.size_bytes)
        return self.resolve(self.form(access, "memory", access.indices, strides))

    def _const(self, expr: ir.Const) -> Value:
        found = self._literals.get(id(expr))
        if found is None:
            found = self._literals[id(expr)] = (constant(expr.value, expr.dtype), expr)
        return found[0], False

    def _index(self, expr: ir.Index) -> Value:
        name = expr.name
        if name == self.vector:
            lanes = ", ".join(f"i64 {lane}" for lane in range(self.extent))
            return f"<{lanes}>", True
        if name in self.consts:
            return str(self.consts[name]), False
        if name not in self.dynamic:
            raise InternalError("emit", f"loop variable '{name}' is not defined here")
        return self.dynamic[name][0], False

    def _pair(self, a: Value, b: Value, dtype: DType) -> tuple[str, str, int]:
        if a[1] or b[1]:
            return self.spread(a, dtype), self.spread(b, dtype), self.extent
        return a[0], b[0], 0

    def _unary(self, expr: ir.Unary) -> Value:
        operand, varies = self.value(expr.x)
        if expr.op == "not" and operand in ("true", "false"):
            return ("false" if operand == "true" else "true"), False
        return self.unary(expr.op, operand, expr.x.dtype, self.extent if varies else 0), varies

    def _cast(self, expr: ir.Cast) -> Value:
        operand, varies = self.value(expr.x)
        return self.cast(operand, expr.x.dtype, expr.dtype, self.extent if varies else 0), varies

    def _fma(self, expr: ir.Fma) -> Value:
        a, b, c = self.value(expr.a), self.value(expr.b), self.value(expr.c)
        dtype = expr.dtype
        if a[1] or b[1] or c[1]:
            operands = self.spread(a, dtype), self.spread(b, dtype), self.spread(c, dtype)
            return self.intrinsic("fma", dtype, self.extent, *operands), True
        return self.intrinsic("fma", dtype, 0, a[0], b[0], c[0]), False

    def _binary(self, expr: ir.Binary) -> Value:
        dtype = expr.a.dtype
        if dtype is I64 or dtype == I64:
            if expr.op in ir.COMPARISONS:
                if self._is_index(expr.a) and self._is_index(expr.b):
                    return self._index_comparison(expr)
            elif expr.op in _INDEX_OPS and self._is_index(expr):
                const, form = self.resolve(self.form(expr, "value", (expr,), (1,)))
                if not form.lane and not self.varies(form) and not self._is_bare(form):
                    return self.index_operand(form, const), False
        a, b = self.value(expr.a), self.value(expr.b)
        left, right, lanes = self._pair(a, b, dtype)
        return self.binary(expr.op, left, right, dtype, lanes), bool(lanes)

    def _is_bare(self, form: Form) -> bool:
        """Whether the form is one irreducible atom: the expression itself, to be computed here."""
        return len(form.terms) == 1 and form.terms[0][0][0] in "#!"

    def _index_comparison(self, expr: ir.Binary) -> Value:
        """Compares a difference of indices with zero; decided here where the ranges allow."""
        const, form = self.resolve(self.form(expr, "compare", (expr.a, expr.b), (1, -1)))
        if self.varies(form):
            left, right, lanes = self._pair(self.value(expr.a), self.value(expr.b), I64)
            return self.compare(expr.op, left, right, I64, lanes), bool(lanes)
        span = form.lane * (self.extent - 1) if form.lane else 0
        low, high = form.low + const + min(span, 0), form.high + const + max(span, 0)
        verdict = decide(expr.op, low, high)
        if verdict is not None:
            return ("true" if verdict else "false"), False
        if not form.lane:
            return self.compare(expr.op, self.index_operand(form, 0), str(-const), I64, 0), False
        # Narrow to 32 bits: half the registers.
        dtype = I32 if max(abs(low), abs(high)) + abs(const) < 1 << 31 else I64
        start = self.index_operand(form, 0)
        if dtype is I32 and start[0] == "%":
            start = self.op(f"trunc i64 {start} to i32")
        steps = ", ".join(f"i{dtype.bits} {-const - lane * form.lane}" for lane in range(self.extent))
        return self.compare(
            expr.op, self.splat(start, dtype, self.extent), f"<{steps}>", dtype, self.extent
        ), True

    def _is_index(self, expr: ir.Expr) -> bool:
        key = ("index", id(expr))
        found = self._facts.get(key)
        if found is None:
            match expr:
                case ir.Index():
                    found = True
                case ir.Const():
                    found = expr.dtype == I64
                case ir.Binary(op="floordiv" | "mod"):
                    found = self._is_index(expr.a) and isinstance(expr.b, ir.Const) and expr.b.value > 0
                case ir.Binary():
                    found = expr.op in _INDEX_OPS and self._is_index(expr.a) and self._is_index(expr.b)
                case _:
                    found = False
            self._facts[key] = found
            self._alive.append(expr)
        return found

    def _reads_memory(self, expr: ir.Expr) -> bool:
        key = ("reads", id(expr))
        found = self._facts.get(key)
        if found is None:
            found = isinstance(expr, ir.Load) and self.buffers[expr.buffer].home != "register"
            found = found or any(self._reads_memory(operand) for operand in children(expr))
            self._facts[key] = found
            self._alive.append(expr)
        return found

    def _select(self, expr: ir.Select) -> Value:
        condition = self.value(expr.condition)
        if condition[0][0] != "%":
            return self.value(expr.yes if "true" in condition[0] else expr.no)
        yes = self._arm(expr.yes, condition, False)
        no = self._arm(expr.no, condition, True)
        dtype = expr.dtype
        if condition[1] or yes[1] or no[1]:
            left, right, lanes = self.spread(yes, dtype), self.spread(no, dtype), self.extent
            if not condition[1]:
                kind = type_of(dtype, lanes)
                return self.op(f"select i1 {condition[0]}, {kind} {left}, {kind} {right}"), True
            return self.select(condition[0], left, right, dtype, lanes), True
        return self.select(condition[0], yes[0], no[0], dtype, 0), False

    def _arm(self, arm: ir.Expr, condition: Value, negate: bool) -> Value:
        if not self._reads_memory(arm):
            return self.value(arm)
        guard = condition
        if negate:
            lanes = self.extent if condition[1] else 0
            guard = self.unary("not", condition[0], BOOL, lanes), condition[1]
        saved, memo = self._guard, self.memo
        if saved is not None:
            left, right, lanes = self._pair(saved, guard, BOOL)
            guard = self.binary("and", left, right, BOOL, lanes), bool(lanes)
        self._guard, self.memo = guard, dict(memo)
        out = self.value(arm)
        self._guard, self.memo = saved, memo
        return out

    def _load(self, expr: ir.Load) -> Value:
        buffer = self.buffers[expr.buffer]
        if buffer.home == "register":
            return self.load_register(expr, buffer)
        size = buffer.dtype.size_bytes
        const, form = self.place(expr, buffer)
        if self.vector is None or (not form.lane and not self.varies(form)):
            return self._load_scalar(self.pointer(self.roots[buffer.name], form, const), buffer), False
        if self.varies(form):
            lanes = [self.at_lane(lane, lambda: self.value(expr)[0]) for lane in range(self.extent)]
            return self.gather(lanes, buffer.dtype), True
        if form.lane == size:
            pointer = self.pointer(self.roots[buffer.name], form, const)
            return self._load_vector(pointer, buffer, _alignment(form, const, size)), True
        return self._load_strided(buffer, form, const), True

    def _read(self, buffer: ir.Buffer, text: str) -> str:
        """Writes a load; one that was done before is done again only where the buffer may have changed."""
        return self.fresh(text) if buffer.name in self.written else self.op(text)

    def _load_scalar(self, pointer: str, buffer: ir.Buffer) -> str:
        dtype = buffer.dtype
        if self._guard is not None:
            guard = self._guard[0]
            if self._guard[1]:
                kind = type_of(BOOL, self.extent)
                guard = self.call("i1", f"llvm.vector.reduce.or.v{self.extent}i1", kind, f"{kind} {guard}")
            pointer = self._safe(pointer, guard, dtype.size_bytes)
        kind = stored_type(dtype, 0)
        loaded = self._read(buffer, f"load {kind}, ptr {pointer}, align {dtype.size_bytes}")
        return self.op(f"icmp ne i8 {loaded}, 0") if dtype.kind == "bool" else loaded

    def _safe(self, pointer: str, guard: str, size: int) -> str:
        self.zeros_bytes = max(self.zeros_bytes, size)
        return self.op(f"select i1 {guard}, ptr {pointer}, ptr {ZEROS}")

    def _load_vector(self, pointer: str, buffer: ir.Buffer, alignment: int) -> str:
        lanes, dtype = self.extent, buffer.dtype
        kind, guard = stored_type(dtype, lanes), self._guard
        if guard is not None and guard[1]:
            name = f"llvm.masked.load.v{lanes}{'f' if dtype.is_float else 'i'}{dtype.bits}.p0"
            mask = type_of(BOOL, lanes)
            self.declarations[name] = f"declare {kind} @{name}(ptr, i32, {mask}, {kind})"
            arguments = f"ptr {pointer}, i32 {alignment}, {mask} {guard[0]}, {kind} zeroinitializer"
            loaded = self._read(buffer, f"call {kind} @{name}({arguments})")
        else:
            if guard is not None:
                pointer = self._safe(pointer, guard[0], dtype.size_bytes * lanes)
                alignment = min(alignment, 64)
            loaded = self._read(buffer, f"load {kind}, ptr {pointer}, align {alignment}")
        return self.op(f"icmp ne {kind} {loaded}, zeroinitializer") if dtype.kind == "bool" else loaded

    def _load_strided(self, buffer: ir.Buffer, form: Form, const: int) -> str:
        dtype, out = buffer.dtype, []
        stride = form.lane // dtype.size_bytes
        root = self.roots[buffer.name]
        if self._guard is None and -4 <= stride <= 4 and self.extent > 2:
            return self._load_interleaved(buffer, form, const, stride)
        for lane in range(self.extent):
            pointer = self.pointer(root, form, const + lane * form.lane)
            out.append(self.at_lane(lane, lambda p=pointer: self._load_scalar(p, buffer)))  # type: ignore[misc]
        return self.gather(out, dtype)

    def _load_interleaved(self, buffer: ir.Buffer, form: Form, const: int, stride: int) -> str:
        """A small stride: whole vectors between the first and last element read, then shuffles."""
        root, dtype = self.roots[buffer.name], buffer.dtype
        lanes, step = self.extent, abs(stride)
        first = const if stride > 0 else const + (lanes - 1) * form.lane
        last = step * (lanes - 1)  # position of the last element, counted from the first
        kind = type_of(dtype, lanes)
        starts = [min(k * lanes, last - lanes + 1) for k in range(step)]
        out = ""
        for k, start in enumerate(starts):
            address = self.pointer(root, form, first + start * dtype.size_bytes)
            block = self._load_vector(address, buffer, dtype.size_bytes)
            picks = []
            for lane in range(lanes):
                position = step * (lane if stride > 0 else lanes - 1 - lane)
                owner = min(position // lanes, step - 1)
                fresh = position - start + (lanes if k else 0)
                picks.append(str(fresh) if owner == k else str(lane) if owner < k else "poison")
            mask = ", ".join(f"i32 {pick}" for pick in picks)
            a, b = (out, block) if k else (block, "poison")
            out = self.op(f"shufflevector {kind} {a}, {kind} {b}, <{lanes} x i32> <{mask}>")
        return out

    def at_lane(self, lane: int, action: Callable[[], str]) -> str:
        """Runs `action` with the vector variable fixed: everything in it is scalar."""
        name, guard, memo = self.vector, self._guard, self.memo
        assert name is not None
        if guard is not None and guard[1]:
            self._guard = self.extract(guard[0], BOOL, self.extent, lane), False
        self.vector, self.memo, self.consts[name] = None, {}, lane
        before = self.enter("lane", name, self.ranges[name])
        out = action()
        self.leave(before)
        del self.consts[name]
        self.vector, self._guard, self.memo = name, guard, memo
        return out

    def register_slot(self, owner: ir.Load | ir.Store, buffer: ir.Buffer) -> tuple[int, int, int]:
        """Which vector of a register buffer, its element at lane 0, and elements a lane."""
        lead = owner.indices[:-1]
        row, rows = self.resolve(self.form(owner, "lead", lead, strides_of(buffer.shape[:-1], 1)))
        at, last = self.resolve(self.form(owner, "last", owner.indices[-1:], (1,) * len(owner.indices[-1:])))
        if rows.terms or rows.lane or last.terms or self.varies(rows) or self.varies(last):
            raise InternalError("emit", f"register buffer '{buffer.name}' has an index that is not a literal")
        return row, at, last.lane

    def load_register(self, expr: ir.Load, buffer: ir.Buffer) -> Value:
        """Elements of a register buffer: the whole vector, some of its lanes, or one."""
        row, at, step = self.register_slot(expr, buffer)
        vector = self.registers[buffer.name][row]
        width = buffer.shape[-1] if buffer.shape else 1
        if width == 1:
            return vector, False
        if self.vector is None or step == 0:
            if vector == "poison":
                return vector, False
            return self.extract(vector, buffer.dtype, width, at), False
        if step == 1 and at == 0 and width == self.extent:
            return vector, True
        kind = type_of(buffer.dtype, width)
        mask = ", ".join(f"i32 {at + step * lane}" for lane in range(self.extent))
        return self.op(f"shufflevector {kind} {vector}, {kind} poison, <{self.extent} x i32> <{mask}>"), True


def _alignment(form: Form, const: int, size: int) -> int:
    """What the address is provably a multiple of: buffers start at multiples of 16, as numpy's do."""
    bits = const | 16
    for _, c in form.terms:
        bits |= c
    return max(bits & -bits, size)
