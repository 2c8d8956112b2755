"""exp, log, tanh, erf and sigmoid of float32, for vectors of any length, as straight-line LLVM IR.

Errors against the exact result, measured over all magnitudes: exp 0.9 ulp, log 0.9, tanh 1.4,
erf 1.5, sigmoid 2.7; the tests hold them to the bounds in `BOUNDS_ULP`. NaN, infinities, zeros and
subnormal results are as IEEE 754 wants them. The coefficients are minimax in relative error, fitted with
Lawson's iterative reweighting (C. L. Lawson, 1961) of the linearised rational approximation, each
rounded to float32 in turn and the others fitted again.
"""

from __future__ import annotations

import math

from onepass.core.dtypes import F32, I32
from onepass.targets.llvm import erf_table
from onepass.targets.llvm.writer import Writer, constant, type_of

BOUNDS_ULP = {"exp": 1.5, "log": 1.5, "tanh": 2.0, "erf": 2.0, "sigmoid": 3.0}

# exp(r) for |r| <= ln(2)/2; relative error 3.1e-9
_EXP = (
    1.0, 1.0, 0.4999999403953552, 0.1666652113199234, 0.041668254882097244, 0.008368662558495998,
    0.0013821468455716968,
)  # fmt: skip
_EXP_ZERO = -103.972084045410  # exp of it and of less rounds to 0: it is below 2**-150, half the least number
_ROUND = 1.5 * 2.0**23  # a sum with it has no fraction bits: the unit in the last place is 1 there
# log(1 + f) = f - f^2/2 + f^3 P(f) for 1/sqrt(2) <= 1 + f <= sqrt(2); relative error 5.8e-9
_LOG = (
    0.3333333134651184, -0.2500081956386566, 0.2000124156475067, -0.166234090924263,
    0.14201581478118896, -0.1315961331129074, 0.12762197852134705, -0.0763639509677887,
)  # fmt: skip
# tanh(x) = x + x^3 P(x^2) for |x| <= 0.625; relative error 4.5e-9
_TANH = (
    -0.3333328068256378, 0.1333141028881073, -0.05373726412653923, 0.0206317026168108, -0.005697317887097597,
)  # fmt: skip
# erf(x) = x + x P(x^2) for |x| <= 0.93; relative error 9.0e-10
_ERF_SMALL = (
    0.12837916612625122, -0.3761262893676758, 0.11283625662326813, -0.02685573138296604,
    0.005192405078560114, -0.0008049769676290452, 7.996649947017431e-05,
)  # fmt: skip
# erf(x) = 1 - exp(-x + x P(x)) for 0.92 <= x <= 4; relative error 3.0e-9
_ERF_LARGE = (
    -0.128514364361763, -0.6357182860374451, -0.1052619144320488, 0.022890038788318634,
    -0.0032149909529834986, 0.000213991166674532,
)  # fmt: skip
_WIDE = 16  # lanes of a full vector of AVX-512
_LOG2_E = 1.0 / math.log(2.0)
# Cody and Waite's split of ln(2): what `fma` does not need to be short, and a high part of 9 bits.
_LN2_FMA = (0.693147182464599609375, -1.904654299957767878e-9)
_LN2_SHORT = (0.693359375, -2.12194440054690583e-4)


class Math(Writer):
    """Writes functions of float32 operands; `n` is the lane count (0: scalar)."""

    def vector_function(self, op: str, x: str, n: int) -> str:
        """`op(x)` for an `op` of `BOUNDS_ULP`."""
        functions = {"exp": self._exp, "log": self._log, "tanh": self._tanh, "erf": self._erf}
        return functions[op](x, n) if op in functions else self._sigmoid(x, n)

    def _do(self, op: str, a: str, b: str, n: int) -> str:
        return self.op(f"{op} {type_of(F32, n)} {a}, {b}")

    def _mad(self, a: str, b: str, c: str, n: int) -> str:
        return self.intrinsic("fma", F32, n, a, b, c)

    def _polynomial(self, x: str, coefficients: tuple[float, ...], n: int) -> str:
        """Horner's scheme, lowest coefficient first."""
        out = constant(coefficients[-1], F32, n)
        for c in reversed(coefficients[:-1]):
            out = self._mad(out, x, constant(c, F32, n), n)
        return out

    def _even_odd(self, x: str, coefficients: tuple[float, ...], n: int) -> str:
        """The same as two chains half as long: erf is a long one, and each vector waits for its own."""
        square = self._do("fmul", x, x, n)
        even, odd = (self._polynomial(square, coefficients[k::2], n) for k in (0, 1))
        return self._mad(odd, x, even, n)

    def _limit(self, order: str, x: str, bound: float, n: int) -> str:
        """`bound` where `bound order x`, else `x`, also for NaN; one instruction on x86."""
        limit = constant(bound, F32, n)
        return self.select(self._do(f"fcmp {order}", limit, x, n), limit, x, F32, n)

    def _clamp(self, x: str, low: float, high: float, n: int) -> str:
        return self._limit("olt", self._limit("ogt", x, low, n), high, n)

    def _bits(self, x: str, n: int) -> str:
        return self.op(f"bitcast {type_of(F32, n)} {x} to {type_of(I32, n)}")

    def _float(self, bits: str, n: int) -> str:
        return self.op(f"bitcast {type_of(I32, n)} {bits} to {type_of(F32, n)}")

    def _int(self, op: str, a: str, b: int, n: int) -> str:
        return self.op(f"{op} {type_of(I32, n)} {a}, {constant(b, I32, n)}")

    def _exp(self, x: str, n: int) -> str:
        # Beyond the limits the result is inf, or rounds to 0.
        return self._bounded_exp(self._clamp(x, -104.0, 89.0, n), n, vanishes=True)

    def _bounded_exp(self, x: str, n: int, vanishes: bool = False) -> str:
        """exp of an argument within [-104, 89], or NaN; `vanishes`: it may be so low that 0 comes out.

        That is a product with 0: an underflow takes the processor ten times as long (a softmax of which most
        is masked: 484 µs, 50 so), and a masked softmax is full of them.
        """
        shifted = self._mad(x, constant(_LOG2_E, F32, n), constant(_ROUND, F32, n), n)
        whole = self._do("fsub", shifted, constant(_ROUND, F32, n), n)
        r = self._mad(whole, constant(-_LN2_FMA[0], F32, n), x, n)
        r = self._mad(whole, constant(-_LN2_FMA[1], F32, n), r, n)
        mantissa = self._polynomial(r, _EXP, n)
        if vanishes:
            some = self._do("fcmp ugt", x, constant(_EXP_ZERO, F32, n), n)
            mantissa = self.select(some, mantissa, constant(0.0, F32, n), F32, n)
        return self._scale(mantissa, whole, n)

    def _scale(self, x: str, power: str, n: int) -> str:
        """`x * 2**power` for an integral float in [-151, 129]; subnormal results included."""
        kind = type_of(F32, n)
        if self.target.isa == "avx512" and n == 16:
            types = f"{kind}, {kind}, {kind}, i16, i32"
            arguments = f"{kind} {x}, {kind} {power}, {kind} zeroinitializer, i16 -1, i32 4"
            return self.call(kind, "llvm.x86.avx512.mask.scalef.ps.512", types, arguments)
        # NaN cannot become an integer: make it 0, x stays NaN.
        known = self._do("fcmp ord", power, power, n)
        power = self.select(known, power, constant(0.0, F32, n), F32, n)
        whole = self.op(f"fptosi {kind} {power} to {type_of(I32, n)}")
        # In two steps, since 2**power itself may be too large or too small for a float32.
        half = self._int("ashr", whole, 1, n)
        rest = self.op(f"sub {type_of(I32, n)} {whole}, {half}")
        for part in (half, rest):
            factor = self._float(self._int("shl", self._int("add", part, 127, n), 23, n), n)
            x = self._do("fmul", x, factor, n)
        return x

    def _log(self, x: str, n: int) -> str:
        kind, ints = type_of(F32, n), type_of(I32, n)
        zero = constant(0.0, F32, n)
        tiny = self._do("fcmp olt", x, constant(2.0**-126, F32, n), n)
        scaled = self.select(tiny, self._do("fmul", x, constant(2.0**23, F32, n), n), x, F32, n)
        bias = self.select(tiny, constant(-23.0, F32, n), zero, F32, n)
        bits = self._bits(scaled, n)
        # The exponent for which the mantissa lies in [1/sqrt(2), sqrt(2)): 0x3f3504f3 is 1/sqrt(2).
        shifted = self._int("ashr", self._int("sub", bits, 0x3F3504F3, n), 23, n)
        whole = self._do("fadd", self.op(f"sitofp {ints} {shifted} to {kind}"), bias, n)
        mantissa = self._float(self.op(f"sub {ints} {bits}, {self._int('shl', shifted, 23, n)}"), n)
        f = self._do("fsub", mantissa, constant(1.0, F32, n), n)
        square = self._do("fmul", f, f, n)
        y = self._do("fmul", self._do("fmul", square, f, n), self._polynomial(f, _LOG, n), n)
        y = self._mad(whole, constant(_LN2_SHORT[1], F32, n), y, n)
        y = self._do("fadd", f, self._mad(square, constant(-0.5, F32, n), y, n), n)
        y = self._mad(whole, constant(_LN2_SHORT[0], F32, n), y, n)
        # Infinity and NaN stay; 0 gives -inf, negative numbers NaN.
        finite = self._do("fcmp olt", x, constant(math.inf, F32, n), n)
        y = self.select(finite, y, x, F32, n)
        positive = self._do("fcmp ugt", x, zero, n)
        is_zero = self._do("fcmp oeq", x, zero, n)
        low = self.select(is_zero, constant(-math.inf, F32, n), constant(math.nan, F32, n), F32, n)
        return self.select(positive, y, low, F32, n)

    def _tanh(self, x: str, n: int) -> str:
        size, square = self.intrinsic("fabs", F32, n, x), self._do("fmul", x, x, n)
        tail = self._do("fmul", self._polynomial(square, _TANH, n), square, n)
        small = self._mad(tail, size, size, n)
        power = self._bounded_exp(self._limit("olt", self._do("fadd", size, size, n), 40.0, n), n)
        below = self._quotient(constant(2.0, F32, n), self._do("fadd", power, constant(1.0, F32, n), n), n)
        return self._join(x, size, 0.625, small, below, n)

    def _erf(self, x: str, n: int) -> str:
        if self.target.isa == "avx512" and n <= _WIDE:
            return self._narrowed(self._erf_by_table(self._widened(x, n)), n)
        size, square = self.intrinsic("fabs", F32, n, x), self._do("fmul", x, x, n)
        small = self._mad(self._even_odd(square, _ERF_SMALL, n), size, size, n)
        # From 4 on it rounds to 1; the polynomial is not for more.
        bounded = self._limit("olt", size, 4.0, n)
        negated = self.op(f"fneg {type_of(F32, n)} {bounded}")
        power = self._mad(self._even_odd(bounded, _ERF_LARGE, n), bounded, negated, n)
        return self._join(x, size, 0.93, small, self._bounded_exp(power, n), n)

    def _erf_by_table(self, x: str) -> str:
        """Half the instructions of two polynomials: a register holds a coefficient for each quarter."""
        n, kind, ints = _WIDE, type_of(F32, _WIDE), type_of(I32, _WIDE)
        x = self._clamp(x, -erf_table.LIMIT, erf_table.LIMIT, n)
        size = self.intrinsic("fabs", F32, n, x)
        # The low bits of the sum count quarters, and four of them choose from a table.
        quarter = self._bits(self._mad(size, constant(4.0, F32, n), constant(_ROUND, F32, n), n), n)

        def chosen(table: tuple[float, ...]) -> str:
            entries = ", ".join(f"float {constant(entry, F32)}" for entry in table)
            arguments = f"{kind} <{entries}>, {ints} {quarter}"
            return self.call(kind, "llvm.x86.avx512.permvar.sf.512", f"{kind}, {ints}", arguments)

        r = self._do("fsub", size, chosen(erf_table.CENTERS), n)
        *rest, out = map(chosen, erf_table.COEFFICIENTS)
        for coefficient in reversed(rest):
            out = self._mad(out, r, coefficient, n)
        return self._do("fmul", x, out, n)

    def _widened(self, x: str, n: int) -> str:
        """`x` in the first lanes of a full vector, zeros after it."""
        if n == _WIDE:
            return x
        if not n:
            return self.op(f"insertelement {type_of(F32, _WIDE)} zeroinitializer, float {x}, i64 0")
        lanes = ", ".join(f"i32 {min(lane, n)}" for lane in range(_WIDE))
        kind = type_of(F32, n)
        return self.op(f"shufflevector {kind} {x}, {kind} zeroinitializer, <{_WIDE} x i32> <{lanes}>")

    def _narrowed(self, x: str, n: int) -> str:
        """The first lanes of a full vector."""
        kind = type_of(F32, _WIDE)
        if n in (0, _WIDE):
            return x if n else self.op(f"extractelement {kind} {x}, i64 0")
        lanes = ", ".join(f"i32 {lane}" for lane in range(n))
        return self.op(f"shufflevector {kind} {x}, {kind} poison, <{n} x i32> <{lanes}>")

    def _join(self, x: str, size: str, limit: float, small: str, below: str, n: int) -> str:
        """With the sign of x: `small` for `size` (|x|) up to `limit`, else 1 - `below`."""
        large = self._do("fsub", constant(1.0, F32, n), below, n)
        beyond = self._do("fcmp ogt", size, constant(limit, F32, n), n)
        return self.intrinsic("copysign", F32, n, self.select(beyond, large, small, F32, n), x)

    def _sigmoid(self, x: str, n: int) -> str:
        # e / (e + 1) keeps the tiny results that 1 / (1 + exp(-x)) loses to overflow; exp(87) < 2**126.
        power = self._bounded_exp(self._clamp(x, -104.0, 87.0, n), n, vanishes=True)
        return self._quotient(power, self._do("fadd", power, constant(1.0, F32, n), n), n)

    def _quotient(self, a: str, b: str, n: int) -> str:
        """`a / b` for b within [1, 2**126], or NaN; to 1 ulp where a reciprocal to 14 bits spares a division.

        One step of Newton's makes those 28; a division of 16 lanes takes as long as 32 multiply-adds (Golden
        Cove; Fog, Instruction tables).
        """
        if self.target.isa != "avx512" or n != 16:
            return self._do("fdiv", a, b, n)
        kind = type_of(F32, n)
        arguments = f"{kind} {b}, {kind} zeroinitializer, i16 -1"
        near = self.call(kind, "llvm.x86.avx512.rcp14.ps.512", f"{kind}, {kind}, i16", arguments)
        negated = self.op(f"fneg {kind} {b}")
        left = self._mad(negated, near, constant(1.0, F32, n), n)
        return self._do("fmul", a, self._mad(near, left, near, n), n)
