# mypy: ignore-errors
"""Functions that generated kernels call; their text is copied into each kernel's module.

The polynomials and their errors are those of the CPU's (onepass.targets.llvm.math): Triton's own exp2, log2
and division are approximations of the hardware, and its interpreter's are not. All take float32.
"""

import triton
import triton.language as tl


@triton.jit
def larger(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Maximum; NaN where either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smaller(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Minimum; NaN where either is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def product(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """For reductions."""
    return a * b


@triton.jit
def scaled(x: tl.tensor, power: tl.tensor) -> tl.tensor:
    """x * 2**power for an integral float in [-151, 129], in two steps: 2**power alone may not exist."""
    whole = tl.where(power == power, power, 0.0).to(tl.int32)
    half = whole >> 1
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    second = ((whole - half + 127) << 23).to(tl.float32, bitcast=True)
    return x * first * second


@triton.jit
def exp(x: tl.tensor) -> tl.tensor:
    """e**x; error below 1.5 ulp."""
    x = tl.where(x > 89.0, 89.0, tl.where(x < -104.0, -104.0, x))
    n = tl.floor(tl.fma(x, 1.4426950408889634, 0.5))
    r = tl.fma(n, -0.693359375, x)
    r = tl.fma(n, 2.12194440054690583e-4, r)
    p = tl.fma(r, 0.0013821468455716968, 0.008368662558495998)
    p = tl.fma(p, r, 0.041668254882097244)
    p = tl.fma(p, r, 0.1666652113199234)
    p = tl.fma(p, r, 0.4999999403953552)
    p = tl.fma(p, r, 1.0)
    p = tl.fma(p, r, 1.0)
    return scaled(p, n)


@triton.jit
def sigmoid(x: tl.tensor) -> tl.tensor:
    """1 / (1 + e**-x) as e**x / (e**x + 1), which keeps tiny results; error below 3 ulp."""
    power = exp(tl.where(x > 88.0, 88.0, x))
    return tl.div_rn(power, power + 1.0)


@triton.jit
def signed(size: tl.tensor, x: tl.tensor) -> tl.tensor:
    """`size` with the sign of x."""
    sign = x.to(tl.int32, bitcast=True) & -2147483648
    return ((size.to(tl.int32, bitcast=True) & 2147483647) | sign).to(tl.float32, bitcast=True)


@triton.jit
def tanh(x: tl.tensor) -> tl.tensor:
    """Hyperbolic tangent; error below 2 ulp."""
    size = tl.abs(x)
    s = x * x
    p = tl.fma(s, -0.005697317887097597, 0.0206317026168108)
    p = tl.fma(p, s, -0.05373726412653923)
    p = tl.fma(p, s, 0.1333141028881073)
    p = tl.fma(p, s, -0.3333328068256378)
    near = tl.fma(p * s, size, size)
    far = 1.0 - tl.div_rn(2.0, exp(size + size) + 1.0)
    return signed(tl.where(size > 0.625, far, near), x)


@triton.jit
def erf(x: tl.tensor) -> tl.tensor:
    """Error function; error below 2 ulp."""
    size = tl.abs(x)
    s = x * x
    p = tl.fma(s, 7.996649947017431e-05, -0.0008049769676290452)
    p = tl.fma(p, s, 0.005192405078560114)
    p = tl.fma(p, s, -0.02685573138296604)
    p = tl.fma(p, s, 0.11283625662326813)
    p = tl.fma(p, s, -0.3761262893676758)
    p = tl.fma(p, s, 0.12837916612625122)
    near = tl.fma(p, size, size)
    a = tl.where(size > 4.0, 4.0, size)
    q = tl.fma(a, 0.000213991166674532, -0.0032149909529834986)
    q = tl.fma(q, a, 0.022890038788318634)
    q = tl.fma(q, a, -0.1052619144320488)
    q = tl.fma(q, a, -0.6357182860374451)
    q = tl.fma(q, a, -0.128514364361763)
    far = 1.0 - exp(tl.fma(q, a, -a))
    return signed(tl.where(size > 0.93, far, near), x)


@triton.jit
def log(x: tl.tensor) -> tl.tensor:
    """Natural logarithm; error below 1.5 ulp."""
    tiny = x < 1.1754943508222875e-38
    bits = tl.where(tiny, x * 8388608.0, x).to(tl.int32, bitcast=True)
    power = (bits - 0x3F3504F3) >> 23
    n = power.to(tl.float32) - tl.where(tiny, 23.0, 0.0)
    f = (bits - (power << 23)).to(tl.float32, bitcast=True) - 1.0
    p = tl.fma(f, -0.0763639509677887, 0.12762197852134705)
    p = tl.fma(p, f, -0.1315961331129074)
    p = tl.fma(p, f, 0.14201581478118896)
    p = tl.fma(p, f, -0.166234090924263)
    p = tl.fma(p, f, 0.2000124156475067)
    p = tl.fma(p, f, -0.2500081956386566)
    p = tl.fma(p, f, 0.3333333134651184)
    square = f * f
    y = tl.fma(n, -2.12194440054690583e-4, square * f * p)
    y = tl.fma(n, 0.693359375, f + tl.fma(square, -0.5, y))
    y = tl.where(x < float("inf"), y, x)
    return tl.where(x > 0.0, y, tl.where(x == 0.0, float("-inf"), tl.where(x == x, float("nan"), x)))


@triton.jit
def rounded(x: tl.tensor) -> tl.tensor:
    """Nearest integer, halves to the even one."""
    whole = tl.floor(x)
    rest = x - whole
    odd = whole - 2.0 * tl.floor(whole * 0.5)
    up = (rest > 0.5) | ((rest == 0.5) & (odd == 1.0))
    found = whole + tl.where(up, 1.0, 0.0)
    return tl.where(tl.abs(x) < 8388608.0, tl.where((x < 0.0) & (found == 0.0), -0.0, found), x)


@triton.jit
def truncated(x: tl.tensor) -> tl.tensor:
    """Towards zero."""
    found = tl.floor(tl.abs(x))
    return tl.where((x < 0.0) | ((x == 0.0) & (x.to(tl.int32, bitcast=True) < 0)), -found, found)


@triton.jit
def power(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """a**b of float32 by way of float64; a negative base needs a whole exponent."""
    size = tl.exp(b.to(tl.float64) * tl.log(tl.abs(a).to(tl.float64))).to(tl.float32)
    whole = tl.floor(b) == b
    odd = whole & (tl.floor(b * 0.5) * 2.0 != b)
    found = tl.where((a < 0.0) & odd, -size, size)
    found = tl.where((a < 0.0) & (a > float("-inf")) & (whole == 0), float("nan"), found)
    one = (b == 0.0) | (a == 1.0) | ((a == -1.0) & (tl.abs(b) == float("inf")))
    return tl.where(one, 1.0, found)
