"""The operations of the loop IR on operands: integer, floating-point, logical, and conversions.

No fast-math flag is ever set, and nothing traps: an integer divisor is made harmless first.
"""

from __future__ import annotations

import math

from onepass.core.dtypes import BOOL, F16, F32, F64, I32, I64, U32, U64, DType
from onepass.loops.ir import COMPARISONS
from onepass.targets.llvm.math import BOUNDS_ULP, Math
from onepass.targets.llvm.writer import constant, type_of

_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "fmod": "frem"}
_INT_OPS = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_BOOL_OPS = {"max": "or", "min": "and", "and": "and", "or": "or", "xor": "xor"}
_ROUNDINGS = {"floor": "floor", "ceil": "ceil", "round": "roundeven", "trunc": "trunc"}
_ORDERED = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


class Arithmetic(Math):
    """Writes one operation; operands have the given dtype and lane count (0: scalar)."""

    def binary(self, op: str, a: str, b: str, dtype: DType, lanes: int) -> str:
        """`a op b`; comparisons give a bool."""
        if op in COMPARISONS:
            return self.compare(op, a, b, dtype, lanes)
        kind = type_of(dtype, lanes)
        if dtype.is_float:
            if op in _FLOAT_OPS:
                return self.op(f"{_FLOAT_OPS[op]} {kind} {a}, {b}")
            if op in ("max", "min"):
                return self.float_extreme(op, a, b, dtype, lanes)
            return self._float_power(a, b, dtype, lanes)
        if dtype.kind == "bool":
            return self._logic(_BOOL_OPS[op], a, b, lanes)
        if op in _INT_OPS:
            return self.op(f"{_INT_OPS[op]} {kind} {a}, {b}")
        if op in ("max", "min"):
            return self.intrinsic(f"{'s' if dtype.kind == 'int' else 'u'}{op}", dtype, lanes, a, b)
        if op in ("shl", "shr"):
            return self._shift(op, a, b, dtype, lanes)
        if op == "pow":
            return self.per_lane("onepass.ipow", (a, b), dtype, lanes)
        return self._divide(op, a, b, dtype, lanes)

    def compare(self, op: str, a: str, b: str, dtype: DType, lanes: int) -> str:
        """A comparison; false for NaN but for `ne`."""
        kind = type_of(dtype, lanes)
        if dtype.is_float:
            return self.op(f"fcmp {_ORDERED[op]} {kind} {a}, {b}")
        sign = "" if op in ("eq", "ne") else "s" if dtype.kind == "int" else "u"
        return self.op(f"icmp {sign}{op} {kind} {a}, {b}")

    def _logic(self, op: str, a: str, b: str, lanes: int) -> str:
        for known, other in ((a, b), (b, a)):
            if "true" in known or "false" in known:
                if op == "xor":
                    break
                absorbs = ("true" in known) == (op == "or")
                return known if absorbs else other
        return self.op(f"{op} {type_of(BOOL, lanes)} {a}, {b}")

    def float_extreme(self, op: str, a: str, b: str, dtype: DType, lanes: int) -> str:
        """Maximum or minimum, NaN if either is.

        x86: `maxps` gives its second operand when unordered, and that is what `select (fcmp)` below
        becomes; so one instruction where one side is a literal (not NaN), three elsewhere.
        """
        if self.target.isa == "neon":
            return self.intrinsic(f"{op}imum", dtype, lanes, a, b)
        kind, order = type_of(dtype, lanes), "ogt" if op == "max" else "olt"
        if a[0] != "%":
            a, b = b, a
        if b[0] != "%" and b != "poison":
            picks = self.op(f"fcmp {order} {kind} {b}, {a}")
            return self.select(picks, b, a, dtype, lanes)
        picks = self.op(f"fcmp {order} {kind} {a}, {b}")
        best = self.select(picks, a, b, dtype, lanes)
        nan = self.op(f"fcmp uno {kind} {a}, {a}")
        return self.select(nan, a, best, dtype, lanes)

    def _opposite_signs(self, rest: str, b: str, dtype: DType, lanes: int) -> str:
        """Whether a remainder is not zero and has not the divisor's sign."""
        zero = constant(0, dtype, lanes)
        negative_rest = self.compare("lt", rest, zero, dtype, lanes)
        negative_b = self.compare("lt", b, zero, dtype, lanes)
        differ = self.op(f"xor {type_of(BOOL, lanes)} {negative_rest}, {negative_b}")
        return self._logic("and", self.compare("ne", rest, zero, dtype, lanes), differ, lanes)

    def _float_power(self, a: str, b: str, dtype: DType, lanes: int) -> str:
        kind = type_of(dtype, lanes)
        if b == constant(2.0, dtype, lanes):
            return self.op(f"fmul {kind} {a}, {a}")
        if b == constant(3.0, dtype, lanes):
            return self.op(f"fmul {kind} {self.op(f'fmul {kind} {a}, {a}')}, {a}")
        if b == constant(0.5, dtype, lanes):
            return self.intrinsic("sqrt", dtype, lanes, a)  # so does numpy, also for -inf
        if b == constant(1.0, dtype, lanes):
            return a
        if b == constant(-1.0, dtype, lanes):
            return self.op(f"fdiv {kind} {constant(1.0, dtype, lanes)}, {a}")
        if dtype.bits == 16:
            wide = self.cast(a, dtype, F32, lanes), self.cast(b, dtype, F32, lanes)
            return self.cast(self.per_lane("powf", wide, F32, lanes), F32, dtype, lanes)
        return self.per_lane("powf" if dtype == F32 else "pow", (a, b), dtype, lanes)

    def _shift(self, op: str, a: str, b: str, dtype: DType, lanes: int) -> str:
        """Shifts by the width or more give 0 (or the sign), as numpy's do."""
        kind, last = type_of(dtype, lanes), constant(dtype.bits - 1, dtype, lanes)
        fits = self.op(f"icmp ule {kind} {b}, {last}")
        amount = self.select(fits, b, last, dtype, lanes)
        if op == "shr" and dtype.kind == "int":
            return self.op(f"ashr {kind} {a}, {amount}")
        shifted = self.op(f"{'shl' if op == 'shl' else 'lshr'} {kind} {a}, {amount}")
        return self.select(fits, shifted, constant(0, dtype, lanes), dtype, lanes)

    def _divide(self, op: str, a: str, b: str, dtype: DType, lanes: int) -> str:
        signed, kind = dtype.kind == "int", type_of(dtype, lanes)
        zero, one = constant(0, dtype, lanes), constant(1, dtype, lanes)
        harmless = b[0] != "%" and b not in (zero, constant(-1, dtype, lanes))
        by_zero, divisor = "", b
        if not harmless:
            by_zero = self.compare("eq", b, zero, dtype, lanes)
            unsafe = by_zero
            if signed:
                lowest = constant(-(1 << (dtype.bits - 1)), dtype, lanes)
                overflow = self._logic(
                    "and", self.compare("eq", a, lowest, dtype, lanes),
                    self.compare("eq", b, constant(-1, dtype, lanes), dtype, lanes), lanes,
                )  # fmt: skip
                unsafe = self._logic("or", by_zero, overflow, lanes)
            divisor = self.select(unsafe, one, b, dtype, lanes)
        sign = "s" if signed else "u"
        floors = op in ("floordiv", "mod") and signed
        out = rest = ""
        if op in ("div", "floordiv"):
            out = self.op(f"{sign}div {kind} {a}, {divisor}")
        if op in ("rem", "mod") or floors:
            rest = self.op(f"{sign}rem {kind} {a}, {divisor}")
        if floors:
            wrong = self._opposite_signs(rest, divisor, dtype, lanes)
            fixed = f"sub {kind} {out}, {one}" if op == "floordiv" else f"add {kind} {rest}, {divisor}"
            out = self.select(wrong, self.op(fixed), out or rest, dtype, lanes)
        out = out or rest
        return self.select(by_zero, zero, out, dtype, lanes) if by_zero else out

    def unary(self, op: str, x: str, dtype: DType, lanes: int) -> str:
        """`op(x)`; predicates give a bool."""
        if dtype.is_float:
            return self._float_unary(op, x, dtype, lanes)
        kind = type_of(dtype, lanes)
        if op == "not":
            return self.op(f"xor {kind} {x}, {constant(True if dtype == BOOL else -1, dtype, lanes)}")
        if op == "abs" and dtype.kind != "int":
            return x
        if op == "neg":
            return self.op(f"sub {kind} {constant(0, dtype, lanes)}, {x}")
        if op == "abs":
            name, kinds = f"llvm.abs.{kind if not lanes else f'v{lanes}i{dtype.bits}'}", f"{kind}, i1"
            return self.call(kind, name, kinds, f"{kind} {x}, i1 false")
        return self._sign(x, dtype, lanes)

    def _sign(self, x: str, dtype: DType, lanes: int) -> str:
        """-1, 0 or 1; NaN stays."""
        zero, out = constant(0, dtype, lanes), x
        for order, value in (("lt", -1), ("gt", 1), ("eq", 0)):
            holds = self.compare(order, x, zero, dtype, lanes)
            out = self.select(holds, constant(value, dtype, lanes), out, dtype, lanes)
        return out

    def _float_unary(self, op: str, x: str, dtype: DType, lanes: int) -> str:
        kind = type_of(dtype, lanes)
        if op == "neg":
            return self.op(f"fneg {kind} {x}")
        if op in ("abs", "sqrt"):
            return self.intrinsic("fabs" if op == "abs" else "sqrt", dtype, lanes, x)
        if op in _ROUNDINGS:
            return self.intrinsic(_ROUNDINGS[op], dtype, lanes, x)
        if op == "is_nan":
            return self.op(f"fcmp uno {kind} {x}, {x}")
        if op == "is_inf":
            size = self.intrinsic("fabs", dtype, lanes, x)
            return self.op(f"fcmp oeq {kind} {size}, {constant(math.inf, dtype, lanes)}")
        if op == "sign":
            return self._sign(x, dtype, lanes)
        return self._transcendental(op, x, dtype, lanes)

    def _transcendental(self, op: str, x: str, dtype: DType, lanes: int) -> str:
        if dtype.bits == 16:
            wide = self._transcendental(op, self.cast(x, dtype, F32, lanes), F32, lanes)
            return self.cast(wide, F32, dtype, lanes)
        if dtype == F32 and op in BOUNDS_ULP:
            return self.vector_function(op, x, lanes)
        if op == "sigmoid":
            one, kind = constant(1.0, dtype, lanes), type_of(dtype, lanes)
            size = self.op(f"fneg {kind} {self.intrinsic('fabs', dtype, lanes, x)}")
            power = self._transcendental("exp", size, dtype, lanes)
            negative = self.op(f"fcmp olt {kind} {x}, {constant(0.0, dtype, lanes)}")
            top = self.select(negative, power, one, dtype, lanes)
            return self.op(f"fdiv {kind} {top}, {self.op(f'fadd {kind} {one}, {power}')}")
        return self.per_lane(op + ("f" if dtype == F32 else ""), (x,), dtype, lanes)

    def per_lane(self, function: str, operands: tuple[str, ...], dtype: DType, lanes: int) -> str:
        """Calls a scalar function of the process (libm) lane by lane."""
        if function == "onepass.ipow":
            function = f"onepass.ipow.{dtype}"
            self.functions.setdefault(function, integer_power(function, dtype))
        kind = type_of(dtype, 0)
        types = ", ".join([kind] * len(operands))

        def one(arguments: list[str]) -> str:
            text = ", ".join(f"{kind} {argument}" for argument in arguments)
            if function in self.functions:
                return self.op(f"call {kind} @{function}({text})")
            return self.call(kind, function, types, text)

        if not lanes:
            return one(list(operands))
        return self.gather(
            [one([self.extract(x, dtype, lanes, lane) for x in operands]) for lane in range(lanes)],
            dtype,
        )

    def cast(self, x: str, source: DType, target: DType, lanes: int) -> str:
        """Conversion as numpy's `astype` on x86.

        Float to int truncates; NaN and what does not fit give the lowest int32 (int64 for wider
        types) before narrowing, where C leaves it undefined. Integers wrap.
        """
        if source == target:
            return x
        a, b = type_of(source, lanes), type_of(target, lanes)
        if target == BOOL:
            zero = constant(0.0 if source.is_float else 0, source, lanes)
            return self.compare("ne", x, zero, source, lanes)
        if (source, target) == (F64, F16):
            return self._double_to_half(x, lanes)
        if source.is_float and target.is_float:
            return self.op(f"{'fptrunc' if source.bits > target.bits else 'fpext'} {a} {x} to {b}")
        if source.is_float:
            return self._float_to_int(x, source, target, lanes)
        signed = source.kind == "int"
        if target.is_float:
            return self.op(f"{'sitofp' if signed else 'uitofp'} {a} {x} to {b}")
        source_bits = 1 if source == BOOL else source.bits
        if source_bits == target.bits:
            return x
        how = "trunc" if source_bits > target.bits else "sext" if signed else "zext"
        return self.op(f"{how} {a} {x} to {b}")

    def _float_to_int(self, x: str, source: DType, target: DType, lanes: int) -> str:
        if source.bits == 16:
            return self._float_to_int(self.cast(x, source, F32, lanes), F32, target, lanes)
        kind = type_of(source, lanes)
        if target == U64:
            top = constant(2.0**63, source, lanes)
            low = self._float_to_int(x, source, I64, lanes)
            less = self.op(f"fsub {kind} {x}, {top}")
            high = self._float_to_int(less, source, I64, lanes)
            high = self.binary("xor", high, constant(1 << 63, I64, lanes), I64, lanes)
            return self.select(self.op(f"fcmp ult {kind} {x}, {top}"), low, high, I64, lanes)
        middle = I64 if target.bits == 64 or target == U32 else I32
        high_bound = 2.0 ** (middle.bits - 1)
        # float64 holds fractions just below the least int32, which truncate to it.
        order, low_bound = (
            ("ogt", -high_bound - 1.0) if source == F64 and middle == I32 else ("oge", -high_bound)
        )
        above = self.op(f"fcmp {order} {kind} {x}, {constant(low_bound, source, lanes)}")
        below = self.op(f"fcmp olt {kind} {x}, {constant(high_bound, source, lanes)}")
        fits = self._logic("and", above, below, lanes)
        safe = self.select(fits, x, constant(0.0, source, lanes), source, lanes)
        converted = self.op(f"fptosi {kind} {safe} to {type_of(middle, lanes)}")
        lowest = constant(-(1 << (middle.bits - 1)), middle, lanes)
        return self.cast(self.select(fits, converted, lowest, middle, lanes), middle, target, lanes)

    def _double_to_half(self, x: str, lanes: int) -> str:
        """float64 to float16 through float32 rounded to odd, so that only the last rounding counts.

        Boldo and Melquiond, IEEE Trans. Computers 57(4), 2008. LLVM would call a function of the
        compiler's run-time library, which a process need not have.
        """
        wide, ints = type_of(F64, lanes), type_of(I32, lanes)
        near = self.op(f"fptrunc {wide} {x} to {type_of(F32, lanes)}")
        back = self.op(f"fpext {type_of(F32, lanes)} {near} to {wide}")
        bits = self.op(f"bitcast {type_of(F32, lanes)} {near} to {ints}")
        inexact = self.op(f"fcmp one {wide} {x}, {back}")
        even = self.op(
            f"xor {type_of(BOOL, lanes)} {self.op(f'trunc {ints} {bits} to {type_of(BOOL, lanes)}')}, "
            f"{constant(True, BOOL, lanes)}"
        )
        size, back_size = self.intrinsic("fabs", F64, lanes, x), self.intrinsic("fabs", F64, lanes, back)
        outward = self.op(f"fcmp ogt {wide} {size}, {back_size}")
        step = self.select(outward, constant(1, I32, lanes), constant(-1, I32, lanes), I32, lanes)
        odd = self.op(f"add {ints} {bits}, {step}")
        bits = self.select(self._logic("and", inexact, even, lanes), odd, bits, I32, lanes)
        rounded = self.op(f"bitcast {ints} {bits} to {type_of(F32, lanes)}")
        return self.op(f"fptrunc {type_of(F32, lanes)} {rounded} to {type_of(F16, lanes)}")


def integer_power(name: str, dtype: DType) -> str:
    """IR text of `name(base, exponent)` by squaring, wrapping.

    A negative exponent gives 1 / base**-exponent rounded towards zero.
    """
    kind = type_of(dtype, 0)
    less = "slt" if dtype.kind == "int" else "ult"
    return f"""define internal {kind} @{name}({kind} %base, {kind} %exponent) {{
entry:
  %negative = icmp {less} {kind} %exponent, 0
  %up = add {kind} %base, 1
  %unit = icmp ule {kind} %up, 2
  %is_zero = icmp eq {kind} %base, 0
  %large = xor i1 %unit, true
  %vanishes = or i1 %large, %is_zero
  %none = and i1 %negative, %vanishes
  %first = select i1 %none, {kind} 0, {kind} 1
  %odd = and {kind} %exponent, 1
  %count = select i1 %negative, {kind} %odd, {kind} %exponent
  br label %loop
loop:
  %b = phi {kind} [%base, %entry], [%square, %more]
  %e = phi {kind} [%count, %entry], [%half, %more]
  %r = phi {kind} [%first, %entry], [%next, %more]
  %done = icmp eq {kind} %e, 0
  br i1 %done, label %exit, label %more
more:
  %bit = trunc {kind} %e to i1
  %product = mul {kind} %r, %b
  %next = select i1 %bit, {kind} %product, {kind} %r
  %square = mul {kind} %b, %b
  %half = lshr {kind} %e, 1
  br label %loop
exit:
  ret {kind} %r
}}
"""
