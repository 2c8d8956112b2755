"""Index algebra: sums of integer multiples of atoms, with floordiv and mod resolved by ranges.

`simplify` is what makes one generator serve every layout: an access such as
`(16*block + lane) // 16` becomes `block` because the lane is known to lie in [0, 16).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onepass.core.dtypes import BOOL, I64
from onepass.loops.build import add, mul
from onepass.loops.ir import COMPARISONS, Binary, Const, Expr, Index, Select
from onepass.loops.walk import children, rebuild

Range = tuple[int, int]
Ranges = Mapping[str, Range]
UNKNOWN: Range = (-(1 << 62), 1 << 62)


@dataclass(frozen=True, slots=True)
class Linear:
    """`const + sum(coefficient * atom)`; an atom is a loop variable or an irreducible expression."""

    const: int
    terms: tuple[tuple[Expr, int], ...]


def _combine(parts: list[tuple[Linear, int]]) -> Linear:
    const = 0
    total: dict[Expr, int] = {}
    for part, factor in parts:
        const += part.const * factor
        for atom, coefficient in part.terms:
            total[atom] = total.get(atom, 0) + coefficient * factor
    form = Linear(const, tuple((atom, c) for atom, c in total.items() if c))
    return _recombine(form) if any(_is_mod(atom) for atom, _ in form.terms) else form


def _is_mod(expr: Expr) -> bool:
    return isinstance(expr, Binary) and expr.op == "mod"


def _recombine(form: Linear) -> Linear:
    """`d*c*(e // d) + c*(e % d)` is `c*e`: undoes the split of a flattened index."""
    quotients = {
        (atom.a, atom.b): (atom, c)
        for atom, c in form.terms
        if isinstance(atom, Binary) and atom.op == "floordiv" and isinstance(atom.b, Const)
    }
    for atom, c in form.terms:
        if not (isinstance(atom, Binary) and atom.op == "mod" and isinstance(atom.b, Const)):
            continue
        quotient = quotients.get((atom.a, atom.b))
        if quotient is not None and quotient[1] == c * int(atom.b.value):
            rest = tuple(term for term in form.terms if term[0] not in (atom, quotient[0]))
            return _combine([(Linear(form.const, rest), 1), (linear(atom.a, {}), c)])
    return form


def range_of(expr: Expr, ranges: Ranges) -> Range:
    """Inclusive bounds of an index expression."""
    match expr:
        case Const():
            return int(expr.value), int(expr.value)
        case Index():
            return ranges.get(expr.name, UNKNOWN)
        case Binary(op="floordiv", a=a, b=Const(value=d)) if d > 0:
            low, high = range_of(a, ranges)
            return low // int(d), high // int(d)
        case Binary(op="mod", b=Const(value=d)) if d > 0:
            return 0, int(d) - 1
        case Binary(op="min" | "max" as op, a=a, b=b):
            choose = min if op == "min" else max
            (a_low, a_high), (b_low, b_high) = range_of(a, ranges), range_of(b, ranges)
            return choose(a_low, b_low), choose(a_high, b_high)
        case Binary(op="add" | "sub" | "mul"):
            return _linear_range(linear(expr, ranges), ranges)
        case _:
            return UNKNOWN


def _linear_range(form: Linear, ranges: Ranges) -> Range:
    low = high = form.const
    for atom, coefficient in form.terms:
        a, b = range_of(atom, ranges) if not _is_sum(atom) else UNKNOWN
        low += min(a * coefficient, b * coefficient)
        high += max(a * coefficient, b * coefficient)
    return low, high


def _is_sum(expr: Expr) -> bool:
    return isinstance(expr, Binary) and expr.op in ("add", "sub", "mul")


def linear(expr: Expr, ranges: Ranges) -> Linear:
    """`expr` (int64) as a linear form, its floordiv and mod by literals resolved where ranges allow."""
    match expr:
        case Const():
            return Linear(int(expr.value), ())
        case Binary(op="add", a=a, b=b):
            return _combine([(linear(a, ranges), 1), (linear(b, ranges), 1)])
        case Binary(op="sub", a=a, b=b):
            return _combine([(linear(a, ranges), 1), (linear(b, ranges), -1)])
        case Binary(op="mul", a=a, b=b):
            left, right = linear(a, ranges), linear(b, ranges)
            if not right.terms:
                return _combine([(left, right.const)])
            if not left.terms:
                return _combine([(right, left.const)])
            return _atom(Binary("mul", to_expr(left), to_expr(right), I64))
        case Binary(op="floordiv", a=a, b=Const(value=d)) if d > 0:
            return _floordiv(linear(a, ranges), int(d), ranges)
        case Binary(op="mod", a=a, b=Const(value=d)) if d > 0:
            return _mod(linear(a, ranges), int(d), ranges)
        case Binary(op="min" | "max" as op, a=a, b=b):
            left, right = linear(a, ranges), linear(b, ranges)
            low, high = _linear_range(_combine([(left, 1), (right, -1)]), ranges)
            if low >= 0:
                return left if op == "max" else right
            if high <= 0:
                return right if op == "max" else left
            return _atom(Binary(op, to_expr(left), to_expr(right), I64))
        case Index():
            low, high = ranges.get(expr.name, UNKNOWN)
            return Linear(low, ()) if low == high else _atom(expr)
        case _:
            return _atom(rebuild(expr, tuple(simplify(e, ranges) for e in children(expr))))


def _atom(expr: Expr) -> Linear:
    return Linear(0, ((expr, 1),))


def _divide(form: Linear, d: int, ranges: Ranges) -> tuple[Linear, Linear]:
    """`form = d * quotient + remainder`, the remainder as small as its terms allow."""
    quotient = tuple((atom, c // d) for atom, c in form.terms if c % d == 0)
    rest = tuple((atom, c) for atom, c in form.terms if c % d)
    remainder = Linear(form.const % d, rest)
    low, high = _linear_range(remainder, ranges)
    shift = low // d if low // d == high // d else 0
    return Linear(form.const // d + shift, quotient), Linear(form.const % d - shift * d, rest)


def _is_within(form: Linear, d: int, ranges: Ranges) -> bool:
    low, high = _linear_range(form, ranges)
    return low >= 0 and high < d


def _split(form: Linear, d: int, ranges: Ranges) -> tuple[int, Linear, Linear]:
    """`form = g * coarse + fine` with g the largest divisor of `d` found for which 0 <= fine < g."""
    for g in sorted({math.gcd(d, c) for _, c in form.terms}, reverse=True):
        coarse = Linear(form.const // g, tuple((atom, c // g) for atom, c in form.terms if c % g == 0))
        fine = Linear(form.const % g, tuple((atom, c) for atom, c in form.terms if c % g))
        if _is_within(fine, g, ranges):
            return g, coarse, fine
    return 1, form, Linear(0, ())


def _floordiv(form: Linear, d: int, ranges: Ranges) -> Linear:
    quotient, remainder = _divide(form, d, ranges)
    if _is_within(remainder, d, ranges):
        return quotient
    g, coarse, _ = _split(remainder, d, ranges)
    inner, divisor = to_expr(coarse), d // g
    if divisor > 1 and isinstance(inner, Binary) and inner.op == "floordiv" and isinstance(inner.b, Const):
        divisor, inner = divisor * int(inner.b.value), inner.a
    part = _atom(Binary("floordiv", inner, Const(divisor), I64)) if divisor > 1 else coarse
    return _combine([(quotient, 1), (part, 1)])


def _mod(form: Linear, d: int, ranges: Ranges) -> Linear:
    _, remainder = _divide(form, d, ranges)
    if _is_within(remainder, d, ranges):
        return remainder
    g, coarse, fine = _split(remainder, d, ranges)
    part = _atom(Binary("mod", to_expr(coarse), Const(d // g), I64)) if d > g else Linear(0, ())
    return _combine([(part, g), (fine, 1)])


def _order(term: tuple[Expr, int]) -> tuple[int, str]:
    atom, coefficient = term
    return (-abs(coefficient), atom.name if isinstance(atom, Index) else repr(atom))


def to_expr(form: Linear) -> Expr:
    """The expression of a linear form, its terms in a canonical order."""
    total: Expr = Const(0)
    for atom, coefficient in sorted(form.terms, key=_order):
        total = add(total, mul(atom, coefficient))
    return add(total, form.const)


def decide(op: str, low: int, high: int) -> bool | None:
    """`x op 0` for every x in [low, high], None where it is not the same for all."""
    always, never = {
        "lt": (high < 0, low >= 0), "le": (high <= 0, low > 0),
        "gt": (low > 0, high <= 0), "ge": (low >= 0, high < 0),
        "eq": (low == high == 0, low > 0 or high < 0), "ne": (low > 0 or high < 0, low == high == 0),
    }[op]  # fmt: skip
    return True if always else False if never else None


def _compare(expr: Binary, ranges: Ranges) -> Expr:
    difference = _combine([(linear(expr.a, ranges), 1), (linear(expr.b, ranges), -1)])
    low, high = _linear_range(difference, ranges)
    verdict = decide(expr.op, low, high)
    if verdict is not None:
        return Const(verdict, BOOL)
    coarse = _coarse(expr, difference, ranges)
    return coarse or Binary(expr.op, simplify(expr.a, ranges), simplify(expr.b, ranges), BOOL)


def _coarse(expr: Binary, difference: Linear, ranges: Ranges) -> Expr | None:
    """`16*block + lane < 48` is `block < 3`: an order that all lanes of a block share; None where none is."""
    strict = expr.op in ("lt", "ge")
    if expr.op in ("eq", "ne"):
        return None
    form = difference if strict else Linear(difference.const - 1, difference.terms)
    step, coarse, fine = _split(form, 0, ranges)
    if step == 1 or not fine.terms:
        return None
    rest = to_expr(Linear(0, coarse.terms))
    return Binary("lt" if expr.op in ("lt", "le") else "ge", rest, Const(-coarse.const), BOOL)


def _logic(expr: Binary, ranges: Ranges) -> Expr:
    a, b = simplify(expr.a, ranges), simplify(expr.b, ranges)
    for known, other in ((a, b), (b, a)):
        if isinstance(known, Const):
            absorbs = bool(known.value) == (expr.op == "or")
            return known if absorbs else other
    return Binary(expr.op, a, b, BOOL)


def simplify(expr: Expr, ranges: Ranges) -> Expr:
    """An equal expression with its index arithmetic in canonical form and decided guards removed.

    `ranges` gives inclusive bounds of loop variables; one with equal bounds becomes a literal.
    """
    match expr:
        case Const():
            return expr
        case Index():
            return to_expr(linear(expr, ranges))
        case Binary() if expr.op in COMPARISONS and expr.a.dtype == I64:
            return _compare(expr, ranges)
        case Binary() if expr.op in ("and", "or") and expr.dtype == BOOL:
            return _logic(expr, ranges)
        case Binary() if expr.op in _INDEX_OPS and expr.dtype == I64:
            return to_expr(linear(expr, ranges))
        case Select():
            condition = simplify(expr.condition, ranges)
            if isinstance(condition, Const):
                return simplify(expr.yes if condition.value else expr.no, ranges)
            return Select(condition, simplify(expr.yes, ranges), simplify(expr.no, ranges), expr.dtype)
        case _:
            return rebuild(expr, tuple(simplify(e, ranges) for e in children(expr)))


_INDEX_OPS = frozenset({"add", "sub", "mul", "floordiv", "mod", "min", "max"})
