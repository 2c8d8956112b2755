"""Expressions of the loop IR as Triton source over tiles.

In: an `Expr` whose loop variables are tiles (`tl.arange`) or scalars. Out: text, and lines in front of it
that name what is read or used more than once. Every value knows along which dimensions of the tile it
varies, so that a load gets only the masks that it needs.

Meaning is kept: a guard becomes the mask of the loads that it protects, division and square root round
correctly, maxima pass NaN on, integer division by zero gives 0. bfloat16 values are computed in float32 and
rounded after each operation; bools lie in memory as bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

from onepass.core.dtypes import BF16, BOOL, F16, F32, F64, I8, I32, I64, DType
from onepass.core.errors import ModelError
from onepass.forms.resolve import Indices, Resolver
from onepass.loops.affine import range_of
from onepass.loops.build import add, mul
from onepass.loops.ir import Binary, Cast, Const, Expr, Fma, Index, Load, Select, Unary
from onepass.loops.ir import Buffer as Param
from onepass.ops.opdef import Compute

SMALL_FLOATS = (F16, BF16)
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "eq": "==", "ne": "!=",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
_POWERS = {2.0: "({0} * {0})", 3.0: "({0} * {0} * {0})", 1.0: "{0}"}
_FLOAT_UNARY = {  # float32, then float64; {0} is the operand
    "sqrt": ("tl.sqrt_rn({0})", "tl.sqrt({0})"), "floor": ("tl.floor({0})",) * 2,
    "ceil": ("tl.ceil({0})",) * 2, "exp": ("exp({0})", "tl.exp({0})"), "log": ("log({0})", "tl.log({0})"),
    "erf": ("erf({0})", "tl.erf({0})"),
    "tanh": ("tanh({0})", ""), "sigmoid": ("sigmoid({0})", "(1.0 / (1.0 + tl.exp(-{0})))"),
    "round": ("rounded({0})", ""), "trunc": ("truncated({0})", ""),
    "sin": ("tl.sin({0}.to(tl.float64)).to(tl.float32)", "tl.sin({0})"),
    "cos": ("tl.cos({0}.to(tl.float64)).to(tl.float32)", "tl.cos({0})"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of source; `dims`: the dimensions of the tile along which its value varies."""

    text: str
    dims: frozenset[int] = frozenset()


SCALAR: frozenset[int] = frozenset()


def identifier(name: str) -> str:
    """The user's `name` as a Python identifier of at most 42 characters that a kernel uses for nothing else.

    What kernels name themselves has no underscore, ends with `_inside` or `_part`, or starts with `acc`;
    `x` and `place` are numbered where they are taken.
    """
    found = re.sub(r"\W+", "_", name).strip("_")[:40]
    apart = "_" in found and found[0].isalpha() and not found.startswith("acc")
    apart = apart and not found.endswith(("_inside", "_part"))
    return found if apart or found in ("x", "place") else f"v_{found}"


class Printer:
    """Lines of a kernel under construction.

    `variables`: the text of each loop variable; `masks`: for a dimension of the tile that its last block
    overhangs, the text that tells which places exist. `whole`: buffers padded to whole blocks. `shape`: that
    of the tile. `bytes_in_flight`: what a program's loads move that none of them waits for another.
    """

    def __init__(self, resolver: Resolver) -> None:
        self.resolver = resolver
        self.lines: list[str] = []
        self.variables: dict[str, Text] = {}
        self.masks: dict[int, Text] = {}
        self.functions: set[str] = set()
        self.whole: set[str] = set()
        self.shape: tuple[int, ...] = ()
        self.bytes_in_flight = 0
        self._held: list[tuple[str, int, int]] = []  # a tile's name, the line that makes it, its words
        self._loops: list[tuple[int, int]] = []  # first and last line
        self._depth = 1
        self._names: set[str] = {"tl", "triton"}
        self._memo: dict[tuple[Expr, Text | None], Text] = {}
        self._values: dict[str, Text] = {}
        self._places: dict[str, tuple[str, Expr]] = {}
        for stage in resolver.body.stages:
            if not stage.reduce_axes:
                resolver.bound[stage.name] = self._placed(stage)

    def _placed(self, stage: Compute) -> Callable[[Indices], Expr]:
        """How a stage is read: as a tile of its own at each place, computed where it is first needed."""
        labels: dict[Indices, Load] = {}

        def read(indices: Indices) -> Expr:
            if indices not in labels:
                label = f"{stage.name}@{len(labels)}"
                body = self.resolver.inlined(stage.name, indices)
                labels[indices] = Load(label, (), body.dtype)
                self._places[label] = (stage.name, self.resolver.simplify(body))
            return labels[indices]

        return read

    def bind(self, stage: Compute, text: Text, at: Indices) -> None:
        """The reduction `stage` has been computed at `at`: it is `text` from here on."""
        label = f"{stage.name}@"
        self._values[label] = text

        def read(indices: Indices) -> Expr:
            if indices != at:
                raise KeyError(stage.name)
            return Load(label, (), stage.dtype)

        self.resolver.bound[stage.name] = read

    def line(self, text: str) -> None:
        """Adds a line to the block in work."""
        self.lines.append("    " * self._depth + text)

    def name(self, wanted: str) -> str:
        """`wanted`, or that with a number where it is taken."""
        wanted, found, number = identifier(wanted), identifier(wanted), 1
        while found in self._names:
            number += 1
            found = f"{wanted}_{number}"
        self._names.add(found)
        return found

    def assign(self, wanted: str, text: Text, dtype: DType) -> Text:
        """A line that gives `text` a name."""
        name = self.name(wanted)
        self.hold(name, text.dims, dtype)
        self.line(f"{name} = {text.text}")
        return Text(name, text.dims)

    def hold(self, name: str, dims: frozenset[int], dtype: DType) -> None:
        """The next line makes the tile `name`."""
        size = 4 if dtype == BF16 else dtype.size_bytes
        self._held.append((name, len(self.lines), -(-self._elements(dims) * size // 4)))

    def _elements(self, dims: frozenset[int]) -> int:
        return math.prod(extent for dim, extent in enumerate(self.shape) if dim in dims)

    def live_words(self) -> int:
        """The most words of 32 bits in named tiles that are needed at once, over all lines."""
        last = {word: at for at, line in enumerate(self.lines) for word in re.findall(r"\w+", line)}
        changes = [0] * (len(self.lines) + 1)
        for name, made, words in self._held:
            read = last[name]
            ends = [end for first, end in self._loops if made < first <= read <= end]
            changes[made] += words
            changes[max([read, *ends])] -= words
        return max(accumulate(changes))

    @contextmanager
    def block(self, header: str, stages: int = 1) -> Iterator[None]:
        """An indented loop; what is named in it is forgotten after it. `stages` of it load at a time."""
        self.line(header)
        memo, values = dict(self._memo), dict(self._values)
        outside, self.bytes_in_flight, first = self.bytes_in_flight, 0, len(self.lines)
        self._depth += 1
        yield
        self._depth -= 1
        self._memo, self._values = memo, values
        self._loops.append((first, len(self.lines) - 1))
        self.bytes_in_flight = max(outside, stages * self.bytes_in_flight)

    @contextmanager
    def view(self, variables: Mapping[str, Text], masks: Mapping[int, Text]) -> Iterator[None]:
        """Within it the loop variables lie along other dimensions of the tile."""
        held = self.variables, self.masks, self._memo, self._values
        self.variables, self.masks = {**self.variables, **variables}, dict(masks)
        self._memo, self._values = {}, dict(self._values)
        yield
        self.variables, self.masks, self._memo, self._values = held

    def mask(self, dims: frozenset[int], guard: Text | None = None) -> Text | None:
        """The mask of an access that varies along `dims`, None where all of it exists."""
        parts = [self.masks[dim] for dim in sorted(dims) if dim in self.masks] + ([guard] if guard else [])
        if not parts:
            return None
        text = " & ".join(part.text for part in parts)
        return Text(text, frozenset().union(*(part.dims for part in parts)))

    def store(self, buffer: Param, indices: Indices, value: Expr) -> None:
        """Stores `value` of the whole tile."""
        found = self.value(value)
        where = self._address(buffer, indices, None)
        dims = where.dims | found.dims
        if where.dims != dims:  # an axis of one place: the tile's other places must not be written
            spread = "tl.broadcast_to({0}, {1})" if where.dims else "tl.full({1}, {0}, tl.int32)"
            where = Text(spread.format(where.text, self.shape), dims)
        mask = self.mask(dims)
        text = f"{found.text}.to(tl.int8)" if buffer.dtype == BOOL else found.text
        end = f", mask={mask.text})" if mask else ")"
        self.line(f"tl.store({buffer.name} + {where.text}, {text}{end}")

    def value(self, expr: Expr, guard: Text | None = None) -> Text:
        """The text of `expr`; where `guard` is false its value is not used and nothing is read."""
        match expr:
            case Const():
                return Text(_literal(expr))
            case Index():
                return self.variables[expr.name]
            case Load(buffer=label) if label in self._places or label in self._values:
                return self._stage(label, guard)
        key = (expr, guard)
        if key not in self._memo:
            self._memo[key] = self._computed(expr, guard)
        return self._memo[key]

    def _stage(self, label: str, guard: Text | None) -> Text:
        if label in self._values:
            return self._values[label]
        name, body = self._places[label]
        if isinstance(body, Const):  # with its type: operations on literals alone would be Python's
            return self.value(Cast(body, body.dtype))
        found = self.value(body, guard)
        if found.text.isidentifier():
            return found
        found = self.assign(name, found, body.dtype)
        if guard is None:
            self._values[label] = found
        return found

    def _computed(self, expr: Expr, guard: Text | None) -> Text:
        match expr:
            case Load():
                return self._load(expr, guard, 0)
            case Select():
                return self._select(expr, guard)
            case Unary():
                return self._unary(expr, self.value(expr.x, guard))
            case Cast():
                return self._cast(expr, self.value(expr.x, guard))
            case Fma():
                a, b, c = (self.value(e, guard) for e in (expr.a, expr.b, expr.c))
                dims = a.dims | b.dims | c.dims
                if expr.dtype in SMALL_FLOATS:
                    a, b, c = (_wide(part, expr.dtype) for part in (a, b, c))
                if not expr.dtype.is_float:
                    return Text(f"({a.text} * {b.text} + {c.text})", dims)
                return self._rounded(Text(f"tl.fma({a.text}, {b.text}, {c.text})", dims), expr.dtype)
            case Binary():
                a, b = self.value(expr.a, guard), self.value(expr.b, guard)
                found = Text(self._binary(expr, a, b), a.dims | b.dims)
                if expr.op in ("floordiv", "mod") and expr.dtype == I64 and found.dims:
                    return self.assign("place", found, I32)
                return found
        raise TypeError(f"{type(expr).__name__} in a kernel of tiles")

    def _address(self, buffer: Param, indices: Indices, guard: Text | None) -> Text:
        total: Expr = Const(0)
        for index, extent in zip(indices, buffer.shape, strict=True):
            total = add(mul(total, extent), index)
        return self.value(self.resolver.simplify(total), guard)

    def _load(self, load: Load, guard: Text | None, other: object) -> Text:
        buffer = next(param for param in self.resolver.params.values() if param.name == load.buffer)
        where = self._address(buffer, load.indices, guard)
        mask = self.mask(SCALAR if buffer.name in self.whole else where.dims, guard)
        if mask is not None and mask.dims - where.dims:
            place = where.text if where.dims else f"tl.full((), {where.text}, tl.int32)"
            where = Text(f"tl.where({mask.text}, {place}, 0)", where.dims | mask.dims)
        text = f"tl.load({buffer.name} + {where.text}" + (
            f", mask={mask.text}, other={other})" if mask else ")"
        )
        if buffer.dtype == BOOL:
            text = f"({text} != 0)"
        if buffer.dtype == BF16:
            text += ".to(tl.float32)"
        self.bytes_in_flight += self._elements(where.dims) * buffer.dtype.size_bytes
        return self.assign("x", Text(text, where.dims), buffer.dtype)

    def _select(self, expr: Select, guard: Text | None) -> Text:
        condition = self.value(expr.condition, guard)
        both = condition if guard is None else Text(
            f"{guard.text} & {condition.text}", guard.dims | condition.dims
        )
        inner = expr.yes
        tiles = self._places.keys() | self._values.keys()
        if isinstance(inner, Load) and inner.buffer not in tiles and isinstance(expr.no, Const):
            found = self._load(inner, both, _literal(expr.no) if expr.dtype != BOOL else 0)
            if expr.dtype != BOOL or not expr.no.value:
                return found
        yes, no = self.value(expr.yes, both), self.value(expr.no, guard)
        dims = condition.dims | yes.dims | no.dims
        if isinstance(expr.yes, Const):
            yes = Text(f"tl.full((), {yes.text}, {_triton(expr.dtype)})")
        return Text(f"tl.where({condition.text}, {yes.text}, {no.text})", dims)

    def _rounded(self, found: Text, dtype: DType) -> Text:
        """`found`, a float32, as the tile of a value of `dtype`."""
        if dtype == BF16:
            return Text(f"{found.text}.to(tl.bfloat16).to(tl.float32)", found.dims)
        return Text(f"{found.text}.to(tl.float16)", found.dims) if dtype == F16 else found

    def _call(self, text: str) -> str:
        self.functions.update(re.findall(r"\b([a-z]+)\(", text))
        return text

    def _unary(self, expr: Unary, x: Text) -> Text:
        kind = expr.x.dtype
        match expr.op:
            case "neg":
                return Text(f"(-{x.text})", x.dims)
            case "abs":
                return Text(f"tl.abs({x.text})" if kind != BOOL else x.text, x.dims)
            case "not":
                return Text(f"({x.text} == 0)" if kind == BOOL else f"(~{x.text})", x.dims)
            case "is_nan":
                return Text(f"({x.text} != {x.text})", x.dims)
            case "is_inf":
                return Text(f'(tl.abs({x.text}) == float("inf"))', x.dims)
            case "sign":
                return Text(f"tl.where({x.text} > 0, 1, tl.where({x.text} < 0, -1, {x.text}))", x.dims)
        pattern = _FLOAT_UNARY.get(expr.op, ("", ""))[kind == F64] if kind.is_float else ""
        if not pattern:
            raise _unsupported(f"{expr.op} of {kind}")
        wide = _wide(x, kind) if kind in SMALL_FLOATS else x
        if isinstance(expr.x, Const):
            wide = Text(f"tl.full((), {x.text}, tl.float32)")
        return self._rounded(Text(self._call(pattern.format(wide.text)), x.dims), kind)

    def _cast(self, expr: Cast, x: Text) -> Text:
        source, dtype = expr.x.dtype, expr.dtype
        if isinstance(expr.x, Const):
            return Text(f"tl.full((), {x.text}, {_triton(dtype)})")
        if dtype == BOOL:
            return Text(f"({x.text} != 0)", x.dims)
        text = f"{x.text}.to({_triton(dtype)})"
        if dtype == BF16:
            text = f"{x.text}.to(tl.bfloat16).to(tl.float32)"
        elif source == BF16 and dtype == F32:
            text = x.text
        elif source.is_float and dtype.kind == "uint":  # as C: by way of a wide signed integer
            text = f"{x.text}.to(tl.int64).to({_triton(dtype)})"
        return Text(text, x.dims)

    def _binary(self, expr: Binary, a: Text, b: Text) -> str:
        kind = expr.a.dtype
        if expr.op in _INFIX:
            text = f"({a.text} {_INFIX[expr.op]} {b.text})"
            return self._rounded(Text(text), BF16).text if expr.dtype == BF16 else text
        if expr.op in ("max", "min"):
            name = {"max": ("tl.maximum", "larger"), "min": ("tl.minimum", "smaller")}[expr.op]
            return self._call(f"{name[kind.is_float]}({a.text}, {b.text})")
        return self._float_binary(expr, a, b) if kind.is_float else self._int_binary(expr, a.text, b.text)

    def _float_binary(self, expr: Binary, a: Text, b: Text) -> str:
        kind = expr.a.dtype
        small = kind in SMALL_FLOATS
        if small:
            a, b = (_wide(part, kind) for part in (a, b))
        x, y = a.text, b.text
        match expr.op:
            case "div":
                text = f"({x} / {y})" if kind == F64 else f"tl.div_rn({x}, {y})"
            case "fmod":
                text = f"({x} % {y})"
            case "mod":
                rest = f"({x} % {y})"
                moved = f"({rest} != 0) & (({rest} < 0) != ({y} < 0))"
                text = f"tl.where({moved}, {rest} + {y}, {rest})"
            case "pow" if isinstance(expr.b, Const) and float(expr.b.value) in _POWERS:
                text = _POWERS[float(expr.b.value)].format(x)
            case "pow" if kind != F64:
                x, y = (f"tl.full((), {t.text}, tl.float32)" if isinstance(e, Const) else t.text
                        for t, e in ((a, expr.a), (b, expr.b)))  # fmt: skip
                text = self._call(f"power({x}, {y})")
            case _:
                raise _unsupported(f"{expr.op} of {kind}")
        return self._rounded(Text(text), kind).text if small else text

    def _int_binary(self, expr: Binary, x: str, y: str) -> str:
        ranges = self.resolver.ranges
        known = isinstance(expr.b, Const) and int(expr.b.value) > 0
        positive = known and range_of(expr.a, ranges)[0] >= 0
        safe = y if known else f"tl.where({y} == 0, 1, {y})"
        match expr.op:
            case "floordiv" if positive:
                return f"({x} // {y})"
            case "mod" if positive:
                return f"({x} % {y})"
            case "mod" if known:
                return f"(({x} % {y} + {y}) % {y})"
            case "floordiv" if known:
                return f"(({x} - ({x} % {y} + {y}) % {y}) // {y})"
            case "div":
                return f"({x} // {y})" if known else f"tl.where({y} == 0, 0, {x} // {safe})"
            case "rem" | "fmod":
                return f"({x} % {y})" if known else f"tl.where({y} == 0, 0, {x} % {safe})"
            case "mod":
                rest = f"({x} % {safe})"
                moved = f"({rest} != 0) & (({rest} < 0) != ({y} < 0))"
                return f"tl.where({y} == 0, 0, tl.where({moved}, {rest} + {y}, {rest}))"
            case "shl":
                bits = expr.dtype.bits
                return f"tl.where(({y} < 0) | ({y} >= {bits}), 0, {x} << ({y} & {bits - 1}))"
            case "shr":
                bits = expr.dtype.bits
                return f"({x} >> tl.where(({y} < 0) | ({y} >= {bits}), {bits - 1}, {y}))"
        raise _unsupported(f"{expr.op} of {expr.dtype}")


def _unsupported(what: str) -> ModelError:
    return ModelError(
        f"{what} has no GPU code", why="Triton has no such function",
        remedy="run this model on the CPU (leave out the target)",
    )  # fmt: skip


def _wide(x: Text, dtype: DType) -> Text:
    """A value of float16 as float32; a bfloat16 one is that already."""
    literal = re.fullmatch(r"[-\d.e+]+|float\(.*\)", x.text)
    return x if dtype == BF16 or literal else Text(f"{x.text}.to(tl.float32)", x.dims)


def _triton(dtype: DType) -> str:
    """The Triton type that a tile of `dtype` has."""
    if dtype in (BOOL, BF16):
        return "tl.int1" if dtype == BOOL else "tl.float32"
    return f"tl.{dtype}"


def accumulator_type(dtype: DType) -> str:
    """The Triton type of a running total of `dtype`."""
    return _triton(dtype if dtype != BOOL else I8)


def _literal(constant: Const) -> str:
    if constant.dtype.is_float:
        value = float(constant.value)
        return repr(value) if value - value == 0 else f'float("{value}")'
    return repr(bool(constant.value) if constant.dtype == BOOL else int(constant.value))
